"""Weights in pickles, beside what torch (torch_files/make.py) and Paddle read; and pickles that
would run something."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import zipfile
from pathlib import Path

import numpy as np
import paddle
import pytest

from fleetbert.core.errors import UserError
from fleetbert.models import pickles, weight_files

FILES = Path(__file__).with_name("torch_files")


class Command:
    """A pickle of it runs a command when it is opened."""

    def __init__(self, command: str):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("file", ["zip.bin", "older.bin"])
def test_what_torch_saves(file, tmp_path):
    shutil.copyfile(FILES / file, tmp_path / "pytorch_model.bin")
    found = weight_files.read(tmp_path)
    with np.load(FILES / "expected.npz") as expected:
        assert {*found, "embeddings.position_ids"} == set(expected)
        for name, array in found.items():
            assert array.dtype == np.float32
            np.testing.assert_array_equal(array, expected[name], err_msg=name)


@pytest.mark.parametrize("protocol", [2, 4])
def test_what_paddle_saves(protocol, tmp_path):
    rng = np.random.default_rng(0)
    network = paddle.nn.Linear(3, 2)
    state = {
        **network.state_dict(),
        "turned": paddle.to_tensor(rng.normal(size=(2, 3)).astype(np.float32)).T,
        "array": np.asfortranarray(rng.normal(size=(2, 3))),
        "bfloat16": paddle.to_tensor([1.5, -2.0]).astype("bfloat16"),
    }
    path = tmp_path / "model_state.pdparams"
    paddle.save(state, str(path), protocol=protocol)
    found = weight_files.read(tmp_path)
    expected = paddle.load(str(path), return_numpy=True)
    assert set(found) == set(expected) == set(state)
    np.testing.assert_array_equal(found.pop("bfloat16"), [1.5, -2])
    for name, array in found.items():
        np.testing.assert_array_equal(array, expected[name].astype(np.float32), err_msg=name)


def test_large_arrays_of_paddles_older_protocols_come_in_parts(tmp_path):
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    found = {
        "w@@.0": array.ravel()[:8], "w@@.1": array.ravel()[8:],
        "UnpackBigParamInfor@@": {"w": {"OriginShape": (3, 4), "slices": ["w@@.0", "w@@.1"]}},
    }  # fmt: skip
    (tmp_path / "w.pdparams").write_bytes(pickle.dumps(found, 2))
    (name, read), = pickles.read(tmp_path / "w.pdparams").items()  # fmt: skip
    assert name == "w"
    np.testing.assert_array_equal(read, array)


def test_the_weights_in_what_a_trainer_saved(tmp_path):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    found = {"state_dict": {"model.w": array}, "epoch": 2, "optimizer_states": [{"lr": 0.1}]}
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(found, 2))
    (name, read), = weight_files.read(tmp_path).items()  # fmt: skip
    assert name == "model.w"
    np.testing.assert_array_equal(read, array)
    found["callbacks"] = Path("a")
    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(found, 2))
    with pytest.raises(UserError, match=r"was not run; .* save its state_dict alone: torch.save"):
        weight_files.read(tmp_path)


def test_shards(tmp_path):
    places = {"table": "first.bin", "half": "second.bin"}
    for file in places.values():
        shutil.copyfile(FILES / "zip.bin", tmp_path / file)
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))
    assert set(places) <= set(weight_files.read(tmp_path))


def write_malicious(path: Path, layout: str, command: str) -> None:
    content = pickle.dumps({"weight": Command(command)}, 2)
    if layout == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", content)
            archive.writestr("archive/byteorder", b"little")
    elif layout == "older":
        parts = [pickles.MAGIC, 1001, {"little_endian": True}]
        path.write_bytes(b"".join(pickle.dumps(part, 2) for part in parts) + content)
    else:
        path.write_bytes(content)


@pytest.mark.parametrize(
    ("file", "layout"),
    [
        ("pytorch_model.bin", "zip"),
        ("pytorch_model.bin", "older"),
        ("model_state.pdparams", "plain"),
    ],
)
def test_a_pickle_that_would_run_a_command_runs_nothing(file, layout, tmp_path):
    path, witness = tmp_path / file, tmp_path / "ran"
    write_malicious(path, layout, f"touch {witness}")
    if layout == "plain":  # the pickle is able to: opened as pickles are, it does
        pickle.loads(path.read_bytes())
        assert witness.exists()
        witness.unlink()
    with pytest.raises(UserError, match=rf"{file}: it names (posix|nt)\.system, which is no part"):
        weight_files.read(tmp_path)
    assert not witness.exists()


@pytest.mark.parametrize("name", ["builtins.eval", "torch.load", "numpy.load"])
def test_other_names_are_refused(name, tmp_path):
    module, function = name.rsplit(".", 1)
    content = f"c{module}\n{function}\n(S'1'\ntR.".encode()
    (tmp_path / "w.bin").write_bytes(content)
    with pytest.raises(UserError, match=f"it names {name}, which is no part of weights"):
        pickles.read(tmp_path / "w.bin")


def test_tensors_do_not_reach_beyond_their_storage():
    storage = np.arange(6, dtype=np.float32)
    np.testing.assert_array_equal(pickles._tensor(storage, 1, (2, 2), (2, 1)), [[1, 2], [3, 4]])
    beyond = [(0, (7,), (1,)), (5, (2,), (1,)), (-1, (2,), (1,)), (0, (2,), (-1,))]
    for offset, shape, strides in beyond:
        with pytest.raises(pickle.UnpicklingError):
            pickles._tensor(storage, offset, shape, strides)


@pytest.mark.parametrize("content", [b"", b"no pickle", pickle.dumps([1]), pickle.dumps({"a": 1})])
def test_damaged_files(content, tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(content)
    with pytest.raises(UserError, match=r"its weights cannot be read: .*pytorch_model\.bin"):
        weight_files.read(tmp_path)


def test_whole_numbers_are_no_weights(tmp_path):
    paddle.save({"w": paddle.to_tensor([1, 2])}, str(tmp_path / "model_state.pdparams"))
    with pytest.raises(UserError, match=r"w in .* is int64; weights of F64"):
        weight_files.read(tmp_path)

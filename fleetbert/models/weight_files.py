"""The files that hold weights in a model's folder: safetensors, PaddleNLP's or PyTorch's, whole or
sharded, in any floating type. What cannot be read here is refused with what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Callable, Dict

import numpy as np
from safetensors import deserialize, safe_open
from safetensors.numpy import load_file

from fleetbert.core import charset
from fleetbert.core.errors import UserError
from fleetbert.models import pickles
from fleetbert.models.pickles import BFLOAT16, numbers

Tensors = Dict[str, np.ndarray]

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
PADDLENLP, PYTORCH = "model_state.pdparams", "pytorch_model.bin"
BUFFERS = ("position_ids", "token_type_ids")  # end their names
FLOATING = ("F64", "F32", "F16", "BF16")
LFS = b"version https://git-lfs"  # begins what stands for a file that was not downloaded


def read(folder: Path) -> Tensors:
    """The weights in a folder in float32, as its files name and lay them out, without buffers."""
    for whole, read_file in READERS.items():
        path, index = folder / whole, folder / f"{whole}.index.json"
        if path.is_file():
            tensors = read_file(path)
            break
        if index.is_file():
            tensors = _read_shards(index, read_file)
            break
    else:
        raise UserError(_what_to_do(folder))
    # Buffers of old versions, no weights.
    tensors = {n: array for n, array in tensors.items() if not n.endswith(BUFFERS)}
    for tensor, array in tensors.items():
        if array.dtype.kind != "f":
            raise UserError(_no_weights(tensor, folder, str(array.dtype)))
        if not np.isfinite(array).all():
            raise UserError(
                f"{tensor} in its weights holds NaN or infinite values; take another copy of them"
            )
    return {name: array.astype(np.float32, copy=False) for name, array in tensors.items()}


def _no_weights(name: str, path: Path, kind: str) -> str:
    return (
        f"{name} in {path} is {kind}; weights of {', '.join(FLOATING)} are supported: take "
        "the model as it was before it was quantized"
    )


def without_config(folder: Path) -> str:
    """What to do about a folder that has no config.json."""
    if (folder / "manifest.json").is_file():
        return (
            f"{folder} is a bundle, which is only served; name the folder `model` of the run that "
            "wrote it"
        )
    if (folder / "adapter_config.json").is_file():
        return (
            f"{folder} is an adapter of PEFT without its model; merge both (merge_and_unload) and "
            "save that"
        )
    inner = sorted(path.parent for path in folder.glob("*/config.json"))
    if inner:
        return f"{folder} has no config.json, but {inner[0]} has one; name that folder"
    return (
        f"{folder} has no config.json, which says the model's shape; copy it from where the "
        "weights are from"
    )


def _read_safetensors(path: Path) -> Tensors:
    _refuse_pointer(path)
    try:
        with safe_open(path, "numpy") as file:
            types = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
    except Exception as error:  # the library raises types of its own
        raise UserError(f"its weights cannot be read: {path}: {error}") from error
    for name, kind in types.items():
        if kind not in FLOATING and not name.endswith(BUFFERS):
            raise UserError(_no_weights(name, path, kind))
    if "BF16" not in types.values():
        return load_file(path)
    # NumPy has no bfloat16.
    tensors: Tensors = {}
    for name, tensor in deserialize(path.read_bytes()):
        kind = tensor["dtype"]  # BF16, F32, or a buffer's I64
        dtype = BFLOAT16 if kind == "BF16" else f"<{kind[0].lower()}{int(kind[1:]) // 8}"
        tensors[name] = numbers(tensor["data"], dtype).reshape(tensor["shape"])
    return tensors


def _read_pickle(path: Path) -> Tensors:
    _refuse_pointer(path)
    return pickles.read(path)


def _read_shards(index: Path, read_file: Callable[[Path], Tensors]) -> Tensors:
    try:
        shards = json.loads(charset.read_text(index, "index of shards"))["weight_map"]
        names = sorted(set(shards.values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{index} is no index of shards ({error!r}); copy it again") from error
    tensors: Tensors = {}
    for name in names:
        path = index.parent / name
        if Path(name).name != name or not path.is_file():
            raise UserError(f"{index} names the shard {name}, which is not beside it; copy it too")
        tensors.update(read_file(path))
    lost = sorted(set(shards) - set(tensors))
    if lost:
        raise UserError(f"{index} names {lost[0]}, but {shards[lost[0]]} lacks it; copy both again")
    return tensors


def _refuse_pointer(path: Path) -> None:
    with path.open("rb") as file:
        if file.read(len(LFS)) == LFS:
            raise UserError(
                f"{path} is a pointer of Git LFS, not the file; run `git lfs pull` in its folder"
            )


def _what_to_do(folder: Path) -> str:
    for name, flag in (("tf_model.h5", "from_tf"), ("flax_model.msgpack", "from_flax")):
        if (folder / name).is_file():
            return (
                f"{folder} has its weights in {name}; convert it where transformers is installed: "
                '`python -c "from transformers import AutoModel; '
                f"AutoModel.from_pretrained('{folder}', {flag}=True).save_pretrained('{folder}')\"`"
            )
    if (folder / "adapter_config.json").is_file():
        return f"{folder} holds only an adapter; merge it into its model and save that"
    return (
        f"{folder} holds neither {WHOLE} nor {PYTORCH} (Hugging Face) nor {PADDLENLP} (PaddleNLP); "
        "save the model in one of these formats"
    )


# The first that is there is read. Shards are named by an index.
READERS: dict[str, Callable[[Path], Tensors]] = {
    WHOLE: _read_safetensors,
    PADDLENLP: _read_pickle,
    PYTORCH: _read_pickle,
}

"""Which cards a wheel has kernels for; with none of them nothing is trained or served."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace

import paddle
import pytest

from fleetbert import config
from fleetbert.compat import cards, versions
from fleetbert.core.device import Device
from fleetbert.core.errors import UserError
from fleetbert.engines import gpu
from fleetbert.training import precision, strategies


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """machine(wheel, card, told): paddlepaddle-gpu of that version beside such a card."""

    def make(wheel: str, card: tuple[int, int], told: str = "") -> None:
        monkeypatch.setattr(cards, "gpu_version", lambda: wheel)
        monkeypatch.setattr(versions, "paddle_version", lambda: wheel)
        (tmp_path / "version").mkdir()
        (tmp_path / "version" / "__init__.py").write_text(f"compiled_cuda_archs     = {told}\n")
        found = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: found)
        cuda = paddle.device.cuda
        monkeypatch.setattr(paddle, "is_compiled_with_cuda", lambda: True)
        monkeypatch.setattr(cuda, "device_count", lambda: 1)
        monkeypatch.setattr(cuda, "get_device_capability", lambda *_: card)
        monkeypatch.setattr(cuda, "get_device_name", lambda *_: "NVIDIA Some Card")
        monkeypatch.setattr(paddle, "set_device", lambda name: name)

    return make


@pytest.mark.parametrize(
    ("card", "fits"),
    [
        ((6, 0), False), ((6, 1), True), ((7, 2), True), ((8, 0), True), ((8, 6), True),
        ((8, 9), True), ((9, 0), False), ((12, 0), False),
    ],
)  # fmt: skip
def test_code_runs_on_cards_of_its_generation_from_its_own_on(card, fits):
    assert cards.runs(card, cards.OF_2_6) == fits
    assert cards.runs(card, ())  # nobody tells


@pytest.mark.parametrize("given", [("2.6.2", (9, 0)), ("3.3.1", (12, 0), "[80, 86, 90]")])
def test_a_card_without_kernels_is_one_sentence(machine, given):
    machine(*given)
    said = []
    with pytest.raises(UserError) as training:
        strategies.set_device("auto")
    said.append(str(training.value))
    with pytest.raises(UserError) as serving:
        gpu.check(Device("gpu"))
    said.append(str(serving.value))
    known = {"2.6.2": "6.1, 7.0, 7.5, 8.0, 8.6", "3.3.1": "8.0, 8.6, 9.0"}[given[0]]
    cuda = {(9, 0): "12.6", (12, 0): "12.9"}[given[1]]
    for sentence in said:
        assert sentence.startswith("NVIDIA Some Card has compute capability ")
        assert f"paddlepaddle-gpu {given[0]} has kernels for {known} only" in sentence
        assert f"install paddlepaddle-gpu 3.3 for CUDA {cuda} as docs/paddle3.md says" in sentence
    assert said[0].endswith("or set trainer.device=cpu")
    assert said[1].endswith("or use --device cpu")


@pytest.mark.parametrize(
    "given", [("2.6.2", (8, 9)), ("3.3.1", (9, 0), "[80, 86, 90]"), ("3.3.1", (9, 0), "[]")]
)
def test_one_with_kernels_is_taken(machine, given):
    machine(*given)
    assert strategies.set_device("auto") == "gpu"
    assert gpu.check(Device("gpu")) == 0


@pytest.mark.parametrize(
    ("card", "asked", "dtype", "level"),
    [
        ((8, 6), "auto", "bfloat16", "O1"), ((7, 5), "auto", "float16", "O1"),
        ((6, 1), "auto", "float16", "O0"), ((7, 0), "float16", "float16", "O1"),
        ((6, 1), "float16", "float16", "O0"), ((8, 0), "bfloat16", "bfloat16", "O1"),
        ((7, 0), "bfloat16", "bfloat16", "O0"),
    ],
)  # fmt: skip
def test_auto_is_half_where_the_card_has_the_type(machine, card, asked, dtype, level):
    machine("2.6.2", card)
    chosen = precision.choose(config.Precision(level="auto", dtype=asked), "gpu").settings
    assert (chosen.dtype, chosen.level) == (dtype, level)


def test_this_wheel_tells_what_it_was_built_for(monkeypatch):
    """Of a build for CPUs nothing; as one for GPUs it is read from its files, or known."""
    assert cards.architectures() == ()
    monkeypatch.setattr(cards, "gpu_version", versions.paddle_version)
    assert cards.architectures() == (() if versions.is_paddle_3() else cards.OF_2_6)

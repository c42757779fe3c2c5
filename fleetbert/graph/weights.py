"""Weights in int8, int16 or bfloat16 on disk: weights.safetensors of a variant.

A quantized tensor `w` stands there as integers, its scales as `w@scale` (float32, one for each
index of the axis that the file's metadata names): w = integer * scale / (2 ** (bits - 1) - 1), as
in Paddle's `quantize_linear`. All other tensors are as in the program's parameters.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Callable, Collection, Iterable, Iterator, NamedTuple

import numpy as np
from safetensors import safe_open
from safetensors.numpy import save as safetensors_of
from safetensors.numpy import save_file

from fleetbert.graph import program as programs
from fleetbert.graph.program import Parameters, ProgramDesc

NAME = "weights.safetensors"
SCALE = "@scale"


class OnReading(Parameters):
    """Parameters that are each made when they are read, and not kept: Paddle copies what it loads,
    so that all of them together would take their memory a second time."""

    def __init__(self, names: Iterable[str], make: Callable[[str], np.ndarray]):
        self._names, self._make = dict.fromkeys(names), make

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in self._names:
            raise KeyError(name)
        return self._make(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class Quantized(NamedTuple):
    """integers: int8 or int16; scales: float32 [channels], each channel's largest magnitude;
    axis: which axis of `integers` counts the channels."""

    integers: np.ndarray
    scales: np.ndarray
    axis: int


def quantize(weight: np.ndarray, axis: int, bits: int = 8) -> Quantized:
    """Round a float32 matrix to integers, symmetrically and channel by channel along `axis`."""
    others = tuple(number for number in range(weight.ndim) if number != axis)
    scales = np.maximum(np.abs(weight).max(others), np.float32(1e-8))
    steps = largest_integer(bits)
    integers = np.rint(weight / _along(scales, axis, weight.ndim) * np.float32(steps))
    return Quantized(integers.astype(f"int{bits}"), scales.astype(np.float32), axis)


def widen(quantized: Quantized) -> np.ndarray:
    """The float32 values that the integers stand for."""
    integers, scales, axis = quantized
    step = scales / np.float32(largest_integer(8 * integers.itemsize))
    return integers.astype(np.float32) * _along(step, axis, integers.ndim)


def largest_integer(bits: int) -> int:
    """The integer that a channel's largest magnitude becomes: 127 for 8 bits."""
    return 2 ** (bits - 1) - 1


def save(folder: Path, quantized: dict[str, Quantized], others: Parameters) -> None:
    """Write weights.safetensors: quantized tensors and all others by name."""
    tensors = {name: np.ascontiguousarray(array) for name, array in others.items()}
    for name, (integers, scales, _) in quantized.items():
        tensors[name] = np.ascontiguousarray(integers)
        tensors[name + SCALE] = scales
    axes = {name: weight.axis for name, weight in quantized.items()}
    save_file(tensors, folder / NAME, metadata={"axes": json.dumps(axes)})


def load(folder: Path) -> tuple[dict[str, Quantized], Parameters]:
    """What `save` wrote. Integers are read where they lie in the file, when they are needed:
    processes share them."""
    path = folder / NAME
    with safe_open(path, framework="numpy") as file:
        axes = json.loads(file.metadata()["axes"])
        tensors = {
            name: file.get_tensor(name)
            for name in file.keys()  # noqa: SIM118
            if name not in axes
        }
    mapped = _map(path, axes)
    quantized = {
        name: Quantized(mapped[name], tensors.pop(name + SCALE), axis)
        for name, axis in axes.items()
    }
    return quantized, tensors


def _map(path: Path, names: Collection[str]) -> dict[str, np.ndarray]:
    """These tensors, of integers or bfloat16, mapped."""
    length, header = _read_header(path)
    arrays = {}
    for name in names:
        entry = header[name]
        dtype = {"I8": np.int8, "I16": np.int16, "BF16": np.uint16}[entry["dtype"]]
        start = 8 + length + entry["data_offsets"][0]
        arrays[name] = np.asarray(np.memmap(path, dtype, "r", start, tuple(entry["shape"])))
    return arrays


def _read_header(path: Path) -> tuple[int, dict[str, Any]]:
    """The header's length and content: https://huggingface.co/docs/safetensors/index#format."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        return length, json.loads(file.read(length))


def save_halves(folder: Path, halves: Parameters, others: Parameters) -> None:
    """Write weights.safetensors: `halves`, as `bfloat16.rounded` gives them, and all others.

    safetensors writes only NumPy's types from NumPy, so this puts bfloat16's name over uint16's.
    """
    data = safetensors_of(
        {name: np.ascontiguousarray(array) for name, array in {**others, **halves}.items()}
    )
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    for name in halves:
        header[name]["dtype"] = "BF16"
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    (folder / NAME).write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


def load_halves(folder: Path) -> tuple[dict[str, np.ndarray], Parameters]:
    """What `save_halves` wrote; `halves` are mapped, as integers are by `load`."""
    path = folder / NAME
    _, header = _read_header(path)
    header.pop("__metadata__", None)
    names = [name for name, entry in header.items() if entry["dtype"] == "BF16"]
    with safe_open(path, framework="numpy") as file:
        others = {name: file.get_tensor(name) for name in header if name not in names}
    return _map(path, names), others


def parameters(folder: Path, program: ProgramDesc) -> Parameters:
    """The tensors that `program` stores, from the folder's weights.safetensors.

    A quantized weight comes as the program declares it: as integers, or widened to float32.
    """
    return pick(*load(folder), program)


def pick(
    quantized: dict[str, Quantized],
    others: Parameters,
    program: ProgramDesc,
    without: Collection[str] = (),
) -> Parameters:
    """The same of what `load` gave, but for those in `without`, each when it is read."""

    def make(name: str) -> np.ndarray:
        described = programs.tensor(program.blocks[0], name)
        if name in quantized:
            is_float = described.data_type == programs.VarType.FP32
            return widen(quantized[name]) if is_float else quantized[name].integers
        if name.endswith(SCALE) and name[: -len(SCALE)] in quantized:
            return quantized[name[: -len(SCALE)]].scales.reshape(described.dims)
        return others[name]

    names = (name for name in programs.parameter_names(program) if name not in without)
    return OnReading(names, make)


def _along(values: np.ndarray, axis: int, dimensions: int) -> np.ndarray:
    return values.reshape([-1 if number == axis else 1 for number in range(dimensions)])

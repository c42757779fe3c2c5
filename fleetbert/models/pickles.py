"""Weights out of pickles, PyTorch's (`pytorch_model.bin`) and Paddle's (`.pdparams`), without
running anything that they say.

A pickle is a program that names functions and calls them. Here it may name the few that make
tensors and plain containers, and what stands for each only notes down what it was given. Any other
name is refused before anything is called. The formats are those of `torch.save`, both of them, and
`paddle.save`.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path
from typing import IO, Any, Callable, Dict, NamedTuple, Sequence

import numpy as np

from fleetbert.core.errors import UserError

Tensors = Dict[str, np.ndarray]

# Begins the older of PyTorch's formats, before 1.6: a number, a version and a description.
MAGIC = 0x1950A86A20F9469CFC6C
BFLOAT16 = "bfloat16"
STORAGES = {
    "DoubleStorage": "<f8", "FloatStorage": "<f4", "HalfStorage": "<f2",
    "BFloat16Storage": BFLOAT16, "LongStorage": "<i8", "IntStorage": "<i4",
    "ShortStorage": "<i2", "CharStorage": "i1", "ByteStorage": "u1", "BoolStorage": "?",
}  # fmt: skip
STATE = "state_dict"  # the key of the weights in what Lightning saves
# Keys of what Paddle saves beside tensors: their other names, and the parts of large ones.
NAMES, PARTS = "StructuredToParameterName@@", "UnpackBigParamInfor@@"


class StorageType(NamedTuple):
    kind: str


class Dictionary(Dict[Any, Any]):
    """An OrderedDict, to which PyTorch gives an attribute."""


class NumpyType:
    """A NumPy dtype as its pickle has it."""

    def __init__(self, name: object, *_: object):
        self.kind = str(name)

    def __setstate__(self, state: Sequence[object]) -> None:
        if state[1] == ">":
            self.kind = f">{self.kind}"


class NumpyArray:
    """A NumPy array as its pickle has it."""

    def __init__(self, *_: object):
        self.array: np.ndarray | None = None

    def __setstate__(self, state: tuple[object, Any, Any, bool, Any]) -> None:
        _, shape, dtype, fortran, data = state
        if not isinstance(dtype, NumpyType) or not isinstance(data, bytes):
            raise pickle.UnpicklingError("an array that is not of numbers")
        # Paddle writes bfloat16 as whole numbers.
        kind = BFLOAT16 if dtype.kind == "u2" else dtype.kind
        flat = numbers(data, kind)
        self.array = flat.reshape(_sizes(shape), order="F" if fortran else "C")


def numbers(data: bytes, kind: str) -> np.ndarray:
    """The numbers in `data`, of a numeric NumPy type or BFLOAT16."""
    if kind == BFLOAT16:  # the upper half of a float32
        return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)
    dtype = np.dtype(kind)
    if dtype.kind not in "fiub":
        raise pickle.UnpicklingError(f"an array of {kind}")
    return np.frombuffer(data, dtype)


def _sizes(values: Any) -> tuple[int, ...]:
    if not all(isinstance(value, int) and value >= 0 for value in values):
        raise pickle.UnpicklingError("sizes that are no numbers")
    return tuple(values)


def _tensor(
    storage: np.ndarray, offset: int, shape: Sequence[int], strides: Sequence[int], *_: object
) -> np.ndarray:
    """torch._utils._rebuild_tensor_v2: a view of a storage, in entries."""
    shape, strides = _sizes(shape), _sizes(strides)
    if not isinstance(storage, np.ndarray) or len(shape) != len(strides):
        raise pickle.UnpicklingError("a tensor without its storage")
    last = sum((size - 1) * stride for size, stride in zip(shape, strides))
    if 0 not in shape and not 0 <= offset <= offset + last < len(storage):
        raise pickle.UnpicklingError("a tensor that goes beyond its storage")
    steps = [stride * storage.itemsize for stride in strides]
    view = np.lib.stride_tricks.as_strided(storage[offset:], shape, steps, writeable=False)
    return np.ascontiguousarray(view)


def _parameter(tensor: object, *_: object) -> object:
    return tensor


def _encoded(text: object, encoding: object) -> bytes:
    """_codecs.encode: bytes in a pickle of protocol 2."""
    if not isinstance(text, str) or encoding != "latin1":
        raise pickle.UnpicklingError("text where numbers belong")
    return text.encode("latin1")


ALLOWED: dict[tuple[str, str], Any] = {
    ("collections", "OrderedDict"): Dictionary,
    ("builtins", "dict"): Dictionary,
    ("builtins", "tuple"): tuple,
    ("__builtin__", "tuple"): tuple,
    ("_codecs", "encode"): _encoded,
    ("torch._utils", "_rebuild_tensor_v2"): _tensor,
    ("torch._utils", "_rebuild_parameter"): _parameter,
    **{("torch", name): StorageType(kind) for name, kind in STORAGES.items()},
    ("numpy", "ndarray"): NumpyArray,
    ("numpy", "dtype"): NumpyType,
    **{(f"numpy.{core}.multiarray", "_reconstruct"): NumpyArray for core in ("core", "_core")},
}


class Reader(pickle.Unpickler):
    """load_storage: what a pickle of PyTorch's calls a storage, and its type → its numbers."""

    def __init__(self, file: IO[bytes], load_storage: Callable[[tuple[Any, ...]], Any]):
        super().__init__(file)
        self._load_storage = load_storage

    def find_class(self, module: str, name: str) -> Any:
        known = ALLOWED.get((module, name))
        if known is None:
            raise pickle.UnpicklingError(
                f"it names {module}.{name}, which is no part of weights and was not run; "
                "where it can be loaded, save its state_dict alone: "
                "torch.save(weights, 'pytorch_model.bin')"
            )
        return known

    def persistent_load(self, identity: Any) -> Any:
        return self._load_storage(identity)


def read(path: Path) -> Tensors:
    """The tensors in a file, floating ones in float32 or as they are. UserError for what is no such
    file, is damaged, or names anything else."""
    try:
        with path.open("rb") as file:
            if zipfile.is_zipfile(file):
                loaded = _read_zip(file)
            else:
                file.seek(0)
                loaded = _read_pickle(file)
        tensors = _named(loaded)
    except Exception as error:  # a pickle can raise anything
        raise UserError(
            f"its weights cannot be read: {path}: {error or type(error).__name__}"
        ) from error
    if not tensors:
        raise UserError(f"its weights cannot be read: {path} holds no tensors by name")
    return tensors


def _read_zip(file: IO[bytes]) -> object:
    with zipfile.ZipFile(file) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        folder = name[: -len("data.pkl")]
        if folder + "byteorder" in archive.namelist():
            order = archive.read(folder + "byteorder")
            if order != b"little":
                raise ValueError(f"its numbers are in {order.decode()} byte order")
        storages: dict[str, np.ndarray] = {}

        def load(identity: tuple[Any, ...]) -> np.ndarray:
            _, kind, key = identity[:3]
            if key not in storages:
                storages[key] = numbers(archive.read(f"{folder}data/{key}"), kind.kind)
            return storages[key]

        return Reader(io.BytesIO(archive.read(name)), load).load()


def _read_pickle(file: IO[bytes]) -> object:
    """Paddle's one pickle, or PyTorch's older format: pickles one after the other, the fourth of
    which is the weights; then the numbers of the storages that it named, each after its count."""
    first = Reader(file, _no_storage).load()
    if first != MAGIC:
        return first
    kinds: dict[str, str] = {}
    for _ in range(2):
        Reader(file, _no_storage).load()
    start = file.tell()

    def note(identity: tuple[Any, ...]) -> np.ndarray:
        kinds[identity[2]] = identity[1].kind
        return np.zeros(0, np.float32)

    class Noting(Reader):
        def find_class(self, module: str, name: str) -> Any:
            known = super().find_class(module, name)
            return (lambda *_: None) if known is _tensor else known

    Noting(file, note).load()
    storages: dict[str, np.ndarray] = {}
    for key in Reader(file, _no_storage).load():
        count = int.from_bytes(file.read(8), "little")
        kind = kinds[key]
        width = 2 if kind == BFLOAT16 else np.dtype(kind).itemsize
        storages[key] = numbers(file.read(count * width), kind)
    file.seek(start)
    return Reader(file, lambda identity: storages[identity[2]]).load()


def _no_storage(identity: object) -> object:  # noqa: ARG001
    raise pickle.UnpicklingError("a storage where none belongs")


def _named(loaded: object) -> Tensors:
    if not isinstance(loaded, dict):
        return {}
    if isinstance(loaded.get(STATE), dict):
        return _named(loaded[STATE])
    parts = loaded.get(PARTS) or {}
    arrays: dict[str, np.ndarray] = {}
    for name, value in loaded.items():
        if isinstance(value, tuple) and len(value) == 2:  # Paddle: its own name, and the array
            value = value[1]
        array = value.array if isinstance(value, NumpyArray) else value
        if isinstance(name, str) and isinstance(array, np.ndarray) and name != NAMES:
            arrays[name] = array
    for name, part in parts.items():
        pieces = [arrays.pop(piece).ravel() for piece in part["slices"]]
        arrays[name] = np.concatenate(pieces).reshape(part["OriginShape"])
    return arrays

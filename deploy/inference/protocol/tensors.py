"""Tensors as the Open Inference Protocol carries them: checked, and turned into texts and arrays.

Their values come as JSON (nested or flat lists), as raw little-endian bytes in which each BYTES
element has its length before it (uint32), or as gRPC's typed lists. Every check raises a Failure
whose sentence names the tensor, before memory is taken for more than the request itself holds.
"""

from __future__ import annotations

import functools
import struct
import sys
from itertools import chain
from typing import Any, NamedTuple, Sequence

import numpy as np

from fleetbert.data.written import fault_of
from fleetbert.deploy.inference.messages import Failure, Reason, Response, Values, show

DATATYPES = {"f": "FP32", "i": "INT32"}
LITTLE = sys.byteorder == "little"
_read_length = struct.Struct("<I").unpack_from
ONLY_INTEGERS = frozenset({int})
INTEGERS: dict[str, np.dtype[Any]] = {"INT64": np.dtype("<i8"), "INT32": np.dtype("<i4")}


class Tensor(NamedTuple):
    """An input as it was sent: nothing of it is checked yet."""

    name: str
    datatype: Any
    shape: Any
    # A list of strings, bytes, integers, or of lists of integers; raw: the bytes themselves
    values: Any
    raw: bool = False


class Output(NamedTuple):
    """An output: values are a list of strings, or a float32 or int32 array of `shape`."""

    name: str
    datatype: str
    shape: Sequence[int]
    values: Sequence[str] | np.ndarray


def refuse(message: str, reason: Reason = Reason.BAD_REQUEST) -> Failure:
    """The Failure to raise for a request that cannot be answered."""
    return Failure(reason, message)


def read_texts(tensor: Tensor, max_texts: int, max_bytes: int) -> list[str]:
    """The strings of a BYTES tensor of shape [texts] or [texts, 1], each one that `predict` would
    answer."""
    name = tensor.name
    shape = tensor.shape
    if type(shape) is list and len(shape) == 2 and type(shape[1]) is int and shape[1] == 1:
        tensor = _without_column(tensor)
    if tensor.datatype != "BYTES":
        raise _wrong_datatype(tensor, "BYTES")
    (count,) = _read_shape(tensor, "[texts]", max_texts)
    if tensor.raw:
        texts = _decode(name, _split(name, bytes(tensor.values), count))
    else:
        values = tensor.values
        if type(values) is not list:
            raise refuse(f"data of input '{name}' is {show(values)}; it has to be a list")
        if len(values) != count:
            raise _wrong_count(name, len(values), tensor.shape)
        types = set(map(type, values))
        if types == {bytes}:
            texts = _decode(name, values)
        elif types == {str}:
            texts = values
        else:
            wrong = next(n for n, value in enumerate(values) if type(value) is not str)
            raise refuse(
                f"element {wrong} of input '{name}' is {show(values[wrong])}; "
                "it has to be a string (BYTES)"
            )
    # A character has one to four bytes in UTF-8.
    if max(map(len, texts)) * 4 > max_bytes:
        for number, text in enumerate(texts):
            size = len(text) if len(text) > max_bytes else len(text.encode())
            if size > max_bytes:
                raise refuse(
                    f"text {number} of input '{name}' has {size} bytes; "
                    f"this server takes at most {max_bytes} in a text",
                    Reason.TOO_LARGE,
                )
    for number, text in enumerate(texts):
        fault = fault_of(text)
        if fault is not None:
            raise refuse(f"text {number} of input '{name}' {fault}")
    return texts


def read_integers(
    tensor: Tensor, max_texts: int, max_length: int, limit: int, meaning: str
) -> np.ndarray:
    """int64 [texts, length] of an INT64 or INT32 tensor whose values are in 0..limit-1."""
    name = tensor.name
    dtype = INTEGERS.get(tensor.datatype) if isinstance(tensor.datatype, str) else None
    if dtype is None:
        raise _wrong_datatype(tensor, "INT64 or INT32")
    count, length = _read_shape(tensor, "[texts, tokens]", max_texts)
    if length > max_length:
        raise refuse(
            f"input '{name}' has {show(length)} tokens a text; the model takes at most {max_length}"
        )
    if tensor.raw:
        if len(tensor.values) != count * length * dtype.itemsize:
            raise refuse(
                f"input '{name}' has {len(tensor.values)} bytes of data; its shape "
                f"{list(tensor.shape)} and datatype {tensor.datatype} need "
                f"{count * length * dtype.itemsize}"
            )
        array = np.frombuffer(tensor.values, dtype).astype(np.int64)
    else:
        array = _from_list(tensor, _flatten(tensor, count, length))
    array = array.reshape(count, length)
    if array.min() < 0 or array.max() >= limit:
        row, column = np.argwhere((array < 0) | (array >= limit))[0].tolist()
        raise refuse(
            f"input '{name}' holds {array[row, column]} at [{row}, {column}]; "
            f"{meaning} are 0 to {limit - 1}"
        )
    return array


def read_numbers(tensor: Tensor, max_rows: int, columns: int) -> np.ndarray:
    """float32 [rows, columns] of an FP32 tensor; what is null in JSON is NaN, which is missing."""
    if tensor.datatype != "FP32":
        raise _wrong_datatype(tensor, "FP32")
    rows = _read_rows(tensor, max_rows, columns)
    if tensor.raw:
        if len(tensor.values) != 4 * rows * columns:
            raise _wrong_count(tensor.name, len(tensor.values) // 4, tensor.shape)
        array = np.frombuffer(tensor.values, "<f4")
    else:
        values = _flatten(tensor, rows, columns)
        for number, value in enumerate(values):
            if value is not None and type(value) is not float and type(value) is not int:
                raise refuse(
                    f"element {number} of input '{tensor.name}' is {show(value)}; "
                    "it has to be a number, or null where it is missing"
                )
        with np.errstate(over="ignore"):  # infinity is refused below
            array = np.array(values, np.float64).astype(np.float32)
    array = array.reshape(rows, columns)
    if np.isinf(array).any():
        row, column = np.argwhere(np.isinf(array))[0].tolist()
        raise refuse(
            f"input '{tensor.name}' holds {array[row, column]} at [{row}, {column}]; numbers are "
            "finite"
        )
    return array


def read_categories(tensor: Tensor, max_rows: int, columns: int, max_bytes: int) -> np.ndarray:
    """Bytes [rows, columns] of a BYTES tensor; an empty one is missing."""
    name = tensor.name
    if tensor.datatype != "BYTES":
        raise _wrong_datatype(tensor, "BYTES")
    rows = _read_rows(tensor, max_rows, columns)
    values: list[Any] = (
        _split(name, bytes(tensor.values), rows * columns)
        if tensor.raw
        else _flatten(tensor, rows, columns)
    )
    categories = []
    for number, value in enumerate(values):
        if not isinstance(value, (str, bytes)):
            raise refuse(
                f"element {number} of input '{name}' is {show(value)}; it has to be a string "
                "(BYTES), empty where it is missing"
            )
        category = value.encode() if isinstance(value, str) else value
        if len(category) > max_bytes or b"\0" in category:
            raise refuse(
                f"element {number} of input '{name}' is {show(value)}; a category has at most "
                f"{max_bytes} bytes, none of them NUL"
            )
        categories.append(category)
    return np.array(categories, "S").reshape(rows, columns)


def _read_rows(tensor: Tensor, max_rows: int, columns: int) -> int:
    """How many rows a tensor [rows, columns] has."""
    rows, width = _read_shape(tensor, f"[rows, {columns}]", max_rows)
    if width != columns:
        raise refuse(
            f"input '{tensor.name}' has {show(width)} columns; the model was trained on {columns}"
        )
    return rows


def _wrong_datatype(tensor: Tensor, wanted: str) -> Failure:
    return refuse(
        f"datatype of input '{tensor.name}' is {show(tensor.datatype)}; it has to be {wanted}"
    )


def outputs(response: Response, names: Sequence[str] = ()) -> list[Output]:
    """The outputs `names` (none: all) of a response, in that order."""
    return [_output(name, response.outputs[name]) for name in names or response.outputs]


def _output(name: str, values: Values) -> Output:
    if isinstance(values, np.ndarray):
        return Output(name, DATATYPES[values.dtype.kind], values.shape, values)
    return Output(name, "BYTES", (len(values),), values)


def to_raw(output: Output) -> bytes:
    """Little-endian bytes, row-major; BYTES elements with their lengths."""
    if isinstance(output.values, np.ndarray):
        values = output.values if LITTLE else output.values.byteswap()
        return values.tobytes()
    return b"".join(map(_with_length, output.values))


@functools.lru_cache(maxsize=4096)
def _with_length(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<I", len(data)) + data


def _read_shape(tensor: Tensor, wanted: str, max_texts: int) -> list[int]:
    """The dimensions, as many as `wanted` has; all positive, the first at most `max_texts`."""
    name, shape = tensor.name, tensor.shape
    rank = wanted.count(",") + 1
    if type(shape) is not list or not ONLY_INTEGERS.issuperset(map(type, shape[:8])):
        raise refuse(f"shape of input '{name}' has to be a list of integers: {wanted}")
    if len(shape) != rank:
        raise refuse(f"shape of input '{name}' has {len(shape)} dimensions; it has to be {wanted}")
    if min(shape) < 1:
        raise refuse(
            f"shape of input '{name}' is {list(shape)}; each dimension has to be at least 1"
        )
    if shape[0] > max_texts:
        raise refuse(
            f"input '{name}' has {show(shape[0])} texts; this server takes at most "
            f"{max_texts} in a request",
            Reason.TOO_LARGE,
        )
    return shape


def _without_column(tensor: Tensor) -> Tensor:
    """The tensor [n, 1], nested or not, as [n]."""
    values = tensor.values
    if type(values) is list and values and type(values[0]) is list:
        values = _flatten(tensor, len(values), 1)
    return tensor._replace(shape=tensor.shape[:1], values=values)


def _wrong_count(name: str, count: int, shape: Sequence[int]) -> Failure:
    return refuse(
        f"data of input '{name}' has {count} elements, which does not fit its shape {list(shape)}"
    )


def _split(name: str, data: bytes, count: int) -> list[bytes]:
    """The elements of a raw BYTES tensor."""
    elements = []
    position, end = 0, len(data)
    for number in range(count):
        start = position + 4
        if start <= end:
            position = start + _read_length(data, position)[0]
        if start > end or position > end:
            raise refuse(f"element {number} of input '{name}' goes past the tensor's {end} bytes")
        elements.append(data[start:position])
    if position != end:
        raise refuse(
            f"input '{name}' has {end - position} bytes of data after its {count} elements"
        )
    return elements


def _decode(name: str, elements: list[bytes]) -> list[str]:
    try:
        return [element.decode() for element in elements]
    except UnicodeDecodeError as error:
        wrong = next(n for n, element in enumerate(elements) if element == error.object)
        raise refuse(
            f"element {wrong} of input '{name}' is not UTF-8 (byte {error.start})"
        ) from None


def _flatten(tensor: Tensor, count: int, length: int) -> list[Any]:
    """The values of a tensor [count, length], which may be nested, in one list."""
    name, values = tensor.name, tensor.values
    if type(values) is not list:
        raise refuse(f"data of input '{name}' is {show(values)}; it has to be a list")
    if values and type(values[0]) is list:
        if len(values) != count:
            raise refuse(
                f"data of input '{name}' has {len(values)} rows, which does not fit its shape "
                f"{list(tensor.shape)}"
            )
        for number, row in enumerate(values):
            if type(row) is not list or len(row) != length:
                raise refuse(
                    f"row {number} of input '{name}' is {show(row)}; its shape "
                    f"{list(tensor.shape)} asks for a list of {length}"
                )
        return list(chain.from_iterable(values))
    if len(values) != count * length:
        raise _wrong_count(name, len(values), tensor.shape)
    return values


def _from_list(tensor: Tensor, values: list[Any]) -> np.ndarray:
    if set(map(type, values)) != {int}:
        wrong = next(n for n, value in enumerate(values) if type(value) is not int)
        raise refuse(
            f"element {wrong} of input '{tensor.name}' is {show(values[wrong])}; "
            f"it has to be an integer ({tensor.datatype})"
        )
    try:
        return np.array(values, np.int64)
    except OverflowError:
        largest = show(max(values, key=abs))
        raise refuse(f"input '{tensor.name}' holds {largest}, which is no INT64") from None

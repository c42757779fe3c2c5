"""oneDNN's primitives, by the C interface of the library in Paddle's x86 wheels.

A primitive computes for arrays of certain layouts, and takes milliseconds to make: those that are
called again are kept. The constants and the order of arguments are those of oneDNN 3 (dnnl.h,
dnnl_types.h); the wheel of Paddle 2.6.2 has 3.2.1, that of 3.3.1 has 3.6.2. In no header is
`dnnl_gemm_bf16bf16f32`, which both export as they do the public `dnnl_sgemm`:
tests/compat/test_onednn.py would notice. https://oneapi-src.github.io/oneDNN/v3.2/
"""

from __future__ import annotations

import ctypes
import functools
import threading
from ctypes import c_char, c_float, c_int, c_int64, c_size_t, c_uint, c_void_p
from pathlib import Path
from typing import Callable, NamedTuple, Optional, Tuple

import fleetbert.compat.prepared  # noqa: F401  isort: skip
import paddle

LIBRARY = Path(paddle.__file__).parent / "libs" / "libdnnl.so.3"
BFLOAT16, FLOAT32, BYTES = 2, 3, 6  # data types
LINEAR = 0x26  # a function of single elements: its factor times the element
SUM = -1  # what was there before, times the factor; no number of oneDNN's
RUNTIME_DIM = -(1 << 63)  # a size that is told with the memory
SOFTMAX = 0x30000
FORWARD, BACKWARD = 64, 128
SCALED_AND_SHIFTED = 2 | 4  # a layer normalization with weight and bias
# Arguments of primitives.
SRC, SRC_1, DST, WEIGHTS, BIAS = 1, 2, 17, 33, 41
MEAN, VARIANCE, SCALE, SHIFT = 49, 50, 51, 52
DIFF_SRC, DIFF_DST, DIFF_SCALE, DIFF_SHIFT = 129, 145, 255, 256
POST_OP = 32768
# Of matrices with the elements of this type, into float32.
PRODUCTS = {BFLOAT16: "gemm_bf16bf16f32", FLOAT32: "sgemm"}
# Calls of each kind that are kept. A batch's length and number of rows make six products of heads,
# 2.5 MB of code, which take some 10 ms to make: those of 64 are. oneDNN keeps about as many again.
KEPT = 384

Function = Tuple[int, float]  # one of single elements, and its alpha
Layout = Tuple[Tuple[int, ...], Tuple[int, ...], int]  # dims, strides in elements, data type
Applied = Tuple[int, Optional[Layout], float, float]  # a `PostOp`, wherever its other array lies


class View(NamedTuple):
    """Memory as an array: the address of its first element, and its layout."""

    address: int
    dims: tuple[int, ...]
    strides: tuple[int, ...]
    kind: int

    @property
    def layout(self) -> Layout:
        return self.dims, self.strides, self.kind

    @property
    def turned(self) -> View:
        """The view with its last two axes exchanged."""
        dims, strides = self.dims, self.strides
        return self._replace(
            dims=(*dims[:-2], dims[-1], dims[-2]), strides=(*strides[:-2], strides[-1], strides[-2])
        )


class _Argument(ctypes.Structure):
    _fields_ = (("argument", c_int), ("memory", c_void_p))


class _Owned:
    """An object of oneDNN's, destroyed with this one."""

    def __init__(self, name: str, *arguments: object, creator: str | None = None):
        self._as_parameter_ = c_void_p()
        self._destroy = getattr(_library(), f"dnnl_{name}_destroy")
        check(creator or f"{name}_create", ctypes.byref(self._as_parameter_), *arguments)

    def __del__(self) -> None:
        if self._as_parameter_:
            self._destroy(self._as_parameter_)


def _primitive(descriptor: _Owned) -> _Owned:
    return _Owned("primitive", descriptor)


class _Call:
    """A primitive for arrays of certain layouts; called with views of them."""

    def __init__(self, primitive: _Owned, arguments: list[tuple[int, Layout]]):
        self._primitive = primitive
        self._memories = [
            _Owned("memory", _described(layout), _engine(), None) for _, layout in arguments
        ]
        self._arguments = (_Argument * len(arguments))()
        for entry, (argument, _), memory in zip(self._arguments, arguments, self._memories):
            entry.argument, entry.memory = argument, memory._as_parameter_
        self._place = _library().dnnl_memory_set_data_handle
        self._run = _library().dnnl_primitive_execute
        self._stream = _stream()

    def __call__(self, *views: View) -> None:
        with _lock:
            for memory, of in zip(self._memories, views):
                self._place(memory, of.address)
            status = self._run(self._primitive, self._stream, len(self._memories), self._arguments)
        if status:
            raise RuntimeError(f"oneDNN could not compute: status {status}")


_lock = threading.Lock()  # the memories are a call's own, and running lets other threads run


def _kept(make: Callable[..., _Call]) -> Callable[..., _Call]:
    return functools.lru_cache(KEPT)(make)


def _attributes(then: tuple[Applied, ...]) -> tuple[_Owned | None, list[tuple[int, Layout]]]:
    """The attributes of a primitive, and the arguments that it then has besides."""
    if not then:
        return None, []
    attributes, steps, others = _Owned("primitive_attr"), _Owned("post_ops"), []
    for number, (algorithm, other, factor, shift) in enumerate(then, 1):
        if algorithm == SUM:
            check("post_ops_append_sum", steps, factor, 0, 0)
        elif other is None:
            check("post_ops_append_eltwise", steps, algorithm, factor, shift)
        else:
            check("post_ops_append_binary", steps, algorithm, _described(other))
            others.append((POST_OP * number | SRC_1, other))
    check("primitive_attr_set_post_ops", attributes, steps)
    return attributes, others


@_kept
def linear(x: Layout, weight: Layout, bias: Layout | None, out: Layout, factor: float) -> _Call:
    (_, inside), outside = x[0], out[0][1]
    primitive = _of_any_rows(inside, outside, weight, bias, x[2], out[2], factor)
    biases = [(BIAS, bias)] if bias else []
    return _Call(primitive, [(SRC, x), (WEIGHTS, weight), *biases, (DST, out)])


@functools.lru_cache(KEPT)
def _of_any_rows(
    inside: int, outside: int, weight: Layout, bias: Layout | None, x: int, out: int, factor: float
) -> _Owned:
    rows = [((RUNTIME_DIM, n), (n, 1), kind) for n, kind in ((inside, x), (outside, out))]
    attributes, _ = _attributes(() if factor == 1 else ((LINEAR, None, factor, 0.0),))
    return _primitive(_descriptor("matmul", rows[0], weight, bias, rows[1], attributes))


def _matmul(a: Layout, b: Layout, out: Layout, then: tuple[Applied, ...]) -> _Call:
    attributes, others = _attributes(then)
    descriptor = _descriptor("matmul", a, b, None, out, attributes)
    return _Call(_primitive(descriptor), [(SRC, a), (WEIGHTS, b), (DST, out), *others])


matmul = _kept(_matmul)
# Kept apart, so that they displace no products of heads: a number of tokens makes some four.
to_weight = _kept(_matmul)


@_kept
def reorder(source: Layout, out: Layout) -> _Call:
    places = _described(source), _engine(), _described(out), _engine()
    creator = "reorder_primitive_desc_create"
    descriptor = _Owned("primitive_desc", *places, None, creator=creator)
    return _Call(_primitive(descriptor), [(SRC, source), (DST, out)])


@_kept
def elements(algorithm: int, a: Layout, b: Layout, out: Layout, then: tuple[Applied, ...]) -> _Call:
    attributes, others = _attributes(then)
    descriptor = _descriptor("binary", algorithm, a, b, out, attributes)
    return _Call(_primitive(descriptor), [(SRC, a), (SRC_1, b), (DST, out), *others])


def _activation_descriptor(function: Function, x: Layout) -> _Owned:
    algorithm, alpha = function
    return _descriptor("eltwise_forward", FORWARD, algorithm, x, x, alpha, 0.0, None)


@_kept
def activation(function: Function, x: Layout) -> _Call:
    return _Call(_primitive(_activation_descriptor(function, x)), [(SRC, x), (DST, x)])


@_kept
def activation_backward(function: Function, x: Layout) -> _Call:
    algorithm, alpha = function
    forward = _activation_descriptor(function, x)
    descriptor = _descriptor("eltwise_backward", algorithm, x, x, x, alpha, 0.0, forward, None)
    return _Call(_primitive(descriptor), [(SRC, x), (DIFF_DST, x), (DIFF_SRC, x)])


def _softmax_descriptor(x: Layout, out: Layout) -> _Owned:
    return _descriptor("softmax_forward", FORWARD, SOFTMAX, x, out, len(x[0]) - 1, None)


@_kept
def softmax(x: Layout, out: Layout) -> _Call:
    return _Call(_primitive(_softmax_descriptor(x, out)), [(SRC, x), (DST, out)])


@_kept
def softmax_backward(y: Layout) -> _Call:
    forward = _softmax_descriptor(y, y)
    descriptor = _descriptor("softmax_backward", SOFTMAX, y, y, y, len(y[0]) - 1, forward, None)
    return _Call(_primitive(descriptor), [(DST, y), (DIFF_DST, y), (DIFF_SRC, y)])


def _norm_layouts(x: Layout) -> tuple[Layout, Layout]:
    rows, width = x[0]
    return ((rows,), (1,), FLOAT32), ((width,), (1,), FLOAT32)


def _norm_descriptor(x: Layout, epsilon: float) -> _Owned:
    of_rows, _ = _norm_layouts(x)
    name, how = "layer_normalization_forward", (epsilon, SCALED_AND_SHIFTED)
    return _descriptor(name, FORWARD, x, x, of_rows, *how, None)


@_kept
def layer_norm(x: Layout, epsilon: float) -> _Call:
    rows, width = _norm_layouts(x)
    arguments = [(SRC, x), (DST, x), (MEAN, rows), (VARIANCE, rows), (SCALE, width), (SHIFT, width)]
    return _Call(_primitive(_norm_descriptor(x, epsilon)), arguments)


@_kept
def layer_norm_backward(x: Layout, epsilon: float) -> _Call:
    rows, width = _norm_layouts(x)
    name, how = "layer_normalization_backward", (epsilon, SCALED_AND_SHIFTED)
    forward = _norm_descriptor(x, epsilon)
    descriptor = _descriptor(name, BACKWARD, x, x, x, rows, *how, forward, None)
    arguments = [(SRC, x), (DIFF_DST, x), (MEAN, rows), (VARIANCE, rows), (SCALE, width)]
    arguments += [(SHIFT, width), (DIFF_SRC, x), (DIFF_SCALE, width), (DIFF_SHIFT, width)]
    return _Call(_primitive(descriptor), arguments)


# Arguments by letters; those of a descriptor come after what is created and the engine.
_LETTERS = dict(zip("piufslc", (c_void_p, c_int, c_uint, c_float, c_size_t, c_int64, c_char)))
_TYPES = {
    "engine_create": "pis",
    "stream_create": "ppu",
    "memory_desc_create_with_strides": "pipip",
    "memory_set_data_handle": "pp",
    "primitive_execute": "ppip",
    "primitive_destroy": "p",
    "memory_destroy": "p",
    "memory_desc_destroy": "p",
    "primitive_attr_destroy": "p",
    "post_ops_destroy": "p",
    "post_ops_append_eltwise": "piff",
    "post_ops_append_binary": "pip",
    "post_ops_append_sum": "pfii",
    "primitive_desc_destroy": "p",
    **dict.fromkeys(PRODUCTS.values(), "cclllfplplfpl"),
    "binary_primitive_desc_create": "ipppp",
    "eltwise_forward_primitive_desc_create": "iippffp",
    "eltwise_backward_primitive_desc_create": "ipppffpp",
    "softmax_forward_primitive_desc_create": "iippip",
    "softmax_backward_primitive_desc_create": "ipppipp",
    "layer_normalization_forward_primitive_desc_create": "ipppfup",
    "layer_normalization_backward_primitive_desc_create": "ippppfupp",
    "matmul_primitive_desc_create": "ppppp",
}


@functools.lru_cache(None)
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(LIBRARY))
    for name, letters in _TYPES.items():
        if name.endswith("primitive_desc_create"):
            letters = "pp" + letters
        getattr(library, f"dnnl_{name}").argtypes = [_LETTERS[letter] for letter in letters]
    return library


def check(name: str, *arguments: object) -> None:
    status = getattr(_library(), f"dnnl_{name}")(*arguments)
    if status:
        raise RuntimeError(f"oneDNN: {name}: status {status}")


def _descriptor(name: str, *arguments: object) -> _Owned:
    """A descriptor of a primitive; layouts among the arguments are described to oneDNN."""
    given = [_described(each) if isinstance(each, tuple) else each for each in arguments]
    return _Owned("primitive_desc", _engine(), *given, creator=f"{name}_primitive_desc_create")


@functools.lru_cache(None)
def _engine() -> c_void_p:
    engine = c_void_p()
    check("engine_create", ctypes.byref(engine), 1, 0)  # the first CPU
    return engine


@functools.lru_cache(None)
def _stream() -> c_void_p:
    stream = c_void_p()
    check("stream_create", ctypes.byref(stream), _engine(), 1)  # in order
    return stream


def _described(layout: Layout) -> _Owned:
    dims, strides, kind = layout
    sizes = c_int64 * len(dims)
    places = len(dims), sizes(*dims), kind, sizes(*strides)
    return _Owned("memory_desc", *places, creator="memory_desc_create_with_strides")

"""oneDNN, which Paddle's x86 wheels carry, called by its C interface: no compiler is needed.

Its primitives compute in place, on memory that NumPy or Paddle owns; each function here takes
`View`s of such memory and writes into the last ones. bfloat16 has no type in NumPy: arrays of it
are of uint16. Sums are of float32, whatever the operands are.

The constants and the order of arguments are those of oneDNN 3 (dnnl.h, dnnl_types.h); the wheel of
Paddle 2.6.2 has 3.2.1, that of 3.3.1 has 3.6.2. In no header is `dnnl_gemm_bf16bf16f32`, which both
export as they do the public `dnnl_sgemm`: tests/compat/test_onednn.py would notice.
https://oneapi-src.github.io/oneDNN/v3.2/
"""

from __future__ import annotations

import ctypes
import functools
import threading
from ctypes import c_char, c_float, c_int, c_int64, c_size_t, c_uint, c_void_p
from pathlib import Path
from typing import Callable, NamedTuple, Optional, Tuple, Union

import numpy as np

import fleetbert.compat.prepared  # noqa: F401  isort: skip
import paddle

BFLOAT16, FLOAT32, BYTES = 2, 3, 6  # data types
DTYPES = {
    np.dtype(np.uint16): BFLOAT16,
    np.dtype(np.float32): FLOAT32,
    np.dtype(bool): BYTES,
    paddle.float32: FLOAT32,
}
# Of functions of single elements.
RELU, TANH, LINEAR, GELU_TANH, SWISH, GELU = 0x20, 0x21, 0x26, 0x2B, 0x2C, 0x31
ADD, MULTIPLY = 0x1FFF0, 0x1FFF1
RUNTIME_DIM = -(1 << 63)  # a size that is told with the memory
SOFTMAX = 0x30000
FORWARD, BACKWARD = 64, 128
SCALED_AND_SHIFTED = 2 | 4  # a layer normalization with weight and bias
# Arguments of primitives.
SRC, SRC_1, DST, WEIGHTS, BIAS = 1, 2, 17, 33, 41
MEAN, VARIANCE, SCALE, SHIFT = 49, 50, 51, 52
DIFF_SRC, DIFF_DST, DIFF_SCALE, DIFF_SHIFT = 129, 145, 255, 256
POST_OP = 32768
# Calls of each kind that are kept. A batch's length and number of rows make six products of heads,
# 2.5 MB of code, which take some 10 ms to make: those of 64 are. oneDNN keeps about as many again.
KEPT = 384

Array = Union[np.ndarray, paddle.Tensor]
Function = Tuple[int, float]  # one of single elements, and its alpha
Layout = Tuple[Tuple[int, ...], Tuple[int, ...], int]  # dims, strides in elements, data type
Applied = Tuple[int, Optional[Layout], float]  # a `PostOp`, wherever its other array lies


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
        """With the last two axes exchanged."""
        dims, strides = self.dims, self.strides
        return self._replace(
            dims=(*dims[:-2], dims[-1], dims[-2]), strides=(*strides[:-2], strides[-1], strides[-2])
        )


def view(array: Array, *dims: int) -> View:
    """Of an array whose elements lie one after the other, as it is or in other dimensions.

    The array has to outlive the view. KeyError for a data type that is not in DTYPES, ValueError
    for elements that lie otherwise.
    """
    if isinstance(array, np.ndarray):
        address, together = array.ctypes.data, array.flags.c_contiguous
    else:
        address, together = array.data_ptr(), array.is_contiguous()
    if not together:
        raise ValueError(f"an array of {array.shape} whose elements do not lie together")
    kind = DTYPES[array.dtype]
    dims = dims or tuple(array.shape)
    strides, step = [], 1
    for size in reversed(dims):
        strides.append(step)
        step *= size
    return View(address, dims, tuple(reversed(strides)), kind)


class PostOp(NamedTuple):
    """What follows a product: `algorithm` is ADD or MULTIPLY with `other`, which may have 1 in
    place of a size, or LINEAR, by `factor`."""

    algorithm: int
    other: View | None = None
    factor: float = 1.0


def linear(x: View, weight: View, bias: View | None, out: View, factor: float = 1.0) -> None:
    """out (rows, n) = (x (rows, k) weight (k, n) + bias (1, n)) factor.

    What computes it is the same for any number of rows.
    """
    layouts = x.layout, weight.layout, bias and bias.layout, out.layout
    biases = [] if bias is None else [bias]
    _linear(*layouts, factor)(x, weight, *biases, out)


def multiply_add(a: View, b: View, out: View, factor: float = 1.0, add: bool = False) -> None:
    """out (m, n) float32 = a (m, k) b (k, n) factor, added to what is there where asked to.

    Of matrices in bfloat16, whatever their sizes; either may be `turned`.
    """
    (m, k), n = a.dims, b.dims[1]
    turned = [of.strides[1] != 1 for of in (a, b)]
    steps = [of.strides[0] if of.strides[1] == 1 else of.strides[1] for of in (a, b, out)]
    letters = [b"T" if of else b"N" for of in turned]
    sizes = m, n, k, factor, a.address, steps[0], b.address, steps[1], float(add)
    _check("gemm_bf16bf16f32", *letters, *sizes, out.address, steps[2])


def matmul(a: View, b: View, out: View, then: tuple[PostOp, ...] = ()) -> None:
    """out (..., m, n) = a (..., m, k) b (..., k, n), and what is to follow."""
    _matmul(a.layout, b.layout, out.layout, _steps(then))(a, b, out, *_others(then))


def _steps(then: tuple[PostOp, ...]) -> tuple[Applied, ...]:
    return tuple((t.algorithm, t.other and t.other.layout, t.factor) for t in then)


def _others(then: tuple[PostOp, ...]) -> list[View]:
    return [t.other for t in then if t.other]


def copy(source: View, out: View) -> None:
    """Into another layout or data type."""
    _reorder(source.layout, out.layout)(source, out)


def multiply(a: View, b: View, out: View, then: tuple[PostOp, ...] = ()) -> None:
    """Element by element, and what is to follow."""
    steps = _steps(then)
    _elements(MULTIPLY, a.layout, b.layout, out.layout, steps)(a, b, out, *_others(then))


def add(a: View, b: View, out: View) -> None:
    """Element by element."""
    _elements(ADD, a.layout, b.layout, out.layout, ())(a, b, out)


def activate(function: Function, x: View, out: View) -> None:
    """A function of each element. x and out are of one layout."""
    _activation(function, x.layout)(x, out)


def activate_backward(function: Function, x: View, grad: View, out: View) -> None:
    """The gradient by x of `activate`, of which `grad` is that by its outcome."""
    _activation_backward(function, x.layout)(x, grad, out)


def softmax(x: View, out: View) -> None:
    """Over the last axis."""
    _softmax(x.layout, out.layout)(x, out)


def softmax_backward(y: View, grad: View, out: View) -> None:
    """The gradient by x of y = softmax(x). All three are of one layout."""
    _softmax_backward(y.layout)(y, grad, out)


class Norm(NamedTuple):
    """Of a layer normalization of x (rows, width): mean and variance (rows) of the forward are
    what the backward needs besides x and the weight (width)."""

    mean: np.ndarray
    variance: np.ndarray
    epsilon: float


def layer_norm(x: View, weight: View, bias: View, epsilon: float, out: View) -> Norm:
    """Over the last axis of x (rows, width), in float32."""
    rows = x.dims[0]
    norm = Norm(np.empty(rows, np.float32), np.empty(rows, np.float32), epsilon)
    _layer_norm(x.layout, epsilon)(x, out, view(norm.mean), view(norm.variance), weight, bias)
    return norm


def layer_norm_backward(
    norm: Norm,
    x: View,
    weight: View,
    bias: View,
    grad: View,
    to_x: View,
    to_weight: View,
    to_bias: View,
) -> None:
    """The gradients of `layer_norm`."""
    statistics = view(norm.mean), view(norm.variance)
    compute = _layer_norm_backward(x.layout, norm.epsilon)
    compute(x, grad, *statistics, weight, bias, to_x, to_weight, to_bias)


class _Argument(ctypes.Structure):
    _fields_ = (("argument", c_int), ("memory", c_void_p))


class _Owned:
    """A thing of oneDNN's, destroyed with this."""

    def __init__(self, name: str, *arguments: object, creator: str | None = None):
        self._as_parameter_ = c_void_p()
        self._destroy = getattr(_library(), f"dnnl_{name}_destroy")
        _check(creator or f"{name}_create", ctypes.byref(self._as_parameter_), *arguments)

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
    """Of a primitive, and the arguments that it has besides."""
    if not then:
        return None, []
    attributes, steps, others = _Owned("primitive_attr"), _Owned("post_ops"), []
    for number, (algorithm, other, factor) in enumerate(then, 1):
        if other is None:
            _check("post_ops_append_eltwise", steps, algorithm, factor, 0.0)
        else:
            _check("post_ops_append_binary", steps, algorithm, _described(other))
            others.append((POST_OP * number | SRC_1, other))
    _check("primitive_attr_set_post_ops", attributes, steps)
    return attributes, others


@_kept
def _linear(x: Layout, weight: Layout, bias: Layout | None, out: Layout, factor: float) -> _Call:
    (_, inside), outside = x[0], out[0][1]
    primitive = _of_any_rows(inside, outside, weight, bias, x[2], out[2], factor)
    biases = [(BIAS, bias)] if bias else []
    return _Call(primitive, [(SRC, x), (WEIGHTS, weight), *biases, (DST, out)])


@functools.lru_cache(KEPT)
def _of_any_rows(
    inside: int, outside: int, weight: Layout, bias: Layout | None, x: int, out: int, factor: float
) -> _Owned:
    rows = [((RUNTIME_DIM, n), (n, 1), kind) for n, kind in ((inside, x), (outside, out))]
    attributes, _ = _attributes(() if factor == 1 else ((LINEAR, None, factor),))
    descriptor = _descriptor(
        "matmul",
        _described(rows[0]),
        _described(weight),
        bias and _described(bias),
        _described(rows[1]),
        attributes,
    )
    return _primitive(descriptor)


@_kept
def _matmul(a: Layout, b: Layout, out: Layout, then: tuple[Applied, ...]) -> _Call:
    attributes, others = _attributes(then)
    descriptor = _descriptor(
        "matmul", _described(a), _described(b), None, _described(out), attributes
    )
    return _Call(_primitive(descriptor), [(SRC, a), (WEIGHTS, b), (DST, out), *others])


@_kept
def _reorder(source: Layout, out: Layout) -> _Call:
    places = _described(source), _engine(), _described(out), _engine()
    creator = "reorder_primitive_desc_create"
    descriptor = _Owned("primitive_desc", *places, None, creator=creator)
    return _Call(_primitive(descriptor), [(SRC, source), (DST, out)])


@_kept
def _elements(
    algorithm: int, a: Layout, b: Layout, out: Layout, then: tuple[Applied, ...]
) -> _Call:
    attributes, others = _attributes(then)
    descriptor = _descriptor(
        "binary", algorithm, _described(a), _described(b), _described(out), attributes
    )
    return _Call(_primitive(descriptor), [(SRC, a), (SRC_1, b), (DST, out), *others])


def _activation_descriptor(function: Function, x: Layout) -> _Owned:
    algorithm, alpha = function
    return _descriptor(
        "eltwise_forward", FORWARD, algorithm, _described(x), _described(x), alpha, 0.0, None
    )


@_kept
def _activation(function: Function, x: Layout) -> _Call:
    return _Call(_primitive(_activation_descriptor(function, x)), [(SRC, x), (DST, x)])


@_kept
def _activation_backward(function: Function, x: Layout) -> _Call:
    algorithm, alpha = function
    same = (_described(x),) * 3
    descriptor = _descriptor(
        "eltwise_backward", algorithm, *same, alpha, 0.0, _activation_descriptor(function, x), None
    )
    return _Call(_primitive(descriptor), [(SRC, x), (DIFF_DST, x), (DIFF_SRC, x)])


def _softmax_descriptor(x: Layout, out: Layout) -> _Owned:
    last = len(x[0]) - 1
    return _descriptor(
        "softmax_forward", FORWARD, SOFTMAX, _described(x), _described(out), last, None
    )


@_kept
def _softmax(x: Layout, out: Layout) -> _Call:
    return _Call(_primitive(_softmax_descriptor(x, out)), [(SRC, x), (DST, out)])


@_kept
def _softmax_backward(y: Layout) -> _Call:
    same = (_described(y),) * 3
    descriptor = _descriptor(
        "softmax_backward", SOFTMAX, *same, len(y[0]) - 1, _softmax_descriptor(y, y), None
    )
    return _Call(_primitive(descriptor), [(DST, y), (DIFF_DST, y), (DIFF_SRC, y)])


def _norm_layouts(x: Layout) -> tuple[Layout, Layout]:
    rows, width = x[0]
    return ((rows,), (1,), FLOAT32), ((width,), (1,), FLOAT32)


def _norm_descriptor(x: Layout, epsilon: float) -> _Owned:
    of_rows, _ = _norm_layouts(x)
    return _descriptor(
        "layer_normalization_forward",
        FORWARD,
        _described(x),
        _described(x),
        _described(of_rows),
        epsilon,
        SCALED_AND_SHIFTED,
        None,
    )


@_kept
def _layer_norm(x: Layout, epsilon: float) -> _Call:
    rows, width = _norm_layouts(x)
    arguments = [(SRC, x), (DST, x), (MEAN, rows), (VARIANCE, rows), (SCALE, width), (SHIFT, width)]
    return _Call(_primitive(_norm_descriptor(x, epsilon)), arguments)


@_kept
def _layer_norm_backward(x: Layout, epsilon: float) -> _Call:
    rows, width = _norm_layouts(x)
    descriptor = _descriptor(
        "layer_normalization_backward",
        BACKWARD,
        *(_described(x),) * 3,
        _described(rows),
        epsilon,
        SCALED_AND_SHIFTED,
        _norm_descriptor(x, epsilon),
        None,
    )
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
    "primitive_desc_destroy": "p",
    "gemm_bf16bf16f32": "cclllfplplfpl",
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
    library = ctypes.CDLL(str(Path(paddle.__file__).parent / "libs" / "libdnnl.so.3"))
    for name, letters in _TYPES.items():
        if name.endswith("primitive_desc_create"):
            letters = "pp" + letters
        getattr(library, f"dnnl_{name}").argtypes = [_LETTERS[letter] for letter in letters]
    return library


def _check(name: str, *arguments: object) -> None:
    status = getattr(_library(), f"dnnl_{name}")(*arguments)
    if status:
        raise RuntimeError(f"oneDNN: {name}: status {status}")


def _descriptor(name: str, *arguments: object) -> _Owned:
    return _Owned("primitive_desc", _engine(), *arguments, creator=f"{name}_primitive_desc_create")


@functools.lru_cache(None)
def _engine() -> c_void_p:
    engine = c_void_p()
    _check("engine_create", ctypes.byref(engine), 1, 0)  # the first CPU
    return engine


@functools.lru_cache(None)
def _stream() -> c_void_p:
    stream = c_void_p()
    _check("stream_create", ctypes.byref(stream), _engine(), 1)  # in order
    return stream


def _described(layout: Layout) -> _Owned:
    dims, strides, kind = layout
    sizes = c_int64 * len(dims)
    places = len(dims), sizes(*dims), kind, sizes(*strides)
    return _Owned("memory_desc", *places, creator="memory_desc_create_with_strides")

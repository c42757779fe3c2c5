"""oneDNN, which Paddle's x86 wheels carry: products, norms and functions of arrays, in place.

Each function takes `View`s of memory that NumPy or Paddle owns and writes into the last ones; no
compiler is needed. bfloat16 has no type in NumPy: arrays of it are of uint16. Sums are of float32,
whatever the operands are.
"""

from __future__ import annotations

import functools
from typing import NamedTuple, Union

import numpy as np

import fleetbert.compat.prepared  # noqa: F401  isort: skip
import paddle

from fleetbert.compat import onednn_primitives as primitives
from fleetbert.compat.onednn_primitives import BFLOAT16, BYTES, FLOAT32, Applied, Function, View

DTYPES = {
    np.dtype(np.uint16): BFLOAT16,
    np.dtype(np.float32): FLOAT32,
    np.dtype(bool): BYTES,
    paddle.float32: FLOAT32,
}
# Of functions of single elements, and what follows a product.
RELU, TANH, GELU_TANH, SWISH, GELU = 0x20, 0x21, 0x2B, 0x2C, 0x31
SQRT, POWER = 0x25, 0x30
ADD, MULTIPLY, MAXIMUM = 0x1FFF0, 0x1FFF1, 0x1FFF2
Array = Union[np.ndarray, paddle.Tensor]


def is_there() -> bool:
    """Whether this Paddle carries oneDNN: its wheels for ARM do not."""
    return primitives.LIBRARY.exists()


def view(array: Array, *dims: int) -> View:
    """The view of a contiguous array, as it is or in other dimensions.

    The array has to outlive the view. KeyError for a data type that is not in DTYPES, ValueError
    for elements that lie otherwise.
    """
    if isinstance(array, np.ndarray):
        address, together = array.__array_interface__["data"][0], array.flags.c_contiguous
    else:
        address, together = array.data_ptr(), array.is_contiguous()
    if not together:
        raise ValueError(f"an array of {array.shape} whose elements do not lie together")
    kind = DTYPES[array.dtype]
    dims = dims or tuple(array.shape)
    return View(address, dims, _strides(dims), kind)


@functools.lru_cache(1024)
def _strides(dims: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(dims):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


def array(tensor: paddle.Tensor, *dims: int) -> np.ndarray:
    """The memory of a contiguous float32 tensor as an array of NumPy's, which keeps the tensor."""
    return np.asarray(_Memory(tensor, dims))


class _Memory:
    def __init__(self, tensor: paddle.Tensor, dims: tuple[int, ...]):
        self._tensor = tensor
        address = view(tensor, *dims).address
        self.__array_interface__ = {
            "version": 3,
            "typestr": np.dtype(np.float32).str,
            "shape": dims,
            "data": (address, False),
        }


class PostOp(NamedTuple):
    """What follows another operation: `algorithm` is ADD or MULTIPLY with `other`, which may have 1
    in place of a size; LINEAR, factor x + shift; SQRT; POWER, factor x ** shift; or SUM, which adds
    `factor` times what was at the place of the outcome."""

    algorithm: int
    other: View | None = None
    factor: float = 1.0
    shift: float = 0.0


def linear(x: View, weight: View, bias: View | None, out: View, factor: float = 1.0) -> None:
    """out (rows, n) = (x (rows, k) weight (k, n) + bias (1, n)) factor.

    What computes it is the same for any number of rows.
    """
    layouts = x.layout, weight.layout, bias and bias.layout, out.layout
    biases = [] if bias is None else [bias]
    primitives.linear(*layouts, factor)(x, weight, *biases, out)


def multiply_add(a: View, b: View, out: View, factor: float = 1.0, add: bool = False) -> None:
    """out (m, n) float32 = a (m, k) b (k, n) factor, added to what is there where asked to.

    Whatever the sizes of the matrices; either may be `turned`.
    """
    (m, k), n = a.dims, b.dims[1]
    turned = [of.strides[1] != 1 for of in (a, b)]
    # From a row as it lies in memory to the next; a single one has any stride in its view.
    steps = [
        max(of.strides[0], of.dims[1]) if of.strides[1] == 1 else max(of.strides[1], of.dims[0])
        for of in (a, b, out)
    ]
    letters = [b"T" if of else b"N" for of in turned]
    sizes = m, n, k, factor, a.address, steps[0], b.address, steps[1], float(add)
    primitives.check(primitives.PRODUCTS[a.kind], *letters, *sizes, out.address, steps[2])


def to_weight(x: View, to_y: View, out: View, factor: float) -> None:
    """out (m, n) float32 = x (k, m) turned, to_y (k, n) factor: a gradient of weights.

    In bfloat16 by a primitive for each k: `multiply_add` waits for each line of `out` that no cache
    has any more, and takes 2.2 ms for (384, 1536) where this takes 1.3 (Xeon with AMX; without AMX
    both take as long). In float32 `multiply_add` is as fast.
    """
    if x.kind == FLOAT32:
        multiply_add(x.turned, to_y, out, factor)
    else:
        then = () if factor == 1 else _steps((PostOp(primitives.LINEAR, factor=factor),))
        primitives.to_weight(x.turned.layout, to_y.layout, out.layout, then)(x, to_y, out)


def matmul(a: View, b: View, out: View, then: tuple[PostOp, ...] = ()) -> None:
    """out (..., m, n) = a (..., m, k) b (..., k, n), then what `then` says."""
    primitives.matmul(a.layout, b.layout, out.layout, _steps(then))(a, b, out, *_others(then))


def _steps(then: tuple[PostOp, ...]) -> tuple[Applied, ...]:
    return tuple((t.algorithm, t.other and t.other.layout, t.factor, t.shift) for t in then)


def _others(then: tuple[PostOp, ...]) -> list[View]:
    return [t.other for t in then if t.other]


def copy(source: View, out: View) -> None:
    """Copy an array into another layout or data type."""
    primitives.reorder(source.layout, out.layout)(source, out)


def multiply(a: View, b: View, out: View, then: tuple[PostOp, ...] = ()) -> None:
    """Multiply element by element, then apply `then`."""
    steps = _steps(then)
    primitives.elements(MULTIPLY, a.layout, b.layout, out.layout, steps)(a, b, out, *_others(then))


def add(a: View, b: View, out: View) -> None:
    """Add element by element."""
    primitives.elements(ADD, a.layout, b.layout, out.layout, ())(a, b, out)


def apply(x: View, then: tuple[PostOp, ...], out: View) -> None:
    """Apply `then` to each element."""
    steps = _steps(then)
    # The maximum of an element and itself.
    primitives.elements(MAXIMUM, x.layout, x.layout, out.layout, steps)(x, x, out, *_others(then))


def activate(function: Function, x: View, out: View) -> None:
    """A function of each element. x and out are of one layout."""
    primitives.activation(function, x.layout)(x, out)


def activate_backward(function: Function, x: View, grad: View, out: View) -> None:
    """The gradient by x of `activate`, of which `grad` is that by its outcome."""
    primitives.activation_backward(function, x.layout)(x, grad, out)


def softmax(x: View, out: View) -> None:
    """Compute the softmax over the last axis."""
    primitives.softmax(x.layout, out.layout)(x, out)


def softmax_backward(y: View, grad: View, out: View) -> None:
    """The gradient by x of y = softmax(x). All three are of one layout."""
    primitives.softmax_backward(y.layout)(y, grad, out)


class Norm(NamedTuple):
    """What the backward of a layer normalization needs besides x (rows, width) and the weight
    (width): mean and variance (rows) of the forward."""

    mean: np.ndarray
    variance: np.ndarray
    epsilon: float


def layer_norm(x: View, weight: View, bias: View, epsilon: float, out: View) -> Norm:
    """Normalize the last axis of x (rows, width), in float32."""
    rows = x.dims[0]
    norm = Norm(np.empty(rows, np.float32), np.empty(rows, np.float32), epsilon)
    primitives.layer_norm(x.layout, epsilon)(
        x, out, view(norm.mean), view(norm.variance), weight, bias
    )
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
    compute = primitives.layer_norm_backward(x.layout, norm.epsilon)
    compute(x, grad, *statistics, weight, bias, to_x, to_weight, to_bias)

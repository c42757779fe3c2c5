"""oneDNN, which Paddle's x86 wheels carry: products, norms and functions of arrays, in place.

Each function takes `View`s of memory that NumPy or Paddle owns and writes into the last ones; no
compiler is needed. bfloat16 has no type in NumPy: arrays of it are of uint16. Sums are of float32,
whatever the operands are.
"""

from __future__ import annotations

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
ADD, MULTIPLY = 0x1FFF0, 0x1FFF1
Array = Union[np.ndarray, paddle.Tensor]


def view(array: Array, *dims: int) -> View:
    """The view of a contiguous array, as it is or in other dimensions.

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
    primitives.linear(*layouts, factor)(x, weight, *biases, out)


def multiply_add(a: View, b: View, out: View, factor: float = 1.0, add: bool = False) -> None:
    """out (m, n) float32 = a (m, k) b (k, n) factor, added to what is there where asked to.

    Of matrices in bfloat16, whatever their sizes; either may be `turned`.
    """
    (m, k), n = a.dims, b.dims[1]
    turned = [of.strides[1] != 1 for of in (a, b)]
    steps = [of.strides[0] if of.strides[1] == 1 else of.strides[1] for of in (a, b, out)]
    letters = [b"T" if of else b"N" for of in turned]
    sizes = m, n, k, factor, a.address, steps[0], b.address, steps[1], float(add)
    primitives.check("gemm_bf16bf16f32", *letters, *sizes, out.address, steps[2])


def matmul(a: View, b: View, out: View, then: tuple[PostOp, ...] = ()) -> None:
    """out (..., m, n) = a (..., m, k) b (..., k, n), then what `then` says."""
    primitives.matmul(a.layout, b.layout, out.layout, _steps(then))(a, b, out, *_others(then))


def _steps(then: tuple[PostOp, ...]) -> tuple[Applied, ...]:
    return tuple((t.algorithm, t.other and t.other.layout, t.factor) for t in then)


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

"""oneDNN's primitives give what NumPy gives in float64."""

from __future__ import annotations

import threading

import numpy as np
import psutil
import pytest
from activation import FORMULAS
from halves import needs_bfloat16
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import special

from fleetbert.compat import onednn
from fleetbert.compat import onednn_primitives as primitives
from fleetbert.compat.onednn import ADD, MULTIPLY, PostOp, matmul, view
from fleetbert.compat.onednn_primitives import LINEAR
from fleetbert.graph.bfloat16 import rounded, widened

ROUNDING = 2**-8  # bfloat16 has 8 bits


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


@needs_bfloat16
def test_copying_rounds_to_the_nearest():
    x = np.concatenate([normal(1000) * 1e6, [0, -0.0, 1.00390625, 1.01171875, 3e38, np.inf]])
    x = x.astype(np.float32)
    out = np.empty(x.shape, np.uint16)
    onednn.copy(view(x), view(out))
    np.testing.assert_array_equal(out, rounded(x))
    back = np.empty(x.shape, np.float32)
    onednn.copy(view(out), view(back))
    np.testing.assert_array_equal(back, widened(out))


KINDS = [
    pytest.param(np.uint16, marks=needs_bfloat16, id="bfloat16"),
    pytest.param(np.float32, id="float32"),
]


def operand(kind, *shape, seed):
    """(array for oneDNN, the same in float64)"""
    x = normal(*shape, seed=seed)
    array = rounded(x) if kind == np.uint16 else x
    return array, (widened(array) if kind == np.uint16 else x).astype(np.float64)


SIZES = st.tuples(*[st.integers(1, 70)] * 3)
FACTORS = st.sampled_from([1.0, 1.25])


def turnable(kind, rows, columns, turn, seed):
    """(array to keep, its view, the same in float64), of these sizes; turn: it lies turned."""
    array, exact = operand(kind, *((columns, rows) if turn else (rows, columns)), seed=seed)
    return (array, view(array).turned, exact.T) if turn else (array, view(array), exact)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(
    sizes=SIZES, turns=st.tuples(st.booleans(), st.booleans()),
    more=st.lists(st.sampled_from(["multiply", "scale", "add"]), unique=True),
)  # fmt: skip
def test_products(kind, sizes, turns, more):
    m, k, n = sizes
    _a, a, exact_a = turnable(kind, m, k, turns[0], seed=1)
    _b, b, exact_b = turnable(kind, k, n, turns[1], seed=2)
    kept, added, out = normal(m, n) > 0, normal(1, n), normal(m, n, seed=3)
    exact = exact_a @ exact_b
    after = {
        "multiply": (PostOp(MULTIPLY, view(kept)), lambda x: x * kept),
        "scale": (PostOp(LINEAR, factor=1.25), lambda x: x * 1.25),
        "add": (PostOp(ADD, view(added)), lambda x: x + added),
    }
    for name in more:
        exact = after[name][1](exact)
    matmul(a, b, view(out), tuple(after[name][0] for name in more))
    np.testing.assert_allclose(out, exact, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "into"),
    [
        (np.float32, np.float32),
        pytest.param(np.uint16, np.float32, marks=needs_bfloat16),
        pytest.param(np.uint16, np.uint16, marks=needs_bfloat16),
    ],
)
@settings(max_examples=60, deadline=None)
@given(sizes=SIZES, turn=st.booleans(), biased=st.booleans(), factor=FACTORS)
def test_linear_layers_of_any_number_of_rows(kind, into, sizes, turn, biased, factor):
    rows, k, n = sizes
    x, exact_x = operand(kind, rows, k, seed=1)
    _weight, weight, exact = turnable(kind, k, n, turn, seed=2)
    bias, out = normal(n), np.empty((rows, n), into)
    onednn.linear(view(x), weight, view(bias, 1, n) if biased else None, view(out), factor)
    expected = (exact_x @ exact + bias * biased) * factor
    if into == np.uint16:
        np.testing.assert_allclose(widened(out), expected, rtol=ROUNDING, atol=1e-4)
    else:
        np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(
    sizes=SIZES, turns=st.tuples(st.booleans(), st.booleans()), factor=FACTORS, add=st.booleans()
)  # fmt: skip
@example(sizes=(1, 5, 7), turns=(True, True), factor=1.0, add=False)
@example(sizes=(5, 7, 1), turns=(True, True), factor=1.0, add=False)
@example(sizes=(5, 1, 7), turns=(True, True), factor=1.0, add=False)
def test_products_that_are_added(kind, sizes, turns, factor, add):
    m, k, n = sizes
    _a, a, exact_a = turnable(kind, m, k, turns[0], seed=1)
    _b, b, exact_b = turnable(kind, k, n, turns[1], seed=2)
    out = normal(m, n, seed=3)
    exact = exact_a @ exact_b * factor + out * add
    onednn.multiply_add(a, b, view(out), factor, add)
    np.testing.assert_allclose(out, exact, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(sizes=SIZES, factor=FACTORS)
@example(sizes=(1, 1, 1), factor=1.0)
def test_gradients_of_weights(kind, sizes, factor):
    k, m, n = sizes
    x, exact_x = operand(kind, k, m, seed=1)
    to_y, exact = operand(kind, k, n, seed=2)
    out = np.full((m, n), np.nan, np.float32)
    onednn.to_weight(view(x), view(to_y), view(out), factor)
    np.testing.assert_allclose(out, exact_x.T @ exact * factor, rtol=1e-5, atol=1e-4)


@needs_bfloat16
def test_products_of_views_and_into_bfloat16():
    """Heads of an attention, in place: (rows, length, heads, width) turned without a copy."""
    rows, length, heads, width = 3, 5, 4, 8
    q, exact_q = operand(np.uint16, rows, length, heads, width, seed=1)
    k, exact_k = operand(np.uint16, rows, length, heads, width, seed=2)
    mask = normal(rows, 1, 1, length)
    shape = view(q)
    order = (0, 2, 1, 3)
    dims, strides = ([of[i] for i in order] for of in (shape.dims, shape.strides))
    views = [view(x)._replace(dims=tuple(dims), strides=tuple(strides)) for x in (q, k)]
    out = np.empty((rows, heads, length, length), np.uint16)
    then = (PostOp(LINEAR, factor=0.5), PostOp(ADD, view(mask)))
    matmul(views[0], views[1].turned, view(out), then)
    exact = np.einsum("rqhw,rkhw->rhqk", exact_q, exact_k) * 0.5 + mask
    np.testing.assert_allclose(widened(out), exact, rtol=ROUNDING, atol=1e-6)


def test_dropout_and_a_residual_in_place():
    x, kept, residual = normal(7, 9), normal(7, 9, seed=1) > 0, normal(7, 9, seed=2)
    out = x.copy()
    onednn.multiply(
        view(out), view(kept), view(out), (PostOp(LINEAR, factor=1.25), PostOp(ADD, view(residual)))
    )
    np.testing.assert_allclose(out, x * kept * 1.25 + residual, rtol=1e-6)
    onednn.add(view(out), view(residual), view(out))
    np.testing.assert_allclose(out, x * kept * 1.25 + 2 * residual, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_softmax(kind):
    x, out = normal(3, 4, 6) * 3, np.empty((3, 4, 6), kind)
    onednn.softmax(view(x), view(out))
    found = widened(out) if kind == np.uint16 else out
    close = 2 * ROUNDING if kind == np.uint16 else 1e-5  # exp is rounded, and what it becomes
    np.testing.assert_allclose(found, special.softmax(x.astype(np.float64), -1), rtol=close)
    grad, exact_grad = operand(kind, 3, 4, 6, seed=1)
    to_x = np.empty_like(out)
    onednn.softmax_backward(view(out), view(grad), view(to_x))
    y = found.astype(np.float64)
    exact = y * (exact_grad - (exact_grad * y).sum(-1, keepdims=True))
    np.testing.assert_allclose(
        widened(to_x) if kind == np.uint16 else to_x, exact, rtol=close, atol=close / 10
    )


def test_layer_norm():
    x, weight, bias, grad = normal(6, 40) * 3 + 1, normal(40), normal(40, seed=2), normal(6, 40)
    out, to_x, to_weight, to_bias = (np.empty_like(a) for a in (x, x, weight, bias))
    norm = onednn.layer_norm(view(x), view(weight), view(bias), 1e-3, view(out))
    views = [view(a) for a in (x, weight, bias, grad, to_x, to_weight, to_bias)]
    onednn.layer_norm_backward(norm, *views)
    exact, g = x.astype(np.float64), grad.astype(np.float64)
    inverse = 1 / np.sqrt(exact.var(1, keepdims=True) + 1e-3)
    normalized = (exact - exact.mean(1, keepdims=True)) * inverse
    np.testing.assert_allclose(out, normalized * weight + bias, atol=1e-5)
    np.testing.assert_allclose(to_weight, (g * normalized).sum(0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(to_bias, g.sum(0), rtol=1e-5, atol=1e-5)
    scaled = g * weight
    share = normalized * (scaled * normalized).mean(1, keepdims=True)
    expected = (scaled - scaled.mean(1, keepdims=True) - share) * inverse
    np.testing.assert_allclose(to_x, expected, atol=1e-5)


ACTIVATIONS = {
    "relu": (onednn.RELU, 0.0),
    "tanh": (onednn.TANH, 0.0),
    "gelu": (onednn.GELU, 0.0),
    "gelu_new": (onednn.GELU_TANH, 0.0),
    "silu": (onednn.SWISH, 1.0),
    "quick_gelu": (onednn.SWISH, 1.702),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name, kind):
    function, compute = ACTIVATIONS[name], FORMULAS[name]
    x, exact = operand(kind, 20, 30, seed=1)
    grad, exact_grad = operand(kind, 20, 30, seed=2)
    out, to_x = np.empty_like(x), np.empty_like(x)
    onednn.activate(function, view(x), view(out))
    onednn.activate_backward(function, view(x), view(grad), view(to_x))
    if kind == np.uint16:
        out, to_x = widened(out), widened(to_x)
    close = ROUNDING if kind == np.uint16 else 1e-4
    np.testing.assert_allclose(out, compute(exact), rtol=close, atol=close / 10)
    slope = (compute(exact + 1e-6) - compute(exact - 1e-6)) / 2e-6
    np.testing.assert_allclose(to_x, exact_grad * slope, rtol=close, atol=close / 10)


def test_what_is_not_kept_is_freed():
    """More shapes than are kept, over and over; each had 26 KB that nobody freed."""

    def megabytes():
        return psutil.Process().memory_info().rss / 1e6

    for _ in range(2):
        for rows in range(1, 2 * primitives.KEPT):
            primitives.layer_norm_backward(((rows, 8), (8, 1), primitives.FLOAT32), 1e-5)
    before = megabytes()
    for _ in range(3):
        for rows in range(1, 2 * primitives.KEPT):
            primitives.layer_norm_backward(((rows, 8), (8, 1), primitives.FLOAT32), 1e-5)
    assert megabytes() < before + 20


def test_elements_that_lie_apart_are_refused():
    with pytest.raises(ValueError, match="do not lie together"):
        view(normal(4, 6).T)
    with pytest.raises(KeyError):
        view(np.zeros(3))


def test_threads_do_not_mix_their_arrays():
    """They share what computes for a shape."""
    wrong = []

    def multiplies(seed):
        a, b = normal(30, 40, seed=seed), normal(40, 50, seed=seed + 100)
        out, expected = np.empty((30, 50), np.float32), a @ b
        for _ in range(200):
            out[:] = 0
            matmul(view(a), view(b), view(out))
            if not np.allclose(out, expected, atol=1e-4):
                wrong.append(seed)

    threads = [threading.Thread(target=multiplies, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_what_does_not_fit_is_an_error():
    a, b, out = normal(3, 4), normal(5, 6), np.empty((3, 6), np.float32)
    with pytest.raises(RuntimeError, match="oneDNN: matmul_primitive_desc_create"):
        matmul(view(a), view(b), view(out))

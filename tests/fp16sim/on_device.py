"""What the device fp16sim shows, without fleetbert; tests/training/on_fp16sim.py trains on it.
pytest runs it in a process that has the device: see test_fp16sim.py."""

from __future__ import annotations

import zlib  # noqa: F401  before paddle

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

from fp16sim import calls


@pytest.fixture(autouse=True)
def device():
    paddle.set_device("fp16sim")
    paddle.seed(0)
    yield
    paddle.set_device("cpu")


def test_all_float16_numbers_are_ieee_half():
    """Both ways, beside NumPy: every bit pattern widened, and floats between them rounded."""
    every = np.arange(65536, dtype=np.uint16).view(np.float16)
    widened = paddle.to_tensor(every).astype("float32")
    np.testing.assert_array_equal(widened.numpy(), every.astype(np.float32))
    rng = np.random.default_rng(0)
    floats = rng.standard_normal(100003) * 2.0 ** rng.integers(-30, 18, 100003)
    floats = floats.astype(np.float32)
    with np.errstate(over="ignore"):
        expected = floats.astype(np.float16)
    halves = paddle.to_tensor(floats).astype("float16")
    np.testing.assert_array_equal(halves.numpy(), expected)
    assert np.isinf(expected).any()
    assert ((expected == 0) & (floats != 0)).any()


@pytest.mark.parametrize("size", [1, 7, 8, 1003])
def test_results_overflow_underflow_and_round(size):
    x = paddle.to_tensor(np.resize(np.array([60000, 1e-7, 2049, -60000], np.float16), size))
    found, numbers = (x + x).numpy(), x.numpy()
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(found, numbers + numbers)
        np.testing.assert_array_equal((x * x).numpy(), numbers * numbers)


def test_gradients_are_added_in_half():
    x = paddle.to_tensor(np.array([1.0, 1.0], np.float16), stop_gradient=False)
    for factor in (2048.0, 1.0, 1.0):  # half has no 2049
        (x * paddle.to_tensor(np.full(2, factor, np.float16))).backward(paddle.ones([2], "float16"))
    np.testing.assert_array_equal(x.grad.numpy(), [2048, 2048])


def test_o1_lists():
    x, w = paddle.randn([6, 8]), paddle.randn([8, 5])
    before = calls("matmul")
    with paddle.amp.auto_cast(level="O1", dtype="float16"):
        h = paddle.matmul(x, w)
        assert h.dtype == F.relu(h).dtype == paddle.float16
        assert F.softmax(h).dtype == F.layer_norm(h, [5]).dtype == paddle.exp(h).dtype
        assert F.softmax(h).dtype == paddle.float32
    assert calls("matmul") == before + 1
    black = {"matmul_v2"}
    with paddle.amp.auto_cast(level="O1", dtype="float16", custom_black_list=black):
        assert paddle.matmul(x, w).dtype == paddle.float32
    assert calls("matmul") == before + 1

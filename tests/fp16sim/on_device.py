"""What the device fp16sim shows, without fleetbert. pytest runs it in a process that has the
device: see test_fp16sim.py."""

from __future__ import annotations

import zlib  # noqa: F401  before paddle

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from paddle import nn

from fp16sim import calls


@pytest.fixture(autouse=True)
def device():
    paddle.set_device("fp16sim")
    paddle.seed(0)
    np.random.seed(0)
    yield
    paddle.set_device("cpu")


class Job:
    """A classifier in mixed precision; `step` trains it on one batch and returns the loss."""

    def __init__(self, level, scale, grow_every=1000):
        self.level = level
        self.model = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 2))
        self.optimizer = paddle.optimizer.AdamW(
            2e-3, parameters=self.model.parameters(), grad_clip=nn.ClipGradByGlobalNorm(1.0)
        )
        if level == "O2":
            self.model, self.optimizer = paddle.amp.decorate(
                models=self.model, optimizers=self.optimizer, level="O2", dtype="float16"
            )
        self.scaler = paddle.amp.GradScaler(
            init_loss_scaling=scale, incr_every_n_steps=grow_every, decr_every_n_nan_or_inf=1
        )
        self.x = paddle.to_tensor(np.random.randn(64, 16).astype("float32"))
        self.y = paddle.to_tensor(np.random.randint(0, 2, 64))

    def step(self):
        with paddle.amp.auto_cast(level=self.level, dtype="float16"):
            loss = F.cross_entropy(self.model(self.x), self.y)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.clear_grad()
        return loss.item()

    @property
    def scale(self):
        return self.scaler._scale.item()


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


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_trains(level):
    job = Job(level, 1024.0)
    losses = [job.step() for _ in range(20)]
    assert losses[-1] < 0.6 * losses[0]


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_overflow_skips_then_recovers(level):
    job = Job(level, 2.0**40)
    skipped = 0
    for _ in range(60):
        before, scale = [p.numpy() for p in job.model.parameters()], job.scale
        job.step()
        moved = any((a != p.numpy()).any() for a, p in zip(before, job.model.parameters()))
        if job.scale < scale:
            skipped += 1
            assert not moved
            assert job.scale == scale / 2
        else:
            assert moved
    assert 5 < skipped < 50


def test_scale_grows():
    job = Job("O1", 1024.0, grow_every=3)
    scales = []
    for _ in range(7):
        job.step()
        scales.append(job.scale)
    assert scales == [1024, 1024, 2048, 2048, 2048, 4096, 4096]


def test_o2_master_weights():
    job = Job("O2", 128.0)
    before = calls("adamw")
    for _ in range(5):
        job.step()
    half = [p for p in job.model.parameters() if p.dtype == paddle.float16]
    assert calls("adamw") - before == 5 * len(half) > 0
    assert len(job.optimizer._master_weights) == len(half)
    for p in half:
        master = job.optimizer._master_weights[p.name]
        assert master.dtype == paddle.float32
        np.testing.assert_array_equal(master.numpy().astype(np.float16), p.numpy())
        assert (master.numpy() != p.numpy().astype(np.float32)).any()

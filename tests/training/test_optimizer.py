"""AdamW, its schedule and clipping beside NumPy's."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
import tiny_job
from numpy_adamw import NumpyAdamW, linear_rate

from fleetbert import config
from fleetbert.compat import adamw, onednn
from fleetbert.models import task_heads
from fleetbert.models.bert import BertConfig
from fleetbert.training import optimizer

STEPS = 12


class NumpyLamb(NumpyAdamW):
    """You et al. 2020, algorithm 2; spared weights have no decay and a trust ratio of 1."""

    def move(self, weight, move, rate, decay):
        move = move + decay * weight
        trust = np.linalg.norm(weight) / np.linalg.norm(move) if decay else 1.0
        weight -= rate * trust * move


class NumpyMomentum(NumpyAdamW):
    """Polyak 1964, with L2 decay."""

    def update(self, name, g, rate, decay):
        weight, velocity = self.weights[name], self.first[name]
        velocity[:] = self.settings["momentum"] * velocity + g + decay * weight
        weight -= rate * velocity


class NumpyLars(NumpyAdamW):
    """You et al. 2017, algorithm 1; spared weights have no decay and a trust ratio of 1."""

    def update(self, name, g, rate, decay):
        weight, velocity, s = self.weights[name], self.first[name], self.settings
        if decay:
            size = np.linalg.norm(weight)
            rate = rate * s["lars_coeff"] * size / (np.linalg.norm(g) + decay * size)
        velocity[:] = s["momentum"] * velocity + rate * (g + decay * weight)
        weight -= velocity


class NumpyAdagrad(NumpyAdamW):
    """Duchi et al. 2011, with L2 decay."""

    def update(self, name, g, rate, decay):
        g = g + decay * self.weights[name]
        self.second[name] += g**2
        self.weights[name] -= rate * g / (np.sqrt(self.second[name]) + self.settings["epsilon"])


REFERENCES = {
    "adamw": NumpyAdamW, "lamb": NumpyLamb, "momentum": NumpyMomentum, "lars": NumpyLars,
    "adagrad": NumpyAdagrad,
}  # fmt: skip


def network():
    paddle.seed(0)
    return task_heads.build(
        "classification",
        BertConfig(
            vocab_size=len(tiny_job.VOCAB), hidden_size=8, num_hidden_layers=2,
            num_attention_heads=2, intermediate_size=16, num_labels=2,
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "max_grad_norm"),
    [
        ("adamw", 1.0),
        ("adamw", 0.05),
        ("adamw", 0.0),
        ("lamb", 0.0),
        ("momentum", 0.05),
        ("lars", 0.0),
        ("adagrad", 0.0),
    ],
)
def test_steps_are_those_of_numpy(name, max_grad_norm):
    peak = 0.3 if name in ("momentum", "lars") else 0.02
    settings = {
        "learning_rate": peak, "warmup_ratio": 0.25, "weight_decay": 0.3, "beta1": 0.8,
        "beta2": 0.95, "epsilon": 1e-6, "max_grad_norm": max_grad_norm, "name": name,
        "momentum": 0.8, "lars_coeff": 0.5,
    }  # fmt: skip
    net = network()
    chosen, schedule = optimizer.build(config.Optimizer(**settings), net, STEPS)
    named = dict(net.named_parameters())
    weights = {name: p.numpy().astype(np.float64) for name, p in named.items()}
    spared = {name for name, p in named.items() if len(p.shape) == 1}
    reference = REFERENCES[name](
        weights, spared, lambda step: linear_rate(step, peak, STEPS, 3), settings
    )
    rng = np.random.default_rng(0)
    for _ in range(STEPS):
        gradients = {name: rng.normal(size=p.shape) * 0.01 for name, p in named.items()}
        loss = sum(
            (p * paddle.to_tensor(gradients[name].astype(np.float32))).sum()
            for name, p in named.items()
        )
        loss.backward()
        chosen.step()
        chosen.clear_grad()
        schedule.step()
        reference.step(gradients)
    for name, p in named.items():
        np.testing.assert_allclose(p.numpy(), weights[name], atol=3e-5, err_msg=name)
    before = network().parameters()
    moved = max((p - was).abs().max().item() for p, was in zip(net.parameters(), before))
    assert moved > 0.05


@pytest.mark.skipif(not onednn.is_there(), reason="this Paddle carries no oneDNN")
def test_large_weights_are_moved_by_onednn(monkeypatch):
    monkeypatch.setattr(adamw, "SMALLEST", 1)
    monkeypatch.setattr(adamw, "PIECE", 37)
    monkeypatch.setattr(paddle.optimizer.AdamW, "_append_optimize_op", None)
    test_steps_are_those_of_numpy("adamw", 0.05)
    test_lower_layers_learn_more_slowly("adamw")


@pytest.mark.parametrize("name", ["sgd", *REFERENCES])
def test_lower_layers_learn_more_slowly(name):
    """Gradients of one size in all weights, without decay: moves tell the rates."""
    net = network()
    settings = config.Optimizer(
        name=name, learning_rate=0.01, layer_decay=0.5, weight_decay=0, schedule="constant",
        warmup_ratio=0, max_grad_norm=0,
    )  # fmt: skip
    chosen, _ = optimizer.build(settings, net, STEPS)
    before = {n: p.numpy() for n, p in net.named_parameters()}
    sum(p.sum() for p in net.parameters()).backward()
    chosen.step()
    moves = {n: np.abs(p.numpy() - before[n]).max() for n, p in net.named_parameters()}
    biases = {n: move for n, move in moves.items() if n.endswith("bias")}
    whole = biases["network.classifier.bias"]
    assert whole == pytest.approx(0.01, rel=1e-3)
    expected = {
        "embeddings": 0.125, "encoder.layers.0": 0.25, "encoder.layers.1": 0.5, "pooler": 1,
    }  # fmt: skip
    for part, share in expected.items():
        shares = [move / whole for n, move in biases.items() if f".{part}." in n]
        assert shares
        assert shares == pytest.approx([share] * len(shares), rel=1e-3), part


class TestRate:
    def at(self, total, **settings):
        return optimizer.rate(config.Optimizer(learning_rate=2.0, **settings), total)

    def test_warm_up_and_decay(self):
        rate = self.at(100, warmup_ratio=0.1)
        assert [rate(step) for step in range(100)] == pytest.approx(
            [linear_rate(step, 2.0, 100, 10) for step in range(100)]
        )
        assert rate(0) == pytest.approx(0.2)
        assert rate(9) == rate(10) == 2.0
        assert rate(99) == pytest.approx(2 / 90)
        assert rate(100) == 0
        assert rate(150) == 0

        rate = self.at(10, warmup_ratio=0.0)
        assert [rate(0), rate(5), rate(10)] == pytest.approx([2.0, 1.0, 0.0])

    def test_constant_stays_at_its_peak(self):
        rate = self.at(100, warmup_ratio=0.1, schedule="constant")
        assert rate(4) == pytest.approx(1.0)
        assert {rate(step) for step in (9, 50, 99, 1000)} == {2.0}

    def test_half_a_cosine(self):
        rate = self.at(100, warmup_ratio=0.1, schedule="cosine")
        assert [rate(step) for step in (4, 9, 10)] == pytest.approx([1.0, 2.0, 2.0])
        steps = np.arange(10, 100)
        expected = 1 + np.cos(np.pi * (steps - 10) / 90)
        assert [rate(int(step)) for step in steps] == pytest.approx(expected)
        assert rate(100) == rate(150) == 0

    @pytest.mark.parametrize("total", [1, 2, 3])
    @pytest.mark.parametrize("warmup", [0.0, 0.1, 0.9])
    def test_short_runs_have_a_rate_within_bounds(self, total, warmup):
        rate = self.at(total, warmup_ratio=warmup)
        assert all(0 < rate(step) <= 2.0 for step in range(total))

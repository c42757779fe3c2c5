"""The fast CPU layers give what Paddle's own give."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from paddle import nn

from fleetbert.models import cpu


def twins(make):
    """Two layers with the same weights: Paddle's own, and one that is accelerated."""
    own, fast = make(), make()
    rng = np.random.default_rng(0)
    for mine, others in zip(own.parameters(), fast.parameters()):
        value = rng.normal(size=mine.shape).astype(np.float32)
        mine.set_value(value)
        others.set_value(value)
    random = cpu.Random()
    random.generator = np.random.default_rng(1)
    cpu.accelerate(fast, random)
    return own, fast


def forward_and_gradients(layer, inputs, weights):
    """(output, gradients of the input and of every parameter) of sum(layer(x) * weights)."""
    tensors = [paddle.to_tensor(array, stop_gradient=False) for array in inputs[:1]]
    rest = [paddle.to_tensor(array) for array in inputs[1:]]
    output = layer(*tensors, *rest)
    (output * paddle.to_tensor(weights)).sum().backward()
    gradients = [tensors[0].grad.numpy()]
    gradients += [p.grad.numpy() for p in layer.parameters()]
    names = ["input", *(name for name, _ in layer.named_parameters())]
    layer.clear_gradients()
    return output.numpy(), dict(zip(names, gradients))


class Attention(nn.Layer):
    def __init__(self):
        super().__init__()
        self.inner = nn.MultiHeadAttention(24, 4)

    def forward(self, x, mask=None):
        return self.inner(x, x, x, mask)


LAYERS = {
    "linear": (lambda: nn.Linear(24, 40), [(3, 7, 24)], (3, 7, 40)),
    "linear of a matrix": (lambda: nn.Linear(24, 5), [(6, 24)], (6, 5)),
    "linear without bias": (lambda: nn.Linear(24, 5, bias_attr=False), [(6, 24)], (6, 5)),
    "layer norm": (lambda: nn.LayerNorm(24, epsilon=1e-12), [(3, 7, 24)], (3, 7, 24)),
    "layer norm with epsilon": (lambda: nn.LayerNorm(24, epsilon=1e-3), [(5, 24)], (5, 24)),
    "attention": (Attention, [(3, 7, 24)], (3, 7, 24)),
    "masked attention": (Attention, [(3, 7, 24), (3, 1, 7, 7)], (3, 7, 24)),
    "stack": (
        lambda: nn.TransformerEncoderLayer(24, 4, 48, dropout=0.0, activation="gelu"),
        [(3, 7, 24), (3, 1, 7, 7)],
        (3, 7, 24),
    ),
}


@pytest.mark.parametrize("name", list(LAYERS))
def test_forward_and_every_gradient(name):
    make, inputs, output = LAYERS[name]
    own, fast = twins(make)
    rng = np.random.default_rng(2)
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in inputs]
    if len(arrays) > 1:
        arrays[1] = np.where(arrays[1] > 0.3, np.float32(-1e4), np.float32(0))
        arrays[1][..., 0] = 0
    weights = rng.normal(size=output).astype(np.float32)
    expected, expected_gradients = forward_and_gradients(own, arrays, weights)
    found, gradients = forward_and_gradients(fast, arrays, weights)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5 * np.abs(expected).max())
    # The bias of the keys changes nothing, so that its gradient is rounding alone.
    largest = max(np.abs(gradient).max() for gradient in expected_gradients.values())
    assert set(gradients) == set(expected_gradients)
    for parameter, gradient in expected_gradients.items():
        np.testing.assert_allclose(
            gradients[parameter], gradient,
            rtol=1e-4, atol=1e-6 * largest, err_msg=parameter,
        )  # fmt: skip


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_drops_its_rate_and_keeps_the_mean(rate):
    n = 400_001
    x = paddle.full([n], 2.0)
    found = cpu.dropout(x, rate, np.random.default_rng(4)).numpy()
    kept = found != 0
    deviation = np.sqrt(rate * (1 - rate) / n)
    assert abs((1 - kept.mean()) - rate) < 5 * deviation + 1 / 65536
    np.testing.assert_allclose(found[kept], 2 / (1 - rate), rtol=1e-6)
    assert found.mean() == pytest.approx(2.0, abs=2 / (1 - rate) * (5 * deviation + 1 / 65536))
    neighbours = (kept[1:] & kept[:-1]).mean()
    assert neighbours == pytest.approx((1 - rate) ** 2, abs=8 * deviation + 1e-4)


def test_dropout_passes_the_gradient_where_it_passed_the_value():
    x = paddle.ones([50, 40])
    x.stop_gradient = False
    found = cpu.dropout(x, 0.3, np.random.default_rng(5))
    found.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), found.numpy())


def test_attention_drops_its_weights():
    """With values of one, a row of undropped weights adds up to 1; of dropped ones it does not."""
    layer = nn.MultiHeadAttention(8, 2, dropout=0.5)
    for name, parameter in layer.named_parameters():
        parameter.set_value(np.zeros(parameter.shape, np.float32))
        if name == "v_proj.bias":
            parameter.set_value(np.ones(8, np.float32))
        if name == "out_proj.weight":
            parameter.set_value(np.eye(8, dtype=np.float32))
    random = cpu.Random()
    random.generator = np.random.default_rng(6)
    cpu.accelerate(layer, random)
    found = layer(paddle.ones([64, 32, 8])).numpy()
    assert found.std() > 0.05
    assert found.mean() == pytest.approx(1.0, abs=0.02)
    layer.eval()
    np.testing.assert_allclose(layer(paddle.ones([2, 32, 8])).numpy(), 1.0, rtol=1e-5)


def network():
    paddle.seed(0)
    return nn.Sequential(
        nn.Linear(8, 8), nn.Dropout(0.5), nn.LayerNorm(8), nn.TransformerEncoderLayer(8, 2, 16)
    )


def test_evaluation_runs_paddles_own_layers(monkeypatch):
    layers = network()
    x = paddle.ones([2, 3, 8])
    layers.eval()
    expected = layers(x).numpy()
    cpu.accelerate(layers, cpu.Random())
    for fast in (cpu.Linear, cpu.LayerNorm):
        monkeypatch.setattr(fast, "apply", None)
    monkeypatch.setattr(cpu, "dropout", None)
    np.testing.assert_array_equal(layers(x).numpy(), expected)


def test_restore_undoes_everything():
    layers = network()
    before = {id(layer): set(vars(layer)) for layer in layers.sublayers(include_self=True)}
    cpu.accelerate(layers, cpu.Random())
    changed = [layer for layer in layers.sublayers() if "paddle_forward" in vars(layer)]
    kinds = {type(layer) for layer in changed}
    assert kinds == {nn.Linear, nn.LayerNorm, nn.Dropout, nn.MultiHeadAttention}
    cpu.restore(layers)
    for layer in layers.sublayers(include_self=True):
        assert set(vars(layer)) == before[id(layer)]

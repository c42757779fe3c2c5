"""The layers give in a CPU's training steps what Paddle's own give."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

from fleetbert.models import cpu, layers
from fleetbert.models.bert import Attention, BertConfig, EncoderLayer


def functions(seed):
    fast = cpu.Functions()
    fast.generator = np.random.default_rng(seed)
    return fast


def config(dropout=0.0, **shape):
    return BertConfig(
        hidden_size=24,
        num_attention_heads=4,
        intermediate_size=48,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        **shape,
    )


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


LAYERS = {
    "linear": (lambda: layers.Linear(24, 40), [(3, 7, 24)], (3, 7, 40)),
    "linear of a matrix": (lambda: layers.Linear(24, 5), [(6, 24)], (6, 5)),
    "layer norm": (lambda: layers.LayerNorm(24, epsilon=1e-12), [(3, 7, 24)], (3, 7, 24)),
    "layer norm with epsilon": (lambda: layers.LayerNorm(24, epsilon=1e-3), [(5, 24)], (5, 24)),
    "attention": (lambda: Attention(config()), [(3, 7, 24)], (3, 7, 24)),
    "masked attention": (lambda: Attention(config()), [(3, 7, 24), (3, 1, 7, 7)], (3, 7, 24)),
    "stack": (lambda: EncoderLayer(config()), [(3, 7, 24), (3, 1, 7, 7)], (3, 7, 24)),
}


@pytest.mark.parametrize("name", list(LAYERS))
def test_forward_and_every_gradient(name):
    make, inputs, output = LAYERS[name]
    layer, rng = make(), np.random.default_rng(2)
    for parameter in layer.parameters():
        parameter.set_value(rng.normal(size=parameter.shape).astype(np.float32))
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in inputs]
    if len(arrays) > 1:
        arrays[1] = np.where(arrays[1] > 0.3, np.float32(-1e4), np.float32(0))
        arrays[1][..., 0] = 0
    weights = rng.normal(size=output).astype(np.float32)
    expected, expected_gradients = forward_and_gradients(layer, arrays, weights)
    with layers.during(functions(1)):
        found, gradients = forward_and_gradients(layer, arrays, weights)
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
    layer = Attention(config(0.5))
    for name, parameter in layer.named_parameters():
        parameter.set_value(np.zeros(parameter.shape, np.float32))
        if name == "v_proj.bias":
            parameter.set_value(np.ones(24, np.float32))
        if name == "out_proj.weight":
            parameter.set_value(np.eye(24, dtype=np.float32))
    with layers.during(functions(6)):
        found = layer(paddle.ones([64, 32, 24])).numpy()
        assert found.std() > 0.05
        assert found.mean() == pytest.approx(1.0, abs=0.02)
        layer.eval()
        np.testing.assert_allclose(layer(paddle.ones([2, 32, 24])).numpy(), 1.0, rtol=1e-5)


def test_outside_of_steps_paddles_own_functions_run(monkeypatch):
    layer, x = EncoderLayer(config(0.5)), paddle.ones([2, 3, 24])
    layer.eval()
    expected = layer(x).numpy()
    with layers.during(functions(1)):
        np.testing.assert_allclose(layer(x).numpy(), expected, atol=1e-6)
    for fast in (cpu.Linear, cpu.LayerNorm):
        monkeypatch.setattr(fast, "apply", None)
    monkeypatch.setattr(cpu, "dropout", None)
    np.testing.assert_array_equal(layer(x).numpy(), expected)
    layer.train()
    x.stop_gradient = False
    layer(x)

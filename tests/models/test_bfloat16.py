"""The layers in bfloat16 give what float32's give, within bfloat16's rounding."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from halves import needs_bfloat16

from fleetbert.compat import paddlenlp  # noqa: F401  it changes Paddle's layers
from fleetbert.models import activations, bfloat16, cpu, layers
from fleetbert.models.bert import BertConfig, EncoderLayer
from fleetbert.models.bfloat16 import Dropout

pytestmark = needs_bfloat16
ROWS, LENGTH, WIDTH, HEADS = 3, 7, 32, 4
# The error of 8 bits, through the few products of a layer.
CLOSE = 0.03


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def encoder_layer(dropout=0.0, attention_dropout=0.0, activation="gelu", heads=HEADS):
    layer = EncoderLayer(
        BertConfig(
            hidden_size=WIDTH,
            num_attention_heads=HEADS,
            intermediate_size=64,
            kept_heads=heads,
            hidden_act=activation,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=attention_dropout,
        )
    )
    for number, parameter in enumerate(layer.parameters()):
        value = normal(*parameter.shape, seed=number) * 0.3
        parameter.set_value(
            value + 1 if parameter.ndim == 1 and "norm" in parameter.name else value
        )
    return layer


def mixed(layer, x, *others, seed=1):
    """`run` in a training step in bfloat16."""
    return in_steps(bfloat16.Functions(), layer, x, *others, seed=seed)


def in_steps(functions, layer, x, *others, seed=1):
    functions.generator = np.random.default_rng(seed)
    with layers.during(functions):
        return run(layer, x, *others)


def run(layer, x, *others):
    """(output, {name: gradient}) of sum(layer(x) * fixed numbers)."""
    x = paddle.to_tensor(x, stop_gradient=False)
    output = layer(x, *others)
    (output * paddle.to_tensor(normal(*output.shape, seed=9))).sum().backward()
    gradients = {name: p.grad for name, p in layer.named_parameters() if p.grad is not None}
    found = {name: gradient.numpy() for name, gradient in gradients.items()}
    for parameter in layer.parameters():
        parameter.clear_gradient(False)
    return output.numpy(), {"x": x.grad.numpy(), **found}


def assert_close(found, exact, close=CLOSE):
    """Beside the length of all; the gradient of keys' bias is 0 but for rounding."""
    assert error(found[0], exact[0]) < close
    assert set(found[1]) == set(exact[1])
    longest = max(np.linalg.norm(gradient) for gradient in exact[1].values())
    for name, gradient in exact[1].items():
        beside = longest if "k_proj.bias" in name else np.linalg.norm(gradient)
        assert np.linalg.norm(found[1][name] - gradient) < close * beside, name


def error(found, exact):
    return np.linalg.norm(found - exact) / np.linalg.norm(exact)


MASKS = {
    "none": None,
    "padding": np.where(normal(ROWS, 1, 1, LENGTH) > 1, -1e4, 0).astype(np.float32),
    "packed": np.where(normal(ROWS, 1, LENGTH, LENGTH) > 0.5, -1e4, 0).astype(np.float32),
}


class TestLayers:
    @pytest.mark.parametrize("mask", MASKS)
    @pytest.mark.parametrize("heads", [HEADS, 3])
    def test_as_in_float32(self, mask, heads):
        x = normal(ROWS, LENGTH, WIDTH)
        others = [] if MASKS[mask] is None else [paddle.to_tensor(MASKS[mask])]
        exact = run(encoder_layer(heads=heads), x, *others)
        found = mixed(encoder_layer(heads=heads), x, *others)
        assert_close(found, exact)
        assert not np.array_equal(found[0], exact[0])

    @pytest.mark.parametrize("activation", activations.ACTIVATIONS)
    def test_activations(self, activation):
        x = normal(ROWS, LENGTH, WIDTH)
        exact = run(encoder_layer(activation=activation), x)
        close = 0.08 if activation == "relu" else CLOSE  # near 0 a rounding decides
        assert_close(mixed(encoder_layer(activation=activation), x), exact, close)

    def test_dropout_is_where_it_is_drawn(self):
        """The same layer in float32, with what is drawn for attention, its output and the
        feed-forward's, in this order."""

        class Drawn(layers.Functions):
            def dropout(self, layer, x):
                drawn = Dropout.draw(tuple(x.shape), layer.p, self.generator)
                return x * paddle.to_tensor(drawn.kept.astype(np.float32) * drawn.scale)

        layer, x = encoder_layer(0.2, 0.3), normal(ROWS, LENGTH, WIDTH)
        assert_close(mixed(layer, x), in_steps(Drawn(), layer, x))

    def test_a_teachers_evaluation_is_in_bfloat16(self):
        x, layer = paddle.to_tensor(normal(ROWS, LENGTH, WIDTH)), encoder_layer(0.5, 0.5)
        layer.eval()
        exact = layer(x).numpy()
        with paddle.no_grad(), layers.during(bfloat16.Functions()):
            found = layer(x).numpy()
        assert error(found, exact) < CLOSE
        assert not np.array_equal(found, exact)
        np.testing.assert_array_equal(layer(x).numpy(), exact)

    def test_what_learns_nothing_gets_no_gradient(self):
        x = normal(ROWS, LENGTH, WIDTH)
        layer = encoder_layer()
        frozen = [layer.linear1.weight, layer.self_attn.q_proj.bias, layer.norm1.weight]
        expected = run(layer, x)
        for parameter in frozen:
            parameter.stop_gradient = True
        found = mixed(layer, x)
        names = {name for name, p in layer.named_parameters() if not p.stop_gradient}
        assert set(found[1]) == {"x", *names}
        assert_close(found, (expected[0], {name: expected[1][name] for name in found[1]}))
        with layers.during(bfloat16.Functions()):
            output = layer(paddle.to_tensor(x))  # nor does x, below frozen embeddings
        output.sum().backward()
        assert layer.linear2.weight.grad is not None


class TestLinear:
    def test_large_ones_are_in_bfloat16(self):
        x = normal(4, 64, 256)

        linear = layers.Linear(256, 300)
        for number, parameter in enumerate(linear.parameters()):
            parameter.set_value(normal(*parameter.shape, seed=number))
        exact = in_steps(cpu.Functions(), linear, x)
        found = mixed(linear, x)
        assert_close(found, exact)
        assert not np.array_equal(found[0], exact[0])

    def test_small_ones_are_not(self):
        linear, x = layers.Linear(32, 8), normal(4, 32)
        exact = in_steps(cpu.Functions(), linear, x)[0]
        np.testing.assert_array_equal(mixed(linear, x)[0], exact)

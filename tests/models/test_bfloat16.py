"""The layers in bfloat16 give what float32's give, within bfloat16's rounding."""

from __future__ import annotations

import copy

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from halves import needs_bfloat16
from paddle import nn
from paddle.nn.quant.quant_layers import QuantizedLinear

from fleetbert.compat import paddlenlp  # noqa: F401  it changes Paddle's layers
from fleetbert.models import activations, bfloat16, cpu
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


def accelerated(layer, seed=1, **options):
    random = cpu.Random()
    random.generator = np.random.default_rng(seed)
    cpu.accelerate(layer, random)
    bfloat16.accelerate(layer, random, **options)
    return layer


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
        found = run(accelerated(encoder_layer(heads=heads)), x, *others)
        assert_close(found, exact)
        assert not np.array_equal(found[0], exact[0])

    @pytest.mark.parametrize("activation", activations.ACTIVATIONS)
    def test_activations(self, activation):
        x = normal(ROWS, LENGTH, WIDTH)
        exact = run(encoder_layer(activation=activation), x)
        close = 0.08 if activation == "relu" else CLOSE  # near 0 a rounding decides
        assert_close(run(accelerated(encoder_layer(activation=activation)), x), exact, close)

    def test_dropout_is_where_it_is_drawn(self):
        """The same layer in float32, with what is drawn for attention, its output and the
        feed-forward's, in this order."""
        layer, x = encoder_layer(0.2, 0.3), normal(ROWS, LENGTH, WIDTH)

        def exact(x):
            rng, attention = np.random.default_rng(1), layer.self_attn

            def dropped(x, rate):
                drawn = Dropout.draw(tuple(x.shape), rate, rng)
                return x * paddle.to_tensor(drawn.kept.astype(np.float32) * drawn.scale)

            q, k, v = attention._prepare_qkv(x, x, x)
            scores = paddle.matmul(q, k, transpose_y=True) * attention.head_dim**-0.5
            weights = dropped(F.softmax(scores), 0.3)
            context = paddle.matmul(weights, v).transpose([0, 2, 1, 3]).flatten(2)
            out = attention.out_proj(context).reshape([-1, WIDTH])
            x = layer.norm1(x + dropped(out, 0.2).reshape(x.shape))
            out = layer.linear2(layer.activation(layer.linear1(x))).reshape([-1, WIDTH])
            return layer.norm2(x + dropped(out, 0.2).reshape(x.shape))

        tensor = paddle.to_tensor(x, stop_gradient=False)
        output = exact(tensor)
        (output * paddle.to_tensor(normal(*output.shape, seed=9))).sum().backward()
        gradients = {name: p.grad.numpy() for name, p in layer.named_parameters()}
        for parameter in layer.parameters():
            parameter.clear_gradient(False)
        expected = output.numpy(), {"x": tensor.grad.numpy(), **gradients}
        assert_close(run(accelerated(layer), x), expected)

    def test_evaluation_is_in_float32(self):
        x, layer = paddle.to_tensor(normal(ROWS, LENGTH, WIDTH)), encoder_layer(0.5, 0.5)
        layer.eval()
        exact = layer(x).numpy()
        np.testing.assert_array_equal(accelerated(layer)(x).numpy(), exact)

    def test_a_teachers_evaluation_is_in_bfloat16(self):
        x, layer = paddle.to_tensor(normal(ROWS, LENGTH, WIDTH)), encoder_layer(0.5, 0.5)
        layer.eval()
        exact = layer(x).numpy()
        with paddle.no_grad():
            found = accelerated(layer, evaluating=True)(x).numpy()
        assert error(found, exact) < CLOSE
        assert not np.array_equal(found, exact)

    def test_what_learns_nothing_gets_no_gradient(self):
        x = normal(ROWS, LENGTH, WIDTH)
        layer = encoder_layer()
        frozen = [layer.linear1.weight, layer.self_attn.q_proj.bias, layer.norm1.weight]
        expected = run(layer, x)
        for parameter in frozen:
            parameter.stop_gradient = True
        accelerated(layer)
        found = run(layer, x)
        names = {name for name, p in layer.named_parameters() if not p.stop_gradient}
        assert set(found[1]) == {"x", *names}
        assert_close(found, (expected[0], {name: expected[1][name] for name in found[1]}))
        output = layer(paddle.to_tensor(x))  # nor does x, below frozen embeddings
        output.sum().backward()
        assert layer.linear2.weight.grad is not None

    def test_layers_of_others_stay_float32(self):
        x, layers = normal(ROWS, LENGTH, WIDTH), []
        for _ in range(2):
            paddle.seed(5)
            layers.append(nn.TransformerEncoderLayer(WIDTH, HEADS, 64, 0.0))
        exact, found = run(cpu_only(layers[0]), x), run(accelerated(layers[1]), x)
        np.testing.assert_array_equal(found[0], exact[0])

    def test_a_mask_that_learns_is_for_paddles_own(self):
        layer, x = encoder_layer(), paddle.to_tensor(normal(ROWS, LENGTH, WIDTH))
        mask = paddle.to_tensor(MASKS["padding"], stop_gradient=False)
        exact = cpu_only(layer)(x, mask).numpy()
        np.testing.assert_array_equal(accelerated(layer)(x, mask).numpy(), exact)

    def test_a_copy_has_its_own_weights(self):
        layer, x = accelerated(encoder_layer()), paddle.to_tensor(normal(ROWS, LENGTH, WIDTH))
        copied = copy.deepcopy(layer)
        for parameter in copied.parameters():
            parameter.set_value(paddle.zeros_like(parameter))
        assert float(copied(x).abs().max()) == 0
        assert float(layer(x).abs().max()) > 1

    def test_twice_is_once(self):
        layer, x = accelerated(accelerated(encoder_layer())), normal(ROWS, LENGTH, WIDTH)
        exact = run(encoder_layer(), x)
        assert_close(run(layer, x), exact)
        layer.eval()
        assert error(layer(paddle.to_tensor(x)).numpy(), exact[0]) < 1e-6


def cpu_only(layer):
    cpu.accelerate(layer, cpu.Random())
    return layer


class TestLinear:
    @pytest.mark.parametrize("quantized", [False, True])
    def test_large_ones_are_in_bfloat16(self, quantized):
        x = normal(4, 64, 256)

        def make():
            linear = nn.Linear(256, 300)
            for number, parameter in enumerate(linear.parameters()):
                parameter.set_value(normal(*parameter.shape, seed=number))
            if not quantized:
                return linear
            layer = QuantizedLinear(
                linear, weight_quantize_type="abs_max", activation_quantize_type="abs_max"
            )
            layer.train()
            return layer

        exact = run(cpu_only(make()), x)
        found = run(accelerated(make()), x)
        assert_close(found, exact)
        assert not np.array_equal(found[0], exact[0])

    def test_small_ones_are_not(self):
        linear, x = nn.Linear(32, 8), normal(4, 32)
        exact = run(cpu_only(linear), x)[0]
        bfloat16.accelerate(linear, cpu.Random())
        np.testing.assert_array_equal(run(linear, x)[0], exact)

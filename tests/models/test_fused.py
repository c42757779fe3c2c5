"""The layers of training steps give what Paddle's own give: in float32 up to rounding, in bfloat16
within its 8 bits."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from halves import needs_bfloat16

from fleetbert.compat import paddlenlp  # noqa: F401  it changes Paddle's layers
from fleetbert.models import activations, fused, layers
from fleetbert.models.bert import Attention, BertConfig, EncoderLayer
from fleetbert.models.fused import BFLOAT16, FLOAT32, Dropout

ROWS, LENGTH, WIDTH, HEADS = 3, 7, 32, 4
# The largest error; of bfloat16 that of 8 bits, through the few products of a layer.
CLOSE = {FLOAT32: 1e-5, BFLOAT16: 0.03}
kinds = pytest.mark.parametrize(
    "kind",
    [
        pytest.param(FLOAT32, id="float32"),
        pytest.param(BFLOAT16, marks=needs_bfloat16, id="bfloat16"),
    ],
)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def draw_weights(layer):
    for number, parameter in enumerate(layer.parameters()):
        value = normal(*parameter.shape, seed=number) * 0.3
        is_gain = parameter.ndim == 1 and "norm" in parameter.name
        parameter.set_value(value + 1 if is_gain else value)
    return layer


def config(dropout=0.0, attention_dropout=0.0, activation="gelu", heads=HEADS):
    return BertConfig(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        intermediate_size=64,
        kept_heads=heads,
        hidden_act=activation,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=attention_dropout,
    )


def encoder_layer(*arguments, **settings):
    return draw_weights(EncoderLayer(config(*arguments, **settings)))


def functions(kind, seed=1):
    made = fused.Functions(kind)
    made.generator = np.random.default_rng(seed)
    return made


def in_steps(kind, layer, x, *others):
    """`run` in a training step."""
    with layers.during(functions(kind)):
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


def assert_close(found, exact, close):
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


@kinds
class TestEncoderLayer:
    @pytest.mark.parametrize("mask", MASKS)
    @pytest.mark.parametrize("heads", [HEADS, 3])
    def test_as_paddles(self, kind, mask, heads):
        x = normal(ROWS, LENGTH, WIDTH)
        others = [] if MASKS[mask] is None else [paddle.to_tensor(MASKS[mask])]
        exact = run(encoder_layer(heads=heads), x, *others)
        found = in_steps(kind, encoder_layer(heads=heads), x, *others)
        assert_close(found, exact, CLOSE[kind])
        assert not np.array_equal(found[0], exact[0])

    @pytest.mark.parametrize("activation", activations.ACTIVATIONS)
    def test_activations(self, kind, activation):
        x = normal(ROWS, LENGTH, WIDTH)
        exact = run(encoder_layer(activation=activation), x)
        # Near 0 a rounding decides.
        close = 0.08 if (activation, kind) == ("relu", BFLOAT16) else CLOSE[kind]
        assert_close(in_steps(kind, encoder_layer(activation=activation), x), exact, close)

    def test_dropout_is_where_it_is_drawn(self, kind):
        """Paddle's layer, with what is drawn for attention, its output and the feed-forward's, in
        this order."""

        class Drawn(layers.Functions):
            generator = np.random.default_rng(1)

            def dropout(self, layer, x):
                drawn = Dropout.draw(tuple(x.shape), layer.p, self.generator)
                return x * paddle.to_tensor(drawn.kept.astype(np.float32) * drawn.scale)

        layer, x = encoder_layer(0.2, 0.3), normal(ROWS, LENGTH, WIDTH)
        with layers.during(Drawn()):
            expected = run(layer, x)
        assert_close(in_steps(kind, layer, x), expected, CLOSE[kind])

    def test_a_teachers_evaluation_has_the_type_of_steps(self, kind):
        x, layer = paddle.to_tensor(normal(ROWS, LENGTH, WIDTH)), encoder_layer(0.5, 0.5)
        layer.eval()
        exact = layer(x).numpy()
        with paddle.no_grad(), layers.during(functions(kind)):
            found = layer(x).numpy()
        assert error(found, exact) < CLOSE[kind]
        assert not np.array_equal(found, exact)
        np.testing.assert_array_equal(layer(x).numpy(), exact)

    def test_what_learns_nothing_gets_no_gradient(self, kind):
        x = normal(ROWS, LENGTH, WIDTH)
        layer = encoder_layer()
        frozen = [layer.linear1.weight, layer.self_attn.q_proj.bias, layer.norm1.weight]
        expected = run(layer, x)
        for parameter in frozen:
            parameter.stop_gradient = True
        found = in_steps(kind, layer, x)
        names = {name for name, p in layer.named_parameters() if not p.stop_gradient}
        assert set(found[1]) == {"x", *names}
        exact = expected[0], {name: expected[1][name] for name in found[1]}
        assert_close(found, exact, CLOSE[kind])
        with layers.during(functions(kind)):
            output = layer(paddle.to_tensor(x))  # nor does x, below frozen embeddings
        output.sum().backward()
        assert layer.linear2.weight.grad is not None

    def test_memory_is_freed(self, kind):
        """What a backward needs, once it has run; the input of a block among it."""
        layer, x = encoder_layer(0.1, 0.1), normal(ROWS, LENGTH, WIDTH)
        in_steps(kind, layer, x)
        before = paddle.base.core.host_memory_stat_current_value("Allocated", 0)
        for _ in range(3):
            in_steps(kind, layer, x)
        assert paddle.base.core.host_memory_stat_current_value("Allocated", 0) <= before


PARTS = {
    "linear": (lambda: layers.Linear(24, 40), (3, 7, 24)),
    "linear of a matrix": (lambda: layers.Linear(24, 5), (6, 24)),
    "linear to one number": (lambda: layers.Linear(24, 1), (6, 24)),
    "linear of one text": (lambda: layers.Linear(24, 5), (1, 24)),
    "layer norm": (lambda: layers.LayerNorm(24, epsilon=1e-12), (3, 7, 24)),
    "layer norm with epsilon": (lambda: layers.LayerNorm(24, epsilon=1e-3), (5, 24)),
    "attention": (lambda: Attention(config()), (3, 7, WIDTH)),
}


@pytest.mark.parametrize("name", PARTS)
def test_layers_outside_of_encoder_layers(name):
    make, shape = PARTS[name]
    layer, x = draw_weights(make()), normal(*shape, seed=5)
    found = in_steps(FLOAT32, layer, x)
    assert_close(found, run(layer, x), CLOSE[FLOAT32])


@pytest.mark.parametrize("name", ["linear", "layer norm"])
def test_a_frozen_weight_outside_of_them_gets_no_gradient(name):
    make, shape = PARTS[name]
    layer = make()
    layer.weight.stop_gradient = True
    assert set(in_steps(FLOAT32, layer, normal(*shape))[1]) == {"x", "bias"}


@needs_bfloat16
class TestLinearInBfloat16:
    def test_where_it_is_large(self):
        linear, x = draw_weights(layers.Linear(256, 300)), normal(4, 64, 256)
        exact, found = (in_steps(kind, linear, x) for kind in (FLOAT32, BFLOAT16))
        assert_close(found, exact, CLOSE[BFLOAT16])
        assert not np.array_equal(found[0], exact[0])

    def test_small_ones_are_in_float32(self):
        linear, x = layers.Linear(32, 8), normal(4, 32)
        exact, found = (in_steps(kind, linear, x)[0] for kind in (FLOAT32, BFLOAT16))
        np.testing.assert_array_equal(found, exact)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_dropout_drops_its_rate_and_keeps_the_mean(rate):
    n = 400_001
    x = paddle.full([n], 2.0)
    found = fused.dropout(x, rate, np.random.default_rng(4)).numpy()
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
    found = fused.dropout(x, 0.3, np.random.default_rng(5))
    found.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), found.numpy())


def test_outside_of_steps_paddles_own_functions_run(monkeypatch):
    layer, x = encoder_layer(0.5, 0.5), paddle.ones([2, 3, WIDTH])
    layer.eval()
    expected = layer(x).numpy()
    for block in (fused.Linear, fused.LayerNorm, fused.Attention, fused.FeedForward):
        monkeypatch.setattr(block, "apply", None)
    monkeypatch.setattr(fused, "dropout", None)
    np.testing.assert_array_equal(layer(x).numpy(), expected)
    layer.train()
    x.stop_gradient = False
    layer(x)

"""The layers of training steps on a CPU: blocks written out forward and backward, by oneDNN.

Paddle's CPU kernels for training run on one thread, many of them slowly, and its AMP does nothing
on a CPU. Here a layer of the encoder is two blocks, attention and feed-forward, each with its
dropout, residual and LayerNorm (Vaswani et al. 2017). What is multiplied has one element type,
float32 or bfloat16, and so has what the backward needs again: in float32 it is viewed where it
lies, for bfloat16 it is rounded. Sums, softmax, LayerNorm, the residual and all that an optimizer
sees are float32 (Micikevicius et al. 2018; Kalamkar et al. 2019). bfloat16 has float32's range, so
no loss is scaled.

Linear layers and norms outside of these blocks are computed so too; in bfloat16, linear layers
where they are large. All else is Paddle's own, and so is an export. On processors without bfloat16
products oneDNN emulates them, slowly: `train.precision` asks first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable, NamedTuple, Sequence

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import Tensor
from paddle.autograd import PyLayer, PyLayerContext
from paddle.profiler import RecordEvent

from fleetbert.compat import onednn
from fleetbert.compat.onednn import ADD, PostOp, matmul, view
from fleetbert.compat.onednn_primitives import LINEAR, View
from fleetbert.compat.touched_rows import TouchedRows
from fleetbert.models import activations, layers
from fleetbert.models.dropout import Dropout, dropout

if TYPE_CHECKING:
    from fleetbert.models.bert import EncoderLayer

# Each activation of `models.activations` as oneDNN's, with its alpha.
FUNCTIONS: dict[Callable, tuple[int, float]] = {
    F.gelu: (onednn.GELU, 0.0),
    activations.gelu_tanh: (onednn.GELU_TANH, 0.0),
    F.relu: (onednn.RELU, 0.0),
    F.silu: (onednn.SWISH, 1.0),
    F.tanh: (onednn.TANH, 0.0),
    activations.quick_gelu: (onednn.SWISH, 1.702),
}


# Element types of products. NumPy has no bfloat16: arrays of it are of uint16.
FLOAT32, BFLOAT16 = np.dtype(np.float32), np.dtype(np.uint16)
# Multiplications of a linear layer outside of the blocks below which rounding its operands costs
# more than bfloat16 gains.
SMALLEST = 1 << 22


class Functions(layers.Functions):
    """For the forward of training steps. The parts of an encoder's layer are not called then, nor
    are hooks of theirs.

    kind: the element type of products. words: the table of which AdamW moves the touched rows, if
    it does so.
    """

    words: TouchedRows | None = None

    def __init__(self, kind: np.dtype):
        self.kind = kind

    def embedding(self, layer: layers.Embedding, ids: Tensor) -> Tensor:
        if self.words is None or layer.weight is not self.words.table:
            return super().embedding(layer, ids)
        return self.words.lookup(ids)

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        small = x.size * weight.shape[1] < SMALLEST
        return Linear.apply(x, weight, bias, FLOAT32 if small else self.kind)

    def layer_norm(self, layer: layers.LayerNorm, x: Tensor) -> Tensor:
        return LayerNorm.apply(x, layer.weight, layer.bias, layer._epsilon)

    def dropout(self, layer: layers.Dropout, x: Tensor) -> Tensor:
        return dropout(x, layer.p, self.generator) if layer.training else x

    def encoder_layer(self, layer: EncoderLayer, hidden: Tensor, mask: Tensor | None) -> Tensor:
        attention, inner, outer = layer.self_attn, layer.linear1, layer.linear2
        projections = attention.q_proj, attention.k_proj, attention.v_proj, attention.out_proj
        # In quantization-aware training they are others.
        if not all(isinstance(each, layers.Linear) for each in (*projections, inner, outer)):
            return layer.of_parts(hidden, mask)
        rates = [
            each.p if layer.training else 0.0
            for each in (attention.dropout, layer.dropout1, layer.dropout2)
        ]
        attended = Attention.apply(
            hidden,
            *(tensor for each in projections for tensor in (each.weight, each.bias)),
            layer.norm1.weight,
            layer.norm1.bias,
            AddNorm(rates[1], layer.norm1._epsilon, self.generator),
            Heads(attention.num_heads, rates[0], mask, self.kind),
        )
        return FeedForward.apply(
            attended,
            inner.weight,
            inner.bias,
            outer.weight,
            outer.bias,
            layer.norm2.weight,
            layer.norm2.bias,
            AddNorm(rates[2], layer.norm2._epsilon, self.generator),
            FUNCTIONS[layer.activation],
            self.kind,
        )


class AddNorm(NamedTuple):
    """The end of a block: the rate of its dropout, the epsilon of its LayerNorm, and what the
    dropout is drawn from."""

    dropout: float
    epsilon: float
    generator: np.random.Generator


class Heads(NamedTuple):
    """mask: added to scores (rows, heads, length, length), float32, with 1 for some of these sizes;
    None: all tokens are seen."""

    number: int
    dropout: float
    mask: Tensor | None
    kind: np.dtype


class Block(PyLayer):
    """Paddle's profiler shows its forward as an operator; the backward has a name by itself."""

    @classmethod
    def apply(cls, *arguments):
        with RecordEvent(cls.__name__):
            return super().apply(*arguments)


class Linear(Block):
    """x W + b; x (..., in)."""

    @staticmethod
    def forward(ctx, x, weight, bias, kind):
        ctx.needs_grad = _needs_grad(x, weight, bias)
        inside, outside = weight.shape
        x, weight = x.contiguous(), weight.contiguous()
        ctx.x = _operand(kind, x, x.size // inside, inside)
        ctx.w = _operand(kind, weight, inside, outside)
        y = paddle.empty([*x.shape[:-1], outside])
        of_rows = view(y, len(ctx.x), outside)
        onednn.linear(view(ctx.x), view(ctx.w), view(bias, 1, outside), of_rows)
        return y

    @staticmethod
    def backward(ctx, grad):
        inside, outside = ctx.w.shape
        grad = grad.contiguous()
        to_y = _operand(ctx.x.dtype, grad, len(ctx.x), outside)
        to_x = paddle.empty([*grad.shape[:-1], inside])
        onednn.multiply_add(view(to_y), view(ctx.w).turned, view(to_x, len(ctx.x), inside))
        return _needed(ctx, to_x, *_to_linear(ctx.x, to_y))


class Attention(Block):
    """LayerNorm(x + dropout(multi-head self-attention(x))); x (rows, length, hidden)."""

    @staticmethod
    def forward(ctx, x, wq, bq, wk, bk, wv, bv, wo, bo, gain, shift, how, heads):
        ctx.needs_grad = _needs_grad(x, wq, bq, wk, bk, wv, bv, wo, bo, gain, shift)
        rows, length, hidden = x.shape
        x = x.contiguous()
        kind = heads.kind
        ctx.x = _operand(kind, x, rows * length, hidden)
        ctx.w_in = [_operand(kind, weight, *weight.shape) for weight in (wq, wk, wv)]
        ctx.qkv = [_linear(ctx.x, w, b) for w, b in zip(ctx.w_in, (bq, bk, bv))]
        q, k, v = (_heads(array, rows, heads.number) for array in ctx.qkv)
        scores = np.empty((rows, heads.number, length, length), np.float32)
        seen = None if heads.mask is None else heads.mask.contiguous()
        mask = () if seen is None else (PostOp(ADD, view(seen)),)
        matmul(q, k.turned, view(scores), then=(_scaled(q), *mask))
        ctx.weights = np.empty(scores.shape, kind)
        onednn.softmax(view(scores), view(ctx.weights))
        ctx.seen = Dropout.draw(scores.shape, heads.dropout, how.generator)
        weights = ctx.seen.of(ctx.weights)
        ctx.context = np.empty_like(ctx.qkv[2])
        matmul(view(weights), v, _heads(ctx.context, rows, heads.number), then=ctx.seen.scaling)
        ctx.w_out = _operand(kind, wo, *wo.shape)
        return _add_norm(ctx, x, ctx.context, bo, gain, shift, how)

    @staticmethod
    def backward(ctx, grad):
        to_x, to_y, *of_norm = _add_norm_backward(ctx, grad)
        of_out = _to_linear(ctx.context, to_y, ctx.kept.scale)
        to_context = np.empty_like(ctx.context)
        back = view(ctx.w_out).turned
        onednn.linear(view(to_y), back, None, view(to_context), ctx.kept.scale)
        to_qkv = [np.empty_like(array) for array in ctx.qkv]
        rows, count = ctx.weights.shape[:2]
        heads = (_heads(array, rows, count) for array in (*ctx.qkv, *to_qkv, to_context))
        q, k, v, to_q, to_k, to_v, to_heads = heads
        seen = ctx.seen.of(ctx.weights)
        matmul(view(seen).turned, to_heads, to_v, then=ctx.seen.scaling)
        to_weights, to_scores = np.empty_like(ctx.weights), np.empty_like(ctx.weights)
        matmul(to_heads, v.turned, view(to_weights), then=ctx.seen.then)
        onednn.softmax_backward(view(ctx.weights), view(to_weights), view(to_scores))
        matmul(view(to_scores), k, to_q, then=(_scaled(q),))
        matmul(view(to_scores).turned, q, to_k, then=(_scaled(q),))
        of_in: list[Tensor] = []
        for array, weight in zip(to_qkv, ctx.w_in):
            _add_through(array, weight, to_x)
            of_in += _to_linear(ctx.x, array)
        return _needed(ctx, to_x, *of_in, *of_out, *of_norm)


class FeedForward(Block):
    """LayerNorm(x + dropout(function(x W1 + b1) W2 + b2)); x (rows, length, hidden)."""

    @staticmethod
    def forward(ctx, x, w1, b1, w2, b2, gain, shift, how, function, kind):
        ctx.needs_grad = _needs_grad(x, w1, b1, w2, b2, gain, shift)
        hidden = x.shape[-1]
        x = x.contiguous()
        ctx.x = _operand(kind, x, x.size // hidden, hidden)
        ctx.w_in, ctx.w_out = (_operand(kind, weight, *weight.shape) for weight in (w1, w2))
        ctx.before, ctx.function = _linear(ctx.x, ctx.w_in, b1), function
        ctx.after = np.empty_like(ctx.before)
        onednn.activate(function, view(ctx.before), view(ctx.after))
        return _add_norm(ctx, x, ctx.after, b2, gain, shift, how)

    @staticmethod
    def backward(ctx, grad):
        to_x, to_y, *of_norm = _add_norm_backward(ctx, grad)
        of_out = _to_linear(ctx.after, to_y, ctx.kept.scale)
        to_after, to_before = np.empty_like(ctx.after), np.empty_like(ctx.before)
        onednn.linear(view(to_y), view(ctx.w_out).turned, None, view(to_after), ctx.kept.scale)
        onednn.activate_backward(ctx.function, view(ctx.before), view(to_after), view(to_before))
        _add_through(to_before, ctx.w_in, to_x)
        return _needed(ctx, to_x, *_to_linear(ctx.x, to_before), *of_out, *of_norm)


class LayerNorm(Block):
    """Layer normalization over the last axis (Ba et al. 2016)."""

    @staticmethod
    def forward(ctx, x, gain, shift, epsilon):
        ctx.needs_grad = _needs_grad(x, gain, shift)
        x = x.contiguous()
        ctx.sum = _operand(FLOAT32, x, x.size // x.shape[-1], x.shape[-1])
        return _norm(ctx, x.shape, gain, shift, epsilon)

    @staticmethod
    def backward(ctx, grad):
        return _needed(ctx, *_norm_backward(ctx, grad))


def _add_norm(
    ctx: PyLayerContext,
    x: Tensor,
    y: np.ndarray,
    bias: Tensor,
    gain: Tensor,
    shift: Tensor,
    how: AddNorm,
) -> Tensor:
    """LayerNorm(x + dropout(y w_out + bias)), the end of both blocks."""
    hidden = x.shape[-1]
    ctx.sum = np.empty((len(y), hidden), np.float32)
    ctx.kept = Dropout.draw(ctx.sum.shape, how.dropout, how.generator)
    total, residual = view(ctx.sum), view(x, *ctx.sum.shape)
    onednn.linear(view(y), view(ctx.w_out), view(bias, 1, hidden), total)
    if ctx.kept.kept is None:
        onednn.add(total, residual, total)
    else:
        then = (*ctx.kept.scaling, PostOp(ADD, residual))
        onednn.multiply(total, view(ctx.kept.kept), total, then)
    return _norm(ctx, x.shape, gain, shift, how.epsilon)


def _add_norm_backward(
    ctx: PyLayerContext, grad: Tensor
) -> tuple[Tensor, np.ndarray, Tensor, Tensor]:
    """The gradients by what `_add_norm` normalizes, by y w_out + bias but for the dropout's scale,
    by gain and by shift. The second may lie where the first does."""
    to_sum, to_gain, to_shift = _norm_backward(ctx, grad)
    to_y = ctx.kept.of(_operand(ctx.x.dtype, to_sum, *ctx.sum.shape))
    return to_sum, to_y, to_gain, to_shift


def _norm(
    ctx: PyLayerContext, shape: Sequence[int], gain: Tensor, shift: Tensor, epsilon: float
) -> Tensor:
    """LayerNorm(ctx.sum), in `shape`."""
    ctx.gain, ctx.shift = gain, shift
    out = paddle.empty(shape)
    into = view(out, *ctx.sum.shape)
    ctx.norm = onednn.layer_norm(view(ctx.sum), view(gain), view(shift), epsilon, into)
    return out


def _norm_backward(ctx: PyLayerContext, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients by what `_norm` normalizes, by gain and by shift."""
    grad = grad.contiguous()
    to_sum, to_gain, to_shift = (paddle.empty(t.shape) for t in (grad, ctx.gain, ctx.shift))
    onednn.layer_norm_backward(
        ctx.norm,
        view(ctx.sum),
        view(ctx.gain),
        view(ctx.shift),
        view(grad, *ctx.sum.shape),
        view(to_sum, *ctx.sum.shape),
        view(to_gain),
        view(to_shift),
    )
    return to_sum, to_gain, to_shift


def _linear(x: np.ndarray, weight: np.ndarray, bias: Tensor) -> np.ndarray:
    """x (rows, in) w (in, out) + b."""
    y = np.empty((len(x), weight.shape[1]), x.dtype)
    onednn.linear(view(x), view(weight), view(bias, 1, y.shape[1]), view(y))
    return y


def _to_linear(x: np.ndarray, to_y: np.ndarray, factor: float = 1.0) -> tuple[Tensor, Tensor]:
    """The gradients by w and b of y = x w + b; x (rows, in), to_y (rows, out)."""
    rows, width = to_y.shape
    to_w, to_b = paddle.empty([x.shape[1], width]), paddle.empty([width])
    onednn.to_weight(view(x), view(to_y), view(to_w), factor)
    ones = np.full((1, rows), ONE[x.dtype], x.dtype)
    onednn.multiply_add(view(ones), view(to_y), view(to_b, 1, width), factor)
    return to_w, to_b


def _add_through(to_y: np.ndarray, weight: np.ndarray, to_x: Tensor) -> None:
    """Add the gradient by x of y = x w + b."""
    into = view(to_x, len(to_y), len(weight))
    onednn.multiply_add(view(to_y), view(weight).turned, into, add=True)


def _needs_grad(*tensors: Tensor) -> tuple[bool, ...]:
    return tuple(not tensor.stop_gradient for tensor in tensors)


def _needed(ctx: PyLayerContext, *gradients: Tensor) -> tuple[Tensor | None, ...]:
    """The gradients, None for tensors that learn nothing, as a PyLayer must give them."""
    return tuple(g if needed else None for g, needed in zip(gradients, ctx.needs_grad))


ONE = {FLOAT32: 1.0, BFLOAT16: 0x3F80}


def _operand(kind: np.dtype, x: Tensor, *shape: int) -> np.ndarray:
    """An operand of products: x where it lies, or rounded to the nearest bfloat16."""
    if kind == FLOAT32:
        return onednn.array(x, *shape)
    out = np.empty(shape, kind)
    onednn.copy(view(x, *shape), view(out))
    return out


def _heads(array: np.ndarray, rows: int, count: int) -> View:
    """The heads (rows, count, length, width of a head) in (rows * length, width of all)."""
    tokens, width = array.shape
    length, each = tokens // rows, width // count
    of = view(array, rows, length, count, each)
    dims, strides = ((a[0], a[2], a[1], a[3]) for a in (of.dims, of.strides))
    return of._replace(dims=dims, strides=strides)


def _scaled(q: View) -> PostOp:
    return PostOp(LINEAR, factor=q.dims[-1] ** -0.5)

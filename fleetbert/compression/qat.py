"""Quantization-aware training: a bundle's model trained on with int8's rounding in its forward.

Every Linear but the last sees its input and its weight rounded as the layer of `graph.int8` will
round them (Jacob et al. 2018, section 3). It starts where static int8 is: inputs are smoothed (see
`smooth`), large units of feed-forwards stand in pieces (see `graph.split`), and inputs are cut at
the thresholds that training texts advise. From there the thresholds are learned like weights; a
weight has one scale for each output, its largest magnitude. Rows of the
embedding tables are rounded too, for they are stored so: on SST-2, networks trained without that
answered with logits 0.16 from what was served, with it 0.02. Nothing else is quantized.

The layers are those that Paddle's `ImperativeQuantAware` puts in. PaddleSlim's QAT calls that
class, which wraps the outputs too, for scales that no int8 program here reads: weights get other
names, and a network that asks its pooler for its weight stops. Ours are the rows of tables,
smoothing and learned thresholds.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Callable, Mapping, NamedTuple, Sequence

import numpy as np
import paddle
from paddle.nn import functional as F
from paddle.nn.quant import quant_layers

from fleetbert import bundle as bundles
from fleetbert import config
from fleetbert.compression import from_program, smooth, split, static, tuning
from fleetbert.compression.observed import Observed, observe
from fleetbert.compression.sensitivity import Layers
from fleetbert.compression.texts import Feeds, draw, feeds
from fleetbert.compression.work import Ready, Source, Work
from fleetbert.graph import smooth as graph
from fleetbert.graph import split as units
from fleetbert.graph.weights import largest_integer, quantize
from fleetbert.models.layers import linear

# Learned thresholds change by this many times the rate of weights: in units of their own logarithm,
# of which weights' rates would move them by a thousandth in an epoch.
RATE = 100.0
LEVELS = largest_integer(8)
ACTIVATIONS: Mapping[str, Callable[[paddle.Tensor], paddle.Tensor]] = {
    units.RELU: F.relu,
    "gelu_erf": F.gelu,
    "gelu_tanh": functools.partial(F.gelu, approximate=True),
}


class Trained(NamedTuple):
    """source: the trained program, smoothed; thresholds: of the inputs, by the weight that they are
    multiplied with; smoothed, split: for the manifest; network: in evaluation mode, as it was
    trained."""

    source: Source
    thresholds: dict[str, float]
    smoothed: dict[str, bundles.Smoothed]
    split: dict[str, bundles.Split]
    network: paddle.nn.Layer


class InPieces(NamedTuple):
    """split: the units of a feed-forward that stand in pieces; first: the weight of its first
    Linear; activation: between both."""

    split: bundles.Split
    first: str
    activation: str


class Input(NamedTuple):
    """Where training begins for an input of Linear layers: its threshold once it is divided `by`
    numbers for each channel, float32 [K]; smoothed: how these were chosen, None where they are 1;
    pieces: where it is the output of a feed-forward's activation that is split."""

    threshold: float
    by: np.ndarray
    smoothed: bundles.Smoothed | None = None
    pieces: InPieces | None = None


class Rounded(paddle.nn.Layer):
    """x, float [..., K], divided and rounded to int8 within ± a threshold that is learned. To
    units in pieces come the pieces' own rounded outputs: their product has the same weights.

    The gradients are those of Esser et al. 2020, "Learned Step Size Quantization", equation 3, of
    the threshold's logarithm, so that it stays positive (Jain et al. 2020, section 3).
    """

    def __init__(self, start: Input):
        super().__init__()
        self.smoothed, self.pieces = start.smoothed, start.pieces
        # What the activation is given, [..., K]; in a list, as Paddle takes tensors for state.
        self.before: list[paddle.Tensor] = []
        if start.pieces is not None:
            some = units.pieces(start.pieces.split.units, 1.0)
            columns = np.eye(len(start.by), dtype=np.float32)[some.units]
            self.register_buffer("columns", paddle.to_tensor(columns), persistable=False)
            self.register_buffer("times", paddle.to_tensor(some.lower), persistable=False)
        self.register_buffer("start", paddle.to_tensor([start.threshold], "float32"))
        self.register_buffer("by", paddle.to_tensor(start.by))
        zero = paddle.nn.initializer.Constant(0.0)
        self.change = self.create_parameter([1], default_initializer=zero)
        self.change.optimize_attr["learning_rate"] = RATE

    def threshold(self) -> paddle.Tensor:
        """Float32 [1]."""
        return self.start.astype("float32") * paddle.exp(self.change.astype("float32"))

    def remember(self, _: paddle.nn.Layer, __: object, output: paddle.Tensor) -> None:
        """A hook after the first Linear of a feed-forward."""
        self.before[:] = [output]

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        step = self.threshold() / LEVELS
        unit = self.by.astype("float32") * step  # O2 makes all of this half
        whole = _rounded(x.astype("float32") / unit)
        if self.pieces is not None:
            whole = whole + self._of_pieces(step)
        return (whole * step).astype(x.dtype)

    def _of_pieces(self, step: paddle.Tensor) -> paddle.Tensor:
        """The pieces' rounded outputs by unit, float32 [..., K]."""
        assert self.pieces is not None
        with paddle.amp.auto_cast(enable=False):
            columns = self.columns.astype("float32")
            given = paddle.matmul(self.before.pop().astype("float32"), columns, transpose_y=True)
            lower = self.times.astype("float32") * (step * LEVELS)
            rounded = _rounded(ACTIVATIONS[self.pieces.activation](given - lower) / step)
            return paddle.matmul(rounded, columns)


class QuantizedLinear(quant_layers.QuantizedLinear):
    """Paddle's, of an input that is `rounded` and weights that take what it was divided by."""

    def __init__(self, layer: paddle.nn.Linear, rounded: Rounded):
        super().__init__(layer, weight_quantize_type="channel_wise_abs_max")
        self._fake_quant_input = rounded

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return linear(self._fake_quant_input(x), self.rounded_weight(), self.bias)

    def rounded_weight(self) -> paddle.Tensor:
        by = self._fake_quant_input.by.unsqueeze(1).astype(self.weight.dtype)
        return self._fake_quant_weight(self.weight * by)


def _rounded(x: paddle.Tensor) -> paddle.Tensor:
    """Cut at what int8 holds and rounded; gradients pass where nothing is cut."""
    inside = paddle.clip(x, -LEVELS, LEVELS)
    return inside + (paddle.round(inside) - inside).detach()


def prepare(work: Work) -> Ready | None:
    """Train as the job says, from its source or the newest checkpoint.

    `job.output_dir` then holds what a training run leaves but model/ and bundle/. None on ranks
    other than the first. UserError for what training or the bundle's program does not take.
    """
    source, settings = work.source, work.job.calibration
    names = from_program.names(source.program, f"{work.bundle.root}: {work.job.source}")
    left = source.float32_layers(work.job.skip)

    def change(task: tuning.Tuned, *_: object) -> None:
        encodings = task.train.encodings
        chosen = draw(len(encodings.ids), settings.texts, settings.seed)
        texts = feeds(encodings, chosen, task.tokenizer.pad_id)
        inputs = begin(source, texts, left, settings)
        quantize_network(task.network, {names.linear[n]: start for n, start in inputs.items()})
        connect(task.network, names.linear)

    network = tuning.train(work, change)
    if network is None:
        return None
    trained = _trained(source, network, names)
    return Ready(trained.source, functools.partial(write, work, trained))


def begin(
    source: Source, texts: Sequence[Feeds], left: Sequence[str], settings: config.Calibration
) -> dict[str, Input]:
    """The input of each Linear but those in `left`, by its weight; layers that read the same input
    share it. A threshold is the mean of the largest values of these batches."""
    scales = smooth.Scales({}, {}, {})
    observed = observe(source.layers, texts)
    if settings.smooth == "auto":
        scales = smooth.choose(source.program, source.layers, observed, left)
        source = Source.of(*graph.smooth(source.program, source.arrays, scales.by_input))
        observed = observed.divided(scales.by_weight)
    layers = source.layers
    thresholds = {name: observed.threshold(name) for name in layers.inputs if name not in left}
    pieces = {}
    if settings.split == "auto":
        pieces = in_pieces(layers, observed, thresholds)
    starts: dict[str, Input] = {}  # by variable
    for name, threshold in thresholds.items():
        variable = layers.inputs[name]
        if variable not in starts:
            ones = np.ones(len(layers.parameters[name]), np.float32)
            if name in pieces:
                threshold = pieces[name].split.threshold
            starts[variable] = Input(
                threshold,
                scales.by_weight.get(name, ones),
                scales.smoothed.get(name),
                pieces.get(name),
            )
    return {name: starts[layers.inputs[name]] for name in thresholds}


def in_pieces(
    layers: Layers, observed: Observed, thresholds: Mapping[str, float]
) -> dict[str, InPieces]:
    """The inputs that are better split, by the weight that they are multiplied with."""
    pairs = units.pairs(layers.program)
    rounded = {name: quantize(layers.parameters[name], 1) for name in pairs if name in thresholds}
    chosen = split.choose(rounded, layers, observed, thresholds)
    return {
        name: InPieces(units_split, pairs[name].first, pairs[name].activation)
        for name, units_split in chosen.items()
    }


def write(work: Work, trained: Trained, folder: Path) -> bundles.Variant:
    """The trained program as an int8 one; its logits are compared with the network's."""
    source = trained.source
    left = source.float32_layers(work.job.skip)
    int8 = bundles.Int8Variant(
        name="int8-qat", method="qat", smoothed=trained.smoothed, split=trained.split
    )
    variant = static.write(static.rounded(source, left, trained.thresholds, int8), folder)
    return tuning.beside_network(variant, folder, trained.network, work)


def quantize_network(network: paddle.nn.Layer, inputs: Mapping[str, Input]) -> None:
    """Let a network's embeddings round, and its Linear layers whose weights have `inputs`, in
    place.

    The names of weights and biases in its state stay the same; quantizers add theirs.
    """
    rounded = {id(entry): Rounded(entry) for entry in inputs.values()}
    parts = dict(network.network.named_sublayers(include_self=True))
    for name, layer in parts.items():
        if isinstance(layer, paddle.nn.Embedding):
            layer.register_forward_post_hook(lambda *given: round_rows(given[-1]))
        elif f"{name}.weight" in inputs:
            outer, _, last = name.rpartition(".")
            start = inputs[f"{name}.weight"]
            setattr(parts[outer], last, QuantizedLinear(layer, rounded[id(start)]))


def connect(network: paddle.nn.Layer, linear: Mapping[str, str]) -> None:
    """Let inputs in pieces know what their activation is given.

    linear: by the program's name of a weight the network's.
    """
    layers = quantized_layers(network)
    for layer in layers.values():
        pieces = layer._fake_quant_input.pieces
        if pieces is not None:
            first = layers[linear[pieces.first][: -len(".weight")]]
            first.register_forward_post_hook(layer._fake_quant_input.remember)


def round_rows(x: paddle.Tensor) -> paddle.Tensor:
    """x with each row (last axis) rounded as `graph.weights.quantize` rounds a table's rows."""
    with paddle.no_grad():
        scales = paddle.clip(x.abs().max(-1, keepdim=True), min=1e-8)
        rounded = paddle.round(x / scales * LEVELS) * (scales / LEVELS)
    return x + (rounded - x).detach()


def quantized_layers(network: paddle.nn.Layer) -> dict[str, QuantizedLinear]:
    """The layers that round, by name in the PaddleNLP part of the network."""
    return {
        name: layer
        for name, layer in network.network.named_sublayers()
        if isinstance(layer, QuantizedLinear)
    }


def _trained(source: Source, network: paddle.nn.Layer, names: from_program.Names) -> Trained:
    network.eval()
    layers = quantized_layers(network)
    inputs = {
        name: layers[network_name[: -len(".weight")]]._fake_quant_input
        for name, network_name in names.linear.items()
        if network_name[: -len(".weight")] in layers
    }
    smoothed = {
        name: rounded.smoothed for name, rounded in inputs.items() if rounded.smoothed is not None
    }
    by_input = {
        variable: inputs[name].by.numpy()
        for variable, readers in graph.inputs(source.program).items()
        for name in readers
        if name in smoothed
    }
    thresholds = {name: rounded.threshold().item() for name, rounded in inputs.items()}
    pieces = {
        name: rounded.pieces.split.model_copy(update={"threshold": thresholds[name]})
        for name, rounded in inputs.items()
        if rounded.pieces is not None
    }
    arrays = tuning.parameters(network, names)
    trained = Source.of(*graph.smooth(source.program, arrays, by_input))
    return Trained(trained, thresholds, smoothed, pieces, network)

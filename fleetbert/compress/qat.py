"""Quantization-aware training: a bundle's model trained on with int8's rounding in its forward.

Every Linear but the last sees its input and its weight rounded as the layer of `graph.int8` will
round them (Jacob et al. 2018, section 3). It starts where static int8 is: inputs are smoothed (see
`smooth`) and cut at the thresholds that training texts advise. From there the thresholds are
learned like weights; a weight has one scale for each output, its largest magnitude. Rows of the
embedding tables are rounded too, for they are stored so: on SST-2, networks trained without that
answered with logits 0.16 from what was served, with it 0.02. Nothing else is quantized.

The layers are Paddle's own, put in by the part of its `ImperativeQuantAware` that quantizes inputs.
PaddleSlim 2.6.0's QAT calls that class, whose other part wraps the outputs too, for scales that no
int8 program here reads: weights get other names, and PaddleNLP 2.8.1's BERT, which asks its pooler
for its weight, stops. Ours are the rows of tables, smoothing and learned thresholds.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Callable, Mapping, NamedTuple, Sequence

import numpy as np
import paddle
from paddle.nn.quant.quant_layers import QuantizedLinear
from paddle.quantization.imperative.qat import ImperativeQuantizeInputs

from fleetbert import bundle as bundles
from fleetbert.compress import calibrate, from_program, smooth, static, tuning
from fleetbert.compress.texts import Feeds, draw, feeds
from fleetbert.compress.work import Source, Work, Write
from fleetbert.graph import smooth as graph
from fleetbert.graph.weights import largest

# Learned thresholds change by this many times the rate of weights: in units of their own logarithm,
# of which weights' rates would move them by a thousandth in an epoch.
RATE = 100.0
LEVELS = largest(8)


class Trained(NamedTuple):
    """source: the trained program, smoothed; thresholds: of the inputs, by the weight that they are
    multiplied with; smoothed: for the manifest; network: in evaluation mode, as it was trained."""

    source: Source
    thresholds: dict[str, float]
    smoothed: dict[str, bundles.Smoothed]
    network: paddle.nn.Layer


class Input(NamedTuple):
    """Where training begins for an input of Linear layers: its threshold once it is divided `by`
    numbers for each channel, float32 [K]; told: how these were chosen, None where they are 1."""

    threshold: float
    by: np.ndarray
    told: bundles.Smoothed | None = None


class Rounded(paddle.nn.Layer):
    """x, float [..., K], divided and rounded to int8 within ± a threshold that is learned.

    The gradients are those of Esser et al. 2020, "Learned Step Size Quantization", equation 3, of
    the threshold's logarithm, so that it stays positive (Jain et al. 2020, section 3).
    """

    def __init__(self, start: Input):
        super().__init__()
        self.told = start.told
        self.register_buffer("start", paddle.to_tensor([start.threshold], "float32"))
        self.register_buffer("by", paddle.to_tensor(start.by))
        zero = paddle.nn.initializer.Constant(0.0)
        self.change = self.create_parameter([1], default_initializer=zero)
        self.change.optimize_attr["learning_rate"] = RATE

    def threshold(self) -> paddle.Tensor:
        """Float32 [1]."""
        return self.start.astype("float32") * paddle.exp(self.change.astype("float32"))

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        step = self.threshold() / LEVELS
        unit = self.by.astype("float32") * step  # O2 makes all of this half
        inside = paddle.clip(x.astype("float32") / unit, -LEVELS, LEVELS)
        whole = inside + (paddle.round(inside) - inside).detach()
        return (whole * step).astype(x.dtype)


def prepare(work: Work) -> Write | None:
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
        texts = feeds(encodings, chosen, settings.batch_tokens, task.tokenizer.pad_id)
        found = begin(source, texts, left, settings.smooth == "auto")
        quantize_network(task.network, {names.linear[name]: one for name, one in found.items()})

    network = tuning.train(work, change)
    if network is None:
        return None
    return functools.partial(write, work, _trained(source, network, names))


def begin(
    source: Source, texts: Sequence[Feeds], left: Sequence[str], smoothed: bool
) -> dict[str, Input]:
    """For the weight of each Linear but those in `left` its input; layers that read the same one
    share it. A threshold is the mean of the largest values of these batches."""
    scales, program = smooth.Scales({}, {}), source.program
    if smoothed:
        scales = smooth.choose(program, source.layers, texts, left)
        source = Source.of(*smooth.apply(program, source.arrays, scales.by_input))
    layers = source.layers
    by = {
        name: scales.by_input[variable]
        for variable, names in graph.inputs(program).items()
        for name in names
        if variable in scales.by_input
    }
    maxima: dict[str, list[float]] = {}
    for inputs in layers.run(texts):
        for name, x in inputs.items():
            maxima.setdefault(name, []).append(float(np.abs(x).max()))
    found: dict[str, Input] = {}  # by variable
    for name, variable in layers.inputs.items():
        if name not in left and variable not in found:
            ones = np.ones(len(layers.parameters[name]), np.float32)
            threshold = float(np.mean(maxima[name]))
            found[variable] = Input(threshold, by.get(name, ones), scales.smoothed.get(name))
    return {name: found[at] for name, at in layers.inputs.items() if name not in left}


def write(work: Work, trained: Trained, folder: Path) -> bundles.Variant:
    """The trained program as an int8 one; its logits are compared with the network's."""
    source = trained.source
    left = source.float32_layers(work.job.skip)
    # Paddle's calibration makes the program for converters around the trained thresholds.
    found = calibrate.calibrate(source.folder, work.gate.few(16), "abs_max", left)
    found = calibrate.with_thresholds(found, source.program, trained.thresholds)
    int8 = bundles.Int8Variant(name="int8-qat", method="qat", smoothed=trained.smoothed)
    variant = static.write_mix(static.of_calibration(source, left, found, int8), folder)
    return tuning.beside_network(variant, folder, trained.network, work)


def quantize_network(network: paddle.nn.Layer, inputs: Mapping[str, Input]) -> None:
    """Let a network's embeddings round, and its Linear layers whose weights have `inputs`, in
    place.

    The names of weights and biases in its state stay the same; quantizers add theirs.
    """
    for name, layer in network.network.named_sublayers():
        if isinstance(layer, paddle.nn.Embedding):
            layer.register_forward_post_hook(lambda *given: round_rows(given[-1]))
        else:
            layer.skip_quant = f"{name}.weight" not in inputs
    ImperativeQuantizeInputs(
        quantizable_layer_type=["Linear"],
        weight_quantize_type="channel_wise_abs_max",
        activation_quantize_type="moving_average_abs_max",
    ).apply(network)
    rounded = {id(one): Rounded(one) for one in inputs.values()}
    for name, layer in quantized_layers(network).items():
        layer._fake_quant_input = rounded[id(inputs[f"{name}.weight"])]
        layer._fake_quant_weight.register_forward_pre_hook(_multiply(layer._fake_quant_input))


def _multiply(rounded: Rounded) -> Callable[..., paddle.Tensor]:
    """Weights take what their input was divided by."""
    return lambda _, given: given[0] * rounded.by.unsqueeze(1).astype(given[0].dtype)


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
        name: layers[own[: -len(".weight")]]._fake_quant_input
        for name, own in names.linear.items()
        if own[: -len(".weight")] in layers
    }
    smoothed = {name: one.told for name, one in inputs.items() if one.told is not None}
    by_input = {
        variable: inputs[name].by.numpy()
        for variable, readers in graph.inputs(source.program).items()
        for name in readers
        if name in smoothed
    }
    arrays = tuning.parameters(network, names)
    return Trained(
        Source.of(*smooth.apply(source.program, arrays, by_input)),
        {name: one.threshold().item() for name, one in inputs.items()},
        smoothed,
        network,
    )

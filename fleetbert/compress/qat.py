"""Quantization-aware training: a bundle's model trained on with int8's rounding in its forward.

Every Linear but the last sees its input and its weight rounded as the layer of `graph.int8` will
round them (Jacob et al. 2018, section 3): one threshold for an input, a moving average of its
largest magnitudes; one scale for each output of a weight, its largest magnitude. Gradients pass
the rounding as if it were not there. Rows of the embedding tables are rounded too, for they are
stored so: on SST-2, networks trained without that answered with logits 0.16 from what was served,
with it 0.02. Nothing else is quantized.

The layers are Paddle's own, put in by the part of its `ImperativeQuantAware` that quantizes inputs.
PaddleSlim 2.6.0's QAT calls that class, whose other part wraps the outputs too, for scales that no
int8 program here reads: weights get other names, and PaddleNLP 2.8.1's BERT, which asks its pooler
for its weight, stops. Ours are the rows of tables, the start of thresholds and their exchange
between ranks.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import NamedTuple, Sequence

import numpy as np
import paddle
from paddle.nn.quant.quant_layers import QuantizedLinear
from paddle.quantization.imperative.qat import ImperativeQuantizeInputs

from fleetbert import bundle as bundles
from fleetbert.compress import calibrate, from_program, static, tuning
from fleetbert.compress.work import Source, Work
from fleetbert.graph import program as programs
from fleetbert.graph.weights import largest
from fleetbert.train.callbacks import Callback
from fleetbert.train.loop import Run

# Of the moving average of thresholds: the last hundred steps count.
MOVING_RATE = 0.99


class Trained(NamedTuple):
    """arrays: trained parameters under the float32 program's names; thresholds: of the inputs, by
    the weight that they are multiplied with; network: in evaluation mode, as it was trained."""

    arrays: dict[str, np.ndarray]
    thresholds: dict[str, float]
    network: paddle.nn.Layer


class Thresholds(Callback):
    """Gives all ranks the same thresholds after each step, as of one step over all its texts.

    It has to come before what evaluates and saves.
    """

    def on_step(self, run: Run) -> None:
        if run.strategy.world_size == 1:
            return
        found = [layer._fake_quant_input for layer in quantized_layers(run.task.network).values()]
        sums = np.stack([layer._accum.numpy() for layer in found])
        # rate * former + maximum: the former is the same everywhere.
        largest = np.max(run.strategy.gather(sums), axis=0)
        for layer, total in zip(found, largest):
            layer._accum.set_value(total)
            layer._scale.set_value(total / layer._state.numpy())


def prepare(work: Work) -> Trained | None:
    """Train as the job says, from its source or the newest checkpoint.

    `job.output_dir` then holds what a training run leaves but model/ and bundle/. None on ranks
    other than the first. UserError for what training or the bundle's program does not take.
    """
    names = from_program.names(work.source.program, f"{work.bundle.root}: {work.job.source}")
    left = [names.linear[name] for name in work.source.float32_layers(work.job.skip)]

    def change(task: tuning.Tuned, *_: object) -> None:
        quantize_network(task.network, left)

    network = tuning.train(work, change, [Thresholds()])
    return None if network is None else _trained(network, names)


def write(work: Work, trained: Trained, folder: Path) -> bundles.Variant:
    """The trained program as an int8 one; its logits are compared with the network's."""
    with tempfile.TemporaryDirectory() as temporary:
        source = Source(Path(temporary))
        programs.write_model(source.folder, work.source.program, trained.arrays)
        left = source.float32_layers(work.job.skip)
        # Paddle's calibration makes the program for converters around the trained thresholds.
        found = calibrate.calibrate(source.folder, work.gate.few(16), "abs_max", left)
        found = calibrate.with_thresholds(found, source.program, trained.thresholds)
        int8 = bundles.Int8Variant(name="int8-qat", method="qat")
        variant = static.write_mix(static.of_calibration(source, left, found, int8), folder)
    return tuning.beside_network(variant, folder, trained.network, work)


def quantize_network(network: paddle.nn.Layer, left: Sequence[str]) -> None:
    """Let a classifier's embeddings and Linear layers round, but those whose weights are `left`,
    in place.

    The names of weights and biases in its state stay the same; quantizers add theirs.
    """
    for name, layer in network.network.named_sublayers():
        if f"{name}.weight" in left:
            layer.skip_quant = True
        elif isinstance(layer, paddle.nn.Embedding):
            layer.register_forward_post_hook(lambda *given: round_rows(given[-1]))
    ImperativeQuantizeInputs(
        quantizable_layer_type=["Linear"],
        weight_quantize_type="channel_wise_abs_max",
        activation_quantize_type="moving_average_abs_max",
        moving_rate=MOVING_RATE,
    ).apply(network)
    for layer in quantized_layers(network).values():
        # Paddle's average starts as if there had been a step with a maximum of 1. Nearly 0, since
        # 3.3.1 leaves a state of 0 alone.
        for start in (layer._fake_quant_input._state, layer._fake_quant_input._accum):
            start.set_value(np.full(1, 1e-20, np.float32))


def round_rows(x: paddle.Tensor) -> paddle.Tensor:
    """x with each row (last axis) rounded as `graph.weights.quantize` rounds a table's rows."""
    with paddle.no_grad():
        scales = paddle.clip(x.abs().max(-1, keepdim=True), min=1e-8)
        steps = largest(8)
        rounded = paddle.round(x / scales * steps) * (scales / steps)
    return x + (rounded - x).detach()


def quantized_layers(network: paddle.nn.Layer) -> dict[str, QuantizedLinear]:
    """The layers that round, by name in the PaddleNLP part of the network."""
    return {
        name: layer
        for name, layer in network.network.named_sublayers()
        if isinstance(layer, QuantizedLinear)
    }


def _trained(network: paddle.nn.Layer, names: from_program.Names) -> Trained:
    network.eval()
    layers = quantized_layers(network)
    return Trained(
        tuning.parameters(network, names),
        {
            name: layers[own[: -len(".weight")]]._fake_quant_input._scale.item()
            for name, own in names.linear.items()
            if own[: -len(".weight")] in layers
        },
        network,
    )

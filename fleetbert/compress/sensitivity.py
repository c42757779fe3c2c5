"""What quantization does to each layer, measured on texts with the arithmetic that is served."""

from __future__ import annotations

from typing import Iterator, Mapping, Sequence

import numpy as np

from fleetbert.compress.calibrate import LINEAR
from fleetbert.engines import engine, predictor
from fleetbert.graph import groups as layer_groups
from fleetbert.graph import int8
from fleetbert.graph import program as programs
from fleetbert.graph.fuse import Fused
from fleetbert.graph.weights import Quantized, widen

# Batches of texts that errors and histograms come from.
BATCHES = 3


def groups(program: programs.ProgramDesc) -> dict[str, list[str]]:
    """The Linear weights of an unfused BERT by part: attention and feed-forward of each encoder
    layer, and what comes after the encoder."""
    linear = linear_weights(program)
    layers = layer_groups.count_layers(program)
    found = {}
    for layer in range(layers):
        six = linear[6 * layer : 6 * layer + 6]
        found[f"layer {layer} attention"] = six[:4]
        found[f"layer {layer} feed-forward"] = six[4:]
    found["head"] = linear[6 * layers :]
    return found


def linear_weights(program: programs.ProgramDesc) -> list[str]:
    """The weights of an unfused program's Linear layers, in the order in which they are used."""
    stored = set(programs.parameter_names(program))
    products = [op for op in program.blocks[0].ops if op.type in (LINEAR, "mul")]
    names = [programs.argument(op.inputs, "Y") for op in products]
    return [name for name in names if name in stored]


def spread(batches: Sequence[dict[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    """A few of the batches, from the shortest texts to the longest."""
    places = np.linspace(0, len(batches) - 1, min(BATCHES, len(batches)))
    return [batches[int(place)] for place in places]


class Layers:
    """The Linear layers of a fused float32 program, and what goes into them."""

    def __init__(self, fused: Fused):
        self.program, self.parameters = fused
        self.inputs = {
            programs.argument(op.inputs, "W"): programs.argument(op.inputs, "Input")
            for op in int8.linear_layers(self.program)
        }

    def run(self, batches: Sequence[dict[str, np.ndarray]]) -> Iterator[dict[str, np.ndarray]]:
        """For each batch the input of each layer, float32 [tokens, K], by the weight's name."""
        names = sorted(set(self.inputs.values()))
        program = programs.cut(self.program, engine.INPUTS, names)
        compute = predictor.open_as_it_is(program, self.parameters, engine.default_threads())
        for batch in batches:
            states = dict(zip(names, compute(*(batch[name] for name in engine.INPUTS))))
            yield {
                weight: states[name].reshape(-1, states[name].shape[-1])
                for weight, name in self.inputs.items()
            }


def output_errors(
    layers: Layers,
    quantized: Mapping[str, Quantized],
    thresholds: Mapping[str, float],
    batches: Sequence[dict[str, np.ndarray]],
) -> dict[str, float]:
    """Relative error (Frobenius norm) of each quantized layer's output, given float32's inputs.

    thresholds: by weight, the magnitude of the input that becomes 127; an input without one stays
    as it is. The bias is left out: it would hide the error.
    """
    names = [name for name in layers.inputs if name in quantized]
    errors, sizes = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
    for inputs in layers.run(batches):
        for name in names:
            x = inputs[name]
            exact = x @ layers.parameters[name]
            if name in thresholds:
                y = int8.simulate(x, thresholds[name], quantized[name])
            else:
                y = x @ widen(quantized[name])
            errors[name] += float(np.square(y - exact).sum())
            sizes[name] += float(np.square(exact).sum())
    return {name: (errors[name] / max(sizes[name], 1e-30)) ** 0.5 for name in names}

"""The error that quantization makes in each layer, measured on texts as it is served.

A layer has one error, the *token error*, which `smooth` and `split` lower and manifest and report
show: the relative error of a token's outputs, given float32's inputs, as the root of the mean
square over all tokens but padding. Every token has the same weight, whatever the size of its
values. The bias is left out: it would hide the error.
"""

from __future__ import annotations

import functools
from typing import Iterator, Mapping, Sequence

import numpy as np

from fleetbert.core import progress
from fleetbert.engines import engine, predictor
from fleetbert.graph import embeddings, int8, split
from fleetbert.graph import groups as layer_groups
from fleetbert.graph import program as programs
from fleetbert.graph.fuse import Fused
from fleetbert.graph.quantizers import LINEAR
from fleetbert.graph.weights import Quantized, widen

# Batches of texts that errors and histograms come from.
BATCHES = 3


def groups(program: programs.ProgramDesc) -> dict[str, list[str]]:
    """The Linear weights of an unfused BERT by part: attention and feed-forward of each encoder
    layer, and what comes after the encoder."""
    linear = linear_weights(program)
    layers = layer_groups.count_layers(program)
    parts = {}
    for layer in range(layers):
        six = linear[6 * layer : 6 * layer + 6]
        parts[f"layer {layer} attention"] = six[:4]
        parts[f"layer {layer} feed-forward"] = six[4:]
    parts["head"] = linear[6 * layers :]
    return parts


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
        self.pad_id = embeddings.pad_id(*fused)
        self.inputs = int8.inputs(self.program)
        self._names = sorted(set(self.inputs.values()))

    @functools.cached_property
    def _compute(self) -> predictor.Predict:
        program = programs.cut(self.program, engine.INPUTS, self._names)
        return predictor.open_as_it_is(program, self.parameters, engine.default_threads())

    def run(
        self, batches: Sequence[dict[str, np.ndarray]], title: str = ""
    ) -> Iterator[dict[str, np.ndarray]]:
        """The input of each layer, batch by batch: float32 [tokens, K] of all tokens but padding
        (of [CLS] alone in layers that read no other), by the weight's name. title: of a bar."""
        silent = not title or not progress.watched()
        for batch in progress.bar(iterable=batches, desc=title, unit=" batches", disable=silent):
            outputs = self._compute(*(batch[name] for name in engine.INPUTS))
            states = dict(zip(self._names, outputs))
            real = batch["input_ids"] != self.pad_id
            rows = {
                name: x[real] if x.shape[:-1] == real.shape else x.reshape(-1, x.shape[-1])
                for name, x in states.items()
            }
            yield {weight: rows[name] for weight, name in self.inputs.items()}

    def with_pieces(
        self, inputs: Mapping[str, np.ndarray], name: str, some: split.Pieces
    ) -> np.ndarray:
        """The input of the layer `name` with these pieces of units; inputs: as `run` gives them."""
        first, bias, activation = split.pairs(self.program)[name]
        of_first = self.parameters[first], self.parameters[bias], activation
        pieces = split.outputs(inputs[first], *of_first, some)
        return np.concatenate([inputs[name], pieces], 1)


def output_errors(
    layers: Layers,
    quantized: Mapping[str, Quantized],
    thresholds: Mapping[str, float],
    batches: Sequence[dict[str, np.ndarray]],
    corrections: Mapping[str, np.ndarray] | None = None,
    pieces: Mapping[str, split.Pieces] | None = None,
) -> dict[str, float]:
    """The token error of each quantized layer.

    thresholds: by weight, the magnitude of the input that becomes 127; an input without one stays
    as it is. corrections: by weight, what its bias is more than float32's, [N]. pieces: of the
    inputs that are split, by weight; `quantized` has them too.
    """
    names = [name for name in layers.inputs if name in quantized]
    errors, tokens = dict.fromkeys(names, 0.0), dict.fromkeys(names, 0)
    for inputs in layers.run(batches):
        for name in names:
            x = inputs[name]
            exact = x @ layers.parameters[name]
            if pieces and name in pieces:
                x = layers.with_pieces(inputs, name, pieces[name])
            if name in thresholds:
                y = int8.simulate(x, thresholds[name], quantized[name])
            else:
                y = x @ widen(quantized[name])
            y = y[:, : exact.shape[1]] + (corrections or {}).get(name, 0)
            errors[name] += float(relative_errors(y, exact).sum())
            tokens[name] += len(x)
    return {name: (errors[name] / tokens[name]) ** 0.5 for name in names}


def relative_errors(y: np.ndarray, exact: np.ndarray) -> np.ndarray:
    """Squared change over squared size of each token's outputs [tokens, N]: [tokens]."""
    change = y - exact
    errors: np.ndarray = np.square(change, out=change).sum(1)
    return errors / np.maximum(np.square(exact).sum(1), 1e-12)

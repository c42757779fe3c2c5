"""What texts put into the Linear layers of a float32 program, seen in one run. Smoothing scales,
thresholds, pieces and corrections of biases are made of it."""

from __future__ import annotations

from typing import Mapping, NamedTuple, Sequence

import numpy as np

from fleetbert.compression.sensitivity import Layers, spread
from fleetbert.compression.texts import Feeds


class Observed(NamedTuple):
    """By the weight of each layer, over all tokens but padding:

    lowest, highest: of each channel of its input, float32 [batches, K]. few: the inputs of a few of
    the batches, as `Layers.run` gives them; is_few: which, bool [batches].
    """

    lowest: dict[str, np.ndarray]
    highest: dict[str, np.ndarray]
    few: list[dict[str, np.ndarray]]
    is_few: np.ndarray

    def largest(self, name: str) -> np.ndarray:
        """The magnitudes of a layer's input: float32 [batches, K]."""
        return np.maximum(-self.lowest[name], self.highest[name])

    def threshold(self, name: str, algorithm: str = "avg") -> float:
        """Where to cut a layer's input: at its largest magnitude (abs_max), or at the mean over the
        batches of each one's (avg)."""
        by_batch = self.largest(name).max(1)
        return float(by_batch.max() if algorithm == "abs_max" else by_batch.mean())

    def range(self, name: str) -> tuple[float, float]:
        """The means over the batches of each one's least and largest value."""
        ends = self.lowest[name].min(1).mean(), self.highest[name].max(1).mean()
        return float(ends[0]), float(ends[1])

    def divided(self, by: Mapping[str, np.ndarray]) -> Observed:
        """The same of layers whose input is divided, by positive float32 [K]."""

        def divide(values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            return {name: x / by[name] if name in by else x for name, x in values.items()}

        few = [divide(inputs) for inputs in self.few]
        return Observed(divide(self.lowest), divide(self.highest), few, self.is_few)


def observe(layers: Layers, batches: Sequence[Feeds]) -> Observed:
    """Run the batches, with a bar where somebody watches."""
    chosen = {id(batch) for batch in spread(batches)}
    lowest: dict[str, list[np.ndarray]] = {name: [] for name in layers.inputs}
    highest: dict[str, list[np.ndarray]] = {name: [] for name in layers.inputs}
    few = []
    for inputs, batch in zip(layers.run(batches, "calibrate"), batches):
        for name, x in inputs.items():
            lowest[name].append(x.min(0))
            highest[name].append(x.max(0))
        if id(batch) in chosen:
            few.append(inputs)
    low, high = ({name: np.stack(x) for name, x in ends.items()} for ends in (lowest, highest))
    return Observed(low, high, few, np.array([id(batch) in chosen for batch in batches]))

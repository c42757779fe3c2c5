"""Which layers to leave in float32, so that the rest in int8 keeps the accuracy: a greedy search.

First every group of layers is quantized alone, and the change of the logits says how much it
harms. Then the most harmful groups are left in float32, one more at a time, until the accuracy is
kept, and groups that turn out not to be needed go back to int8. The mix that has most of its
multiplications in int8 wins.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any, Callable, Mapping, NamedTuple, Sequence

import numpy as np

from fleetbert import bundle as bundles
from fleetbert.compress import variants
from fleetbert.engines import answer, engine, evaluate
from fleetbert.errors import GateFailed


class Result(NamedTuple):
    """alone: each group as the only one in int8; mixes: all others that were measured, the first
    of them all in int8; chosen: one of these, or None if none keeps the accuracy."""

    alone: dict[str, bundles.Mix]
    mixes: list[bundles.Mix]
    chosen: bundles.Mix | None


def search(
    groups: Sequence[str],
    measure: Callable[[Sequence[str]], bundles.Mix],
    least_accuracy: float,
    whole_curve: bool = True,
) -> Result:
    """Measure mixes (`measure` takes the groups to leave in float32) and choose one.

    whole_curve: go on after the first mix that keeps the accuracy, down to one group in int8.
    """

    def keeps(trial: bundles.Mix) -> bool:
        return trial.accuracy >= least_accuracy - 1e-9

    alone = {name: measure([other for other in groups if other != name]) for name in groups}
    order = sorted(groups, key=lambda name: -alone[name].logit_error)
    mixes: list[bundles.Mix] = []
    first = None
    for number in range(len(order)):
        mixes.append(measure(order[:number]))
        if first is None and keeps(mixes[-1]):
            first = mixes[-1]
        if first is not None and not whole_curve:
            break
    if first is not None:
        left = list(first.float32)
        for name in list(reversed(left))[1:]:  # without the last one it was not enough
            trial = measure([other for other in left if other != name])
            mixes.append(trial)
            if keeps(trial):
                left.remove(name)
    kept = [trial for trial in mixes if keeps(trial)]
    chosen = max(kept, key=lambda trial: trial.int8_share) if kept else None
    return Result(alone, mixes, chosen)


class Measure:
    """Measures mixes of a prepared program on a labelled table, against float32's answers."""

    def __init__(
        self,
        bundle: bundles.Bundle,
        data: str,
        prepared: variants.Prepared,
        groups: Mapping[str, Sequence[str]],
        threads: int | None,
        said: Callable[[str], Any] = lambda _: None,
    ):
        self.prepared, self.groups, self.said = prepared, groups, said
        self.threads = threads or engine.default_threads()
        self.model = answer.load(bundle.root, "float32", "cpu", self.threads)
        self.table = evaluate.read_known(self.model, data)
        self.exact = self._logits(self.model)[0]
        self.float32_accuracy = self._accuracy(self.exact)

    def __call__(self, float32: Sequence[str]) -> bundles.Mix:
        names = [name for group in float32 for name in self.groups[group]]
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            variants.write_mix(self.prepared, folder, names, converter=False)
            opened = engine.open_folder(engine.INT8, folder, "cpu", self.threads)
            logits, seconds = self._logits(self.model._replace(engine=opened))
        trial = bundles.Mix(
            float32=list(float32),
            accuracy=self._accuracy(logits),
            logit_error=float(np.sqrt(np.square(logits - self.exact).mean())),
            texts_per_s=round(len(logits) / seconds, 1),
            int8_share=self._share(names),
        )
        self.said(
            f"{len(self.groups) - len(float32)} of {len(self.groups)} groups in int8: accuracy "
            f"{trial.accuracy:.4f}, logits change by {trial.logit_error:.4f}"
        )
        return trial

    def _logits(self, model: answer.Model) -> tuple[np.ndarray, float]:
        started = time.perf_counter()
        values = answer.compute_logits(model, self.table.texts_a, self.table.texts_b).values
        return values, time.perf_counter() - started

    def _accuracy(self, logits: np.ndarray) -> float:
        return float((logits.argmax(1) == self.table.truth).mean())

    def _share(self, float32: Sequence[str]) -> float:
        sizes = {
            name: self.prepared.arrays[name].size
            for names in self.groups.values()
            for name in names
        }
        return 1 - sum(sizes[name] for name in float32) / sum(sizes.values())


def write_best(
    measure: Measure, folder: Path, max_drop: float, whole_curve: bool = True
) -> bundles.Variant:
    """Search, and write the best mix into `folder`; GateFailed if none keeps the accuracy."""
    groups = list(measure.groups)
    least = measure.float32_accuracy - max_drop
    result = search(groups, measure, least, whole_curve)
    if result.chosen is None:
        best = max(result.mixes, key=lambda trial: trial.accuracy)
        harmful = sorted(groups, key=lambda name: -result.alone[name].logit_error)[:3]
        raise GateFailed(
            f"search: no mix of float32 and int8 keeps the accuracy {least:.4f} that "
            f"gate.max_accuracy_drop allows; the best of {len(result.mixes)} has "
            f"{best.accuracy:.4f}: the bundle stays as it was; the groups of layers that harm most "
            f"are {', '.join(harmful)}"
        )
    names = [name for group in result.chosen.float32 for name in measure.groups[group]]
    variant = variants.write_mix(measure.prepared, folder, names)
    found = bundles.SearchResult(
        float32_accuracy=measure.float32_accuracy,
        least_accuracy=least,
        alone=result.alone,
        mixes=result.mixes,
        chosen=result.chosen,
    )
    return variant.model_copy(update={"method": "search", "search": found})

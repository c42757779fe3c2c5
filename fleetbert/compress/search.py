"""Which layers to leave in float32, so that the rest in int8 keeps the accuracy: a greedy search.

First every group of layers is quantized alone, and the change of the logits says how much it
harms. Then the most harmful groups are left in float32, one more at a time, until the accuracy is
kept, and groups that turn out not to be needed go back to int8. The mix that has most of its
multiplications in int8 wins.
"""

from __future__ import annotations

import functools
import logging
import tempfile
import time
from pathlib import Path
from typing import Callable, Mapping, NamedTuple, Sequence

import numpy as np

from fleetbert import bundle as bundles
from fleetbert.compress import sensitivity, static
from fleetbert.compress.gate import Sample
from fleetbert.compress.work import Ready, Work
from fleetbert.core.errors import GateFailed
from fleetbert.engines import engine

log = logging.getLogger(__name__)


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


def prepare(work: Work) -> Ready:
    """Calibrate, then measure mixes on the selection; GateFailed if none keeps the accuracy."""
    calibrated = static.calibrated(work)
    parts = sensitivity.groups(work.source.program)
    groups = {part: [n for n in names if n not in calibrated.left] for part, names in parts.items()}
    groups = {part: names for part, names in groups.items() if names}
    sample = work.selection
    log.info(f"measuring {len(groups)} groups of layers alone, then mixes, on {sample.name}")
    measure = functools.partial(measure_mix, calibrated, groups, sample, work.gate.threads)
    least = sample.float32_accuracy - work.gate.max_drop
    result = search(list(groups), measure, least, work.job.search.whole_curve)
    chosen = check(result, least)

    def write(folder: Path) -> bundles.Variant:
        names = [name for group in chosen.float32 for name in groups[group]]
        variant = static.write_mix(calibrated, folder, names)
        found = bundles.SearchResult(
            float32_accuracy=sample.float32_accuracy,
            least_accuracy=least,
            data=sample.name,
            **result._asdict(),
        )
        return variant.model_copy(update={"method": "search", "search": found})

    return Ready(work.source, write)


def measure_mix(
    calibrated: static.Prepared,
    groups: Mapping[str, Sequence[str]],
    sample: Sample,
    threads: int,
    float32: Sequence[str],
) -> bundles.Mix:
    """Answer the sample by the mix that leaves the groups `float32` in float32."""
    names = [name for group in float32 for name in groups[group]]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        static.write_mix(calibrated, folder, names, converter=False)
        opened = engine.open_folder(engine.INT8, folder, "cpu", threads)
        started = time.perf_counter()
        logits = sample.logits(opened)
        seconds = time.perf_counter() - started
    sizes = {n: calibrated.arrays[n].size for part in groups.values() for n in part}
    mix = bundles.Mix(
        float32=list(float32),
        accuracy=sample.metric(logits),
        logit_error=_error(logits, sample.float32),
        texts_per_s=round(len(logits) / seconds, 1),
        int8_share=1 - sum(sizes[name] for name in names) / sum(sizes.values()),
    )
    log.info(
        f"{len(groups) - len(float32)} of {len(groups)} groups in int8: accuracy "
        f"{mix.accuracy:.4f}, logits change by {mix.logit_error:.4f}"
    )
    return mix


def _error(logits: np.ndarray, exact: np.ndarray) -> float:
    """Root of the mean square of their difference; of spans over all words."""
    pairs = zip(logits, exact)
    apart = [getattr(one, "logits", one) - getattr(other, "logits", other) for one, other in pairs]
    return float(np.sqrt(np.square(np.concatenate([np.ravel(one) for one in apart])).mean()))


def check(result: Result, least: float) -> bundles.Mix:
    """The chosen mix; GateFailed if none keeps the accuracy."""
    if result.chosen is not None:
        return result.chosen
    best = max(result.mixes, key=lambda mix: mix.accuracy)
    harmful = sorted(result.alone, key=lambda name: -result.alone[name].logit_error)[:3]
    raise GateFailed(
        f"search: no mix of float32 and int8 keeps the accuracy {least:.4f} that "
        f"gate.max_accuracy_drop allows; the best of {len(result.mixes)} has "
        f"{best.accuracy:.4f}: the bundle stays as it was; the groups of layers that harm most "
        f"are {', '.join(harmful)}"
    )

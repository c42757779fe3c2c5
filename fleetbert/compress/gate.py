"""A variant is measured with the engine that will serve it before it may enter the bundle."""

from __future__ import annotations

import functools
import statistics
import time
from pathlib import Path
from typing import Callable, NamedTuple

import numpy as np

from fleetbert import bundle as bundles
from fleetbert import files
from fleetbert.engines import answer, engine, evaluate, golden
from fleetbert.errors import GateFailed

# Rounds of both models in turn, for the ratio of their speeds.
ROUNDS = 3


class Measured(NamedTuple):
    """A variant beside float32 on one table: accuracies (0 to 1) of n texts, texts a second,
    the ratio of speeds (median of rounds in turn), the largest difference of a logit, sizes in
    bytes, and what `engines.golden` keeps of the variant."""

    data: str
    data_sha256: str
    n: int
    accuracy: float
    float32_accuracy: float
    texts_per_s: float
    float32_texts_per_s: float
    speed_ratio: float
    max_logit_difference: float
    size: int
    float32_size: int
    golden: bundles.Golden | None = None

    @property
    def drop(self) -> float:
        return self.float32_accuracy - self.accuracy

    def as_accuracy(self) -> bundles.Accuracy:
        return bundles.Accuracy(
            data=self.data,
            data_sha256=self.data_sha256,
            n=self.n,
            accuracy=self.accuracy,
            float32_accuracy=self.float32_accuracy,
        )


def measure(
    bundle: bundles.Bundle, folder: Path, kind: str, data: str | Path, threads: int | None
) -> Measured:
    """Measure the variant whose files are in `folder`, not in the bundle yet, beside float32."""
    float32 = answer.load(bundle.root, "float32", "cpu", threads)
    opened = engine.open_folder(kind, folder, "cpu", threads)
    variant = float32._replace(engine=opened)
    table = evaluate.read_known(float32, data)
    times: dict[str, list[float]] = {"variant": [], "float32": []}
    logits: dict[str, np.ndarray] = {}
    # The first round of each warms up.
    for _ in range(ROUNDS + 1):
        for name, model in (("float32", float32), ("variant", variant)):
            started = time.perf_counter()
            logits[name] = answer.compute_logits(model, table.texts_a, table.texts_b).values
            times[name].append(time.perf_counter() - started)
    right = {name: float((found.argmax(1) == table.truth).mean()) for name, found in logits.items()}
    ratios = [slow / fast for slow, fast in zip(times["float32"][1:], times["variant"][1:])]
    speed = {name: len(table.truth) / statistics.median(found[1:]) for name, found in times.items()}
    return Measured(
        data=str(data),
        data_sha256=files.sha256(data),
        n=len(table.truth),
        accuracy=right["variant"],
        float32_accuracy=right["float32"],
        texts_per_s=speed["variant"],
        float32_texts_per_s=speed["float32"],
        speed_ratio=statistics.median(ratios),
        max_logit_difference=float(np.abs(logits["variant"] - logits["float32"]).max()),
        size=size(folder),
        float32_size=size(bundle.folder("float32")),
        golden=golden.record(
            # all layers: which texts near the limit leave is a matter of rounding, which differs
            # between processors
            functools.partial(opened, speed=0.0),
            bundle.max_length,
            float32.tokenizer.vocab_size,
            golden.INTEGER_SHARE,
        ),
    )


def check(name: str, measured: Measured, max_drop: float, hurt: Callable[[], str]) -> None:
    """GateFailed if more accuracy is lost than allowed; `hurt` names the layers that did it."""
    if measured.drop > max_drop + 1e-9:
        raise GateFailed(
            f"{name}: accuracy on {measured.data} falls from {measured.float32_accuracy:.4f} to "
            f"{measured.accuracy:.4f}, by {measured.drop:.4f}; gate.max_accuracy_drop allows "
            f"{max_drop}: the bundle stays as it was; {hurt()}"
        )


def size(folder: Path) -> int:
    """Bytes of the files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def evidence(measured: Measured) -> dict[str, object]:
    """The fields of a variant that the manifest keeps of its measurement."""
    comparison = bundles.Comparison(
        texts_per_s=round(measured.texts_per_s, 1),
        float32_texts_per_s=round(measured.float32_texts_per_s, 1),
        speed_ratio=round(measured.speed_ratio, 3),
        max_logit_difference=measured.max_logit_difference,
        size_ratio=round(measured.size / measured.float32_size, 4),
    )
    return {
        "accuracy": [measured.as_accuracy()],
        "comparison": comparison,
        "golden": measured.golden,
    }

"""The gate: a variant is measured, with the engine that will serve it, before it may enter."""

from __future__ import annotations

import functools
import statistics
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fleetbert import bundle as bundles
from fleetbert import files
from fleetbert.compress.texts import Batches, draw
from fleetbert.engines import answer, engine, evaluate, golden

# Rounds of both models in turn, for the ratio of their speeds.
ROUNDS = 3


class Measured(NamedTuple):
    """A variant beside float32 on one table; `comparison` is of batches of token ids, so without
    the time of tokenization. golden: see `bundle.Golden`. megabytes: of its files."""

    accuracy: bundles.Accuracy
    comparison: bundles.Comparison
    golden: bundles.Golden
    megabytes: float

    def as_fields(self) -> dict[str, object]:
        """The fields of a variant that keep it."""
        return {
            "accuracy": [self.accuracy],
            "comparison": self.comparison,
            "golden": self.golden,
        }


class Gate:
    """A labelled table, tokenized once, and the float32 variant, verified and opened once.

    float32: its logits [texts, labels]; truth: int64 [texts]; batches: the texts as the engines
    take them, with their numbers.
    """

    def __init__(
        self,
        bundle: bundles.Bundle,
        data: str,
        max_drop: float,
        threads: int | None = None,
        batch_tokens: int = answer.BATCH_TOKENS,
        key: str = "gate.max_accuracy_drop",
    ):
        """max_drop: accuracy (0 to 1) that may be lost; key: what the user calls it. UserError for
        what is wrong with the table or the bundle."""
        self.bundle, self.data, self.max_drop, self.key = bundle, data, max_drop, key
        self.threads = threads or engine.default_threads()
        self.model = answer.load(bundle.root, "float32", "cpu", self.threads, batch_tokens)
        table = evaluate.read_known(self.model, data)
        self.truth = table.truth
        self.encodings = self.model.tokenizer.encode(
            table.texts_a, table.texts_b, bundle.max_length
        )
        self.batches = list(answer.in_batches(self.model, self.encodings))
        self.sha256 = files.sha256(data)

    @functools.cached_property
    def float32(self) -> np.ndarray:
        return self.logits(self.model.engine)

    @property
    def float32_accuracy(self) -> float:
        return self._right(self.float32)

    def few(self, texts: int) -> Batches:
        """Some of the texts, drawn by chance, in batches for `sensitivity` and `clip`."""
        chosen = draw(len(self.truth), texts)
        tokenizer = self.model.tokenizer
        return Batches(self.encodings, chosen, 1024, tokenizer.pad_id)

    def logits(self, opened: engine.Engine) -> np.ndarray:
        """float32 [texts, labels] of an opened variant; UserError where they are not finite."""
        model = self.model._replace(engine=opened)
        return answer.run_batches(model, self.batches, len(self.truth))[0]

    def accuracy(self, logits: np.ndarray) -> bundles.Accuracy:
        """Of logits [texts, labels], beside float32's."""
        return bundles.Accuracy(
            data=self.data,
            data_sha256=self.sha256,
            n=len(self.truth),
            accuracy=self._right(logits),
            float32_accuracy=self.float32_accuracy,
        )

    def measure(self, folder: Path, kind: str) -> Measured:
        """Measure the variant whose files are in `folder`, not in the bundle yet."""
        variant = engine.open_folder(kind, folder, "cpu", self.threads)
        engines = {"float32": self.model.engine, "variant": variant}
        times: dict[str, list[float]] = {name: [] for name in engines}
        logits = {}
        for _ in range(ROUNDS + 1):  # the first warms up
            for name, opened in engines.items():
                started = time.perf_counter()
                logits[name] = self.logits(opened)
                times[name].append(time.perf_counter() - started)
        ratios = [slow / fast for slow, fast in zip(times["float32"][1:], times["variant"][1:])]
        speed = {n: len(self.truth) / statistics.median(found[1:]) for n, found in times.items()}
        sizes = _bytes(folder), self.bundle.variant("float32").bytes
        comparison = bundles.Comparison(
            texts_per_s=round(speed["variant"], 1),
            float32_texts_per_s=round(speed["float32"], 1),
            speed_ratio=round(statistics.median(ratios), 3),
            max_logit_difference=float(np.abs(logits["variant"] - logits["float32"]).max()),
            size_ratio=round(sizes[0] / sizes[1], 4),
        )
        # All layers: which texts near the limit leave is a matter of rounding, which differs
        # between processors.
        whole = functools.partial(variant, speed=0.0)
        vocab_size = self.model.tokenizer.vocab_size
        answers = golden.record(whole, self.bundle.max_length, vocab_size, golden.INTEGER_SHARE)
        return Measured(self.accuracy(logits["variant"]), comparison, answers, sizes[0] / 1e6)

    def refusal(self, name: str, accuracy: bundles.Accuracy, hint: str) -> str | None:
        """Why the variant may not enter, with the hint what to do; None if it may."""
        return refusal(name, accuracy, self.max_drop, hint, self.key)

    def _right(self, logits: np.ndarray) -> float:
        task = self.model.task
        return float(task.evaluate(self.truth, logits, self.model.labels)[task.gate_metric])


def refusal(
    name: str,
    accuracy: bundles.Accuracy,
    max_drop: float,
    hint: str,
    key: str = "gate.max_accuracy_drop",
) -> str | None:
    """See `Gate.refusal`."""
    drop = (accuracy.float32_accuracy or 0.0) - accuracy.accuracy
    if drop <= max_drop + 1e-9:
        return None
    return (
        f"{name}: accuracy on {accuracy.data} falls from {accuracy.float32_accuracy:.4f} to "
        f"{accuracy.accuracy:.4f}, by {drop:.4f}; {key} allows {max_drop}: the bundle stays as it "
        f"was; {hint}"
    )


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def describe(name: str, measured: Measured) -> str:
    """A measurement as one line."""
    accuracy, comparison = measured.accuracy, measured.comparison
    return (
        f"{name}: accuracy {accuracy.accuracy:.4f} (float32 {accuracy.float32_accuracy:.4f}, "
        f"{accuracy.n} texts), {comparison.speed_ratio:.2f} times its texts/s, "
        f"{measured.megabytes:.1f} MB ({comparison.size_ratio:.3f} of float32), "
        f"logits within {comparison.max_logit_difference:.3f}"
    )

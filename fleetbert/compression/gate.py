"""The gate: a variant is measured, with the engine that will serve it, before it may enter.

Nothing is chosen on the gate's texts (`selection` has others): what was chosen for doing well on
some texts does worse on all others.
"""

from __future__ import annotations

import functools
import logging
import statistics
import time
from pathlib import Path
from typing import Callable, Sequence, TypeVar

import numpy as np

from fleetbert import bundle as bundles
from fleetbert import config
from fleetbert.compression import paired
from fleetbert.compression.texts import Feeds, draw, feeds
from fleetbert.core import files
from fleetbert.core.errors import GateFailed, UserError
from fleetbert.data import ragged
from fleetbert.data.read import USUAL
from fleetbert.engines import alike, answer, engine, evaluate, golden

log = logging.getLogger(__name__)

# Rounds of both models in turn, for the ratio of their speeds, and the texts of a round: float32
# takes half a second for them.
ROUNDS, TIMED_TEXTS = 3, 128
# Texts that are answered by themselves and among others, and the largest difference of a score
# that may be between the two.
ALONE_TEXTS, ALONE_DIFFERENCE = 200, 1e-3
Given = TypeVar("Given")


def in_turns(
    runs: Sequence[Callable[[], Given]], rounds: int, warm_up: int = 1
) -> tuple[list[Given], list[list[float]]]:
    """What each gives, and the seconds that it takes in each round after those that warm up."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(warm_up + rounds):
        given = []
        for run, seconds in zip(runs, times):
            started = time.perf_counter()
            given.append(run())
            seconds.append(time.perf_counter() - started)
    return given, [seconds[warm_up:] for seconds in times]


class Sample:
    """Texts whose answers are known, tokenized once, beside the float32 variant.

    name: what a user calls them; truth: [examples, ...]; rows: their texts as the engines take
    them.
    """

    def __init__(self, model: answer.Model, name: str, known: evaluate.Known):
        """model: of float32."""
        self.model, self.name, self.known, self.truth = model, name, known, known.truth
        given = model.task.labels.texts(known.examples)
        self.texts = given[1] or given[0]
        self.encodings = model.task.answer.encode(model.tokenizer, *given, model.reading)
        self.rows = ragged.rows(self.encodings)

    @functools.cached_property
    def float32_outputs(self) -> np.ndarray:
        """The raw outputs of float32."""
        return self.run(self.model.engine, "float32")

    @functools.cached_property
    def float32(self) -> np.ndarray:
        """The logits of float32, float32 [texts, labels]."""
        return self.of_texts(self.float32_outputs)

    @functools.cached_property
    def float32_accuracy(self) -> float:
        return self.metric(self.float32)

    def few(self, texts: int) -> list[Feeds]:
        """A random sample of the texts, in batches for `sensitivity`."""
        chosen = draw(len(self.encodings.ids), texts)
        return feeds(self.encodings, chosen, self.model.tokenizer.pad_id)

    def logits(self, opened: engine.Engine, name: str = "") -> np.ndarray:
        """The logits of an opened variant, as the task takes them; UserError if not finite."""
        return self.of_texts(self.run(opened, name))

    def run(self, opened: engine.Engine, name: str = "") -> np.ndarray:
        """The raw outputs of an opened variant; name: what the progress bar calls it."""
        model = self.model._replace(engine=opened)
        with answer.progress(len(self.encodings.ids), name) as bar:
            return answer.run_all(model, self.rows, bar.update)[0]

    def one_round(self, opened: engine.Engine) -> Callable[[], int]:
        """What has an opened variant answer TIMED_TEXTS of the texts, and gives their number."""
        chosen = draw(len(self.encodings.ids), TIMED_TEXTS)
        ((_, texts),) = self.rows.texts.parts([np.concatenate(self.rows.of(chosen))])

        def run() -> int:
            for _ in opened.run_all(texts, self.model.speed, self.model.batch_tokens):
                pass
            return len(chosen)

        return run

    def of_texts(self, outputs: np.ndarray) -> np.ndarray:
        return self.model.task.answer.of_texts(outputs, self.encodings.words, self.texts)

    def metric(self, logits: np.ndarray) -> float:
        """The task's main metric, of logits [texts, labels]."""
        return self._metric(self.model.task.metrics.per_example(logits), self.truth)

    def _metric(self, outputs: np.ndarray, truth: np.ndarray) -> float:
        metrics = self.model.task.metrics
        return float(metrics.evaluate(truth, outputs, self.model.labels)[metrics.gate_metric])

    def drop(self, logits: np.ndarray) -> bundles.Drop:
        """What these logits lose against float32's, text by text."""
        metrics, truth = self.model.task.metrics, self.truth
        pair = [metrics.per_example(outputs) for outputs in (self.float32, logits)]
        before, after = (metrics.right(truth, outputs) for outputs in pair)
        if before is not None and after is not None:
            return paired.of_answers(before, after)
        sums, others = (metrics.sums(truth, outputs, self.model.labels) for outputs in pair)
        if sums is None or others is None:
            return paired.bootstrap(lambda rows, some: self._metric(rows, truth[some]), *pair)
        return paired.bootstrap(lambda rows, _: metrics.of_sums(rows.sum(0)), sums, others)


def texts_per_s(opened: Sequence[tuple[Sample, engine.Engine]]) -> list[list[float]]:
    """The texts/s of each variant, which has answered the sample before, round by round."""
    counts, times = in_turns([sample.one_round(engine) for sample, engine in opened], ROUNDS, 0)
    return [[count / seconds for seconds in rounds] for count, rounds in zip(counts, times)]


class Gate(Sample):
    """gate.data, which only accepts. Opening it verifies float32."""

    def __init__(
        self,
        bundle: bundles.Bundle,
        settings: config.Gate,
        threads: int | None = None,
        key: str = "gate.max_accuracy_drop",
        columns: config.Columns = USUAL,
    ):
        """key: what the user calls the largest drop. columns: of all tables of the job. UserError
        for what is wrong with the table or the bundle."""
        self.bundle, self.key, self.data = bundle, key, str(settings.data)
        self.columns = columns
        self.max_drop, self.decide = settings.max_accuracy_drop, settings.decide
        self.threads = threads or engine.default_threads()
        model = answer.load(bundle.root, "float32", "cpu", self.threads)
        super().__init__(model, self.data, evaluate.read_known(model, self.data, columns))
        if self.known.skipped:
            log.warning(f"{self.data}: {evaluate.skipped_lines(self.known.skipped)}")
        log.info(f"float32: answering the {len(self.truth)} texts of {self.data}")
        self.sha256 = files.sha256(self.data)
        self._check_tells()

    def _check_tells(self) -> None:
        """UserError where any variant would pass, as float32 has nothing to lose."""
        task = self.model.task
        alike, metric = task.labels.alike(self.truth), task.metrics.gate_metric
        if self.float32_accuracy == 0:
            because = f" ({alike})" if alike else ""
            raise UserError(
                f"{self.data}: float32's {metric} on it is 0{because}, so that any variant would "
                "pass the gate; give texts whose answers differ, and that the model knows"
            )
        if alike:
            log.warning(f"{self.data}: {alike}: a variant that always answers so passes the gate")

    def accuracy(self, logits: np.ndarray) -> bundles.Accuracy:
        """The accuracy of logits [texts, labels], beside float32's."""
        return bundles.Accuracy(
            data=self.data,
            data_sha256=self.sha256,
            n=len(self.truth),
            metric=self.model.task.metrics.gate_metric,
            accuracy=self.metric(logits),
            float32_accuracy=self.float32_accuracy,
            drop=self.drop(logits),
        )

    def sample_of(self, model: answer.Model) -> Sample:
        """The same texts as another model reads them."""
        return Sample(model, self.data, self.known)

    def measure(
        self, variant: bundles.Variant, folder: Path, sample: Sample | None = None
    ) -> bundles.Variant:
        """The variant, whose files are in `folder` and not in the bundle yet, with what was
        measured. Its `comparison` is of batches of token ids, without the time of tokenization.
        sample: the texts as the variant's own tokenizer reads them; None: as float32's does."""
        sample = sample or self
        tokenizer, longest = sample.model.tokenizer, self.bundle.max_length
        opened = engine.open_folder(
            variant.kind, folder, "cpu", self.threads, pad_id=tokenizer.pad_id
        )
        outputs = self.float32_outputs, sample.run(opened, variant.name)
        log.info(f"{variant.name}: comparing its speed with float32's")
        slow, fast = texts_per_s([(self, self.model.engine), (sample, opened)])
        # Where each token has outputs, texts with more tokens than before cannot be compared.
        differences = [
            float(np.abs(first - second).max())
            for first, second in zip(*outputs)
            if first.shape == second.shape
        ]
        comparison = bundles.Comparison(
            texts_per_s=round(statistics.median(fast), 1),
            float32_texts_per_s=round(statistics.median(slow), 1),
            speed_ratio=round(float(np.median(np.divide(fast, slow))), 3),
            max_logit_difference=max(differences, default=0.0),
            size_ratio=round(_bytes(folder) / self.bundle.variant("float32").bytes, 4),
        )
        # All layers: which texts near the limit leave is a matter of rounding, which differs
        # between processors.
        whole = functools.partial(opened, pad_id=tokenizer.pad_id, speed=0.0)
        answers = golden.record(
            whole, longest, tokenizer.vocab_size, golden.INTEGER_SHARE, tokenizer.pad_id
        )
        accuracy = self.accuracy(sample.of_texts(outputs[1]))
        texts = sample.rows.texts
        (_, some), *_ = texts.parts([draw(len(texts.lengths), ALONE_TEXTS)])
        scores = self.model.task.answer.scores
        measured = {
            "accuracy": [accuracy],
            "comparison": comparison,
            "golden": answers,
            "alone_difference": alike.alone_difference(opened, some, scores),
        }
        log.info(_describe(variant.name, accuracy, comparison, _bytes(folder)))
        return variant.model_copy(update=measured)

    def refusal(
        self,
        name: str,
        accuracy: bundles.Accuracy,
        hint: str,
        alone_difference: float | None = None,
    ) -> str | None:
        """Why the variant may not enter, with the hint what to do; None if it may."""
        if alone_difference is not None and not alone_difference <= ALONE_DIFFERENCE:
            return (
                f"{name}: a score of a text of {accuracy.data} differs by {alone_difference:.4f} "
                f"between the text alone and in a batch with others; {ALONE_DIFFERENCE} is "
                "allowed: the bundle stays as it was; choose another `method`"
            )
        if keeps(accuracy, self.max_drop, self.decide):
            return None
        lost = (accuracy.float32_accuracy or 0.0) - accuracy.accuracy
        amount = f"by {lost:.4f}"
        if accuracy.drop is not None:
            amount += f" (95 %: {accuracy.drop.low:.4f} to {accuracy.drop.high:.4f})"
        few = too_few(accuracy, self.max_drop)
        confident = ", and gate.decide: confident asks it of the upper end"
        return (
            f"{name}: {accuracy.metric} on {accuracy.data} falls from "
            f"{accuracy.float32_accuracy:.4f} to {accuracy.accuracy:.4f}, {amount}; "
            f"{self.key} allows {self.max_drop}"
            f"{confident if self.decide == 'confident' else ''}: the bundle stays as it was; "
            f"{f'{few}; ' if few else ''}{hint}"
        )


def lite_accuracy(
    settings: config.Gate, bundle: bundles.Bundle, name: str, folder: Path, kind: str
) -> bundles.Accuracy:
    """The accuracy of a variant for Paddle Lite, by what of it runs here, the files in `folder`;
    GateFailed if too much is lost. name: of the variant that they will be."""
    gate = Gate(bundle, settings, key="--max-accuracy-drop")
    pad_id = gate.model.tokenizer.pad_id
    opened = engine.open_folder(kind, folder, "cpu", gate.threads, pad_id=pad_id)
    accuracy = gate.accuracy(gate.logits(opened))
    refused = gate.refusal(name, accuracy, "try another --precision")
    if refused is not None:
        raise GateFailed(refused)
    return accuracy


def keeps(accuracy: bundles.Accuracy, max_drop: float, decide: str) -> bool:
    """Whether no more than `max_drop` is lost: by the drop that was seen, or, `confident`, by all
    that its interval holds."""
    drop = (accuracy.float32_accuracy or 0.0) - accuracy.accuracy
    if decide == "confident" and accuracy.drop is not None:
        drop = max(drop, accuracy.drop.high)
    return drop <= max_drop + 1e-9


def too_few(accuracy: bundles.Accuracy, max_drop: float) -> str:
    """A sentence that the texts cannot tell such a drop; "" where they can."""
    drop = accuracy.drop
    needed = None if drop is None else paired.texts_needed(drop, accuracy.n, max_drop)
    if needed is None:
        return ""
    return (
        f"{accuracy.n} texts are too few to tell a drop of {max_drop} from none: some {needed:,} "
        "would do"
    )


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _describe(
    name: str, accuracy: bundles.Accuracy, comparison: bundles.Comparison, size: int
) -> str:
    """A measurement as one line."""
    drop = f"{paired.describe(accuracy.drop)}, " if accuracy.drop else ""
    return (
        f"{name}: {accuracy.metric} {accuracy.accuracy:.4f} (float32 "
        f"{accuracy.float32_accuracy:.4f}, {accuracy.n} texts), {drop}"
        f"{comparison.speed_ratio:.2f} times its texts/s, "
        f"{size / 1e6:.1f} MB ({comparison.size_ratio:.3f} of float32), "
        f"logits within {comparison.max_logit_difference:.3f}"
    )

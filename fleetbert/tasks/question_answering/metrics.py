"""Exact match and F1 of answers."""

from __future__ import annotations

from typing import Sequence

import numpy as np

from fleetbert.tasks.calibration import Fitted, fit_temperature
from fleetbert.tasks.evaluator import Evaluator
from fleetbert.tasks.metrics import Metrics, softmax
from fleetbert.tasks.question_answering import scoring
from fleetbert.tasks.question_answering.decoding import EVEN, MOST, NO_ANSWER, Candidates
from fleetbert.tasks.question_answering.labels import Expected

LOWEST = -1e4  # the logit of a candidate that is not there


class AnswerMetrics(Evaluator):
    gate_metric = "f1"
    figures = (("f1", "F1"), ("exact_match", "exact match"))
    takes_metrics = False
    calibrates = True

    @property
    def threshold(self) -> float:
        """Of the probability of no answer."""
        return self.thresholds.get(NO_ANSWER, EVEN)

    def evaluate(self, truth: np.ndarray, outputs: np.ndarray, labels: Sequence[str]) -> Metrics:
        """f1 and exact_match, 0 to 1, over all questions, and where some have no answer over those
        that have one and over those that have none."""
        rows = self.sums(truth, outputs, labels)
        metrics: Metrics = {"n": len(truth), **_means(rows)}
        lacking = np.array([not expected.answers for expected in truth], bool)
        if lacking.any() and not lacking.all():
            for kind, some in (("has_answer", ~lacking), ("no_answer", lacking)):
                metrics.update({f"{kind}_{name}": v for name, v in _means(rows[some]).items()})
        return metrics

    def sums(self, truth: np.ndarray, outputs: np.ndarray, labels: Sequence[str]) -> np.ndarray:
        """float64 [questions, 3]: F1, exact match, and 1."""
        rows = [
            (*_score(expected, output, output.has_answer(labels, self.threshold)), 1)
            for expected, output in zip(truth, outputs)
        ]
        return np.array(rows, np.float64).reshape(-1, 3)

    def of_sums(self, sums: np.ndarray) -> float:
        return float(sums[0] / max(sums[2], 1))

    def fit(self, truth: np.ndarray, outputs: np.ndarray, labels: Sequence[str]) -> Fitted:
        """A temperature of the candidates, and the threshold of no answer with the best F1."""
        logits, right = _matrix(truth, outputs, bool(labels))
        some = right.any(1)
        temperature = fit_temperature(right[some], logits[some], softmax)
        if not labels:
            return Fitted(temperature, {})
        outputs = self.at_temperature(outputs, temperature)
        gains = np.array([
            _score(expected, output, False)[0] - _score(expected, output, True)[0]
            for expected, output in zip(truth, outputs)
        ])  # fmt: skip
        lack = np.array([output.lack for output in outputs])
        return Fitted(temperature, {NO_ANSWER: _best_threshold(lack, gains)})

    def at_temperature(self, outputs: np.ndarray, temperature: float) -> np.ndarray:
        divided = np.empty(len(outputs), object)
        for number, output in enumerate(outputs):
            divided[number] = output._replace(
                logits=output.logits / temperature, none=output.none / temperature
            )
        return divided

    def confidence(
        self, truth: np.ndarray, outputs: np.ndarray, labels: Sequence[str]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Of each question's answer, or that it has none."""
        has = [output.has_answer(labels, self.threshold) for output in outputs]
        chances = [
            output.chances(bool(labels))[0 if answered else -1]
            for output, answered in zip(outputs, has)
        ]
        right = [_score(*row)[1] for row in zip(truth, outputs, has)]
        return np.array(chances, np.float64), np.array(right, bool)


def _score(expected: Expected, output: Candidates, has_answer: bool) -> tuple[float, bool]:
    """F1 and exact match of a question's answer, or of none."""
    given = ""
    if has_answer and len(output.places):
        begin, end = output.places[0].tolist()
        given = expected.context[begin:end]
    exact, f1 = scoring.scores(expected.answers, given, expected.is_chinese)
    return f1, exact


def _means(rows: np.ndarray) -> dict[str, float]:
    f1, exact, _ = rows.mean(0).tolist() if len(rows) else (0.0, 0.0, 0.0)
    return {"f1": f1, "exact_match": exact}


def _matrix(
    truth: np.ndarray, outputs: np.ndarray, may_lack: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Logits of the candidates and, last, of no answer, float32 [questions, MOST + 1], and which
    one is right, bool: none of a question whose answer is not among them."""
    logits = np.full((len(outputs), MOST + 1), LOWEST, np.float32)
    right = np.zeros(logits.shape, bool)
    for row, is_right, expected, output in zip(logits, right, truth, outputs):
        row[: len(output.logits)] = output.logits
        row[-1] = output.none if may_lack else LOWEST
        if not expected.answers:
            is_right[-1] = may_lack
            continue
        texts = (expected.context[begin:end] for begin, end in output.places.tolist())
        exact = (scoring.scores(expected.answers, t, expected.is_chinese)[0] for t in texts)
        place = next((number for number, is_exact in enumerate(exact) if is_exact), None)
        if place is not None:
            is_right[place] = True
    return logits, right


def _best_threshold(lack: np.ndarray, gains: np.ndarray) -> float:
    """Between two probabilities that occur, the one above which answering nothing gains most. lack:
    float64 [questions], probabilities of no answer; gains: float64, what it gains in each."""
    order = np.argsort(-lack, kind="stable")
    bounds = np.concatenate([[1.0], lack[order], [0.0]])
    totals = np.append(0.0, np.cumsum(gains[order]))
    totals[bounds[:-1] == bounds[1:]] = -np.inf  # equal ones are answered alike
    best = int(totals.argmax())
    return float((bounds[best] + bounds[best + 1]) / 2)

"""Probabilities that say how often an answer is right, fitted to texts that were not trained on."""

from __future__ import annotations

from typing import Callable, NamedTuple

import numpy as np

BINS = 15  # of confidence, as in Guo et al.
HIGHEST = 20.0  # temperature, and 1 / the lowest
ROUNDS = 50  # of halving the range in which a temperature lies


class Fitted(NamedTuple):
    """temperature: what the logits are divided by; thresholds: of each label, by name, the
    probability above which a text has it; empty where the likeliest label is the answer."""

    temperature: float
    thresholds: dict[str, float]


def fit_temperature(
    truth: np.ndarray, logits: np.ndarray, probabilities: Callable[[np.ndarray], np.ndarray]
) -> float:
    """The temperature of the lowest cross entropy (Guo et al. 2017, section 4.2).

    truth: bool or shares [texts, labels]; logits float32 [texts, labels]; probabilities: softmax,
    or sigmoid, of logits. The loss is convex in 1 / temperature, and its slope there is the mean of
    (probability - truth) * logit, which rises: where it is 0 is found by halving. 1 where no
    temperature above 1 / HIGHEST has it.
    """
    logits = logits.astype(np.float64)

    def slope(inverse: float) -> float:
        return float(((probabilities(inverse * logits) - truth) * logits).sum())

    if slope(HIGHEST) <= 0:  # surer is better for ever, as all answers are right: nothing to fit
        return 1.0
    low, high = np.log([1 / HIGHEST, HIGHEST])
    for _ in range(ROUNDS):
        middle = (low + high) / 2
        low, high = (low, middle) if slope(np.exp(middle)) > 0 else (middle, high)
    return float(np.exp(-(low + high) / 2))


def fit_threshold(truth: np.ndarray, scores: np.ndarray) -> float:
    """The threshold of the best F1 (Lipton et al. 2014), between two scores that occur; of equal
    ones the one with the fewest answers. truth bool [texts], scores float64 [texts], 0 to 1.
    0.5 where no text has the label."""
    if not truth.any():
        return 0.5
    order = np.argsort(-scores, kind="stable")
    sorted_scores = scores[order]
    right = np.cumsum(truth[order])
    answered = np.arange(1, len(scores) + 1)
    f1 = 2 * right / (answered + right[-1])
    below = np.append(sorted_scores[1:], 0.0)
    f1[sorted_scores == below] = -1  # equal scores are answered together
    best = int(f1.argmax())
    return float((sorted_scores[best] + below[best]) / 2)


def reliability(confidence: np.ndarray, right: np.ndarray) -> np.ndarray:
    """float64 [bins, 3]: mean confidence, share that is right, and answers, of the bins of equal
    width that have any. confidence: float [answers], 0 to 1; right: bool [answers]."""
    bins = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    counts, sums, hits = (
        np.bincount(bins, weights=values, minlength=BINS)
        for values in (np.ones(len(bins)), confidence, right)
    )
    used = counts > 0
    return np.stack([sums[used] / counts[used], hits[used] / counts[used], counts[used]], 1)


def calibration_error(confidence: np.ndarray, right: np.ndarray) -> float:
    """Expected calibration error: how far the share that is right is from the confidence, the mean
    over the answers of BINS bins (Guo et al. 2017, equation 3)."""
    means, shares, counts = reliability(confidence, right).T
    return float((np.abs(means - shares) * counts).sum() / counts.sum())

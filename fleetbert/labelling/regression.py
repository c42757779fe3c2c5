"""Logistic regression on texts' vectors: probabilities in seconds, without training an encoder."""

from __future__ import annotations

import numpy as np

from fleetbert.tasks.metrics import cross_entropy, softmax

ROUNDS = 30
STRENGTHS = (1.0, 3.0, 10.0, 30.0, 100.0)  # 1 / the penalty


def fit(
    vectors: np.ndarray, truth: np.ndarray, labels: int, strength: float, rounds: int = ROUNDS
) -> np.ndarray:
    """Weights float32 [width + 1, labels] of vectors [texts, width] and truth, int [texts].

    All rounds share one bound of the loss's curvature (Böhning 1992), so that a round costs two
    products of matrices; Nesterov's momentum makes 30 of them enough.
    """
    inputs = _with_one(vectors)
    targets = np.eye(labels, dtype=np.float32)[truth]
    bound = inputs.T @ inputs / 2 + np.eye(inputs.shape[1], dtype=np.float32) / strength
    inverse = np.linalg.inv(bound).astype(np.float32)
    weights = ahead = np.zeros((inputs.shape[1], labels), np.float32)
    for number in range(rounds):
        rest = targets - softmax(inputs @ ahead).astype(np.float32)
        new = ahead + inverse @ (inputs.T @ rest - ahead / np.float32(strength))
        weights, ahead = new, new + np.float32(number / (number + 3)) * (new - weights)
    return weights


def logits(vectors: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """float32 [texts, labels]."""
    outputs: np.ndarray = _with_one(vectors) @ weights
    return outputs


def out_of_sample(
    vectors: np.ndarray, truth: np.ndarray, labels: int, folds: np.ndarray
) -> tuple[np.ndarray, float]:
    """Logits of each text by weights that have not seen its fold, float32 [texts, labels], with the
    strength whose logits are the likeliest; and this strength. folds: int [texts], from 0."""
    best: tuple[float, np.ndarray, float] | None = None
    for strength in STRENGTHS:
        outputs = np.zeros((len(truth), labels), np.float32)
        for fold in range(int(folds.max()) + 1):
            held = folds == fold
            weights = fit(vectors[~held], truth[~held], labels, strength)
            outputs[held] = logits(vectors[held], weights)
        loss = cross_entropy(truth, outputs)
        if best is not None and loss > best[0]:
            break  # the loss has one minimum, and weaker penalties come next
        best = (loss, outputs, strength)
    assert best is not None
    return best[1], best[2]


def _with_one(vectors: np.ndarray) -> np.ndarray:
    return np.concatenate([vectors, np.ones((len(vectors), 1))], 1, dtype=np.float32)

"""Linear layers on vectors of length 1, without gradients: of labelled texts, or of labels' names.

They become the last layer of `models.task_heads.VectorClassifier`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fleetbert.tasks.metrics import softmax

# Chosen on Banking77 with MiniLM: docs/benchmarks names the figures.
TEMPERATURE = 0.05  # of cosines while texts are assigned to labels
ANSWER_TEMPERATURE = 0.075  # of the answers: their probabilities are then nearly calibrated
NAME_WEIGHT = 10  # texts that a label's name counts as
ROUNDS = 3
SHRINKAGE = 0.5
NEIGHBOURS = 10  # of a text
NEIGHBOUR_WEIGHT = 0.8  # beside what the text's own vector says
PROPAGATIONS = 5
BLOCK = 256  # texts that are compared with all others at a time


class Linear(NamedTuple):
    """weight: float32 [width, labels]; bias: float32 [labels]."""

    weight: np.ndarray
    bias: np.ndarray

    def logits(self, vectors: np.ndarray) -> np.ndarray:
        """float32 [texts, labels] of vectors [texts, width]."""
        logits: np.ndarray = vectors @ self.weight + self.bias
        return logits


def of_names(names: np.ndarray, texts: np.ndarray) -> Linear:
    """Of the vectors of the labels' names [labels, width], and of texts without labels [texts,
    width], of which there may be none.

    Texts and names have different means, which are taken away. Then spherical k-means with soft
    assignment (Banerjee et al. 2005) starts at the names, and each keeps a share in its centre.
    """
    count = NAME_WEIGHT + len(texts)
    mean = (NAME_WEIGHT * names.mean(0) + texts.sum(0)) / count
    centred_names, centred = unit(names - names.mean(0)), unit(texts - mean)
    centres = centred_names
    for _ in range(ROUNDS if len(texts) else 0):
        shares = softmax(centred @ centres.T / TEMPERATURE)
        centres = unit(shares.T @ centred + NAME_WEIGHT * centred_names)
    weight = centres.T / ANSWER_TEMPERATURE
    return Linear(weight.astype(np.float32), (-mean @ weight).astype(np.float32))


def centres(vectors: np.ndarray, labels: np.ndarray, count: int, temperature: float) -> Linear:
    """The cosine with the mean vector of each label's texts, divided by a temperature. Arguments as
    in `of_texts`."""
    members = np.eye(count, dtype=vectors.dtype)[labels]  # (texts, labels)
    weight = unit(members.T @ vectors).T / temperature
    return Linear(weight.astype(np.float32), np.zeros(count, np.float32))


def of_texts(vectors: np.ndarray, labels: np.ndarray, count: int) -> Linear:
    """Linear discriminant analysis of the vectors [texts, width] of texts with these labels, int64
    [texts], of which there are `count`; each has a text.

    The covariance within labels is shrunk to a multiple of the identity (Friedman 1989): there are
    fewer texts than dimensions. All labels are equally likely. Vectors that were trained lie too
    near to their means, so the logits vary as much as cosines with the means do, divided by
    ANSWER_TEMPERATURE.
    """
    members = np.eye(count, dtype=vectors.dtype)[labels]  # (texts, labels)
    means = members.T @ vectors / members.sum(0)[:, None]
    rest = vectors - means[labels]
    covariance = rest.T @ rest / len(vectors)
    width = len(covariance)
    even = max(np.trace(covariance) / width, 1e-6)
    covariance = (1 - SHRINKAGE) * covariance + SHRINKAGE * even * np.eye(width)
    weight = np.linalg.solve(covariance, means.T)
    bias = -(means * weight.T).sum(1) / 2
    cosines = vectors @ unit(means).T / ANSWER_TEMPERATURE
    scale = _spread(cosines) / _spread(vectors @ weight + bias)
    return Linear((scale * weight).astype(np.float32), (scale * bias).astype(np.float32))


def of_some_texts(
    vectors: np.ndarray, labels: np.ndarray, count: int, others: np.ndarray
) -> Linear:
    """The same where `others`, vectors [other texts, width], have no labels: they get those of the
    texts near to them.

    Label propagation (Zhou et al. 2004), here to the mean of a text's nearest neighbours. It begins
    with the answers of the labelled texts' head, and each text keeps a part of its own.
    """
    own = softmax(of_texts(vectors, labels, count).logits(others))
    together = np.concatenate([vectors, others])
    neighbours = _nearest(together, len(vectors))
    known = np.eye(count, dtype=own.dtype)[labels]
    shares = own
    for _ in range(PROPAGATIONS):
        of_all = np.concatenate([known, shares])
        near = sum(of_all[column] for column in neighbours.T) / neighbours.shape[1]
        shares = NEIGHBOUR_WEIGHT * near + (1 - NEIGHBOUR_WEIGHT) * own
    all_labels = np.concatenate([labels, shares.argmax(1)])
    return of_texts(together, all_labels, count)


def _nearest(vectors: np.ndarray, begin: int) -> np.ndarray:
    """int64 [vectors from `begin` on, neighbours]: the nearest of all vectors but itself."""
    parts, count = [], min(NEIGHBOURS, len(vectors) - 1)
    for start in range(begin, len(vectors), BLOCK):
        block = vectors[start : start + BLOCK]
        cosines = block @ vectors.T
        cosines[np.arange(len(block)), np.arange(start, start + len(block))] = -1
        parts.append(np.argpartition(-cosines, count - 1, axis=1)[:, :count])
    return np.concatenate(parts)


def _spread(logits: np.ndarray) -> float:
    """Standard deviation within a text."""
    return float(np.sqrt(logits.var(axis=1).mean()))


def unit(vectors: np.ndarray) -> np.ndarray:
    """Rows of length 1."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return vectors / np.maximum(lengths, 1e-12)

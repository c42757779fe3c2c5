"""Confident learning: which given labels are wrong, by probabilities of texts that a model has not
learned (Northcutt et al. 2021, https://arxiv.org/abs/1911.00068)."""

from __future__ import annotations

import numpy as np


def joint(given: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """How many texts with a given label (row) probably have a true one (column): float64 [labels,
    labels], whose rows sum up to the texts of each label. given: int [texts]; probabilities:
    [texts, labels].

    A text counts for the likeliest label among those whose probability reaches the label's
    threshold, the mean over the texts that are given it (equations 1 and 2); rows are then scaled
    to all texts (equation 3).
    """
    labels = probabilities.shape[1]
    texts = np.bincount(given, minlength=labels)
    of_given = probabilities[np.arange(len(given)), given]
    thresholds = np.bincount(given, of_given, labels) / np.maximum(texts, 1)
    reached = np.where(probabilities >= np.where(texts, thresholds, 2.0), probabilities, -1.0)
    likeliest, counts = reached.argmax(1), reached.max(1) >= 0
    confident = np.zeros((labels, labels))
    np.add.at(confident, (given[counts], likeliest[counts]), 1.0)
    sums = confident.sum(1, keepdims=True)
    confident = np.where(sums > 0, confident, np.eye(labels))  # none reaches it: trust the label
    scaled: np.ndarray = confident / confident.sum(1, keepdims=True) * texts[:, None]
    return scaled


def wrong(given: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """The texts whose labels are probably wrong, int64 [wrong], the likeliest first.

    They are as many as the joint has off its diagonal. Which ones, the probability of the given
    label decides (self-confidence); texts whose given label is the likeliest are left out.
    """
    matrix = joint(given, probabilities)
    number = round(float(matrix.sum() - np.trace(matrix)))
    of_given = probabilities[np.arange(len(given)), given]
    first = np.argsort(of_given, kind="stable")[:number]
    named: np.ndarray = first[probabilities[first].argmax(1) != given[first]]
    return named


def is_sure(given: np.ndarray, probabilities: np.ndarray) -> np.ndarray:
    """Whether a text's label may be changed without a look, bool [texts]: the likeliest label is
    more than `labels - 1` times as likely as the given one.

    A label changed at random would be one of `labels - 1`, which makes the given one that much less
    of a hint. Of many labels, hard texts are named beside wrong ones, and dropping them costs more
    than it brings.
    """
    of_given = probabilities[np.arange(len(given)), given]
    sure: np.ndarray = probabilities.max(1) > (probabilities.shape[1] - 1) * of_given
    return sure

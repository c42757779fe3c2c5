"""The likeliest answers in a context, of logits that say where one begins and where it ends."""

from __future__ import annotations

from typing import NamedTuple, Sequence

import numpy as np

LONGEST = 64  # tokens of an answer
MOST = 20  # candidates of a question
# What a label of the model says, that learned from questions without an answer, and its threshold.
NO_ANSWER, EVEN = "no_answer", 0.5


class Candidates(NamedTuple):
    """Answers of one question, the likeliest first.

    places: int64 [candidates, 2], characters of the context; logits: float64 [candidates], the sums
    of the logits of begin and end; none: the same of no answer, at the first token; context: ""
    where only places are wanted.
    """

    places: np.ndarray
    logits: np.ndarray
    none: float
    context: str

    def chances(self, may_lack: bool) -> np.ndarray:
        """The probability of each candidate, float64 [candidates + 1]: the last is of no answer, 0
        unless the model may say so (`may_lack`)."""
        every = np.append(self.logits, self.none if may_lack else -np.inf)
        shares = np.exp(every - every.max()) if may_lack or len(self.logits) else np.zeros(1)
        return shares / max(shares.sum(), 1e-300)

    @property
    def lack(self) -> float:
        """The probability of no answer, beside that of the likeliest one."""
        if not len(self.logits):
            return 1.0
        return float(0.5 * (1 + np.tanh(0.5 * (self.none - self.logits[0]))))

    def has_answer(self, labels: Sequence[object], threshold: float) -> bool:
        """Whether an answer is given. labels: of the model."""
        return bool(len(self.logits)) and not (labels and self.lack > threshold)


def candidates(outputs: np.ndarray, tokens: np.ndarray, context: str = "") -> Candidates:
    """outputs: float32 [own tokens, 2]; tokens: int32 [tokens, 3] of the context, ascending: the
    place of each among those of the text, and the characters where it begins and ends."""
    none = float(outputs[0].astype(np.float64).sum())
    if not len(tokens):  # the tokenizer knows no character of the context
        return Candidates(np.zeros((0, 2), np.int64), np.zeros(0), none, context)
    begins, ends = outputs[tokens[:, 0]].astype(np.float64).T
    # sums[begin, more]: of an answer from token `begin` to `begin + more`
    padded = np.append(ends, np.full(LONGEST - 1, -np.inf))
    sums = begins[:, None] + np.lib.stride_tricks.sliding_window_view(padded, LONGEST)
    flat = sums.ravel()
    most = min(MOST, int(np.isfinite(flat).sum()))
    # Among equal ones the first, as boards choose them.
    best = np.flatnonzero(flat >= -np.partition(-flat, most - 1)[most - 1])
    best = best[np.argsort(-flat[best], kind="stable")][:most]
    first, more = np.divmod(best, LONGEST)
    places = np.stack([tokens[first, 1], tokens[first + more, 2]], 1).astype(np.int64)
    # Tokens of one character, as those of bytes, make one answer twice.
    _, kept = np.unique(places, axis=0, return_index=True)
    kept.sort()
    return Candidates(places[kept], flat[best[kept]], none, context)

"""How a model reads texts."""

from __future__ import annotations

from typing import NamedTuple

SHARED_OF_CONTEXTS = 128  # tokens, as transformers' run_qa has it


class Reading(NamedTuple):
    """max_length: tokens that a model reads at once, special ones included. long_texts: what
    becomes of texts with more, see `data.long_texts` of a job. stride: tokens that windows share,
    at least; pool: how the outputs of a text's windows become its own: their mean, max, or of
    vectors the mean by tokens, with length 1."""

    max_length: int
    long_texts: str = "cut"
    stride: int = 0
    pool: str = "mean"

    def within(self, max_length: int) -> Reading:
        """This with no more tokens at once."""
        longest = min(self.max_length, max_length)
        return self._replace(max_length=longest, stride=min(self.stride, longest // 2))


def usual_stride(max_length: int, of_contexts: bool) -> int:
    """Tokens that windows share where nobody says how many; more where an answer has to stand in
    one of them (`of_contexts`)."""
    return min(SHARED_OF_CONTEXTS, max_length // 3) if of_contexts else max_length // 16

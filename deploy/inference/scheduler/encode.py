"""A question → the token ids of its texts, or a Failure that names what is wrong with it."""

from __future__ import annotations

from typing import NamedTuple, Sequence

import numpy as np

from fleetbert.data.tokenizers import Tokenizer
from fleetbert.deploy.inference.messages import Failure, Question, Reason
from fleetbert.errors import UserError


class Encoded(NamedTuple):
    """ids: int32 [tokens] of each text; first_lengths: tokens of segment 0 of each; cut: how many
    texts were cut to the maximum length."""

    ids: Sequence[np.ndarray]
    first_lengths: Sequence[int]
    cut: int


def encode(question: Question, tokenizer: Tokenizer, pair: bool, max_length: int) -> Encoded:
    """Failure BAD_REQUEST if the model cannot be asked so. Safe to call from several threads."""
    if question.size == 0:
        raise _bad("the request has no texts")
    if question.texts is None:
        return check_ids(question, tokenizer, max_length)
    if pair and question.texts_b is None:
        raise _bad(f"model {question.model} compares two texts: send text_pair beside text")
    if not pair and question.texts_b is not None:
        raise _bad(f"model {question.model} takes single texts: leave text_pair out")
    if pair and len(question.texts_b or ()) != question.size:
        raise _bad(f"text has {question.size} texts and text_pair {len(question.texts_b or ())}")
    try:
        found = tokenizer.encode(question.texts, question.texts_b, max_length)
    except UserError as error:
        raise _bad(str(error)) from None
    return Encoded(found.ids, found.first_lengths.tolist(), found.truncated)


def check_ids(question: Question, tokenizer: Tokenizer, max_length: int) -> Encoded:
    """Ready-made ids: rows without their padding at the end, checked against the vocabulary."""
    rows = question.input_ids
    types = question.token_type_ids
    if rows is None:
        raise _bad("the request has neither text nor input_ids")
    if rows.ndim != 2:
        raise _bad(f"input_ids has the shape {list(rows.shape)} instead of [texts, length]")
    if types is not None and types.shape != rows.shape:
        raise _bad(
            f"token_type_ids has the shape {list(types.shape)} and input_ids {list(rows.shape)}"
        )
    if rows.size and (rows.min() < 0 or rows.max() >= tokenizer.vocab_size):
        raise _bad(
            f"input_ids has values from {rows.min()} to {rows.max()}; this model's vocabulary "
            f"has 0 to {tokenizer.vocab_size - 1}"
        )
    ends = np.arange(1, rows.shape[1] + 1) * (rows != tokenizer.pad_id)
    lengths = ends.max(axis=1, initial=0).tolist()
    for number, length in enumerate(lengths):
        if length == 0:
            raise _bad(f"text {number} of input_ids holds only padding")
        if length > max_length:
            raise _bad(
                f"text {number} of input_ids has {length} tokens and this model takes {max_length}"
            )
    ids = [row[:length].astype(np.int32) for row, length in zip(rows, lengths)]
    if types is None:
        return Encoded(ids, lengths, 0)
    first_lengths = []
    for number, (row, length) in enumerate(zip(types, lengths)):
        first = int(np.count_nonzero(row[:length] == 0))
        if (row[:first] != 0).any() or (row[first:length] != 1).any():
            raise _bad(f"text {number} of token_type_ids is not zeros followed by ones")
        first_lengths.append(first)
    return Encoded(ids, first_lengths, 0)


def _bad(message: str) -> Failure:
    return Failure(Reason.BAD_REQUEST, message)

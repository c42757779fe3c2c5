"""Where the tokens of a batch lie in rows that several texts share."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fleetbert.data.batching import SAFE_LENGTHS
from fleetbert.data.packing import AWAY, pack, packed_layout, padded_index

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=60)


@given(LENGTHS)
def test_every_token_is_found_again(lengths):
    at = packed_layout(np.array(lengths))
    rows, row_length = at.shape
    assert row_length in SAFE_LENGTHS
    tokens = np.arange(1, sum(lengths) + 1)
    packed = pack(tokens, at)
    assert len(packed) == len(at.positions) == rows * row_length
    np.testing.assert_array_equal(packed[at.places], tokens)
    assert np.count_nonzero(packed) == len(tokens)
    ends = np.cumsum(lengths)
    for begin, count, end in zip(at.first, lengths, ends):
        text = slice(begin, begin + count)  # one after the other, and in one row
        np.testing.assert_array_equal(packed[text], tokens[end - count : end])
        assert at.positions[text].tolist() == list(range(count))
        assert begin // row_length == (begin + count - 1) // row_length
    index, real = padded_index(at)
    assert real.sum(1).tolist() == lengths
    np.testing.assert_array_equal(packed[index][real], tokens)


@given(LENGTHS)
def test_a_token_looks_at_those_of_its_text(lengths):
    at = packed_layout(np.array(lengths))
    rows, row_length = at.shape
    seen = np.zeros((rows, row_length, row_length), bool)
    tokens = np.zeros((rows, row_length), bool)
    for begin, count in zip(at.first, lengths):
        row, place = divmod(int(begin), row_length)
        own = slice(place, place + count)
        seen[row, own, own] = tokens[row, own] = True
    mask = np.where(seen, 0, AWAY)
    np.testing.assert_array_equal(at.mask[:, 0][tokens], mask[tokens])
    assert (at.mask.max(-1) == 0).all()  # padding, too, looks at something
    assert at.mask.dtype == np.float32


@given(LENGTHS)
def test_every_text_is_asked_for_once(lengths):
    at = packed_layout(np.array(lengths))
    rows, row_length = at.shape
    first_tokens, answers = at.first_tokens[:, 0], at.answers[:, 0]
    np.testing.assert_array_equal(first_tokens[:, 0] * row_length + first_tokens[:, 1], at.first)
    assert len({*map(tuple, answers.tolist())}) == len(lengths)
    for number, (row, place) in enumerate(answers.tolist()):
        assert row == first_tokens[number, 0]
        assert at.queries[row, place].tolist() == [number, 0]
        np.testing.assert_array_equal(
            at.query_mask[row, 0, place], at.mask[row, 0, first_tokens[number, 1]]
        )
    assert at.query_mask.shape == (rows, 1, at.queries.shape[1], row_length)

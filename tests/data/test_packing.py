"""Where the tokens of a batch lie in rows that several texts share."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fleetbert.data.batching import SAFE_LENGTHS
from fleetbert.data.packing import AWAY, pack, packed_layout


@given(st.lists(st.lists(st.booleans(), min_size=9, max_size=9), min_size=1, max_size=40))
def test_every_token_is_found_again(given_rows):
    given_real = np.array(given_rows)
    at = packed_layout(given_real)
    texts, length = given_real.shape
    rows, row_length = at.shape
    assert at.single_row is (texts == 1 and all(given_rows[0]))
    assert row_length in SAFE_LENGTHS or at.single_row
    place = np.arange(texts * length).reshape(texts, length)
    real = given_real.copy()
    real[:, 0] = True
    np.testing.assert_array_equal(at.real, real)
    assert at.counts.tolist() == [np.count_nonzero(row) for row in real]
    assert len(at.pack_index) == rows * row_length
    np.testing.assert_array_equal(
        at.pack_index[at.unpack_index], np.where(real, place, place[:, :1])
    )
    np.testing.assert_array_equal(at.pack_index[at.first], place[:, :1])
    np.testing.assert_array_equal(pack(place, at), at.pack_index)
    for (begin,), count, row in zip(at.first, at.counts, at.unpack_index):
        text = np.arange(begin, begin + count)  # one after the other, and in one row
        assert sorted({*row}) == text.tolist()
        assert begin // row_length == (begin + count - 1) // row_length


@given(st.lists(st.lists(st.booleans(), min_size=9, max_size=9), min_size=1, max_size=40))
def test_a_token_looks_at_those_of_its_text(given_rows):
    given_real = np.array(given_rows)
    at = packed_layout(given_real)
    rows, row_length = at.shape
    seen = np.zeros((rows, row_length, row_length), bool)
    for row, count, first_is_real in zip(at.unpack_index, at.counts, given_real[:, 0]):
        own = np.unique(row)
        keys = own[1:] if not first_is_real and count > 1 else own
        seen[own[0] // row_length, (own % row_length)[:, None], keys % row_length] = True
    mask = np.where(seen, 0, AWAY)
    real = np.zeros(rows * row_length, bool)
    real[at.unpack_index] = True
    tokens = real.reshape(rows, row_length)
    np.testing.assert_array_equal(at.mask[:, 0][tokens], mask[tokens])
    assert (at.mask.max(-1) == 0).all()  # padding, too, looks at something
    assert at.mask.dtype == np.float32


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60))
def test_every_text_is_asked_for_once(lengths):
    real = np.arange(max(lengths)) < np.array(lengths)[:, None]
    at = packed_layout(real)
    rows, row_length = at.shape
    first_tokens, answers = at.first_tokens[:, 0], at.answers[:, 0]
    np.testing.assert_array_equal(
        first_tokens[:, 0] * row_length + first_tokens[:, 1], at.first[:, 0]
    )
    assert len({*map(tuple, answers.tolist())}) == len(lengths)
    for number, (row, place) in enumerate(answers.tolist()):
        assert row == first_tokens[number, 0]
        assert at.queries[row, place].tolist() == [number, 0]
        np.testing.assert_array_equal(
            at.query_mask[row, 0, place], at.mask[row, 0, first_tokens[number, 1]]
        )
    assert at.query_mask.shape == (rows, 1, at.queries.shape[1], row_length)

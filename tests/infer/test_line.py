"""Where the tokens of a batch lie in a line."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetbert.infer.line import in_line, places


@given(st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=40))
def test_every_token_is_found_again(rows):
    real = np.array(rows)
    found, counts, spread, collect, first, alone = places(real)
    texts, length = real.shape
    assert alone is (texts == 1 and all(rows[0]))
    place = np.arange(texts * length).reshape(texts, length)
    real[:, 0] = True
    np.testing.assert_array_equal(found, real)
    assert counts.tolist() == [np.count_nonzero(row) for row in real]
    count = counts.sum()
    assert collect[:count].tolist() == place[real].tolist()
    assert not collect[count:].any()
    most = max(7, count / 4) if texts > 1 else count / 64
    assert count <= len(collect) <= count + most
    np.testing.assert_array_equal(collect[spread], np.where(real, place, place[:, :1]))
    np.testing.assert_array_equal(collect[first], place[:, :1])
    np.testing.assert_array_equal(in_line(place, places(real)), collect)


@pytest.mark.parametrize(
    ("tokens", "line", "of_one"),
    [
        (13, 16, 13),
        (64, 64, 64),
        (65, 80, 65),
        (129, 144, 130),
        (511, 512, 512),
        (513, 576, 520),
        (1985, 2048, 2000),
        (8193, 8320, 8320),
    ],
)
def test_lines_have_few_lengths_and_those_that_amx_likes(tokens, line, of_one):
    real = np.arange(2 * tokens).reshape(2, tokens) <= tokens - 1
    assert len(places(real[:1]).collect) == of_one
    real[0, -1] = False  # the second text has one token
    assert len(places(real).collect) == line

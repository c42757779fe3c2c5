"""Where the tokens of a batch lie in a line."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fleetbert.infer.line import in_line, places


@given(st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=40))
def test_every_token_is_found_again(rows):
    real = np.array(rows)
    found, spread, collect, first = places(real)
    texts, length = real.shape
    place = np.arange(texts * length).reshape(texts, length)
    real[:, 0] = True
    np.testing.assert_array_equal(found, real)
    count = np.count_nonzero(real)
    assert collect[:count].tolist() == place[real].tolist()
    assert not collect[count:].any()
    assert count <= len(collect) <= count * (1 + 1 / 64)
    assert bin(len(collect)).rstrip("0") <= "0b1111111" and len(bin(len(collect)).strip("0b")) <= 7
    np.testing.assert_array_equal(collect[spread], np.where(real, place, place[:, :1]))
    np.testing.assert_array_equal(collect[first], place[:, :1])
    np.testing.assert_array_equal(in_line(place, places(real)), collect)

"""Some texts of a table are held out of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetbert.core.errors import UserError
from fleetbert.data import split
from fleetbert.data.tokenizers import Encodings


def make_split(texts: int, cut: int = 0, skipped: int = 0) -> split.Split:
    """Text n has n + 1 tokens, all n, the label n % 3, and stands in line n + 2."""
    numbers = np.arange(texts)
    ids = [np.full(n + 1, n, np.int32) for n in numbers]
    return split.Split("t.tsv", Encodings(ids, numbers + 1, cut), numbers % 3, skipped, numbers + 2)


@given(st.integers(2, 60), st.floats(0.01, 0.99), st.integers(0, 9))
def test_each_text_is_in_one_of_the_two(texts, share, seed):
    whole = make_split(texts, cut=3, skipped=4)
    count = round(share * texts)
    if not 0 < count < texts:
        with pytest.raises(UserError, match=r"t\.tsv: \d+ texts are too few to hold out"):
            split.hold_out(whole, share, seed)
        return
    kept, held = split.hold_out(whole, share, seed)
    assert len(held.labels) == count
    assert sorted([*kept.lines, *held.lines]) == list(whole.lines)
    for part in (kept, held):
        numbers = part.lines - 2
        rows = [[n] * (n + 1) for n in numbers]
        assert [list(ids) for ids in part.encodings.ids] == rows
        assert [list(ids) for ids in part.encodings.ids[1:3]] == rows[1:3]
        np.testing.assert_array_equal(part.encodings.lengths, numbers + 1)
        np.testing.assert_array_equal(part.encodings.first_lengths, numbers + 1)
        np.testing.assert_array_equal(part.labels, numbers % 3)
    assert kept.counts() == {"texts": texts - count, "truncated": 3, "skipped_lines": 4}
    assert held.counts() == {"texts": count, "truncated": 0, "skipped_lines": 0}
    assert held.name == "t.tsv, held out"
    again = split.hold_out(whole, share, seed)[0]
    np.testing.assert_array_equal(again.lines, kept.lines)
    assert split.fingerprint(kept) != split.fingerprint(whole)


def test_texts_of_a_group_stay_together():
    """Documents of a query, texts of a line: the share is of groups."""
    whole = make_split(40)
    groups = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 4)) * 7
    kept, held = split.hold_out(whole, 0.3, 1, groups)
    sides = [set(groups[part.lines - 2].tolist()) for part in (kept, held)]
    assert not sides[0] & sides[1] and len(sides[1]) == 3
    assert (len(kept.labels), len(held.labels)) == (28, 12)
    with pytest.raises(UserError, match="10 examples are too few"):
        split.hold_out(whole, 0.01, 1, groups)


def test_other_numbers_are_other_texts_when_some_are_held_out():
    """Numbers and spans are no whole numbers, which a fingerprint of labels is of."""
    numbers = [make_split(20)._replace(labels=np.full(20, one)) for one in (0.25, 0.5, np.nan)]
    digests = set()
    for number, one in enumerate(numbers):
        known = one._replace(fingerprint=str(number))
        digests |= {split.fingerprint(part) for part in split.hold_out(known, 0.2, 1)}
    assert len(digests) == 6

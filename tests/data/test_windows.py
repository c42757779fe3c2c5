from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetbert.core.errors import UserError
from fleetbert.core.reading import Reading
from fleetbert.data import ragged, tokenizers, words
from fleetbert.data.tokenizers.base import Template, assemble, assemble_whole
from fleetbert.data.windows import Draw, divide, fit, row_tokens, windows


@given(st.integers(0, 2000), st.integers(1, 300), st.data())
def test_windows_cover_a_text_and_overlap(length, room, data):
    stride = data.draw(st.integers(0, room - 1))
    plan = windows(length, room, stride)
    assert plan[0][0] == 0 and plan[-1][1] == length
    if length <= room:
        assert plan == [(0, length)]
        return
    (width,) = {end - begin for begin, end in plan}
    assert width <= room
    assert (width - 1) * len(plan) - (len(plan) - 1) * stride < length  # so short would not do
    overlaps = [end - begin for (_, end), (begin, _) in zip(plan, plan[1:])]
    assert min(overlaps) >= stride and max(overlaps) < width
    assert max(overlaps) - min(overlaps) <= 1  # evenly spread
    fewer = len(plan) - 1
    assert fewer * room - (fewer - 1) * stride < length  # so many would not do


@pytest.mark.parametrize(("room", "stride"), [(10, 10), (10, 12), (10, -1), (0, 0)])
def test_a_stride_that_does_not_fit_is_refused(room, stride):
    with pytest.raises(ValueError, match="stride"):
        windows(30, room, stride)


BERT = Template((1,), (2,), (2,))
ROBERTA = Template((1,), (2, 2), (2,), in_first=2, one_type=True)
LENGTHS = st.lists(st.integers(0, 90), min_size=1, max_size=6)


@given(LENGTHS, LENGTHS, st.booleans(), st.sampled_from([BERT, ROBERTA]), st.integers(8, 40))
def test_rows_hold_each_token_of_a_text_in_its_segment(firsts, seconds, pair, template, longest):
    firsts, seconds = (
        [list(range(start, start + n)) for n in lengths]
        for start, lengths in ((1000, firsts), (2000, seconds))
    )
    texts = min(len(firsts), len(seconds))
    texts_b = seconds[:texts] if pair else None
    whole = assemble_whole(firsts[:texts], texts_b, template, longest)
    short = assemble(firsts[:texts], texts_b, template, longest)
    reading = Reading(longest, "windows", longest // 4)
    divided = divide(whole._replace(reading=reading))
    if divided is None:
        assert [ids.tolist() for ids in whole.ids] == [ids.tolist() for ids in short.ids]
        assert whole.first_lengths.tolist() == short.first_lengths.tolist()
        return
    of_rows, layout = divided
    rows = ragged.of(of_rows)
    assert rows.lengths.max() <= longest
    starts = np.cumsum(rows.lengths) - rows.lengths
    types, whole_types = ragged.token_types(rows), ragged.token_types(ragged.of(whole))
    flat = np.concatenate(layout.tokens(starts))
    assert np.array_equal(rows.ids[flat], np.concatenate(whole.ids))
    assert np.array_equal(types[flat], whole_types)
    per_text = np.bincount(layout.text, rows.lengths, minlength=texts)
    assert np.array_equal(per_text, row_tokens(whole._replace(reading=reading)))


def context_of(place: int, begin: int, end: int, length: int) -> float:
    """Tokens between a place and the nearer end of a window; a text's own end is none."""
    before = np.inf if begin == 0 else place - begin
    after = np.inf if end == length else end - 1 - place
    return min(before, after) if begin <= place < end else -1


@given(st.integers(30, 200), st.integers(12, 29), st.data())
def test_a_token_is_read_where_it_has_the_most_context(length, longest, data):
    reading = Reading(longest, "windows", data.draw(st.integers(0, longest // 2)))
    whole = assemble_whole([list(range(length))], None, BERT, longest)
    of_rows, layout = divide(whole._replace(reading=reading))
    starts = np.arange(len(of_rows.ids)) * 1000
    (places,) = layout.tokens(starts)
    plan = list(zip((layout.begins - 1).tolist(), (layout.ends - 1).tolist()))
    for token, row in enumerate((places[1:-1] // 1000).tolist()):
        contexts = [context_of(token, *window, length) for window in plan]
        assert contexts[row] == max(contexts)


def test_drawn_windows_change_with_the_seed_and_leave_tokens_out():
    whole = assemble_whole([list(range(100)), [7]], None, BERT, 12)
    whole = fit(whole, Reading(12, "windows", 2))
    drawn = [divide(whole, draw=Draw(3, [seed])) for seed in (0, 0, 1)]
    begins = [layout.begins.tolist() for _, layout in drawn]
    assert begins[0] == begins[1] != begins[2]
    of_rows, layout = drawn[0]
    assert np.bincount(layout.text).tolist() == [3, 1]
    first, second = layout.tokens(np.arange(4) * 12)
    assert 0 < (first < 0).sum() < 100 and (second >= 0).all()
    flat = np.concatenate(of_rows.ids)
    assert np.array_equal(flat[first[first >= 0]], whole.ids[0][first >= 0])
    assert row_tokens(whole, 3).tolist() == [36, 3]


@pytest.mark.parametrize("pair", [False, True])
def test_head_and_tail_leave_the_middle_out(pair):
    texts_b = [[500, 501], [600]] if pair else None
    whole = assemble_whole([list(range(100, 130)), [7]], texts_b, BERT, 14)
    kept = fit(whole, Reading(14, "head_tail"))
    assert kept.truncated == 1 and kept.divided is None
    if pair:
        assert kept.ids[0].tolist() == [1, *range(100, 105), *range(126, 130), 2, 500, 501, 2]
        assert kept.first_lengths.tolist() == [11, 3]
    else:
        assert kept.ids[0].tolist() == [1, *range(100, 106), *range(124, 130), 2]
        assert kept.first_lengths.tolist() == [14, 3]


def test_the_words_of_head_and_tail_stand_where_their_tokens_are(tmp_path):
    path = tmp_path / "vocab.txt"
    letters = "abcdefghijklmnopqrst"
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    path.write_text("\n".join([*special, *letters]) + "\n", encoding="utf-8")
    tokenizer = tokenizers.open(tokenizers.of_vocab(path, True))
    text = " ".join(letters)
    kept = words.encode(tokenizer, [text], Reading(10, "head_tail"))
    told = [(tokenizer.token(kept.ids[0][at]), text[begin:end]) for at, begin, end in kept.words[0]]
    assert told == [(letter, letter) for letter in "abcdqrst"]


def test_no_room_for_a_token_is_refused():
    with pytest.raises(UserError, match="max_length is 4"):
        assemble_whole([[5]], [[6]], ROBERTA, 4)

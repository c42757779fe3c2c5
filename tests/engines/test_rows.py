"""Batches in parts of like length, and streams."""

from __future__ import annotations

import threading
import time

import numpy as np
import passes
import pytest
from hypothesis import given
from hypothesis import strategies as st
from passes import make_batch

from fleetbert.core.errors import UserError
from fleetbert.data.batching import SAFE_LENGTHS
from fleetbert.data.ragged import Texts
from fleetbert.engines import engine
from fleetbert.engines.rows import RowsEngine


class Program:
    """Stands for an opened program: the logits of a text are its tokens' sum and their number. It
    notes the rows that it is given, and in which threads."""

    def __init__(self):
        self.shapes = []
        self.threads = []

    def __call__(self, states, texts, layout):
        assert states is None
        self.shapes.append((len(texts.lengths), layout.shape[1]))
        self.threads.append(threading.get_ident())
        time.sleep(0.001)
        return np.array([[ids.sum(), len(ids)] for ids in texts.split()], np.float32)


def texts_of(lengths) -> Texts:
    """Texts of so many tokens, of which each is the number of its text from 1."""
    lengths = np.array(lengths)
    return Texts(np.repeat(np.arange(1, len(lengths) + 1), lengths), lengths, lengths)


def expected(lengths):
    return [[(row + 1) * length, length] for row, length in enumerate(lengths)]


@given(st.lists(st.integers(1, 512), min_size=1, max_size=20))
def test_texts_get_their_own_logits(lengths):
    program = Program()
    found = RowsEngine([program]).run(texts_of(lengths))
    np.testing.assert_array_equal(found, expected(lengths))
    for _, length in program.shapes:
        assert length in SAFE_LENGTHS


@pytest.mark.parametrize("longest, expected", [(80, [31]), (512, [30, 1])])
def test_a_call_more_is_for_texts_in_much_longer_rows(longest, expected):
    program, shapes = Program(), []
    texts = texts_of([20] * 30 + [longest])
    list(RowsEngine([program]).run_all(texts, batch_tokens=2048, shapes=shapes))
    assert [count for count, _ in program.shapes] == expected
    assert [length for _, length in program.shapes] == [length for _, length in shapes]


def test_streams_answer_in_order_and_keep_to_their_threads():
    programs = [Program() for _ in range(3)]
    parts = RowsEngine(programs)
    lengths = np.random.default_rng(0).integers(1, 512, 200).tolist()
    found = list(parts.run_all(texts_of(lengths), batch_tokens=1024))
    assert len(found) > 40
    assert sorted(np.concatenate([part.numbers for part in found])) == list(range(200))
    longest = [lengths[part.numbers[-1]] for part in found]
    assert longest == sorted(longest, reverse=True)
    for part in found:
        np.testing.assert_array_equal(part.outputs, np.array(expected(lengths))[part.numbers])
    threads = [set(program.threads) for program in programs]
    assert [len(one) for one in threads] == [1, 1, 1]
    assert len(set.union(*threads)) == 3
    assert threading.get_ident() not in set.union(*threads)


def test_streams_begin_one_after_the_other_with_a_row_alone_and_with_two():
    """The first run of either program changes the parameters of all."""
    programs = [Program() for _ in range(2)]
    list(RowsEngine(programs).run_all(texts_of([512] * 20), batch_tokens=512))
    for program in programs:
        assert program.shapes[:2] == [(1, SAFE_LENGTHS[0]), (2, SAFE_LENGTHS[0])]


@pytest.mark.parametrize("streams", [1, 2])
def test_what_a_program_raises_is_raised(streams):
    def fail(states, texts, layout):
        if texts.lengths.max() > 100:
            raise IndexError("a token id or type is negative")
        return np.zeros((len(texts.lengths), 2), np.float32)

    parts = RowsEngine([fail] * streams)
    with pytest.raises(IndexError, match="negative"):
        list(parts.run_all(texts_of([200])))


@pytest.mark.parametrize("variant", ["int8-static", "early-exit-int8"])
def test_streams_answer_as_one_program_for_all_threads(int8_bundle, variant):
    random = np.random.default_rng(0)
    texts = passes.texts_of(*make_batch(random.integers(1, 200, 120)))
    found: dict[bool, dict[int, np.ndarray]] = {False: {}, True: {}}
    for streams, logits in found.items():
        opened = engine.open(int8_bundle, variant, threads=2, streams=streams)
        for part in opened.run_all(texts, batch_tokens=1024):
            logits.update(zip(part.numbers.tolist(), part.outputs))
    assert len(found[True]) == 120
    for number, logits in found[True].items():
        np.testing.assert_allclose(logits, found[False][number], atol=1e-5)
    with pytest.raises(UserError, match="threads is 0; it has to be at least 1"):
        engine.open(int8_bundle, variant, threads=0, streams=True)

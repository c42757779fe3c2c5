"""Batches in parts of like length, and streams."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from passes import batch_of, make_batch

from fleetbert.core.errors import UserError
from fleetbert.data.batching import SAFE_LENGTHS, Batch, round_up
from fleetbert.engines import engine
from fleetbert.engines.rows import RowsEngine


class Program:
    """Stands for an opened program: the logits of a text are its tokens' sum and their number. It
    notes the shapes that it is given, and in which threads."""

    def __init__(self):
        self.shapes = []
        self.threads = []

    def __call__(self, input_ids, token_type_ids, layout):
        assert input_ids.shape == token_type_ids.shape == layout.real.shape
        self.shapes.append(input_ids.shape)
        self.threads.append(threading.get_ident())
        time.sleep(0.001)
        return np.stack([input_ids.sum(1), (input_ids > 0).sum(1)], 1).astype(np.float32)


def rows_of(lengths) -> Batch:
    """Rows of so many tokens, of which each is the number of its row from 1."""
    length = round_up(max(lengths), SAFE_LENGTHS)
    number = np.arange(1, len(lengths) + 1)[:, None]
    return batch_of(np.where(np.arange(length) < np.array(lengths)[:, None], number, 0))


def expected(lengths):
    return [[(row + 1) * length, length] for row, length in enumerate(lengths)]


@given(st.lists(st.integers(1, 512), min_size=1, max_size=20), st.booleans())
def test_rows_get_their_own_logits(lengths, any_length):
    program = Program()
    batch = rows_of(lengths)
    found = RowsEngine([program], 0, any_length)(batch.input_ids, batch.token_type_ids)
    np.testing.assert_array_equal(found, expected(lengths))
    for rows, length in program.shapes:
        assert length in SAFE_LENGTHS or (any_length and rows == 1)


@pytest.mark.parametrize("longest, expected", [(80, [(31, 80)]), (512, [(30, 20), (1, 512)])])
def test_a_call_more_is_for_texts_in_much_longer_rows(longest, expected):
    batch = rows_of([20] * 30 + [longest])
    program = Program()
    RowsEngine([program], 0, False)(batch.input_ids, batch.token_type_ids)
    assert program.shapes == expected


def test_streams_answer_batches_in_order_and_keep_to_their_threads():
    programs = [Program() for _ in range(3)]
    parts = RowsEngine(programs, 0, False)
    random = np.random.default_rng(0)
    rows = [random.integers(1, 512, random.integers(1, 9)).tolist() for _ in range(40)]
    batches = [(np.array([number]), rows_of(lengths)) for number, lengths in enumerate(rows)]
    found = list(parts.run_all(batches))
    assert [part.numbers.tolist() for part in found] == [[number] for number in range(40)]
    for part, lengths in zip(found, rows):
        np.testing.assert_array_equal(part.outputs, expected(lengths))
    threads = [set(program.threads) for program in programs]
    assert [len(one) for one in threads] == [1, 1, 1]
    assert len(set.union(*threads)) == 3
    assert threading.get_ident() not in set.union(*threads)


def test_streams_begin_one_after_the_other_with_a_row_alone_and_with_two():
    """The first run of either program changes the parameters of all."""
    programs = [Program() for _ in range(2)]
    parts = RowsEngine(programs, 0, False)
    batch = rows_of([512])
    list(parts.run_all((np.arange(1), batch) for _ in range(20)))
    for program in programs:
        assert program.shapes[:2] == [(1, SAFE_LENGTHS[0]), (2, SAFE_LENGTHS[0])]


def test_no_more_batches_are_taken_than_streams_need():
    taken = []

    def batches():
        for number in range(30):
            taken.append(number)
            yield np.array([number]), rows_of([5])

    for place, _ in enumerate(RowsEngine([Program(), Program()], 0, True).run_all(batches())):
        assert len(taken) <= place + 3


@pytest.mark.parametrize("streams", [1, 2])
def test_what_a_program_raises_is_raised(streams):
    def fail(input_ids, token_type_ids, layout):
        if input_ids.shape[1] > 100:
            raise IndexError("a token id or type is negative")
        return np.zeros((len(input_ids), 2), np.float32)

    parts = RowsEngine([fail] * streams, 0, True)
    with pytest.raises(IndexError, match="negative"):
        list(parts.run_all([(np.arange(1), rows_of([200]))]))


@pytest.mark.parametrize("streams", [1, 2])
def test_other_lengths_do_not_reach_onednn(streams):
    parts = RowsEngine([Program()] * streams, 0, True)
    batch = rows_of([16])
    cut = batch._replace(input_ids=batch.input_ids[:, :15])
    with pytest.raises(ValueError, match="rows of 15 tokens"):
        list(parts.run_all([(np.arange(1), cut)]))


@pytest.mark.parametrize("variant", ["int8-static", "early-exit-int8"])
def test_streams_answer_as_one_program_for_all_threads(int8_bundle, variant):
    random = np.random.default_rng(0)
    batches = []
    for number in range(30):
        length = int(random.choice(SAFE_LENGTHS[:30]))
        lengths = random.integers(1, length + 1, random.integers(1, 9))
        batch = batch_of(make_batch(lengths, length)[0])
        batches.append((1000 * number + batch.order, batch))
    found: dict[bool, dict[int, np.ndarray]] = {False: {}, True: {}}
    for streams, logits in found.items():
        opened = engine.open(int8_bundle, variant, threads=2, streams=streams)
        for part in opened.run_all(batches, batch_tokens=1024):
            logits.update(zip(part.numbers.tolist(), part.outputs))
    assert len(found[True]) == sum(len(numbers) for numbers, _ in batches)
    for number, logits in found[True].items():
        np.testing.assert_allclose(logits, found[False][number], atol=1e-5)
    with pytest.raises(UserError, match="threads is 0; it has to be at least 1"):
        engine.open(int8_bundle, variant, threads=0, streams=True)

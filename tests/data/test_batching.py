from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetbert.data import batching, packing
from fleetbert.data.batching import SAFE_LENGTHS, collate, plan_epoch, plan_inference, share
from fleetbert.data.tokenizers import Encodings

MAX_LENGTH = 128
# Lists of Hypothesis's own are short, and so make few steps.
lengths_strategy = st.builds(
    lambda count, seed: np.random.default_rng(seed).integers(2, MAX_LENGTH, count).tolist(),
    st.integers(1, 200),
    st.integers(0, 999),
)
limits = st.one_of(
    st.tuples(st.integers(1, 40), st.none()),
    st.tuples(st.none(), st.integers(1, 20).map(lambda number: 100 * number)),
    st.tuples(st.integers(1, 40), st.integers(1, 2000)),
)


def plan(lengths, how="bucket", size=None, tokens=None, seed=1, epoch=0):
    options = {"batch_size": size, "batch_tokens": tokens, "max_length": MAX_LENGTH}
    return plan_epoch(lengths, batching=how, seed=seed, epoch=epoch, **options)


def encodings_of(lengths, seed=0):
    rng = np.random.default_rng(seed)
    ids = [rng.integers(1, 1000, length).astype(np.int32) for length in lengths]
    firsts = np.array([rng.integers(1, length + 1) for length in lengths], np.int32)
    return Encodings(ids, firsts, 0)


@given(lengths_strategy, st.sampled_from(["pad", "bucket", "pack"]), limits, st.integers(0, 99))
def test_steps_hold_each_text_once_and_are_as_full_as_the_limits_allow(lengths, how, limits, seed):
    size, tokens = limits
    steps = plan(lengths, how, size, tokens, seed)
    assert sorted(np.concatenate(steps).tolist()) == list(range(len(lengths)))

    def fits(step):
        own = [lengths[i] for i in step]
        cost = sum(own) if how == "pack" else len(own) * max(own)
        return (size is None or len(own) <= size) and (tokens is None or cost <= tokens)

    assert all(fits(step) or len(step) == 1 for step in steps)
    if how != "bucket":
        assert not any(fits([*step, after[0]]) for step, after in zip(steps, steps[1:]))
    # Their number is known before their order.
    assert len(steps) == len(steps[:])
    assert (steps[-1] == steps[len(steps) - 1]).all()
    with pytest.raises(IndexError):
        steps[len(steps)]


def test_buckets_pad_little_and_stay_mixed():
    lengths = np.random.default_rng(0).integers(3, MAX_LENGTH, 8000)

    def padded(steps):
        return sum(len(step) * lengths[step].max() for step in steps) / lengths.sum()

    assert padded(plan(lengths, "bucket", 32)) < 1.05
    assert padded(plan(lengths, "pad", 32)) > 1.5
    means = [lengths[step].mean() for step in plan(lengths, "bucket", 32)]
    assert abs(np.corrcoef(means[:-1], means[1:])[0, 1]) < 0.3  # steps do not come by length


def test_epochs_and_seeds_differ_and_repeat():
    lengths = list(range(2, 120))

    def flat(**options):
        return np.concatenate(plan(lengths, "bucket", 4, **options)).tolist()

    assert flat() == flat()
    assert flat() != flat(epoch=1)
    assert flat() != flat(seed=2)


def test_no_texts_no_steps():
    assert len(plan([], size=4)) == len(plan([], tokens=4)) == 0
    assert plan_inference([], 100) == []


@given(lengths_strategy, st.integers(1, 12))
def test_share_covers_each_text_once(lengths, parts):
    indices = np.arange(len(lengths))[::-1]
    shares = share(indices, lengths, parts)
    assert len(shares) == parts
    assert all(len(part) == len(weights) > 0 for part, weights in shares)
    real = [part for part, weights in shares if weights.all()]
    assert sorted(np.concatenate(real).tolist()) == list(range(len(lengths)))
    others = [(part, weights) for part, weights in shares if not weights.all()]
    assert len(others) == max(0, parts - len(lengths))
    assert all(len(part) == 1 and weights.tolist() == [0.0] for part, weights in others)


def lowest_cost(descending, parts):
    """Slowest part of the best split of the sorted texts, by trying all."""
    if parts == 1 or len(descending) == 1:
        return len(descending) * descending[0]
    return min(
        max(cut * descending[0], lowest_cost(descending[cut:], parts - 1))
        for cut in range(1, len(descending))
    )


@settings(max_examples=60)
@given(st.lists(st.integers(2, 40), min_size=1, max_size=9), st.integers(1, 4))
def test_share_has_the_lowest_slowest_part(lengths, parts):
    cost = max(
        len(part) * max(lengths[i] for i in part)
        for part, _ in share(np.arange(len(lengths)), lengths, parts)
    )
    best = min(lowest_cost(sorted(lengths, reverse=True), k) for k in range(1, parts + 1))
    assert cost == best


def undo(batch, count):
    """(ids, segment-0 length, positions) of each text, read back from the arrays alone."""
    length = batch.input_ids.shape[1]
    texts = [None] * count
    for number, place in zip(batch.order, batch.first):
        row, start = divmod(int(place), length)
        end = start
        if batch.segments is None:
            end = int((batch.input_ids[row] != 0).sum())
        else:
            own = batch.segments[row, start]
            while end < length and batch.segments[row, end] == own:
                end += 1
        types = batch.token_type_ids[row, start:end]
        positions = None if batch.position_ids is None else batch.position_ids[row, start:end]
        assert texts[number] is None
        texts[number] = (batch.input_ids[row, start:end], int((types == 0).sum()), positions)
    return texts


@given(
    st.lists(st.integers(2, 60), min_size=1, max_size=40),
    st.booleans(),
    st.sampled_from([None, SAFE_LENGTHS]),
)
def test_collate_can_be_undone(lengths, packed, round_to):
    encodings = encodings_of(lengths)
    indices = np.random.default_rng(1).permutation(len(lengths))
    batch = collate(encodings, indices, packed=packed, max_length=64, pad_id=0, round_to=round_to)
    texts = undo(batch, len(indices))
    for index, (ids, first_length, positions) in zip(indices, texts):
        assert ids.tolist() == encodings.ids[index].tolist()
        assert first_length == encodings.first_lengths[index]
        assert positions is None or positions.tolist() == list(range(len(ids)))
    rows, length = batch.input_ids.shape
    assert batch.n_tokens == sum(lengths) == (batch.input_ids != 0).sum()
    assert round_to is None or length in round_to
    arrays = [batch.input_ids, batch.token_type_ids, batch.first, batch.order]
    assert all(array.dtype == np.int64 for array in arrays)
    if packed:
        assert length <= 64
        assert ((batch.segments == 0) == (batch.input_ids == 0)).all()
        assert rows <= max(1, 2 * sum(lengths) // 64 + 1)  # any first-fit is half full
        for row in batch.segments:
            own = row[row > 0]
            assert own.max() == len(np.unique(own))
    else:
        assert rows == len(lengths)
        assert batch.order.tolist() == list(range(rows))
        assert batch.position_ids is None
        assert batch.segments is None


@pytest.mark.parametrize(
    ("lengths", "shape"), [([20] * 6 + [10] * 2, (2, 70)), ([20, 30], (1, 50))]
)
def test_packed_rows_are_as_short_as_their_number_allows(lengths, shape):
    encodings, indices = encodings_of(lengths), range(len(lengths))
    batch = collate(encodings, indices, packed=True, max_length=128, pad_id=0)
    assert batch.input_ids.shape == shape


@given(st.lists(st.integers(2, 512), max_size=120), st.integers(1, 4096))
def test_inference_batches_hold_the_budget(lengths, tokens):
    batches = plan_inference(lengths, tokens)
    assert sorted(i for batch in batches for i in batch.tolist()) == list(range(len(lengths)))
    for batch in batches:
        alone = [batching.round_up(lengths[i], SAFE_LENGTHS) for i in batch]
        assert len(batch) * max(alone) <= tokens or len(batch) == 1
        assert 16 * (len(batch) * max(alone) - sum(alone)) <= tokens


def test_inference_pads_little():
    lengths = np.random.default_rng(0).integers(3, 512, 3000)
    batches = plan_inference(lengths, 4096)
    padded = sum(
        len(batch) * batching.round_up(lengths[batch].max(), SAFE_LENGTHS) for batch in batches
    )
    best = sum(batching.round_up(length, SAFE_LENGTHS) for length in lengths)
    assert padded < 1.02 * best
    assert len(batches) < 1.2 * best / 4096


@given(st.lists(st.integers(1, 512), min_size=1, max_size=9), st.integers(0, 300))
def test_a_batch_is_cut_where_that_costs_least(lengths, call_tokens):
    """Of all ways to cut the rows sorted by length, tried one after the other."""

    def cost(parts):
        each = (sum(part) * (1 + max(part) / batching.ATTENTION_LENGTH) for part in parts)
        return sum(each) + call_tokens * len(parts)

    ordered = sorted(lengths)
    places = range(1, len(ordered))
    ways = (
        [ordered[a:b] for a, b in zip((0, *chosen), (*chosen, len(ordered)))]
        for count in range(len(ordered))
        for chosen in itertools.combinations(places, count)
    )
    parts = batching.cut_by_length(np.array(lengths), call_tokens)
    assert sorted(row for part in parts for row in part.tolist()) == list(range(len(lengths)))
    found = cost([[lengths[row] for row in part] for part in parts])
    assert found == pytest.approx(min(map(cost, ways)))


@given(st.lists(st.integers(1, 512), min_size=1, max_size=80))
def test_rows_hold_their_texts_and_cost_no_more_than_one_text_a_row(lengths):
    length, rows = packing.pack_rows(lengths)
    assert sorted(number for row in rows for number in row) == list(range(len(lengths)))
    assert all(sum(lengths[number] for number in row) <= length for row in rows)
    own = batching.round_up(max(lengths), SAFE_LENGTHS)
    assert length in SAFE_LENGTHS and length >= own
    if any(len(row) > 1 for row in rows):
        assert length in packing.SHARED_LENGTHS
    shared = batching.round_up(max(lengths), packing.SHARED_LENGTHS)

    def cost(count, length):
        return count * length * (1 + length / batching.ATTENTION_LENGTH)

    assert cost(len(rows), length) <= cost(len(lengths), shared)
    if 2 * min(lengths) > own:
        assert cost(len(rows), length) <= cost(len(lengths), own)


@pytest.mark.parametrize("texts, least", [(8, 0.8), (32, 0.93), (200, 0.94)])
def test_rows_are_nearly_full(texts, least):
    lengths = np.random.default_rng(0).integers(3, 60, texts).tolist()
    length, rows = packing.pack_rows(lengths)
    assert sum(lengths) >= least * len(rows) * length


def test_texts_of_one_length_have_rows_of_their_own():
    assert packing.pack_rows([19, 20, 20]) == (20, [[0], [1], [2]])
    assert packing.pack_rows([300]) == (312, [[0]])


def test_safe_lengths_cannot_meet_in_a_key():
    """No number of rows joined with one length may read like another number with another."""
    for one in SAFE_LENGTHS:
        for other in SAFE_LENGTHS:
            assert one == other or not str(one).endswith(str(other))

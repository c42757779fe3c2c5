"""SparseTable of a table of ids, beside a table that is a dict and knows nothing of arrays."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetbert import config
from fleetbert.training.sparse_table import SEEN, WEIGHTS, LocalStore, SparseTable, opened

WIDE = 3  # weights of a row: one of the linear model, an embedding of two


def make(entry="none", optimizer="adagrad", ids=range(40), seed=0, **more) -> SparseTable:
    job = config.Config.model_validate(
        {
            "task": {"name": "ctr"}, "data": {"train": "x"},
            "optimizer": {"learning_rate": 0.1}, "trainer": {"seed": seed},
            "wide_deep": {
                "embedding_size": WIDE - 1, "entry": entry, "optimizer": optimizer,
                "learning_rate": 0.5, "initial_range": 0.3, **more,
            },
        }
    )  # fmt: skip
    return SparseTable(job, np.array(sorted(ids), np.int64))


def batch(ids) -> dict:
    return {"ids": np.array(ids, np.int64).reshape(-1, 2), "inputs": {}}


def step(
    rows: SparseTable, batches: list[dict], factors: np.ndarray, rate: float = 0.1
) -> np.ndarray:
    """One with the loss sum(factor of the id * its weights); returns the weights of each id."""
    rows.take(batches)
    taken = [arrays["inputs"] for arrays in batches]
    for arrays, inputs in zip(batches, taken):
        found = paddle.nn.functional.embedding(inputs["places"], inputs["rows"])
        (found * paddle.to_tensor(factors[arrays["ids"]])).sum().backward()
    rows.learn(rate)
    return np.concatenate([i["rows"].numpy()[i["places"].numpy()].reshape(-1, WIDE) for i in taken])


IDS = st.lists(st.integers(0, 39), min_size=2, max_size=12).map(lambda ids: ids[: len(ids) & ~1])


@settings(max_examples=20)
@given(
    st.lists(st.lists(IDS, min_size=1, max_size=2), min_size=1, max_size=8),
    st.sampled_from(["none", "count:1", "count:3"]),
    st.sampled_from(["adagrad", "sgd"]),
)
def test_rows_enter_and_learn_as_they_should(steps, entry, optimizer):
    rows = make(entry, optimizer)
    factors = np.random.default_rng(3).normal(size=(40, WIDE)).astype(np.float32)
    needed = 3 if entry == "count:3" else 1
    seen = dict.fromkeys(range(40), 0)
    sums = dict.fromkeys(range(40), 0.0)
    weights = {i: rows.initial(np.array([i]))[0].astype(np.float64) for i in range(40)}
    for number, lists in enumerate(steps):
        rate = 0.1 / (number + 1)
        found = step(rows, [batch(ids) for ids in lists], factors, rate)
        rows.push(1.0)
        flat = [i for ids in lists for i in ids]
        expected = [weights[i] if seen[i] >= needed else np.zeros(WIDE) for i in flat]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
        for i in set(flat):
            if seen[i] >= needed:
                gradient = factors[i].astype(np.float64) * flat.count(i)
                sums[i] += (gradient**2).mean()
                length = rate * 5 / (np.sqrt(sums[i]) if optimizer == "adagrad" else 1)
                weights[i] = weights[i] - length * gradient
            else:
                seen[i] += flat.count(i)


def test_two_trainers_add_up_and_share():
    """As in sync: half of each one's step, all of what each has seen."""
    alone, first = make("count:2", "sgd"), make("count:2", "sgd")
    second = make("count:2", "sgd")
    second.store = first.store
    factors = np.ones((40, WIDE), np.float32)
    for _ in range(3):
        step(alone, [batch([1, 1, 2, 3])], factors)
        alone.push(1.0)
        step(first, [batch([1, 2])], 2 * factors)
        step(second, [batch([1, 3])], 2 * factors)
        first.push(0.5)
        second.push(0.5)
    ids = np.array([1, 2, 3])
    entered = slice(WEIGHTS, None)
    np.testing.assert_allclose(first.store.pull(ids)[:, entered], alone.store.pull(ids)[:, entered])
    assert (alone.store.pull(ids)[:, SEEN] >= 2).all()
    assert (alone.store.pull(ids)[:1, entered] != 0).all()


def test_steps_between_pushes_are_all_in_the_push():
    """As in geo: the rows go on here, and are pushed together."""
    often, seldom = make("none", "sgd"), make("none", "sgd")
    factors = np.random.default_rng(5).normal(size=(40, WIDE)).astype(np.float32)
    for rows in (often, seldom):
        step(rows, [batch([1, 2, 3, 4])], factors)
        rows.push(1.0)
        for number in range(3):
            step(rows, [batch([1, 2]), batch([3, 1 + number])], factors)
            if rows is often:
                rows.push(1.0)
        rows.push(1.0)
        assert not len(rows.held)
    ids = np.arange(6)
    np.testing.assert_allclose(often.store.pull(ids), seldom.store.pull(ids), atol=1e-6)


def test_initial_weights_follow_from_id_and_seed():
    rows, ids = make(), np.arange(1 << 59, (1 << 59) + 4000)
    found = rows.initial(ids)
    assert (found[:, 0] == 0).all()
    assert np.abs(found).max() <= 0.3
    for column in found[:, 1:].T:
        assert abs(column.mean()) < 0.02
        assert column.std() == pytest.approx(0.3 / 3**0.5, rel=0.05)
    assert abs(np.corrcoef(found[:, 1], found[:, 2])[0, 1]) < 0.1
    assert (rows.initial(ids[7:9]) == found[7:9]).all()
    assert (make(seed=1).initial(ids)[:, 1:] != found[:, 1:]).mean() > 0.99


def test_an_entry_by_chance():
    rows = make("probability:0.25", ids=range(4000))
    np.random.seed(4)
    step(rows, [batch(range(4000))], np.ones((4000, WIDE), np.float32))
    pushed = []
    rows.store.push, add = lambda ids, change: pushed.append((ids, change)), rows.store.push
    rows.push(1.0)
    ids, change = pushed[0]
    assert 800 < len(ids) < 1200  # only those that entered are sent
    assert (change[:, SEEN] == 1).all()
    add(ids, change)
    found = step(rows, [batch(range(4000))], np.ones((4000, WIDE), np.float32))
    np.testing.assert_array_equal(np.flatnonzero(found.any(axis=1)), ids)


def test_rows_whose_gradient_is_not_finite_stay():
    rows, factors = make(), np.ones((40, WIDE), np.float32)
    factors[2] = np.inf
    for _ in range(2):
        step(rows, [batch([1, 2])], factors)
        rows.push(1.0)
    one, two = rows.store.pull(np.array([1, 2]))
    assert one[WEIGHTS:].all() and np.isfinite(one).all()
    assert not two[WEIGHTS:].any() and two[SEEN] == 1


def test_what_was_saved_can_be_loaded(tmp_path):
    rows, factors = make(), np.ones((40, WIDE), np.float32)
    for _ in range(2):
        step(rows, [batch([5, 1, 30, 5])], factors)
        rows.push(1.0)
    rows.save(tmp_path)
    saved = opened(tmp_path / "rows.bin", rows.width)
    assert saved["id"].tolist() == [1, 5, 30]
    other = make()
    step(other, [batch([7, 8])], factors)
    other.push(1.0)
    other.store.load(tmp_path / "rows.bin")
    every = np.arange(40)
    np.testing.assert_array_equal(other.store.pull(every), rows.store.pull(every))
    empty = make()
    empty.save(tmp_path)
    rows.store.load(tmp_path / "rows.bin")
    assert not rows.store.pull(every).any()


def test_ids_that_the_table_does_not_have_are_zeros():
    store = LocalStore(np.array([3, 7]), 4)
    store.push(np.array([7]), np.ones((1, 4), np.float32))
    assert store.pull(np.array([0, 3, 7, 99])).sum(axis=1).tolist() == [0, 0, 4, 0]

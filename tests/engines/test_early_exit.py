"""The scheduler of early exit with groups of layers that a test can follow."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetbert.data.batching import SAFE_LENGTHS, round_up
from fleetbert.data.packing import pack, packed_layout, padded_index
from fleetbert.data.ragged import Texts
from fleetbert.engines import exit_heads, exits
from fleetbert.engines.early_exit import EarlyExitEngine
from fleetbert.engines.exits import Settings

ENDS = [1, 2, 4]
WIDTH, LABELS = 4, 3
SPREAD = 16.0  # of numbers
RANDOM = np.random.default_rng(0)
MIX = RANDOM.normal(size=(3, WIDTH, WIDTH)).astype(np.float32)
HEADS = {
    end: {
        "inner.weight": RANDOM.normal(size=(2 * WIDTH, 6)).astype(np.float32) * 3,
        "inner.bias": np.zeros(6, np.float32),
        "out.weight": RANDOM.normal(size=(6, LABELS)).astype(np.float32),
        "out.bias": np.zeros(LABELS, np.float32),
    }
    for end in ENDS[:-1]
}


class Groups:
    """Each mixes a token's state with the mean of its text; `calls` are the shapes that came, and
    `threads` who called."""

    def __init__(self):
        self.calls: list[list[tuple[int, int]]] = [[] for _ in ENDS]
        self.threads: set[int] = set()

    def group(self, number):
        def run(states, texts, at):
            count, longest = len(texts.lengths), int(texts.lengths.max())
            assert at.shape[1] in SAFE_LENGTHS
            self.calls[number].append((count, round_up(longest, SAFE_LENGTHS)))
            self.threads.add(threading.get_ident())
            if number == 0:
                assert states is None
                words = pack(texts.ids, at)[:, None] * np.arange(1, WIDTH + 1)
                states = np.cos(words).astype(np.float32)
            assert states.shape == (len(at.positions), WIDTH)
            index, real = padded_index(at)
            rows, real = states[index], real[..., None]
            mean = (rows * real).sum(1, keepdims=True) / real.sum(1, keepdims=True)
            rows = np.tanh((rows + mean) @ MIX[number])
            return rows[:, 0, :LABELS] if number == len(ENDS) - 1 else pack(rows[real[..., 0]], at)

        return run

    def chain(self):
        return [self.group(number) for number in range(len(ENDS))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("exits")
    exit_heads.save(path, HEADS)
    return path


def open_fake(folder, speed=0.5, doubt="entropy"):
    groups = Groups()
    settings = Settings(ENDS, "pooled", speed, 0, doubt, SPREAD)
    return groups, EarlyExitEngine(settings, [groups.chain()], folder)


def make_texts(lengths, seed=1):
    random = np.random.default_rng(seed)
    return [random.integers(1, 99, length) for length in lengths]


def together(texts):
    lengths = np.array([len(text) for text in texts])
    return Texts(np.concatenate([np.zeros(0, int), *texts]), lengths.astype(int), lengths)


def answer(texts, speed, folder, budget=64, doubt="entropy"):
    groups, opened = open_fake(folder, doubt=doubt)
    logits = np.full((len(texts), LABELS), np.nan, np.float32)
    layers = np.zeros(len(texts), int)
    for part in opened.run_all(together(texts), speed, budget):
        assert np.isnan(logits[part.numbers]).all()  # each text leaves once
        logits[part.numbers], layers[part.numbers] = part.outputs, part.layer
    return logits, layers, groups


def entropy(chances):
    return -(chances * np.log(chances)).sum()


def doubt_of(doubt, logits, former):
    """Of one text's outputs, as the guides have it."""
    if doubt == "change":
        return 1.0 if former is None else min(1.0, np.sqrt(((logits - former) ** 2).sum()) / SPREAD)
    if doubt == "labels":
        chances = 1 / (1 + np.exp(-logits.astype(np.float64)))
        return max(entropy(np.array([chance, 1 - chance])) for chance in chances) / np.log(2)
    chances = np.exp(logits - logits.max())
    chances /= chances.sum()
    return entropy(chances) / np.log(LABELS)


def alone(text, speed, doubt="entropy"):
    """A text's answer, layer by layer and by itself."""
    former = None
    groups = Groups()
    texts = together([text])
    at = packed_layout(texts.lengths)
    state = None
    for number, end in enumerate(ENDS):
        state = groups.group(number)(state, texts, at)
        if end == ENDS[-1]:
            return state[0], end
        logits = exit_heads.pooled(HEADS[end], state, at)[0]
        if doubt_of(doubt, logits, former) < speed:
            return logits, end
        former = logits
    raise AssertionError


@settings(max_examples=30)
@given(
    st.lists(st.integers(1, 60), max_size=40),
    st.sampled_from([0.0, 0.3, 0.6, 0.9, 1.0]),
    st.sampled_from([16, 64, 512]),
)
def test_a_text_is_answered_as_if_it_were_alone(folder, lengths, speed, budget):
    check_as_alone(make_texts(lengths), speed, folder, budget)


@pytest.mark.parametrize("budget", [64, 2048])
def test_many_texts_that_fill_their_rows_or_do_not(folder, budget):
    lengths = np.random.default_rng(5).choice([3, 9, 15, 16, 17, 23, 24, 32, 33, 48, 60], 200)
    layers = check_as_alone(make_texts(lengths), 0.6, folder, budget)
    assert {*layers} == {*ENDS}


@pytest.mark.parametrize(
    ("doubt", "speed", "left"), [("labels", 0.9, {*ENDS}), ("change", 0.5, {2, 4})]
)
def test_several_labels_and_numbers_leave_by_their_own_doubt(folder, doubt, speed, left):
    """By the most doubtful label; by the change since the head before, which the first has not."""
    lengths = np.random.default_rng(5).choice([3, 9, 15, 23, 24, 48, 60], 200)
    texts = make_texts(lengths)
    assert {*check_as_alone(texts, speed, folder, 128, doubt=doubt)} == left
    for text in texts[:20]:
        _, opened = open_fake(folder, doubt=doubt)
        found = opened.run(together([text]), speed)
        np.testing.assert_allclose(found[0], alone(text, speed, doubt)[0], atol=1e-4)


def check_as_alone(texts, speed, folder, budget, doubt="entropy"):
    """Every text's answer and layer are those that it has by itself; the layers."""
    logits, layers, _ = answer(texts, speed, folder, budget, doubt)
    for number, text in enumerate(texts):
        expected, layer = alone(text, speed, doubt)
        np.testing.assert_allclose(logits[number], expected, atol=1e-4)
        assert layers[number] == layer
    return layers


def test_one_text_that_is_asked_by_itself_leaves_where_its_head_is_certain(folder):
    left = set()
    for text in make_texts([3, 11, 25, 47] * 10):
        groups, opened = open_fake(folder)
        found = opened.run(together([text]), 0.6)
        expected, layer = alone(text, 0.6)
        np.testing.assert_allclose(found, expected[None], atol=1e-4)
        left.add(layer)
        shape = (1, round_up(len(text), SAFE_LENGTHS))
        assert groups.calls == [[shape] * int(end <= layer) for end in ENDS]
    assert left == {*ENDS}


def test_a_text_may_hold_the_id_that_pads(folder):
    texts = make_texts([60] * 40)
    for text in texts[::2]:
        text[5:40] = text[55:] = 0
    check_as_alone(texts, 0.6, folder, 256)


@pytest.mark.parametrize("streams", [1, 3])
def test_batches_are_filled_up_again(folder, streams):
    texts = make_texts([10] * 16 * 40)
    _, layers, _ = answer(texts, 0.6, folder, budget=16 * 16)
    groups = Groups()
    opened = EarlyExitEngine(Settings(ENDS, "pooled", 0.6, 0), [groups.chain()] * streams, folder)
    list(opened.run_all(together(texts), None, 256))
    windows = -(-len(texts) // 25 // exits.WINDOW_BATCHES)
    for number, end in enumerate(ENDS[:-1], 1):
        came = int((layers > end).sum())
        assert 0 < came < len(texts)
        calls = [shape for shape in groups.calls[number] if shape[1] == 10]
        assert sum(rows for rows, _ in calls) == came
        # 25 rows of ten tokens are a full batch; the rest of a window is shared out
        assert sum(shape != (25, 10) for shape in calls) <= windows * streams


@pytest.mark.parametrize("speed", [0.0, 0.6])
def test_a_window_of_batches_goes_through_all_groups_before_the_next_is_taken(folder, speed):
    texts = make_texts([10] * 25 * 100)
    groups, opened = open_fake(folder)
    left, most = 0, 0
    for part in opened.run_all(together(texts), speed, 25 * 10):
        most = max(most, len(groups.calls[0]) - left // 25)
        left += len(part.numbers)
    assert len(groups.calls[0]) == 100 and left == len(texts)
    assert most <= exits.WINDOW_BATCHES + 1


@pytest.mark.parametrize("speed", [0.0, 0.6])
def test_streams_answer_the_same_side_by_side(folder, speed):
    texts = make_texts(np.random.default_rng(3).integers(1, 60, 400))
    expected, layers, alone = answer(texts, speed, folder, 256)
    streams = [Groups() for _ in range(3)]
    chains = [groups.chain() for groups in streams]
    found = []
    # both kept: the number of a thread that has ended may be another's
    twice = [EarlyExitEngine(Settings(ENDS, "pooled", 0.5, 0), chains, folder) for _ in range(2)]
    for opened in twice:
        order = []
        logits = np.full_like(expected, np.nan)
        for part in opened.run_all(together(texts), speed, 256):
            assert np.isnan(logits[part.numbers]).all()
            logits[part.numbers] = part.outputs
            assert (layers[part.numbers] == part.layer).all()
            order.append(part.numbers.tolist())
        np.testing.assert_allclose(logits, expected, atol=1e-5)
        found.append(order)
    assert found[0] == found[1]  # batches do not depend on which stream was faster
    assert len(set.union(*(groups.threads for groups in streams))) == 3 * 2
    for groups in streams:
        assert [calls[:2] for calls in groups.calls] == [[(1, 7), (2, 7)]] * len(ENDS)
    assert threading.get_ident() not in set.union(*(groups.threads for groups in streams))
    assert alone.threads == {threading.get_ident()}


@pytest.mark.parametrize("streams", [1, 2])
def test_what_a_group_raises_is_raised(folder, streams):
    def fail(states, texts, at):
        if len(texts.lengths) > 2:  # more than a stream begins with
            raise IndexError("a token id or type is negative")
        return np.zeros((len(texts.lengths), LABELS), np.float32)

    opened = EarlyExitEngine(Settings([1], "pooled", 0.5, 0), [[fail]] * streams, folder)
    with pytest.raises(IndexError, match="negative"):
        list(opened.run_all(together(make_texts([5] * 99)), 0.0, 64))


def test_one_batch_is_answered_at_the_variants_own_speed(folder):
    texts = make_texts([12] * 30)
    expected, layers, _ = answer(texts, 0.6, folder, budget=16 * 30)
    assert {*layers} == {*ENDS}
    _, opened = open_fake(folder, speed=0.6)
    np.testing.assert_allclose(opened.run(together(texts)), expected, atol=1e-5)


def test_a_batch_that_none_leaves_goes_on_as_it_is(folder):
    groups, opened = open_fake(folder)
    texts = make_texts([9, 20, 60])  # of so different lengths that they would not be put together
    found = opened.run(together(texts), 1e-9)
    assert groups.calls == [[(3, 64)]] * len(ENDS)
    for logits, text in zip(found, texts):
        np.testing.assert_allclose(logits, alone(text, 0.0)[0], atol=1e-5)

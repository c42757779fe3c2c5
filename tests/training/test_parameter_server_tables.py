"""What moves between a network and the servers, which are arrays here."""

from __future__ import annotations

import time
from types import SimpleNamespace

import numpy as np
import paddle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paddle import nn

from fleetbert import config
from fleetbert.training.strategies.parameter_server import arrival
from fleetbert.training.strategies.parameter_server.arrival import Counted, Layout
from fleetbert.training.strategies.parameter_server.tables import Mirror, Weights, words_of
from fleetbert.training.strategies.parameter_server.trainer import ParameterServer
from fleetbert.training.strategies.single import Single, Step


class Arrays:
    """Servers as in `private.Fleet`, whose pushes arrive late."""

    def __init__(self, layout: Layout, width: int):
        self.dense = np.zeros(layout.all_dense, np.float32)
        self.rows = np.zeros((layout.all_rows, width), np.float32)
        self.width = width
        self.made: set[int] = set()  # rows that have room for more than the first column
        self.on_their_way: list[tuple] = []
        self.pulls = 0

    def pull_rows(self, ids):
        self.arrive()
        return self.rows[ids].copy()

    def push_rows(self, *push):
        self.on_their_way.append(push)

    def push_dense(self, *push):
        self.on_their_way.append(push)

    def arrive(self):
        """At every third pull, one push; pushes of rows that wait together come as one."""
        self.pulls += 1
        if self.on_their_way and self.pulls % 3 == 0:
            push = self.on_their_way.pop(0)
            if len(push) == 1:
                self.dense -= push[0]
                return
            merged = np.zeros_like(self.rows)
            merged[push[0]] += push[1]
            ids = set(push[0].tolist())
            while self.on_their_way and len(self.on_their_way[0]) == 2:
                more, gradient = self.on_their_way.pop(0)
                merged[more] += gradient
                ids |= set(more.tolist())
            self.add_rows(np.array(sorted(ids)), merged[sorted(ids)])

    def add_rows(self, ids, gradient):
        assert len(np.unique(ids)) == len(ids)
        for row, change in zip(ids, gradient):
            if int(row) in self.made:
                self.rows[row] -= change
            else:
                self.rows[row, 0] -= change[0]
                self.made.add(int(row))

    def set_dense(self, values):
        self.dense = values.copy()

    def pull_dense(self):
        self.arrive()
        return self.dense.copy()


class Network(nn.Layer):
    def __init__(self, seed: int, tied: bool = False):
        super().__init__()
        paddle.seed(seed)
        self.word_embeddings = nn.Embedding(20, 3)
        self.head = nn.Linear(3, 2)
        self.frozen = nn.Linear(2, 2)
        for parameter in self.frozen.parameters():
            parameter.stop_gradient = True
        if tied:
            self.output = nn.Layer()
            self.output.decoder = self.word_embeddings.weight


def words(network) -> np.ndarray:
    return network.word_embeddings.weight.numpy()


def two_trainers(seeds=(1, 2), servers=3):
    """Their networks and mirrors of the same servers, which have the first one's weights."""
    networks = [Network(seed) for seed in seeds]
    layout = Layout(8, 20, 2, servers, 2)
    arrays = Arrays(layout, 3)
    mirrors = [
        Mirror(Counted(arrays, layout, rank), Weights(network))
        for rank, network in enumerate(networks)
    ]
    mirrors[0].start()
    pull_all(mirrors)
    return networks, mirrors, arrays


def pull_all(mirrors):
    pushed = [mirror.tables.pushed for mirror in mirrors]
    for mirror in mirrors:
        mirror.tables.expect(pushed)
        mirror.pull_all()


def dense_weights(arrays):
    return arrays.dense[Layout(8, 20, 2, 3, 2).is_weight]


@pytest.fixture
def two():
    return two_trainers()


def test_the_servers_have_every_weight_of_the_first_trainer(two):
    networks, _, arrays = two
    assert (arrays.rows[:20] == words(networks[0])).all()
    expected = np.concatenate([p.numpy().reshape(-1) for p in networks[0].head.parameters()])
    assert (dense_weights(arrays) == expected).all()
    assert (words(networks[1]) == words(networks[0])).all()
    assert (networks[1].head.weight.numpy() == networks[0].head.weight.numpy()).all()


def test_weights_that_do_not_arrive_are_noticed(two, monkeypatch):
    _, mirrors, arrays = two
    add = arrays.add_rows
    monkeypatch.setattr(arrays, "add_rows", lambda ids, g: add(ids, g * (ids > 19)[:, None]))
    arrays.rows[:20] = 0
    with pytest.raises(RuntimeError, match="rows are not those that were sent: 60 of"):
        mirrors[0].start()


def test_a_tied_table_and_frozen_weights(two):
    weights = Weights(Network(1, tied=True))
    assert (weights.rows, weights.width) == (0, 0)
    assert weights.dense == 20 * 3 + 3 * 2 + 2
    assert Weights(Network(1)).dense == 3 * 2 + 2


def test_words_are_there_once():
    batches = [
        {"inputs": {"input_ids": paddle.to_tensor(ids)}} for ids in ([[3, 1], [3, 0]], [[1]])
    ]
    assert words_of(batches).tolist() == [0, 1, 3]


steps = st.lists(
    st.tuples(
        st.integers(0, 1),  # which trainer
        st.sets(st.integers(0, 19), min_size=1, max_size=5),  # its words
        st.booleans(),  # whether it pushes after this step
        st.booleans(),  # and then pulls
    ),
    max_size=12,
)


@settings(max_examples=30)
@given(steps=steps, share=st.sampled_from([1.0, 0.5]))
def test_the_servers_add_up_what_all_trainers_changed(steps, share):
    """Nothing is lost, nothing counts twice, whoever pushes when; in float64 beside it."""
    networks, mirrors, arrays = two_trainers()
    expected = arrays.rows[:20].astype(np.float64)
    expected_dense = dense_weights(arrays).astype(np.float64)
    waiting = [[], []]
    rng = np.random.default_rng(0)
    for who, ids, pushes, pulls in [*steps, (0, {0}, True, True), (1, {0}, True, True)]:
        mirror, network = mirrors[who], networks[who]
        rows = np.array(sorted(ids))
        mirror.pull_rows(rows)
        change = rng.normal(size=(len(rows), 3)).astype(np.float32)
        table = words(network)
        table[rows] += change
        network.word_embeddings.weight.set_value(table)
        network.head.weight.set_value(network.head.weight + 1.0)
        waiting[who].append((rows, change))
        if pushes:
            mirror.push(share)
            for rows_then, change_then in waiting[who]:
                expected[rows_then] += share * change_then
            expected_dense[:6] += share * len(waiting[who])
            waiting[who] = []
            if pulls:
                mirror.pull_latest()
    pull_all(mirrors)
    np.testing.assert_allclose(arrays.rows[:20], expected, atol=1e-4)
    np.testing.assert_allclose(dense_weights(arrays), expected_dense, atol=1e-4)
    for network in networks:
        assert (words(network) == arrays.rows[:20]).all()


@given(
    dense=st.integers(200, 900), rows=st.integers(1, 99), shards=st.integers(1, 9),
    servers=st.integers(1, 5), trainers=st.integers(1, 4),
)  # fmt: skip
def test_every_server_has_a_counter_of_every_trainer(dense, rows, shards, servers, trainers):
    """With Paddle's own arithmetic (2.6.2): DenseDimPerShard, get_sparse_shard."""
    layout = Layout(dense, rows, shards, servers, trainers)
    assert layout.is_weight.sum() == dense
    assert len(layout.is_weight) == layout.all_dense
    each = layout.all_dense // servers + 1
    keys = layout.counter_rows
    local = layout.shards // servers + (layout.shards % servers > 0)
    for server in range(servers):
        assert (keys[server] % layout.shards // local == server).all()
        start, end = server * each, min((server + 1) * each, layout.all_dense)
        for part in np.array_split(np.arange(start, end), 10):
            assert part[: -trainers - 1 : -1].tolist() in layout.counters.tolist()
            assert part[:trainers].tolist() in layout.first_counters.tolist()
            assert slice(part[0], part[-1] + 1) in layout.parts
    assert keys.min() >= rows
    assert keys.max() == layout.all_rows - 1
    assert len(np.unique(keys)) == servers * trainers


@pytest.mark.parametrize("arrived", [0, 1, 2])
def test_a_killed_trainer_learns_how_much_of_its_last_push_arrived(two, arrived):
    """Nothing, the vector only, or all; afterwards every counter says so."""
    networks, mirrors, arrays = two
    tables = mirrors[1].tables
    mirrors[1].pull_rows(np.arange(4))
    standing = tables.dense.tolist(), tables.rows.tolist()
    networks[1].head.weight.set_value(networks[1].head.weight + 1.0)
    mirrors[1].push(1.0)
    del arrays.on_their_way[arrived:]
    again = Counted(arrays, tables.layout, 1)
    while arrays.on_their_way:
        arrays.arrive()
    before = dense_weights(arrays)
    assert again.catch_up(*standing) == (arrived > 0)
    assert again.pushed == (standing[0][1] + (arrived > 0), standing[1][1] + (arrived > 0))
    assert (again.pull_whole() == before).all()
    again.pull_rows(np.arange(4))  # or it would wait for ever
    for counters in (tables.layout.first_counters, tables.layout.counters):
        assert (arrays.dense[counters[:, 1]] == again.pushed[0]).all()
    assert (arrays.rows[tables.layout.counter_rows[:, 1], 0] == again.pushed[1]).all()


class TestOnePull:
    """The vector is pulled once a step where that is enough, and again where it is not."""

    @pytest.fixture
    def counted(self):
        """A first trainer of two on three servers whose pushes arrive when `arrive` is called."""
        layout = Layout(80, 0, 1, 3, 2)
        arrays = Arrays(layout, 0)
        arrays.arrive = lambda: setattr(arrays, "pulls", arrays.pulls + 1)
        counted = Counted(arrays, layout, 0)
        counted.set_dense(np.arange(80, dtype=np.float32))
        return counted, arrays, layout

    @staticmethod
    def deliver(arrays, places=slice(None)):
        (push,) = arrays.on_their_way.pop(0)
        arrays.dense[places] -= push[places]
        rest = push.copy()
        rest[places] = 0
        return rest

    @staticmethod
    def sleep_by(go_on, monkeypatch):
        """Nobody else's sleep changes: other threads of this process have theirs."""
        clock = SimpleNamespace(sleep=go_on, monotonic=time.monotonic)
        monkeypatch.setattr(arrival, "time", clock)

    @pytest.mark.parametrize("parts", [0, 7, 30])
    def test_who_does_not_wait_adds_what_has_not_arrived(self, counted, parts):
        counted, arrays, layout = counted
        counted.push_dense(np.full(80, 2, np.float32))
        self.deliver(arrays, slice(layout.parts[parts - 1].stop) if parts else slice(0))
        found = counted.pull_latest()
        assert (found == np.arange(80) - 2).all()
        assert arrays.pulls == 1

    def test_others_may_be_late_without_being_waited_for(self, counted):
        counted, arrays, layout = counted
        other = Counted(arrays, layout, 1)
        other.push_dense(np.ones(80, np.float32))
        counted.push_dense(np.full(80, 2, np.float32))
        assert (counted.pull_latest() == np.arange(80) - 2).all()
        self.deliver(arrays)
        assert (counted.pull_latest() == np.arange(80) - 3).all()
        assert arrays.pulls == 2

    def test_the_push_before_the_last_is_waited_for(self, counted, monkeypatch):
        counted, arrays, _ = counted
        for _ in range(2):
            counted.push_dense(np.ones(80, np.float32))
        self.sleep_by(lambda _: self.deliver(arrays), monkeypatch)
        assert (counted.pull_latest() == np.arange(80) - 2).all()
        assert arrays.pulls == 2

    def test_a_part_that_changed_while_it_was_pulled_is_pulled_again(self, counted, monkeypatch):
        counted, arrays, layout = counted
        counted.push_dense(np.ones(80, np.float32))
        part = layout.parts[11]
        rest = self.deliver(arrays, slice(part.start, part.stop - 1))  # all but its last number

        def go_on(_):
            arrays.dense -= rest

        self.sleep_by(go_on, monkeypatch)
        assert (counted.pull_latest() == np.arange(80) - 1).all()
        assert arrays.pulls == 2

    @pytest.mark.parametrize(("arrived", "pulls"), [(True, 1), (False, 2)])
    def test_who_knows_that_all_has_arrived_pulls_once(self, counted, arrived, pulls):
        counted, arrays, _ = counted
        counted.push_dense(np.ones(80, np.float32))
        self.deliver(arrays)
        assert (counted.pull_whole(arrived) == np.arange(80) - 1).all()
        assert arrays.pulls == pulls

    def test_who_knew_wrongly_pulls_till_it_is_true(self, counted, monkeypatch):
        counted, arrays, _ = counted
        counted.push_dense(np.ones(80, np.float32))
        self.sleep_by(lambda _: self.deliver(arrays), monkeypatch)
        assert (counted.pull_whole(arrived=True) == np.arange(80) - 1).all()
        assert arrays.pulls == 3

    @pytest.mark.parametrize(
        ("answers", "arrived"),
        [
            ([[6, 7], [8, 9]], True),  # two servers, which had handled 6 and 7, and two pushes
            ([[8, 8], [8, 9]], True),  # not before the slower one has
            ([[7, 8], None], False),  # one does not answer
        ],
    )
    def test_servers_are_asked_how_much_they_have_handled(self, counted, answers, arrived):
        counted, _, _ = counted
        left = [None if a is None else np.array(a) for a in answers]
        counted.handled = lambda: left.pop(0)
        assert counted.wait(np.array([6, 7]), 2) is arrived
        assert not left

    def test_servers_are_not_asked_for_ever(self, counted, monkeypatch):
        counted, _, _ = counted
        assert not counted.wait(None, 2)  # they did not answer before
        monkeypatch.setattr(arrival, "PATIENCE", 0.0)
        counted.handled = lambda: np.array([6, 7])
        assert not counted.wait(np.array([6, 7]), 2)


@pytest.mark.parametrize(
    ("settings", "pushes", "pulls"),
    [
        ({"mode": "async", "pull_every": 1}, [1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6, 7]),
        ({"mode": "async", "pull_every": 3}, [1, 2, 3, 4, 5, 6, 7], [3, 6]),
        ({"mode": "geo", "k_steps": 3}, [3, 6], [3, 6]),
    ],
)
def test_a_trainer_pushes_and_pulls_as_often_as_it_should(monkeypatch, settings, pushes, pulls):
    """The numbers of the steps after which it does, of seven."""
    monkeypatch.setattr(Single, "step", lambda *_: Step(0.5, False, False))
    trainer = ParameterServer.__new__(ParameterServer)
    trainer.settings = config.Strategy(name="parameter_server", **settings)
    trainer.started, trainer.steps, trainer.world_size, trainer.bad_in_a_row = True, 0, 2, 0
    trainer.job = SimpleNamespace(trainer=config.Trainer())
    trainer.rendezvous = SimpleNamespace(steps=0)
    pushed, pulled = [], []
    trainer.mirror = SimpleNamespace(
        weights=SimpleNamespace(rows=0),
        push=lambda factor: pushed.append((trainer.rendezvous.steps, factor)),
        pull_latest=lambda: pulled.append(trainer.rendezvous.steps),
    )
    for _ in range(7):
        trainer.step([])
    factor = 0.5 if settings["mode"] == "geo" else 1.0  # two trainers' mean, or their sum
    assert pushed == [(step, factor) for step in pushes]
    assert pulled == pulls


def test_stopped_trainers_go_on_with_an_optimizer_each(monkeypatch, tmp_path):
    """The checkpoint has all of them; a trainer that is new takes the first one's."""
    taken = []
    monkeypatch.setattr(Single, "state", lambda self: {"optimizer": {"of": self.rank}})
    monkeypatch.setattr(Single, "set_state", lambda self, state: taken.append(state["optimizer"]))
    trainers = [ParameterServer.__new__(ParameterServer) for _ in range(3)]
    for rank, trainer in enumerate(trainers):
        trainer.rank, trainer.world_size, trainer.synchronized, trainer.started = (
            rank,
            2,
            True,
            True,
        )
        trainer.rendezvous = SimpleNamespace(folder=tmp_path, barrier=lambda: None)
    for trainer in trainers[1::-1]:
        trainer.synchronize(saving=True)
    saved = trainers[0].state()
    for trainer in trainers:
        trainer.set_state(saved)
    assert [optimizer["of"] for optimizer in taken] == [0, 1, 0]

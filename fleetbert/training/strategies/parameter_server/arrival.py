"""The servers' tables with counters in them, so that trainers know which pushes have arrived.

Paddle sends pushes in threads of its own, and does not say when: its `client_flush` sleeps
0.1 s and hopes. So each push also adds 1 to counters of its trainer on every server, in the same
message, and who pulls looks at them. A server's threads each change a part of its numbers, and
nothing stops a pull from seeing some parts before and some after: every part has a counter at its
end, and what is pulled after all of them were seen has everything. It has another one at its
start: where the two differ, the part was seen while it changed.

A pull of the vector is many megabytes, so none should come too early. A trainer that does not wait
for others adds its own last push where the servers lack it; one that does asks them first how many
pushes they have handled.
"""

from __future__ import annotations

import time
from typing import Callable, Iterator

import numpy as np

from fleetbert.compat.parameter_server import Fleet

PAUSE = 0.001  # seconds before looking again, twice as many each time
LONGEST_PAUSE = 0.05
PATIENCE = 10.0  # seconds for the servers to say that they have handled pushes
PARTS = 10  # of a server's part of the vector, a thread for each (memory_dense_table.h)


class Layout:
    """Where weights and counters are in the vector and in the word table.

    dense: weights in the vector. rows: of the word table, 0 without one. shards: of a server's
    part of it. A counter is a number of the vector, and the first column of a row after the words.
    `counters` (servers * PARTS, trainers) are places in the vector, at the ends of its `parts`
    (slices), `first_counters` those at their starts; `counter_rows` (servers, trainers) are rows
    of the table.
    """

    def __init__(self, dense: int, rows: int, shards: int, servers: int, trainers: int):
        self.all_dense = dense + 2 * servers * PARTS * trainers
        each = self.all_dense // servers + 1  # how Paddle cuts it (DenseDimPerShard)
        ends = [0]
        for start in range(0, each * servers, each):
            size = min(each, self.all_dense - start)
            if size < 2 * PARTS * trainers:
                raise ValueError(f"{servers} servers are too many for {dense} weights")
            # The first size % PARTS parts have one number more (`bucket` in common_table.h).
            ends += [
                start + (n + 1) * (size // PARTS) + min(n + 1, size % PARTS) for n in range(PARTS)
            ]
        self.parts = [slice(start, end) for start, end in zip(ends, ends[1:])]
        self.first_counters = np.array(ends[:-1])[:, None] + np.arange(trainers)
        self.counters = np.array(ends[1:])[:, None] - 1 - np.arange(trainers)
        self.is_weight = np.ones(self.all_dense, bool)
        self.is_weight[self.first_counters] = self.is_weight[self.counters] = False
        # Row `id` is on server id % (all shards) // (shards of a server): get_sparse_shard. The
        # counters are in each server's last shard, to which it turns last.
        self.shards = shards * servers
        first = -(-rows // self.shards) * self.shards
        turns = self.shards * np.arange(trainers)
        self.counter_rows = first + turns + shards * np.arange(1, servers + 1)[:, None] - 1
        self.all_rows = int(self.counter_rows[-1, -1]) + 1 if rows else 0


class Counted:
    """Tables with counters.

    `dense` and `rows` are how many pushes each trainer is known to have made. `handled()` returns
    how many pushes of the vector each server has handled, of all trainers, or None if unknown.
    """

    def __init__(
        self,
        tables: Fleet,
        layout: Layout,
        rank: int,
        handled: Callable[[], np.ndarray | None] = lambda: None,
    ):
        self.tables, self.layout, self.rank, self.handled = tables, layout, rank, handled
        self.last: np.ndarray | None = None  # this trainer's last push, until it has arrived
        trainers = layout.counters.shape[1]
        self.dense = np.zeros(trainers, np.int64)
        self.rows = np.zeros(trainers, np.int64)

    @property
    def pushed(self) -> tuple[int, int]:
        """This trainer's pushes."""
        return int(self.dense[self.rank]), int(self.rows[self.rank])

    def expect(self, pushed: list[tuple[int, int]]) -> None:
        """Make later pulls wait for these pushes: `pushed` of each trainer."""
        self.dense[:], self.rows[:] = np.array(pushed).T

    def expect_of_all(self, before: tuple[int, int]) -> None:
        """Expect as many pushes of each trainer as this one has made since `before`."""
        dense, rows = self.pushed
        others = np.arange(len(self.dense)) != self.rank
        self.dense[others] += dense - before[0]
        self.rows[others] += rows - before[1]

    def catch_up(self, dense: list[int], rows: list[int]) -> bool:
        """After this trainer was killed, find out how many of its pushes have arrived. Return
        whether they are more than it knew of. A push that some servers lack is counted, but not
        repeated. dense, rows: the pushes of each trainer that it knew of."""
        rank, keys = self.rank, self.layout.counter_rows[:, self.rank]
        places = self.layout.counters[:, rank]
        firsts = self.layout.first_counters[:, rank]
        pulled = self.tables.pull_dense()
        arrived = pulled[places]
        arrived_rows = self.tables.pull_rows(keys)[:, 0] if self.layout.all_rows else arrived[:0]
        more = bool((arrived > dense[rank]).any() or (arrived_rows > rows[rank]).any())
        self.dense[:], self.rows[:] = dense, rows
        self.dense[rank] += more
        self.rows[rank] += more and self.layout.all_rows > 0
        vector = np.zeros(self.layout.all_dense, np.float32)
        vector[places] = arrived - self.dense[rank]
        vector[firsts] = pulled[firsts] - self.dense[rank]
        self.tables.push_dense(vector)
        if self.layout.all_rows:
            missing = np.zeros((len(keys), self.tables.width), np.float32)
            missing[:, 0] = arrived_rows - self.rows[rank]
            self.tables.push_rows(keys, missing)
        return more

    def set_dense(self, values: np.ndarray) -> None:
        """Set the vector. No counter counts it, so only before the first push."""
        vector = np.zeros(self.layout.all_dense, np.float32)
        vector[self.layout.is_weight] = values
        self.tables.set_dense(vector)

    def push_dense(self, gradient: np.ndarray) -> None:
        """Have the servers subtract `gradient`, a number for each weight of the vector."""
        vector = np.zeros(self.layout.all_dense, np.float32)
        vector[self.layout.is_weight] = gradient
        vector[self.layout.counters[:, self.rank]] = -1
        vector[self.layout.first_counters[:, self.rank]] = -1
        self.tables.push_dense(vector)
        self.dense[self.rank] += 1
        self.last = vector

    def push_rows(self, ids: np.ndarray, gradient: np.ndarray) -> None:
        """Have the servers subtract `gradient` (ids, width) from the rows `ids`, each once."""
        counters = self.layout.counter_rows[:, self.rank]
        count = np.zeros((len(counters), gradient.shape[1]), np.float32)
        count[:, 0] = -1
        self.tables.push_rows(np.concatenate([ids, counters]), np.concatenate([gradient, count]))
        self.rows[self.rank] += 1

    def wait(self, before: np.ndarray | None, pushes: int) -> bool:
        """Wait until each server has handled so many more pushes of the vector than `before`, a
        result of `handled()`. False if that is not known in time."""
        until = time.monotonic() + PATIENCE
        for _ in _looks():
            if before is None or time.monotonic() >= until or (now := self.handled()) is None:
                break
            if (now >= before + pushes).all():
                return True
        return False

    def pull_whole(self, arrived: bool = False) -> np.ndarray:
        """Pull the vector's weights with all expected pushes. arrived: the servers had handled them
        all before this call, so that no part is changing."""
        for _ in _looks():
            vector = self.tables.pull_dense()
            counters = (self.layout.first_counters, self.layout.counters)
            if all((vector[places] >= self.dense).all() for places in counters):
                break
            arrived = False
        if not arrived:
            vector = self.tables.pull_dense()
        self.last = None
        return vector[self.layout.is_weight]

    def pull_latest(self) -> np.ndarray:
        """Pull the vector's weights, and add this trainer's last push to the parts that lack it."""
        for _ in _looks():
            vector = self.tables.pull_dense()
            lacking = self._lacking_last(vector)
            if lacking is not None:
                break
        assert lacking is not None
        for number in np.flatnonzero(lacking):
            part = self.layout.parts[number]
            assert self.last is not None
            vector[part] -= self.last[part]
        return vector[self.layout.is_weight]

    def _lacking_last(self, vector: np.ndarray) -> np.ndarray | None:
        """Return which parts lack only the last push of this trainer. None if a part was seen while
        it changed, or lacks another push."""
        first, last = vector[self.layout.first_counters], vector[self.layout.counters]
        lacking = self.dense - last
        lacking_own = lacking[:, self.rank].copy()
        lacking[:, self.rank] -= self.last is not None
        torn = first[:, self.rank] != last[:, self.rank]
        return None if torn.any() or (lacking > 0).any() else lacking_own > 0

    def pull_rows(self, ids: np.ndarray) -> np.ndarray:
        """Pull rows (ids, width) with all expected pushes."""
        counters = self.layout.counter_rows
        for _ in _looks():
            arrived = self.tables.pull_rows(counters.reshape(-1))[:, 0].reshape(counters.shape)
            if (arrived >= self.rows).all():
                break
        return self.tables.pull_rows(ids)

    def count_rows(self) -> int | None:
        """Return how many rows of words the servers have; None if unknown. Until all trainers have
        pushed, it is too low by the missing counters."""
        if not self.layout.all_rows:
            return 0
        rows = self.tables.count_rows()
        return None if rows is None else rows - self.layout.counter_rows.size


def _looks() -> Iterator[None]:
    """Yield forever, at once and then after growing pauses."""
    pause = PAUSE
    while True:
        yield
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)

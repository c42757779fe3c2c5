"""The servers' tables with counters in them, so that trainers know which pushes have arrived.

Paddle 2.6.2 sends pushes in threads of its own, and does not say when: its `client_flush` sleeps
0.1 s and hopes. So each push also adds 1 to counters of its trainer on every server, in the same
message, and who pulls looks at them first. A server's threads each change a part of its numbers,
and nothing stops a pull from seeing some parts before and some after: every part has a counter at
its end, and what is pulled after all of them were seen has everything.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

PAUSE = 0.001  # seconds before pulling again
PARTS = 10  # of a server's part of the vector, a thread for each (memory_dense_table.h)


class Layout:
    """Where weights and counters are in the vector and in the word table.

    dense: weights in the vector. rows: of the word table, 0 without one. shards: of a server's
    part of it. A counter is a number of the vector, and the first column of a row after the words.
    `counters` (servers * PARTS, trainers) are places in the vector, `counter_rows` (servers,
    trainers) rows of the table.
    """

    def __init__(self, dense: int, rows: int, shards: int, servers: int, trainers: int):
        self.all_dense = dense + servers * PARTS * trainers
        each = self.all_dense // servers + 1  # how Paddle cuts it (DenseDimPerShard)
        ends = []
        for start in range(0, each * servers, each):
            size = min(each, self.all_dense - start)
            if size < PARTS * trainers:
                raise ValueError(f"{servers} servers are too many for {dense} weights")
            # The first size % PARTS parts have one number more (`bucket` in common_table.h).
            ends += [
                start + (n + 1) * (size // PARTS) + min(n + 1, size % PARTS) for n in range(PARTS)
            ]
        self.counters = np.array(ends)[:, None] - 1 - np.arange(trainers)
        self.is_weight = np.ones(self.all_dense, bool)
        self.is_weight[self.counters] = False
        # Row `id` is on server id % (all shards) // (shards of a server): get_sparse_shard. The
        # counters are in each server's last shard, to which it turns last.
        self.shards = shards * servers
        first = -(-rows // self.shards) * self.shards
        turns = self.shards * np.arange(trainers)
        self.counter_rows = first + turns + shards * np.arange(1, servers + 1)[:, None] - 1
        self.all_rows = int(self.counter_rows[-1, -1]) + 1 if rows else 0


class Counted:
    """`tables` (`private.Fleet`, or what has its methods) with counters.

    `dense` and `rows` are how many pushes each trainer is known to have made.
    """

    def __init__(self, tables: Any, layout: Layout, rank: int):
        self.tables, self.layout, self.rank = tables, layout, rank
        trainers = layout.counters.shape[1]
        self.dense = np.zeros(trainers, np.int64)
        self.rows = np.zeros(trainers, np.int64)

    @property
    def pushed(self) -> tuple[int, int]:
        """This trainer's pushes."""
        return int(self.dense[self.rank]), int(self.rows[self.rank])

    def expect(self, pushed: list[tuple[int, int]]) -> None:
        """From now on, pull what has all of these pushes in it: each trainer's `pushed`."""
        self.dense[:], self.rows[:] = np.array(pushed).T

    def expect_of_all(self, before: tuple[int, int]) -> None:
        """All trainers push as often as this one has since it had pushed `before`."""
        dense, rows = self.pushed
        others = np.arange(len(self.dense)) != self.rank
        self.dense[others] += dense - before[0]
        self.rows[others] += rows - before[1]

    def catch_up(self, dense: list[int], rows: list[int]) -> bool:
        """After this trainer was killed, knowing so many pushes of each: find out how many of its
        own have arrived. Whether it is more than it knew. A push that some servers lack is not
        made up for, but counted."""
        own, keys = self.rank, self.layout.counter_rows[:, self.rank]
        places = self.layout.counters[:, own]
        arrived = self.tables.pull_dense()[places]
        arrived_rows = self.tables.pull_rows(keys)[:, 0] if self.layout.all_rows else arrived[:0]
        more = bool((arrived > dense[own]).any() or (arrived_rows > rows[own]).any())
        self.dense[:], self.rows[:] = dense, rows
        self.dense[own] += more
        self.rows[own] += more and self.layout.all_rows > 0
        vector = np.zeros(self.layout.all_dense, np.float32)
        vector[places] = arrived - self.dense[own]
        self.tables.push_dense(vector)
        if self.layout.all_rows:
            missing = np.zeros((len(keys), self.tables.width), np.float32)
            missing[:, 0] = arrived_rows - self.rows[own]
            self.tables.push_rows(keys, missing)
        return more

    def set_dense(self, values: np.ndarray) -> None:
        """Only before the first push: no counter counts it."""
        vector = np.zeros(self.layout.all_dense, np.float32)
        vector[self.layout.is_weight] = values
        self.tables.set_dense(vector)

    def push_dense(self, gradient: np.ndarray) -> None:
        """Have the servers subtract `gradient`, a number for each weight of the vector."""
        vector = np.zeros(self.layout.all_dense, np.float32)
        vector[self.layout.is_weight] = gradient
        vector[self.layout.counters[:, self.rank]] = -1
        self.tables.push_dense(vector)
        self.dense[self.rank] += 1

    def push_rows(self, ids: np.ndarray, gradient: np.ndarray) -> None:
        """Have the servers subtract `gradient` (ids, width) from the rows `ids`, each once."""
        own = self.layout.counter_rows[:, self.rank]
        count = np.zeros((len(own), gradient.shape[1]), np.float32)
        count[:, 0] = -1
        self.tables.push_rows(np.concatenate([ids, own]), np.concatenate([gradient, count]))
        self.rows[self.rank] += 1

    def pull_dense(self, whole: bool) -> np.ndarray:
        """The vector's weights, with all pushes in them that are expected; if not `whole` some
        parts may lack the last."""
        vector = self.tables.pull_dense()
        while not (vector[self.layout.counters] >= self.dense).all():
            time.sleep(PAUSE)
            vector = self.tables.pull_dense()
        if whole:
            vector = self.tables.pull_dense()
        return vector[self.layout.is_weight]

    def pull_rows(self, ids: np.ndarray) -> np.ndarray:
        """Rows (ids, width), with all pushes in them that are expected."""
        counters = self.layout.counter_rows
        while True:
            found = self.tables.pull_rows(counters.reshape(-1))[:, 0].reshape(counters.shape)
            if (found >= self.rows).all():
                return self.tables.pull_rows(ids)
            time.sleep(PAUSE)

    def count_rows(self) -> int | None:
        """Rows of words that the servers have; None if they do not tell. Until all trainers have
        pushed it is too low by the counters that are not there yet."""
        if not self.layout.all_rows:
            return 0
        rows = self.tables.count_rows()
        return None if rows is None else rows - self.layout.counter_rows.size

"""A network's weights and the servers' tables: which lie where, and moving them to and fro.

Trainable weights are one vector on the servers, but for the word table, of whose rows a step needs
those of its own words only. Arrays are NumPy, float32.
"""

from __future__ import annotations

from pathlib import Path
from typing import Sequence

import numpy as np
import paddle

from fleetbert.tasks import Arrays
from fleetbert.training.sparse_table import AT_ONCE, SEEN, SparseTable, opened
from fleetbert.training.strategies.parameter_server.arrival import Counted

WORDS = "word_embeddings.weight"  # ends the word table's name
ROWS_AT_ONCE = 8192  # in one message when the whole table is moved
TINY = 1e-30  # below it a number may lose digits on its way


class Weights:
    """The trainable weights of a network, as the vector and the word table."""

    def __init__(self, network: paddle.nn.Layer):
        named = [(name, p) for name, p in network.named_parameters() if not p.stop_gradient]
        self.table = next(
            (p for name, p in named if name.endswith(WORDS) and not _is_tied(network, p)), None
        )
        self.parts = [p for _, p in named if p is not self.table]
        self.ends = np.cumsum([int(np.prod(p.shape)) for p in self.parts])
        self.dense = int(self.ends[-1])
        self.rows: int = 0 if self.table is None else self.table.shape[0]
        self.width: int = 0 if self.table is None else self.table.shape[1]

    def read_dense(self) -> np.ndarray:
        return np.concatenate([part.numpy().reshape(-1) for part in self.parts])

    def write_dense(self, vector: np.ndarray) -> None:
        for part, values in zip(self.parts, np.split(vector, self.ends[:-1])):
            part.set_value(values.reshape(part.shape))

    def read_rows(self, ids: np.ndarray) -> np.ndarray:
        with paddle.no_grad():
            return paddle.gather(self.table, paddle.to_tensor(ids)).numpy()

    def write_rows(self, ids: np.ndarray, rows: np.ndarray) -> None:
        assert self.table is not None
        with paddle.no_grad():
            self.table.scatter_(paddle.to_tensor(ids), paddle.to_tensor(rows))


def _is_tied(network: paddle.nn.Layer, parameter: paddle.Tensor) -> bool:
    """Whether a second layer computes with it, and so with all of its rows (masked words)."""
    layers = network.sublayers(include_self=True)
    holders = [layer for layer in layers for p in layer._parameters.values() if p is parameter]
    return len(holders) > 1


def words_of(micro_batches: Sequence[Arrays]) -> np.ndarray:
    """The rows of the word table that a step needs, each once."""
    ids = [arrays["inputs"]["input_ids"].numpy().reshape(-1) for arrays in micro_batches]
    return np.unique(np.concatenate(ids))


class Mirror:
    """A trainer's copy of the servers' weights: remembers what it pulled, pushes what has changed.

    id_rows: the task's rows of a sparse embedding table, if it has one.
    """

    def __init__(self, tables: Counted, weights: Weights, id_rows: SparseTable | None = None):
        self.tables, self.weights, self.id_rows = tables, weights, id_rows
        self.base = np.empty(0, np.float32)  # the vector as it was pulled or last pushed
        self.held = np.empty(0, np.int64)  # the rows that were pulled since the last push
        self.base_rows = np.empty((0, weights.width), np.float32)

    def start(self) -> None:
        """Give the servers this trainer's weights, and see that they have each of them."""
        weights, tables = self.weights, self.tables
        vector = weights.read_dense()
        tables.set_dense(vector)
        for ids in self._all_rows():
            rows = weights.read_rows(ids)
            fill(tables, ids, rows, np.zeros_like(rows))
        if self.id_rows is not None:
            store = self.id_rows.store
            assert isinstance(store, IdStore)
            store.start()
        _same("dense weights", tables.pull_whole(), vector)

    def pull_all(self) -> None:
        """Make all weights those of the servers; nothing must be left to push."""
        self.pull_whole()
        for ids in self._all_rows():
            self.weights.write_rows(ids, self.tables.pull_rows(ids))

    def pull_whole(self, arrived: bool = False) -> None:
        """See `Counted.pull_whole`."""
        self.base = self.tables.pull_whole(arrived)
        self.weights.write_dense(self.base)

    def pull_latest(self) -> None:
        """See `Counted.pull_latest`."""
        self.base = self.tables.pull_latest()
        self.weights.write_dense(self.base)

    def pull_rows(self, ids: np.ndarray) -> None:
        """Make these rows those of the servers, but for those that were pulled since the last
        push and may have changed here."""
        fresh = np.setdiff1d(ids, self.held, assume_unique=True)
        if len(fresh):
            rows = self.tables.pull_rows(fresh)
            self.weights.write_rows(fresh, rows)
            self.held = np.concatenate([self.held, fresh])
            self.base_rows = np.concatenate([self.base_rows, rows])

    def push(self, scale: float) -> None:
        """Add to the servers what has changed here, times `scale`."""
        vector = self.weights.read_dense()
        self.tables.push_dense((self.base - vector) * np.float32(scale))
        self.base = vector
        if len(self.held):
            rows = self.weights.read_rows(self.held)
            self.tables.push_rows(self.held, (self.base_rows - rows) * np.float32(scale))
        if self.id_rows is not None:
            self.id_rows.push(scale)
        self.forget_rows()

    def forget_rows(self) -> None:
        self.held, self.base_rows = self.held[:0], self.base_rows[:0]
        if self.id_rows is not None:
            self.id_rows.forget()

    def _all_rows(self) -> list[np.ndarray]:
        rows = np.arange(self.weights.rows)
        return np.split(rows, range(ROWS_AT_ONCE, len(rows), ROWS_AT_ONCE)) if len(rows) else []


class IdStore:
    """The servers as the store of a sparse embedding table: see `train.sparse_table.Store`."""

    def __init__(self, tables: Counted, width: int):
        self.tables, self.width = tables, width
        self.path: Path | None = None  # of the rows to start with

    def pull(self, ids: np.ndarray) -> np.ndarray:
        return self.tables.pull_rows(ids)

    def push(self, ids: np.ndarray, change: np.ndarray) -> None:
        self.tables.push_rows(ids, -change)

    def load(self, path: Path) -> None:
        self.path = path

    def start(self) -> None:
        """Give the servers the rows that were loaded, and see that they have each of them."""
        if self.path is None:
            return
        saved = opened(self.path, self.width)
        for start in range(0, len(saved), AT_ONCE):
            ids, rows = saved["id"][start : start + AT_ONCE], saved["row"][start : start + AT_ONCE]
            seen = np.zeros_like(rows)
            seen[:, SEEN] = rows[:, SEEN]
            fill(self.tables, ids, rows, seen)


def fill(tables: Counted, ids: np.ndarray, rows: np.ndarray, first: np.ndarray) -> None:
    """Give the servers rows that they do not have yet, and see that they have them.

    A row's first push, of `first`, only makes room for all of its columns but one, whatever it
    holds (`NeedExtendMF` in memory_sparse_table.cc).
    """
    tables.push_rows(ids, -first)
    tables.pull_rows(ids[:1])  # or both might be sent together
    tables.push_rows(ids, first - rows)
    _same("rows", tables.pull_rows(ids), rows)


def _same(what: str, pulled: np.ndarray, sent: np.ndarray) -> None:
    if not np.allclose(pulled, sent, rtol=0, atol=TINY):
        raise RuntimeError(
            f"the servers' {what} are not those that were sent: "
            f"{int((pulled != sent).sum())} of {sent.size} numbers differ"
        )

"""The rows of a table of ids, of which a step needs those of its own ids only.

The table (a store) lies here or on servers, and all it can do is give rows and add to them. So
what a step does to a row is a change to add: how often its id was seen, a squared gradient, a step
of its weights. Two trainers may change the same row at once, and both changes count.

A row: SEEN, SQUARES, then the weights as far as they differ from their initial values, which
follow from the id alone and are written nowhere.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
import paddle

from fleetbert import config as schema
from fleetbert.data.hashed_ids import mixed, places_of
from fleetbert.tasks import Arrays

SEEN = 0  # until the id has a row: how often it was seen; then that it has one
SQUARES = 1  # Adagrad's sum of mean squared gradients
WEIGHTS = 2  # the first of them
EPSILON = 1e-8
AT_ONCE = 1 << 17  # ids, when the whole table is moved
FILE = "rows.bin"


class Store(Protocol):
    def pull(self, ids: np.ndarray) -> np.ndarray:
        """Rows (ids, width) float32 of int64 ids, each of them once; zeros that nobody added to."""

    def push(self, ids: np.ndarray, change: np.ndarray) -> None:
        """Add to rows. A row's weights may only be added to where `pull` has shown it entered."""

    def load(self, path: Path) -> None:
        """Take all rows from a file of `SparseTable.save`."""


class LocalStore:
    """The table in this process: it has the ids that are given, all others stay zeros."""

    def __init__(self, ids: np.ndarray, width: int):
        self.ids, self.width = ids, width  # ids in order

    @cached_property
    def rows(self) -> np.ndarray:
        return np.zeros((len(self.ids), self.width), np.float32)

    def pull(self, ids: np.ndarray) -> np.ndarray:
        places, known = places_of(ids, self.ids)
        return np.where(known[:, None], self.rows[places], np.float32(0))

    def push(self, ids: np.ndarray, change: np.ndarray) -> None:
        self.rows[np.searchsorted(self.ids, ids)] += change

    def load(self, path: Path) -> None:
        saved = opened(path, self.width)
        self.rows[:] = 0
        for start in range(0, len(saved), AT_ONCE):
            part = saved[start : start + AT_ONCE]
            self.rows[np.searchsorted(self.ids, part["id"])] = part["row"]


class SparseTable:
    """The rows that a rank holds: what it pulled since it last pushed, and what has changed.

    ids: those of the training data, in order: no others get a row.
    """

    def __init__(self, job: schema.Config, ids: np.ndarray):
        self.settings, self.seed, self.ids = job.wide_deep, job.trainer.seed, ids
        self.rate = job.wide_deep.learning_rate / job.optimizer.learning_rate
        self.width = WEIGHTS + 1 + self.settings.embedding_size
        kind, _, number = self.settings.entry.partition(":")
        self.needed = int(number) if kind == "count" else 1
        self.probability = float(number) if kind == "probability" else 1.0
        self.store: Store = LocalStore(ids, self.width)
        self.forget()

    def forget(self) -> None:
        self.held = np.empty(0, np.int64)  # in order
        self.pulled = np.empty((0, self.width), np.float32)
        self.change = np.empty((0, self.width), np.float32)

    def take(self, micro_batches: list[Arrays], learning: bool = True) -> None:
        """Give the inputs of batches their `rows` and `places`, from their `ids`."""
        ids, counts = np.unique(
            np.concatenate([arrays["ids"].reshape(-1) for arrays in micro_batches]),
            return_counts=True,
        )
        self._hold(ids)
        places = np.searchsorted(self.held, ids)
        now = self.pulled[places] + self.change[places]
        entered = self.pulled[places, SEEN] >= self.needed
        weights = np.where(entered[:, None], now[:, WEIGHTS:] + self.initial(ids), np.float32(0))
        rows = paddle.to_tensor(weights, stop_gradient=not learning)
        for arrays in micro_batches:
            arrays["inputs"]["rows"] = rows
            arrays["inputs"]["places"] = paddle.to_tensor(np.searchsorted(ids, arrays["ids"]))
        if learning:
            self.taken = places, counts, entered, rows

    def _hold(self, ids: np.ndarray) -> None:
        fresh = np.setdiff1d(ids, self.held, assume_unique=True)
        if not len(fresh):
            return
        held = np.concatenate([self.held, fresh])
        order = np.argsort(held)
        self.held = held[order]
        self.pulled = np.concatenate([self.pulled, self.store.pull(fresh)])[order]
        none = np.zeros((len(fresh), self.width), np.float32)
        self.change = np.concatenate([self.change, none])[order]

    def initial(self, ids: np.ndarray) -> np.ndarray:
        """The weights that ids start with (ids, weights): 0 in the linear model, and of the
        embedding numbers drawn evenly from -initial_range to initial_range."""
        columns = np.arange(1, self.settings.embedding_size + 1, dtype=np.uint64)
        seeds = mixed(columns + np.uint64(self.seed) * np.uint64(1 << 32))
        drawn = mixed(ids.astype(np.uint64)[:, None] ^ seeds) >> np.uint64(40)  # 24 bits
        weights = np.zeros((len(ids), self.width - WEIGHTS), np.float32)
        weights[:, 1:] = (drawn / float(1 << 23) - 1.0) * self.settings.initial_range
        return weights

    def learn(self, rate: float) -> None:
        """After a backward pass: note what the step changes. `rate` is the schedule's, of the
        other weights. Rows whose gradient is not finite stay as they are.

        Adagrad (Duchi et al. 2011) with one sum for each row, of its mean squared gradient.
        """
        places, counts, entered, rows = self.taken
        gradient = rows.grad.numpy()
        learned = entered & np.isfinite(gradient).all(axis=1)
        gradient = np.where(learned[:, None], gradient, np.float32(0))
        rate *= self.rate
        if self.settings.optimizer == "adagrad":
            squares = np.square(gradient).mean(axis=1)
            sums = self.pulled[places, SQUARES] + self.change[places, SQUARES] + squares
            self.change[places, SQUARES] += squares
            gradient = gradient / (np.sqrt(sums) + EPSILON)[:, None]
        self.change[places, WEIGHTS:] -= np.float32(rate) * gradient
        self.change[places, SEEN] += np.where(entered, 0, self._seen(counts))

    def _seen(self, counts: np.ndarray) -> np.ndarray:
        """What to add to SEEN of ids that have no row yet, and were in the batch so often."""
        if self.probability < 1:  # a draw for each time; NumPy's generator is the step's own
            return np.random.random(len(counts)) < 1 - (1 - self.probability) ** counts
        return np.minimum(counts, self.needed)

    def push(self, share: float) -> None:
        """Add to the table what has changed, of the weights `share` of it; hold no rows then."""
        some = self.change.any(axis=1)
        change = self.change[some]
        change[:, SQUARES:] *= np.float32(share)
        self.store.push(self.held[some], change)
        self.forget()

    def save(self, folder: Path) -> None:
        """Write the rows of all ids that were seen to `folder`/rows.bin."""
        with (folder / FILE).open("wb") as file:
            for start in range(0, len(self.ids), AT_ONCE):
                ids = self.ids[start : start + AT_ONCE]
                rows = self.store.pull(ids)
                seen = rows[:, SEEN] > 0
                records = np.empty(int(seen.sum()), record(self.width))
                records["id"], records["row"] = ids[seen], rows[seen]
                file.write(records.tobytes())

    def export(self, path: Path, folder: Path) -> None:
        """Write what answers need of a file of `save` to `folder`: ids.npy, int64 [rows], and
        rows.npy, float32 [rows, weights], of the ids that have entered."""
        saved = opened(path, self.width)
        parts = [slice(start, start + AT_ONCE) for start in range(0, len(saved), AT_ONCE)]
        entered = [saved["row"][part, SEEN] >= self.needed for part in parts]
        count = sum(int(rows.sum()) for rows in entered)
        ids = np.lib.format.open_memmap(folder / "ids.npy", "w+", np.int64, (count,))
        shape = (count, self.width - WEIGHTS)
        rows = np.lib.format.open_memmap(folder / "rows.npy", "w+", np.float32, shape)
        end = 0
        for part, chosen in zip(parts, entered):
            begin, end = end, end + int(chosen.sum())
            ids[begin:end] = saved["id"][part][chosen]
            rows[begin:end] = saved["row"][part][chosen, WEIGHTS:] + self.initial(ids[begin:end])


def record(width: int) -> np.dtype:
    """One row of rows.bin."""
    return np.dtype([("id", "<i8"), ("row", "<f4", (width,))])


def opened(path: Path, width: int) -> np.ndarray:
    """The records of rows.bin, mapped: ids in order."""
    if not path.stat().st_size:
        return np.empty(0, record(width))
    return np.memmap(path, record(width), "r")

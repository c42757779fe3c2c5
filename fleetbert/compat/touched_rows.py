"""The rows of a table of words that AdamW has to move.

A row that never had a gradient has moments of 0: AdamW only shrinks it, by weight decay. So moments
and gradients are kept for the other rows alone. A step of 32 texts of SST-2 reads 410 of MiniLM's
30,522 rows, three epochs 11,585; of multilingual-e5-small's 250,037 most tables of texts have few.
The whole table's gradient took 24 ms of a step's 190 (one thread) for its zeros alone.

Each element gets the operations of an update of the whole table, in their order: weights are the
same bit for bit, whenever a run stops and resumes.
"""

from __future__ import annotations

from typing import Iterator, Sequence

import numpy as np

import fleetbert.compat.prepared  # noqa: F401  isort: skip
import paddle
import paddle.nn.functional as F

from fleetbert.compat import onednn
from fleetbert.compat.onednn import MULTIPLY, PostOp, view

# Rows that are moved at once, as many as a processor's cache keeps.
BLOCK = 512
# Steps whose decay is due together: oneDNN takes so many operations after another.
MOST_DUE = 32
# Elements that shrink at once.
PIECE = 1 << 18


class TouchedRows:
    """A table (rows, width), float32, contiguous, on the CPU, and the moments of its touched rows.

    loaded: both moments of all rows; rows whose moments are 0 count as not touched.
    """

    def __init__(self, table: paddle.Tensor, loaded: Sequence[object] = ()):
        self.table = table
        self.width = table.shape[1]
        self.place = np.full(len(table), -1)  # of each row among the touched ones, or -1
        self.ids = np.empty(0, np.int64)  # of the touched rows
        self.kept: list[np.ndarray] = []  # their moments, (2, BLOCK, width) each
        self.due: list[np.float32] = []  # what the other rows are still to be multiplied by
        self.forget()
        moments = [np.asarray(each) for each in loaded]
        if moments:
            self._touch(np.flatnonzero(moments[0].any(axis=1) | moments[1].any(axis=1)))
        for ids, block in self._with_ids():
            for part, moment in zip(block, moments):
                part[: len(ids)] = moment[ids]

    def forget(self) -> None:
        """Drop what was looked up since the last update."""
        self.looked_up: list[tuple[np.ndarray, paddle.Tensor]] = []
        self.changed = np.empty(0, np.int64)

    def lookup(self, ids: paddle.Tensor) -> paddle.Tensor:
        """The rows of ids (...), as (..., width), for a forward whose backward `gradient` sees."""
        different, places = np.unique(ids.numpy(), return_inverse=True)
        rows = self._rows()[different]
        others = self.place[different] < 0
        rows[others] = self._shrunk(rows[others])
        leaf = paddle.to_tensor(rows, stop_gradient=False)
        self.looked_up.append((different, leaf))
        return F.embedding(paddle.to_tensor(places.reshape(ids.shape)), leaf)

    def gradient(self) -> paddle.Tensor | None:
        """The gradient (different rows, width) of all lookups since `forget`; None without any."""
        assert self.table.grad is None, "a layer that reads the words' table has to hold it too"
        known = [(ids, leaf.grad) for ids, leaf in self.looked_up if leaf.grad is not None]
        if not known:
            return None
        self.changed = np.unique(np.concatenate([ids for ids, _ in known]))
        total = np.zeros((len(self.changed), self.width), np.float32)
        for ids, gradient in known:
            total[np.searchsorted(self.changed, ids)] += gradient.numpy()
        return paddle.to_tensor(total)

    def blocks(self, gradient: paddle.Tensor) -> Iterator[list[np.ndarray]]:
        """Yield weights, gradients and moments of the touched rows, flat, to be updated in place.
        gradient: of `gradient`; its rows are touched from now on."""
        fresh = self.changed[self.place[self.changed] < 0]
        rows = self._rows()
        rows[fresh] = self._shrunk(rows[fresh])
        self._touch(fresh)
        places = self.place[self.changed]
        order = np.argsort(places)
        places, slopes = places[order], gradient.numpy()[order]
        # What is behind the last block's rows has moments of 0 and is moved for nothing: oneDNN
        # compiles code for each new size.
        weights, slope = np.zeros((2, BLOCK, self.width), np.float32)
        for number, (ids, moments) in enumerate(self._with_ids()):
            start = number * BLOCK
            part = slice(*np.searchsorted(places, (start, start + BLOCK)))
            at = places[part] - start
            slope[at] = slopes[part]
            np.take(rows, ids, axis=0, out=weights[: len(ids)], mode="clip")
            yield [array.reshape(-1) for array in (weights, slope, *moments)]
            rows[ids] = weights[: len(ids)]
            slope[at] = 0

    def shrink_others(self, kept: float) -> None:
        """Multiply all other rows, sometime before they are read."""
        if np.float32(kept) != 1:
            self.due.append(np.float32(kept))
        if len(self.due) == MOST_DUE:
            self.settle()

    def settle(self) -> None:
        """Give all rows of the table their values of now."""
        if not self.due:
            return
        rows = self._rows()
        touched = rows[self.ids]
        factors = np.ones(MOST_DUE, np.float32)
        factors[: len(self.due)] = self.due
        then = tuple(PostOp(MULTIPLY, view(factors[at : at + 1])) for at in range(MOST_DUE))
        elements = rows.reshape(-1)
        for start in range(0, len(elements), PIECE):
            piece = view(elements[start : start + PIECE])
            onednn.apply(piece, then, piece)
        rows[self.ids] = touched
        self.due = []

    def moments(self) -> Iterator[np.ndarray]:
        """Yield the first moments of all rows, then the second ones."""
        for which in range(2):
            whole = np.zeros(self.table.shape, np.float32)
            for ids, block in self._with_ids():
                whole[ids] = block[which, : len(ids)]
            yield whole

    def _rows(self) -> np.ndarray:
        return onednn.array(self.table, *self.table.shape)

    def _with_ids(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield blocks with the ids of their rows, of which the last has fewer."""
        for number, block in enumerate(self.kept):
            yield self.ids[number * BLOCK : (number + 1) * BLOCK], block

    def _touch(self, ids: np.ndarray) -> None:
        """Count rows as touched, with moments of 0."""
        self.place[ids] = np.arange(len(ids)) + len(self.ids)
        self.ids = np.concatenate([self.ids, ids])
        while len(self.kept) * BLOCK < len(self.ids):
            self.kept.append(np.zeros((2, BLOCK, self.width), np.float32))

    def _shrunk(self, rows: np.ndarray) -> np.ndarray:
        for factor in self.due if len(rows) else ():
            rows *= factor
        return rows

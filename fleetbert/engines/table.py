"""Rows of fields, through a program and a table that has an embedding for each known category."""

from __future__ import annotations

from pathlib import Path
from typing import Callable, Iterable, NamedTuple

import numpy as np

from fleetbert.compat import paddle_inference
from fleetbert.data import fields
from fleetbert.data.hashed_ids import places_of
from fleetbert.data.ragged import Texts
from fleetbert.engines import predictor
from fleetbert.engines.engine import Engine, Options

INPUTS = ("numbers", "rows")
# int64 [any] ids → float32 [any, width]
LookUp = Callable[[np.ndarray], np.ndarray]


class Table(NamedTuple):
    """known: int64 [entries], ascending; rows: float32 [entries, width]."""

    known: np.ndarray
    rows: np.ndarray

    def look_up(self, ids: np.ndarray) -> np.ndarray:
        """float32 [any, width] of int64 [any] ids; zeros for those that have no row."""
        if not len(self.known):
            return np.zeros((len(ids), self.rows.shape[1]), np.float32)
        places, there = places_of(ids, self.known)
        return np.where(there[:, None], self.rows[places], np.float32(0))


def open_table(folder: Path) -> Table:
    """Map ids.npy and rows.npy: all processes that open them share their memory."""
    return Table(*(np.load(folder / name, mmap_mode="r") for name in ("ids.npy", "rows.npy")))


def as_texts(words: np.ndarray) -> Texts:
    """Rows that `fields.pack` made, int32 [rows, WORDS], as engines take texts."""
    lengths = np.full(len(words), fields.WORDS)
    return Texts(words.reshape(-1), lengths, lengths)


class TableEngine(Engine):
    """Logits float32 [rows, 1] of rows that `fields.pack` made. look_up: may be replaced."""

    batch_tokens = 1024 * fields.WORDS

    def __init__(self, predict: predictor.Predict, look_up: LookUp):
        super().__init__()
        self._predict, self.look_up = predict, look_up

    def compute(self, texts: Texts, speed: float | None = None) -> np.ndarray:
        numbers, ids = fields.unpack(texts.ids.reshape(-1, fields.WORDS))
        rows = self.look_up(ids.reshape(-1)).reshape(*ids.shape, -1)
        return self._predict(fields.features(numbers), rows)[0][:, None]

    def warm_up(self, shapes: Iterable[tuple[int, int]]) -> None:
        """Rows all have the same number of integers, whatever the length of a shape."""
        for rows, _ in shapes:
            self.run(as_texts(np.zeros((rows, fields.WORDS), np.int32)))


def open_variant(folder: Path, options: Options) -> TableEngine:
    """Open model.pdmodel and model.pdiparams, and the table."""
    program, parameters = folder / "model.pdmodel", folder / "model.pdiparams"

    def make() -> paddle_inference.PredictorConfig:
        config = paddle_inference.config_of(program, parameters)
        config.switch_ir_optim(True)
        config.enable_memory_optim()
        return config

    opened = predictor.create(make, options.device, options.threads)
    return TableEngine(predictor.bind(opened, INPUTS, options.device), open_table(folder).look_up)

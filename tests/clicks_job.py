"""Jobs on clicks that were made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fleetbert import tasks
from fleetbert.core.reading import Reading
from fleetbert.data import fields
from fleetbert.data.read import read_as
from fleetbert.data.split import Split, tokenize
from fleetbert.data.tokenizers.fields import SPEC, Fields
from fleetbert.tasks.ctr import criteo_made

ROWS, DEV_ROWS, IDS = 24_000, 8_000, 520


def write_data(folder: Path) -> dict[str, Any]:
    """train.tsv, dev.tsv and few.tsv in `folder`; returns truth.json."""
    truth = criteo_made.make(folder, ROWS, DEV_ROWS, IDS, seed=5)
    with (folder / "train.tsv").open("rb") as file:
        (folder / "few.tsv").write_bytes(b"".join(file.readline() for _ in range(1000)))
    return truth


def changes(folder: Path, train: str = "train.tsv") -> dict[str, Any]:
    """To `tiny_job.values`."""
    return {
        "task.name": "ctr",
        "data.train": str(folder / train),
        "data.dev": str(folder / "dev.tsv"),
        "data.batch_size": 256,
        "wide_deep.embedding_size": 4,
        "wide_deep.deep_layers": [32],
        "wide_deep.learning_rate": 0.05,
        "optimizer.learning_rate": 3e-3,
        "optimizer.weight_decay": 0.0,
        "trainer.epochs": 3,
    }


class Clicks(NamedTuple):
    """Rows of a file."""

    labels: np.ndarray
    numbers: np.ndarray
    ids: np.ndarray
    split: Split


def read(path: Path, on_bad_line: str = "stop") -> Clicks:
    """As training reads them."""
    labels = tasks.get("ctr").labels
    table = read_as(path, labels.table_format(path, labelled=True), on_bad_line)
    split, written = tokenize(str(path), table, Fields(SPEC), False, True, Reading(fields.WORDS))
    targets = labels.targets(written, [])[split.labels]
    return Clicks(targets, *fields.unpack(np.stack(split.encodings.ids)), split)


# From which a plain gradient moves all weights, those of rows too.
SGD = {
    "optimizer.name": "sgd", "optimizer.learning_rate": 0.1, "optimizer.schedule": "constant",
    "optimizer.warmup_ratio": 0.0, "optimizer.max_grad_norm": 0, "data.batch_size": 50,
    "wide_deep.optimizer": "sgd", "wide_deep.learning_rate": 5.0, "wide_deep.entry": "count:30",
    "wide_deep.initial_range": 0.3,
}  # fmt: skip

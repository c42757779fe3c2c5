"""A bundle of clicks that nobody trained: a random network, and a table of the rows' categories."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fleetbert.data import fields

SIZE = 4  # of an embedding
KNOWN = 40  # rows whose categories are in the table


def lines(count: int = 60) -> list[str]:
    """Rows without a label, of which the last ones have categories that the table does not."""
    random = np.random.default_rng(3)
    rows = []
    for number in range(count):
        numbers = ["" if random.random() < 0.3 else f"{x:g}" for x in random.normal(0, 9, 13)]
        categories = [f"c{number}-{column}é" for column in range(26)]
        categories[number % 26] = ""  # missing
        rows.append("\t".join([*numbers, *categories]))
    return rows


def table(rows: int = KNOWN, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Ids, ascending, and their weights."""
    split = [fields.split(line.encode(), labelled=False) for line in lines()[:rows]]
    ids = np.unique(fields.parse(split)[1])
    return ids, np.random.default_rng(seed).normal(0, 1, (len(ids), 1 + SIZE)).astype(np.float32)


def make_bundle(folder: Path, known: int = KNOWN, table_seed: int = 0) -> Path:
    import paddle

    from fleetbert.data.tokenizers import fields as tokenizer
    from fleetbert.export.rows import export_rows
    from fleetbert.tasks.ctr.loss import WideDeep

    paddle.seed(0)
    network = WideDeep(2 * fields.NUMBERS, fields.CATEGORIES, SIZE, [8])
    ids, weights = (
        table(known, table_seed) if known else (np.zeros(0, np.int64), np.zeros((0, 1 + SIZE)))
    )

    def write_table(target: Path) -> None:
        np.save(target / "ids.npy", ids)
        np.save(target / "rows.npy", weights.astype(np.float32))

    folder.parent.mkdir(parents=True, exist_ok=True)
    spec = tokenizer.write(folder.parent)
    export_rows(folder, network, write_table, task="ctr", tokenizer=spec)
    return folder

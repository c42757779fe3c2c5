"""An encoder whose vectors tell the tiny job's classes apart, and a table with faults."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny_job


@pytest.fixture(scope="session")
def encoder(tmp_path_factory, tiny_data) -> Path:
    """An embedding bundle. Do not change it."""
    from fleetbert import config
    from fleetbert.export import imported
    from fleetbert.training.job import train

    output = tmp_path_factory.mktemp("encoder")
    train(tiny_job.job(tiny_data, output, {"trainer.epochs": 2, "trainer.seed": 1}))
    init = config.Model(init=str(output / "model"))
    return imported.import_model(init, output / "vectors", None, task="embedding").root


@pytest.fixture(scope="session")
def faulty(tmp_path_factory) -> tuple[Path, set[int]]:
    """A table of 300 texts, and the lines of those whose label was changed."""
    path = tmp_path_factory.mktemp("faulty") / "train.tsv"
    tiny_job.write_table(path, 300, 11)
    rows = path.read_text().splitlines()
    lines = set(np.random.default_rng(0).permutation(300)[:30].tolist())
    for number in lines:
        label, text = rows[number + 1].split("\t")
        rows[number + 1] = f"{'bad' if label == 'good' else 'good'}\t{text}"
    path.write_text("\n".join(rows) + "\n")
    return path, {number + 2 for number in lines}

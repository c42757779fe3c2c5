"""`fleetbert bench` as a user runs it, on a tiny bundle."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tiny_bert import LABELS

from fleetbert.cli import main as cli


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A table of 70 texts of 1 to 40 words."""
    rng = np.random.default_rng(0)
    rows = ["label\ttext_a"]
    for number in range(70):
        words = " ".join(f"word{word}" for word in rng.integers(0, 150, rng.integers(1, 41)))
        rows.append(f"{LABELS[number % 3]}\t{words}")
    path = tmp_path_factory.mktemp("texts") / "texts.tsv"
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def bench(capsys):
    """A function: the code of `fleetbert bench WORDS`, and what it says on stdout and stderr."""

    def run(*words):
        with pytest.raises(SystemExit) as caught:
            cli.main(["bench", *map(str, words)])
        return (caught.value.code, *capsys.readouterr())

    return run


@pytest.fixture
def measured(bench, tmp_path):
    """A function: the report that is written by `fleetbert bench WORDS`, and its stdout."""

    def run(*words):
        code, out, err = bench(*words, "--json", tmp_path / "report.json")
        assert code == 0, err
        return json.loads((tmp_path / "report.json").read_text(encoding="utf-8")), out

    return run

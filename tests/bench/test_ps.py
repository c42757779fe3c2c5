"""A real run of `bench ps` on a tiny BERT, and what it says."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tiny_job
from processes import ROOT

from fleetbert import cli
from fleetbert.bench import ps
from fleetbert.bench.ours_ps import Counting

DENSE, ROWS, WIDTH = 1000, 50, 8


@pytest.fixture(autouse=True)
def two_processors(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")


def run(*words) -> int:
    with pytest.raises(SystemExit) as caught:
        cli.main(["bench", "ps", *map(str, words)])
    return caught.value.code


def test_the_sides():
    assert [side.name for side in ps.all_sides(2)] == [
        "local", "collective, 2 ranks", "async, 1 trainer", "async, 2 trainers", "sync, 2 trainers",
        "geo, 2 trainers",
    ]  # fmt: skip


@pytest.mark.slow
def test_all_sides_train_the_same_texts(tiny_data, tmp_path, capsys, monkeypatch):
    """Those whose starts differ."""
    sides = [ps.Side("single", 1), ps.Side("async", 1), ps.Side("geo", 2)]
    monkeypatch.setattr(ps, "all_sides", lambda trainers: sides)
    config = tiny_job.write_config(tmp_path / "job.yaml", tiny_data, tmp_path / "output")
    words = ["--servers", 1, "--steps", 4, "--rounds", 1, "strategy.k_steps=2"]
    code = run("--config", config, *words, "--json", tmp_path / "report.json")
    out, err = capsys.readouterr()
    assert code == 0, err
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert list(report["engines"]) == ["local", "async, 1 trainer", "geo, 2 trainers"]
    assert {s["texts"] for s in report["segments"]} == {4 * 16}
    assert len({s["tokens"] for s in report["segments"]}) == 1
    assert report["weights"]["rows"] == len(tiny_job.VOCAB)
    dense = 4 * report["weights"]["dense"]
    for name, found in report["traffic"].items():
        pushes = 0.5 if name.startswith("geo") else 1.0
        # A little more: the counters.
        assert dense * pushes < found["counted"]["dense_pushed"] < 1.01 * dense * pushes
        assert found["needed"]["dense_pushed"] == dense * pushes
        for kind in ps.KINDS[1:]:
            assert 0 < found["needed"][kind] < found["counted"][kind]
        assert found["sockets"]["sent"] > 0.9 * sum(
            found["counted"][kind] for kind in ("dense_pushed", "rows_pushed")
        )
        assert found["sockets"]["received"] > found["needed"]["dense_pulled"]
    assert out.count("geo, 2 trainers") == 2
    assert not (tmp_path / "output").exists()


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("--servers", 0), "--servers is 0; it has to be at least 1"),
        (("--trainers", 1), "--trainers is 1; it has to be at least 2"),
        (("--trainers", 3), "--trainers is 3, but this process may use 2 processors"),
        (("--steps", 0), "--steps is 0"),
        (("--config", "none.yaml"), "config none.yaml: cannot be read"),
        (("--config", "configs/ps/wide_deep.yaml"), "bench ps measures BERT; task.name is ctr"),
    ],
)
def test_errors_are_one_sentence(words, part, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert run(*words) == 2
    assert f"error: {part}" in capsys.readouterr().err


class Tables:
    width = WIDTH

    def pull_dense(self):
        return np.zeros(DENSE, np.float32)

    def pull_rows(self, ids):
        return np.zeros((len(ids), WIDTH), np.float32)

    def push_dense(self, gradient):
        pass

    push_rows = set_dense = lambda self, *arguments: None


def test_what_goes_to_and_fro_is_counted():
    counting = Counting(Tables(), ROWS)
    assert counting.width == WIDTH
    counting.set_dense(np.zeros(DENSE, np.float32))  # before the first step
    counting.push_dense(np.zeros(DENSE, np.float32))
    counting.pull_dense()
    counting.pull_dense()
    counting.pull_rows(np.array([ROWS + 3]))  # a counter
    counting.pull_rows(np.array([1, 2, ROWS - 1]))
    counting.push_rows(np.array([1, 2, ROWS - 1, ROWS]), np.zeros((4, WIDTH), np.float32))
    assert dict(counting.bytes) == {
        "dense_pushed": 4 * DENSE, "dense_pulled": 8 * DENSE, "words": 6,
        "rows_pulled": 4 * (8 + 4 * WIDTH), "rows_pushed": 4 * (8 + 4 * WIDTH),
    }  # fmt: skip


def test_what_is_needed():
    """For two turns of five steps, in which two trainers moved 40 rows in all both ways."""
    turn = {"bytes": {"dense_pushed": 50, "words": 40}, "servers_read": 300, "servers_wrote": 500}
    weights = {"dense": DENSE, "rows": ROWS, "width": WIDTH}

    def needed(mode):
        found = ps.traffic([turn, turn], ps.Side(mode, 2), 5, weights, settings)
        assert mode == "collective" or found["sockets"] == {"sent": 30, "received": 50}
        assert mode == "collective" or found["counted"]["dense_pushed"] == 5
        return found["needed"]

    settings = {"pull_every": 4, "k_steps": 10}
    rows = 2 * (8 + 4 * WIDTH)
    both = {"rows_pushed": rows, "rows_pulled": rows}
    vector = 4 * DENSE
    assert needed("async") == {"dense_pushed": vector, "dense_pulled": vector / 4, **both}
    assert needed("sync") == {"dense_pushed": vector, "dense_pulled": vector, **both}
    assert needed("geo") == {"dense_pushed": vector / 10, "dense_pulled": vector / 10, **both}
    ring = vector + 4 * ROWS * WIDTH
    assert needed("collective") == {"sent": ring, "received": ring}

"""A real run of `bench scaling` on a tiny BERT, and what it says."""

from __future__ import annotations

import json
import sys

import pytest
import tiny_job

from fleetbert import cli
from fleetbert.bench import measure, scaling
from fleetbert.errors import UserError


@pytest.fixture(autouse=True)
def two_processors(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "2")


def run(*words) -> int:
    with pytest.raises(SystemExit) as caught:
        cli.main(["bench", "scaling", *map(str, words)])
    return caught.value.code


@pytest.mark.slow
def test_all_sides_train_the_same_texts(tiny_data, tmp_path, capsys):
    config = tiny_job.write_config(tmp_path / "job.yaml", tiny_data, tmp_path / "output")
    words = ["--config", config, "--steps", 4, "--rounds", 2, "--json", tmp_path / "report.json"]
    code = run(*words)
    out, err = capsys.readouterr()
    assert code == 0, err
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    sides = ["1 rank of 1 thread", "1 rank of 2 threads", "2 ranks of 1 thread"]
    assert list(report["engines"]) == sides
    for number in range(2):
        found = [s for s in report["segments"] if s["round"] == number]
        assert {s["texts"] for s in found} == {4 * 16}
        assert len({s["tokens"] for s in found}) == 1
    assert report["engines"][sides[0]]["efficiency"] == 1
    cost = report["all_reduce"]
    assert len(cost["pairs"]) == 4 and all(with_ > 0 for with_, _ in cost["pairs"])
    assert cost["megabytes"] > 0 and cost["bare_ms"] > 0
    assert "All-reduce: " in out and "2 ranks of 1 thread" in out
    assert not (tmp_path / "output").exists()


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("--ranks", 1), "--ranks is 1; it has to be at least 2"),
        (("--ranks", 3), "--ranks is 3, but this process may use 2 processors"),
        (("--steps", 0), "--steps is 0"),
        (("--config", "none.yaml"), "config none.yaml: cannot be read"),
    ],
)
def test_errors_are_one_sentence(words, part, capsys):
    assert run(*words) == 2
    assert f"error: {part}" in capsys.readouterr().err


def test_a_rank_that_fails_ends_those_that_wait_for_it(tmp_path):
    code = (
        "import sys; print('{}', flush=True); sys.stdin.readline()\n"
        "print('{\"error\": \"out of texts\"}') if sys.argv[1] == '1' else input()"
    )
    workers = [
        measure.Worker([sys.executable, "-c", code, str(rank)], {}, tmp_path / str(rank))
        for rank in range(2)
    ]
    with workers[0], workers[1], pytest.raises(UserError, match="out of texts"):
        scaling.together(workers, start=True)


def test_the_part_of_the_all_reduce():
    facts = {"parameters": 1_000_000, "all_reduce": [0.5, 0.002, 0.004]}
    found = scaling.all_reduce([(2.0, 1.5), (4.0, 3.0), (1.0, 0.9)], facts)
    assert found["share"] == 0.25
    assert (found["step_ms"], found["step_without_ms"]) == (2000, 1500)
    assert (found["megabytes"], found["bare_ms"]) == (4, 4)
    assert found["bare_gigabytes_per_s"] == pytest.approx(1)


def test_efficiency_is_of_the_processors_used():
    speeds = {"one": 10, "two": 16}
    segments = [
        measure.Segment(number, name, 0.0, speed, 0, 1.0, 1.0, 1.0)
        for number in range(3)
        for name, speed in speeds.items()
    ]
    found = scaling.efficiency(segments, "two", "one", 2)
    assert found == {"speed_up": pytest.approx(1.6), "efficiency": pytest.approx(0.8)}

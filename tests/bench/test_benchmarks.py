"""The parts of tests/benchmarks that compute; `make bench` runs these before it measures."""

from __future__ import annotations

import argparse
import json
import sys

import pytest
from benchmarks import distribute, harness, infer, serve, tasks

from fleetbert.bench import measure, serve_client
from fleetbert.bench.infer_table import Measured
from fleetbert.core.errors import UserError


def test_efficiency_is_of_the_processors_used():
    sides = {side.name: side for side in distribute.all_sides("ranks", 2, 2)}
    assert list(sides) == ["1 rank of 1 thread", "1 rank of 2 threads", "2 ranks of 1 thread"]
    segments, turns = [], {name: [] for name in sides}
    for number in range(3):
        for name, speed in zip(sides, (10, 12, 16)):
            segments.append(measure.Segment(number, name, 0.0, speed, 0, 1.0, 1.0, 1.0))
            turns[name].append([{"reading": 0.1, "seconds": 1.0, "moved": [0, 0]}])
    rows = distribute.table_rows(sides, segments, turns, 4)
    assert [row[5:8] for row in rows[1:]] == [
        ["1.00", "100%", "10.00%"], ["1.20", "60%", "10.00%"], ["1.60", "80%", "10.00%"],
    ]  # fmt: skip


def test_texts_per_second_are_compared_at_the_same_p99():
    ways = [
        serve.Way(server, protocol, size)
        for server, protocol in ((serve.OURS, "http"), (serve.OURS, "grpc"), ("peer", "json"))
        for size in (1, 8, 32)
    ]
    pairs, asked = serve.pair_ways(ways), []
    assert len(pairs) == 6

    def ask(way, connections):
        """Ours is saturated: latency grows with the connections, and texts/s hardly."""
        asked.append((way, connections))
        if way.server == "peer":
            return {"texts": 100, "seconds": 1.0, "p99_ms": 50.0 * way.size, "failed": 0}
        p99 = 0.1 * way.size * connections + 10
        failed = int(way.protocol == "grpc" and connections > 64)
        return {"texts": 200 + connections, "seconds": 1.0, "p99_ms": p99, "failed": failed}

    found = serve.at_equal_p99(ask, pairs, 64)
    assert len(asked) == len(set(asked))
    http = found[0]  # 64 connections: 16.4 ms of 50; 195: 29.5; 256 (331 would be more than 4 x 64)
    assert (http.connections, http.p99_ms, http.times) == (256, pytest.approx(35.6), 4.56)
    grpc = found[3]  # more connections are refused
    assert (grpc.connections, grpc.times) == (64, 2.64)


def test_targets_are_met_at_their_value_and_missed_beyond():
    assert harness.Target("speed", 2.8, 2.8).row()[-1] == "met"
    assert harness.Target("speed", 2.79, 2.8).row()[-1] == "missed"
    assert harness.Target("drop", 0.005, 0.005, at_most=True).row()[-1] == "met"
    assert harness.Target("drop", 0.006, 0.005, at_most=True).row()[-1] == "missed"


def test_peers_do_not_get_what_is_set_for_paddle(monkeypatch):
    monkeypatch.setenv("MKL_DEBUG_CPU_TYPE", "7")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    environ = harness.peer_environ(3)
    assert environ["OMP_NUM_THREADS"] == "3"
    assert "MKL_DEBUG_CPU_TYPE" not in environ and "PYTHONPATH" not in environ


def test_peers_that_lack_something_are_explained():
    with pytest.raises(UserError, match=r"lacks no_such_module; `make venv-bench` makes "):
        harness.check_peer(sys.executable, ["json", "no_such_module"])
    with pytest.raises(UserError, match="/no/python cannot be run: No such file"):
        harness.check_peer("/no/python", ["json"])
    harness.check_peer(sys.executable, ["json"])


def test_a_variant_stands_beside_the_fastest_peer_that_keeps_the_accuracy():
    def measured(engine, order, texts_per_s, accuracy, p50_ms=None):
        figures = measure.Figures(texts_per_s, 0, 0, 0, 1, 1, 1, 2.0, 100)
        return Measured(engine, order, figures, 1, 0.0, p50_ms, p50_ms, accuracy, 0.0)

    rows = {
        "ours": measured("int8-static", "sorted", 300.0, 0.90),
        "fast": measured("fast (a)", "sorted", 400.0, 0.89),
        "slow": measured("slow (b)", "sorted", 150.0, 0.898),
        "other order": measured("fast (a)", "single", 900.0, 0.95, 1.0),
        "ours, single": measured("int8-static", "single", 300.0, 0.90, 2.0),
    }
    peers = ["fast", "slow", "other order"]
    found = infer.beside_best("ours", peers, rows)
    assert found == ["ours", "slow (b)", "2.00", "0.9000", "0.8980", "2.00", "2.00"]
    assert infer.beside_best("ours, single", peers, rows)[1:3] == ["fast (a)", "0.50"]
    assert infer.beside_best("ours, single", ["slow"], rows) is None


def test_answers_of_other_servers_are_read():
    speeches = serve_client.SPEECHES
    data = [[{"label": "b", "score": 0.75}, {"label": "a", "score": 0.25}]]
    assert speeches["classify"].scores(json.dumps({"data": data}).encode()).tolist() == [
        [0.25, 0.75]
    ]
    outputs = [{"name": "scores", "shape": [2, 2], "data": [0.5, 0.5, 0.25, 0.75]}]
    scores = speeches["tensors"].scores(json.dumps({"outputs": outputs}).encode())
    assert scores.tolist() == [[0.5, 0.5], [0.25, 0.75]]


@pytest.mark.endurance
def test_a_result_is_written_as_json_and_markdown(
    tiny_bundle, texts, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    words = ["infer", "--bundle", tiny_bundle, "--data", texts, "--orders", "sorted"]
    words += ["--rounds", 1, "--threads", 1, "--peer-python", sys.executable]
    words += ["--engines", "float32", "--peers", "PyTorch,ONNX Runtime int8"]
    harness.main([*map(str, words)])
    (page,) = (tmp_path / "output" / "benchmarks").glob("*-infer.md")
    (data,) = (tmp_path / "output" / "benchmarks").glob("*-infer.json")
    text = page.read_text(encoding="utf-8")
    assert text in capsys.readouterr().out
    assert "PyTorch (this needs a Python with torch, transformers, but" in text
    engines = json.loads(data.read_text(encoding="utf-8"))["engines"]
    assert list(engines) == ["float32, sorted"]


def test_a_page_of_tasks_has_means_over_the_seeds(tmp_path):
    same = {
        "name": "wnut17", "metric": "entity_f1", "init": "m", "epochs": 2, "batch_size": 16,
        "learning_rate": 1e-4, "threads": 1, "train": 9, "dev": 3, "load": [1.0, 3.0],
        "int8_speed": 2.0,
    }  # fmt: skip
    for seed, ours in enumerate((0.40, 0.42)):
        figures = {"figure": ours, "peer": 0.425, "seconds": 50.0, "peer_seconds": 100.0}
        row = {**same, **figures, "seed": seed, "int8": ours - 0.02, "int8_drop": 0.02}
        tasks.add_result(tmp_path / "new" / "results.jsonl", row)
    ranked = {"name": "trec_qa", "task": "embedding", "figure": 0.86, "cosine": 0.83, "epochs": 3}
    tasks.add_result(tmp_path / "other.jsonl", ranked)
    paths = [tmp_path / "new" / "results.jsonl", tmp_path / "other.jsonl"]
    found = tasks.run(argparse.Namespace(results=paths))
    text = harness.markdown(found, "2026-11-27", "tasks")
    row = "| wnut17 | m | entity_f1 | 0.4100 | 0.4250 | -0.0150 | 0.4000 0.4200 / 0.4250 0.4250 |"
    assert row in text and "1.0 to 3.0" in text
    assert [target.row()[-1] for target in found.targets] == [
        "missed", "met", "missed", "missed", "met",
    ]  # fmt: skip

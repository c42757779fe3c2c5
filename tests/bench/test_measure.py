"""Statistics, turns and tables; and real workers that say too little."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from fleetbert.bench import measure, worker
from fleetbert.bench.measure import Segment
from fleetbert.core.errors import UserError


def segment(number: int, engine: str, texts_per_s: float, load: float = 0.5) -> Segment:
    """100 texts of 10 tokens."""
    seconds = 100 / texts_per_s
    return Segment(number, engine, load, 100, 1000, seconds, 2 * seconds, 10.0 + number)


SEGMENTS = [
    segment(0, "peer", 10),
    segment(0, "ours", 15),
    segment(1, "ours", 60),  # the machine was faster in this round, for both
    segment(1, "peer", 30),
    segment(2, "peer", 20, load=4.0),
    segment(2, "ours", 26),
]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("infer --engines float31", "float31 is unknown; choose from float32"),
        ("infer --orders upwards", "upwards is none of single"),
        ("infer --orders length:0", "length:0 is none of single"),
        ("infer --rounds two", "argument --rounds: two is no whole number from 1 on"),
        ("serve --connections 0", "argument --connections: 0 is no whole number from 1 on"),
        ("serve --sizes 8,0", "argument --sizes: 0 is no whole number from 1 on"),
        ("train --config none.yaml", "config none.yaml: cannot be read"),
        ("train --config configs/ps/wide_deep.yaml", "task.name is ctr"),
    ],
)
def test_words_that_mean_nothing_are_refused(words, sentence, tiny_bundle, texts, bench):
    which, *more = words.split()
    needed = [] if which == "train" else ["--bundle", tiny_bundle, "--data", texts]
    code, _, err = bench(which, *needed, *more)
    assert code == 2
    assert sentence in err


def test_an_engines_figures_are_medians_over_its_segments():
    found = measure.summarize(SEGMENTS, "peer")
    assert found.texts_per_s == pytest.approx(20)
    assert found.tokens_per_s == pytest.approx(200)
    assert (found.lowest, found.highest) == (pytest.approx(10), pytest.approx(30))
    assert (found.texts, found.tokens) == (300, 3000)
    assert found.seconds == pytest.approx(100 / 10 + 100 / 30 + 100 / 20)
    assert found.cpu_ms_per_text == pytest.approx(2 * 1000 * found.seconds / 300)
    assert found.peak_mb == 12


def test_ratios_are_taken_within_a_round():
    found = measure.ratio(SEGMENTS, "ours", "peer")
    assert found.rounds == pytest.approx([1.5, 2.0, 1.3])
    assert found.median == pytest.approx(1.5)
    assert str(found) == "ours: 1.50 times the texts/s of peer (rounds: 1.50 2.00 1.30)"


def test_a_busy_machine_is_noted():
    assert measure.busy_note(SEGMENTS[:4], 2) is None
    assert "4.0" in (measure.busy_note(SEGMENTS, 2) or "")


def test_engines_take_turns_and_each_begins_a_round(monkeypatch, capsys):
    monkeypatch.setattr(measure, "PAUSE", 0)
    turn = segment(0, "", 5)._asdict()
    segments = measure.take_turns(3, ["a", "b", "c"], lambda *_: turn)
    order = ["".join(s.engine for s in segments if s.round == number) for number in range(3)]
    assert order == ["abc", "bca", "cab"]
    assert "round 2 of 3: c: 5.0 texts/s" in capsys.readouterr().err


def test_tables_are_aligned_or_markdown():
    rows = [["", "texts/s"], ["甲", "9.5"], ["engine", "120.0"]]
    lines = measure.table(rows, markdown=False).splitlines()
    assert lines == ["        texts/s", "甲          9.5", "engine    120.0"]
    assert measure.table(rows, markdown=True).splitlines() == [
        "|  | texts/s |",
        "| --- | ---: |",
        "| 甲 | 9.5 |",
        "| engine | 120.0 |",
    ]


def test_a_worker_answers_and_keeps_its_chatter_off_the_reports(tmp_path):
    code = (
        "import os, sys\n"
        f"sys.path.insert(0, {str(Path(worker.__file__).parent)!r})\n"
        "import worker\n"
        "channel = worker.Channel()\n"
        "print('chatter'); os.write(1, b'from C')\n"
        "channel.send(engine='x')\n"
        "channel.send(twice=2 * channel.receive()['number'])\n"
        "os._exit(3)\n"
    )
    log = tmp_path / "log"
    with measure.Worker([sys.executable, "-c", code], os.environ, log) as process:
        assert process.hello == {"engine": "x"}
        assert process.ask(number=21) == {"twice": 42}
        with pytest.raises(UserError, match=r"exit code 3: .*(\n.*)*from C"):
            process.ask(number=1)


def test_a_worker_that_fails_ends_those_that_wait_for_it(tmp_path):
    code = (
        "import sys; print('{}', flush=True); sys.stdin.readline()\n"
        "print('{\"error\": \"out of texts\"}') if sys.argv[1] == '1' else input()"
    )
    workers = [
        measure.Worker([sys.executable, "-c", code, str(rank)], {}, tmp_path / str(rank))
        for rank in range(2)
    ]
    with workers[0], workers[1], pytest.raises(UserError, match="out of texts"):
        measure.together(workers, start=True)


def test_json_is_refused_before_the_work_where_it_cannot_be_written(tmp_path, capsys):
    for path in (tmp_path, tmp_path / "missing" / "report.json"):
        with pytest.raises(argparse.ArgumentTypeError, match="cannot be written there"):
            measure.output(str(path))
    arguments = argparse.Namespace(json=str(tmp_path / "a.json"), threads=1, markdown=False)
    measure.finish(arguments, [["", "texts/s"]], ["字"], SEGMENTS)
    written = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert written["notes"][0] == "字" and "busy" in written["notes"][1]
    assert len(written["segments"]) == len(SEGMENTS)
    assert "字" in capsys.readouterr().out


def test_segments_leave_the_warm_up_out_and_wait_for_commands():
    waiting = [{"steps": 3, "untimed": 1}, {"steps": 2, "untimed": 0}]
    sent: list[dict] = []

    def receive():
        if not waiting:
            raise worker.Stop
        return waiting.pop(0)

    channel = SimpleNamespace(receive=receive, send=lambda **report: sent.append(report))
    segments = worker.Segments(channel)
    for texts in range(1, 6):
        segments.before_step()
        segments.after_step(texts, 10 * texts)
    with pytest.raises(worker.Stop):
        segments.before_step()
    assert [report["steps"] for report in sent] == [2, 2]
    assert [report["texts"] for report in sent] == [2 + 3, 4 + 5]
    assert [report["tokens"] for report in sent] == [50, 90]
    assert all(report["peak_mb"] > 0 for report in sent)

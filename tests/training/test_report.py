"""The report shows a run's figures, needs nothing from outside, and survives what a run lacks."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from fleetbert.reports import figures
from fleetbert.tasks.classification import metrics
from fleetbert.training import curves, report
from fleetbert.training.callbacks.profiler import together

SVG = figures.svg  # conftest.py puts words in its place

HOSTILE = "<script>alert(1)</script>"
VOID = {"meta", "br", "hr", "img", "input", "link"}
TOGETHER = {
    "reader_cost": 0.00125, "batch_cost": 0.0625, "reader_ratio": 0.02, "steps_per_s": 16.0,
    "texts_per_s": 512.25, "tokens_per_s": 16384.0,
}  # fmt: skip


@pytest.fixture
def drawn(monkeypatch):
    """Figures are drawn, which takes most of a report's time."""
    monkeypatch.setattr(figures, "svg", SVG)


class Page(HTMLParser):
    """Elements, what they refer to, and the text of each (also of those inside it)."""

    def __init__(self, html: str):
        super().__init__(convert_charrefs=True)
        self.html = html
        self.tags: list[str] = []
        self.open: list[str] = []
        self.links: list[str] = []
        self.texts: list[tuple[tuple[str, ...], str]] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attributes:
            assert not name.startswith("on")
            if name.split(":")[-1] in ("href", "src", "srcset", "data", "action"):
                self.links.append(value)
            self.links.extend(re.findall(r"url\(\s*['\"]?([^'\")]*)", value or ""))

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" in self.open:
            assert "@import" not in data
            self.links.extend(re.findall(r"url\(\s*['\"]?([^'\")]*)", data))
        self.texts.append((tuple(self.open), data.strip()))

    def text(self, tag: str = "body") -> str:
        return "\n".join(text for path, text in self.texts if tag in path and text)


def training_row(step: int, **changes) -> dict:
    row = {"step": step, "epoch": 0, "loss": 2 / step, "lr": 1e-4 / step, "scale": 1.0}
    row.update(ips=500.0, batch_cost=0.06, reader_cost=0.001, reader_ratio=0.02, skipped=0)
    return {**row, **changes}


def dev_row(step: int, accuracy: float = 0.5) -> dict:
    return {"step": step, "dev.n": 60, "dev.accuracy": accuracy, "dev.loss": 1 - accuracy}


def judged(labels) -> dict:
    """Figures of 20 texts a label, most of them right."""
    random = np.random.default_rng(0)
    truth = np.repeat(np.arange(len(labels)), 20)
    logits = random.normal(size=(len(truth), len(labels))).astype(np.float32)
    logits[np.arange(len(truth)), truth] += 2.5
    return {**metrics.classification(truth, logits, labels), "step": 30, "metric": "accuracy"}


def write_run(folder: Path, dev=None, rows=None, profile=None, **changes) -> dict:
    summary = {
        "dev": dev or {}, "steps": 40, "skipped_steps": 0, "texts_per_s": 1234.5,
        "tokens_per_s": 98765.4, "reader_ratio": 0.0321, "wall_s": 7384.0, "world_size": 2,
        "device": "cpu", "fresh_weights": ["classifier.weight"], "unused_weights": [],
        "data": {
            "train": {"file": "texts.tsv", "texts": 6920, "truncated": 17, "skipped_lines": 3},
        },
        "versions": {"paddlepaddle": "2.6.2"},
        "config": {
            "task": {"name": "classification"}, "optimizer": {"learning_rate": 5e-05},
            "precision": {"level": "O0"},
        },
        **changes,
    }  # fmt: skip
    if profile is not None:
        summary["profile"] = profile["together"]
        (folder / "profile.json").write_text(json.dumps(profile), encoding="utf-8")
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    if rows is None:
        rows = [training_row(step) for step in range(1, 41)]
        rows += [dev_row(20), dev_row(30, 0.9), dev_row(40, 0.8)] if dev else []
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "metrics.jsonl").write_text(lines, encoding="utf-8")
    return summary


def read_page(folder: Path) -> Page:
    """The report, checked for what must hold of each: nothing from outside, no script."""
    report.write_report(folder)
    assert not list(folder.glob(".report*"))
    page = Page((folder / "report.html").read_text(encoding="utf-8"))
    assert not {"script", "link", "iframe", "img", "object", "embed"} & set(page.tags)
    assert [link for link in page.links if not link.startswith("#")] == []
    assert "http://" not in page.html and "https://" not in page.html
    ids = set(re.findall(r'\bid="([^"]*)"', page.html))
    assert {link[1:] for link in page.links} <= ids
    return page


def titles(page: Page) -> list[str]:
    return [text for path, text in page.texts if path[-1:] == ("figcaption",) and text]


def test_all_parts_of_a_run(tmp_path, drawn):
    ranks = [{"rank": 0, **TOGETHER}, {"rank": 1, **TOGETHER, "texts_per_s": 256.125}]
    slow = [{"name": "matmul_v2", "calls": 1200, "total_ms": 3456.0, "average_ms": 2.88}]
    dev = judged(["bad", "so so", "好"])
    profile = {"ranks": ranks, "together": TOGETHER, "slow_operators": slow}
    write_run(tmp_path, dev, profile=profile)
    page = read_page(tmp_path)
    text = page.text()
    for shown in (
        f"{100 * dev['accuracy']:.2f} %",
        f"{dev['macro_f1']:.4f}",
        f"{dev['loss']:.4f}",
        "60 texts, step 30",
        "best step 30, by accuracy",
        "2 h 03 min",
        "1,234",  # texts/s
        "98,765",
        "3.21 %",
        "2 ranks together",
    ):
        assert shown in text
    assert titles(page) == ["Loss", "Dev accuracy", "Learning rate", "ips", "Reader ratio"]
    assert "best" in page.text("svg")
    table = page.text("table")
    for shown in ("1.25 ms", "62.5 ms", "256.1", "512.2", "16,384", "together", "好"):
        assert shown in table
    for shown in ("matmul_v2", "1,200", "3,456 ms", "2.88 ms", "texts.tsv", "6,920", "17"):
        assert shown in table
    for scores in dev["classes"].values():
        assert f"{scores['f1']:.4f}" in table
    cells = re.findall(r'<td class="( ?hit)?[^"]*" style="--s:[^>]*>([\d,]+)</td>', page.html)
    assert [int(count) for _, count in cells] == np.ravel(dev["confusion"]).tolist()
    assert [place for place, (hit, _) in enumerate(cells) if hit] == [0, 4, 8]
    details = page.text("details")
    assert "learning_rate: 5.0e-05" in details and "paddlepaddle 2.6.2" in details
    assert "classifier.weight" in details


def test_what_servers_told_of_themselves(tmp_path, drawn):
    told = {"memory_mb": 1234.5, "pulls_per_s": 2.25, "pushes_per_s": 3.5, "latency_ms": 0.875}
    rows = [
        training_row(step, **{f"servers.{key}": step + value for key, value in told.items()})
        for step in range(1, 31)
    ]
    rows[9]["servers.rows"] = 30522
    servers = [{**told, "latency_99_ms": 45.5}, {"memory_mb": 77.5}]  # the second did not answer
    write_run(tmp_path, rows=rows, servers=servers)
    page = read_page(tmp_path)
    assert titles(page)[-4:] == ["Requests", "Latency", "Memory", "Rows of the table"]
    for shown in ("1,234 MB", "2.25", "3.5", "0.875 ms", "45.5 ms", "77.5 MB"):
        assert shown in page.text("table")
    assert "pulls" in page.text("svg") and "pushes" in page.text("svg")
    write_run(tmp_path)
    assert "Servers" not in read_page(tmp_path).text()


def test_hostile_labels_and_metrics_are_text(tmp_path, drawn):
    labels = ["fine", HOSTILE, '" onmouseover="alert(1)', "$x$ & {{ 7 * 7 }}"]
    changes = {
        "data": {HOSTILE: {"texts": 1, "truncated": 0, "skipped_lines": 0}},
        "config": {"task": {"name": HOSTILE}, "data": {"train": "</pre>" + HOSTILE}},
        "fresh_weights": [HOSTILE],
    }
    folder = tmp_path / "<b>"
    folder.mkdir()
    dev = {**judged(labels), "metric": HOSTILE}
    write_run(folder, dev, [training_row(1), dev_row(30)], **changes)
    page = read_page(folder)  # which refuses scripts and handlers
    assert HOSTILE not in page.html and "<b>" in page.text("h1")
    for label in labels:
        assert page.text("table").count(label) >= 3
        assert label not in page.text("svg")
    assert HOSTILE in page.text("details")
    assert f"best by {HOSTILE}" in page.text("figcaption")


def test_a_step_takes_as_long_as_its_slowest_rank():
    names = "rank", "reader_cost", "batch_cost", "texts_per_s", "tokens_per_s"
    fast, slow = (dict(zip(names, row)) for row in ((0, 0.2, 1.0, 16, 144), (2, 0.5, 2.0, 8, 72)))
    expected = {
        "reader_cost": 0.5, "batch_cost": 2.0, "reader_ratio": 0.25, "steps_per_s": 0.5,
        "texts_per_s": 24.0, "tokens_per_s": 216.0, "ips": 24.0, "ips_unit": "texts/s",
        "slowest_rank": 2,
    }  # fmt: skip
    for ranks in ([fast, slow], [slow, fast], [fast, {"rank": 1}, slow]):
        assert together(ranks) == expected
    assert together([{"rank": 0}]) == {}


EMPTY_PROFILE = {"ranks": [{"rank": 0}, {"rank": 1}], "together": {}, "slow_operators": []}
MASKED = {"n": 4321, "loss": 2.3456, "accuracy": 0.4567, "step": 30, "metric": "loss"}


@pytest.mark.parametrize(
    ("run", "shown", "absent", "titled"),
    [
        ({}, ["no dev texts"], ["Dev accuracy\n", "Dev loss\n", "precision\n", "Profile"],
         ["Loss", "Learning rate", "ips", "Reader ratio"]),
        ({"dev": MASKED, "config": {"task": {"name": "mlm"}}, "rows": []},
         ["4,321 masked words, step 30", "45.67 %", "2.3456"], ["macro F1", "Classes"], []),
        ({"rows": [training_row(1)], "profile": EMPTY_PROFILE}, ["first ten steps"],
         ["batch_cost"], ["Loss", "Learning rate", "ips", "Reader ratio"]),
    ],
    ids=["no dev texts", "masked words", "too short for the profiler"],
)  # fmt: skip
def test_what_a_run_lacks_is_left_out(tmp_path, run, shown, absent, titled):
    write_run(tmp_path, **run)
    page = read_page(tmp_path)
    assert [words for words in shown if words not in page.text()] == []
    assert [words for words in absent if words in page.text()] == []
    assert titles(page) == titled


def test_without_rows_nothing_is_drawn_and_an_earlier_runs_profile_not_shown(tmp_path):
    profile = {"ranks": [{"rank": 0, **TOGETHER}], "together": TOGETHER, "slow_operators": []}
    (tmp_path / "profile.json").write_text(json.dumps(profile), encoding="utf-8")
    write_run(tmp_path, rows=[])
    page = read_page(tmp_path)
    assert "batch_cost" not in page.text() and titles(page) == []
    (tmp_path / "metrics.jsonl").unlink()
    assert titles(read_page(tmp_path)) == []


@pytest.mark.parametrize(
    ("precision", "scales", "shown"),
    [
        ({}, [1.0, 1.0], False), ({}, [2048.0, 1024.0], True),
        ({"precision": "float32"}, [1.0, 1.0], False),
        ({"precision": "bfloat16, O1"}, [1.0, 1.0], False),
        ({"precision": "float16, O1"}, [1.0, 1.0], True),
    ],
)  # fmt: skip
def test_loss_scale_is_drawn_when_there_is_one(tmp_path, precision, scales, shown):
    rows = [training_row(step, scale=scale) for step, scale in enumerate(scales, 1)]
    write_run(tmp_path, rows=rows, **precision)
    page = read_page(tmp_path)
    assert ("Loss scale" in titles(page)) == shown
    assert precision.get("precision", "") in page.html


def test_infinite_losses_and_a_cut_row_leave_gaps(tmp_path, drawn):
    rows = [training_row(step) for step in range(1, 31)]
    rows[3]["loss"], rows[9]["loss"] = float("nan"), float("inf")
    write_run(tmp_path, rows=rows)
    with (tmp_path / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"step": 31, "lo')
    page = read_page(tmp_path)
    assert "nan" not in page.text("svg").lower() and 'd="M nan' not in page.html


def test_many_rows_make_a_small_file(tmp_path, drawn):
    random = np.random.default_rng(0)
    rows = [training_row(step, loss=random.normal()) for step in range(1, 20001)]
    rows[12_345]["loss"] = 50.0  # peaks stay
    write_run(tmp_path, rows=rows)
    page = read_page(tmp_path)
    paths = re.findall(r' d="([^"]*)"', page.html)
    assert 200 < max(len(re.findall("[ML]", path)) for path in paths) < 2500
    assert len(page.html) < 1_000_000


def test_smoothing_is_the_mean_around():
    values = np.array([1.0, np.nan, 3.0, 5.0, 10.0])
    np.testing.assert_allclose(curves.smooth(values, 1), [1.0, 2.0, 4.0, 6.0, 7.5])
    np.testing.assert_allclose(curves.smooth(values, 0), values)


def test_many_classes_list_what_is_most_confused(tmp_path):
    labels = [f"class {number}" for number in range(7051)]
    truth = np.repeat(np.arange(200), [3] * 50 + [1] * 150)
    logits = np.zeros((len(truth), 7051), np.float32)
    logits[np.arange(len(truth)), (truth + 5) % 7051] = 1.0
    dev = {**metrics.classification(truth, logits, labels), "step": 30, "metric": "accuracy"}
    write_run(tmp_path, dev, rows=[])
    page = read_page(tmp_path)
    assert "--s:" not in page.html.split("</style>")[1]
    rows = page.text("table").split("\n")
    first = rows.index("class 0")
    assert rows[first : first + 3] == ["class 0", "class 5", "3"]
    assert "The most frequent of 200 pairs" in page.text()
    assert "The 50 worst of 7,051 classes" in page.text()
    assert len(page.html) < 60_000


def test_macro_f1_names_its_classes_where_some_do_not_occur(tmp_path):
    truth = np.array([0, 1])
    logits = np.eye(3, dtype=np.float32)[truth]
    dev = metrics.classification(truth, logits, ["a", "b", "c"])
    write_run(tmp_path, {**dev, "step": 30, "metric": "accuracy"})
    text = read_page(tmp_path).text()
    assert "Dev macro F1\n1.0000\nof the 2 of 3 classes that occur, step 30" in text


def test_thirty_classes_have_a_heat_map(tmp_path):
    write_run(tmp_path, judged([f"class {number}" for number in range(30)]), rows=[])
    assert read_page(tmp_path).html.count('style="--s:') == 900


def test_the_same_run_gives_the_same_bytes_and_replaces_the_old_report(tmp_path, drawn):
    write_run(tmp_path, judged(["a", "b"]), [training_row(1), dev_row(1)])
    (tmp_path / "report.html").write_text("old")
    first = read_page(tmp_path).html
    assert read_page(tmp_path).html == first != "old"


def test_a_failure_leaves_the_old_report(tmp_path, monkeypatch):
    write_run(tmp_path)
    (tmp_path / "report.html").write_text("old")

    def fail(*arguments):
        raise ValueError("drawing")

    monkeypatch.setattr(report, "draw_curves", fail)
    with pytest.raises(ValueError, match="drawing"):
        report.write_report(tmp_path)
    assert (tmp_path / "report.html").read_text() == "old"
    assert not list(tmp_path.glob(".report*"))

"""`fleetbert audit`."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import commands
import numpy as np
import pytest
import tiny_job

from fleetbert.config import Columns
from fleetbert.data.records import Example
from fleetbert.labelling import audit, checks, vectors


def issues(folder: Path) -> list[dict[str, str]]:
    with (folder / "issues.tsv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t"))


@pytest.fixture(scope="module")
def audited(encoder, faulty, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("audit")
    words = ["--bundle", encoder, "--fix", "drop", f"output_dir={folder}"]
    assert commands.call("audit", faulty[0], *words) == 0
    return folder


def test_changed_labels_come_first(audited, faulty):
    path, changed = faulty
    wrong = [row for row in issues(audited) if row["kind"] == "wrong label"]
    assert len({int(row["line"]) for row in wrong[:30]} & changed) >= 24
    assert [row["worth"] for row in wrong] == sorted((r["worth"] for r in wrong), reverse=True)
    assert all({row["label"], row["suggestion"]} == {"bad", "good"} for row in wrong)
    page = (audited / "report.html").read_text()
    assert "wrong label" in page
    assert "probably wrong" in page
    before, after = (file.read_text().splitlines() for file in (path, audited / "fixed.tsv"))
    dropped = {int(r["line"]) for r in issues(audited) if r["kind"] in ("wrong label", "duplicate")}
    assert after == [row for line, row in enumerate(before, 1) if line not in dropped]


def test_texts_of_a_group_are_in_one_fold(encoder, faulty, tmp_path, capfd):
    rows = faulty[0].read_text().splitlines()
    table, words = tmp_path / "groups.tsv", [f"output_dir={tmp_path}/out", "--bundle", encoder]
    table.write_text("\n".join([f"{rows[0]}\tby", *(f"{row}\tme" for row in rows[1:])]) + "\n")
    words += ["--folds", "2", "data.group_column=by"]
    assert commands.call("audit", table, *words) == 2
    assert "has 1 groups, and 2 folds were asked for" in capfd.readouterr().err


@pytest.mark.slow
def test_by_the_jobs_own_training(faulty, tiny_data, tmp_path):
    path, changed = faulty
    changes = {"data.train": str(path), "data.dev": None, "trainer.epochs": 2}
    init = {"model.vocab": str(tiny_data / "vocab.txt")}
    config = tiny_job.write_config(tmp_path / "job.yaml", tiny_data, tmp_path, {**changes, **init})
    model = Path(str(tmp_path)) / "m"
    assert commands.call("train", "--config", config, f"output_dir={model}") == 0
    words = ["--config", config, f"model.init={model}/model", "model.vocab=null", "--train"]
    assert commands.call("audit", path, *words, "--folds", 2, f"output_dir={tmp_path}/out") == 0
    wrong = [row for row in issues(tmp_path / "out") if row["kind"] == "wrong label"]
    assert len({int(row["line"]) for row in wrong[:30]} & changed) >= 20


def test_other_faults(encoder, tmp_path):
    words = [f"word{n} word{n + 1} word{n + 2} word{n + 3}" for n in range(60)]
    rows = [{"text": text, "label": ("a", "b")[n % 2]} for n, text in enumerate(words)]
    rows += [
        {"text": words[0], "label": "a"},  # line 61: a duplicate
        {"text": f" {words[1].upper()}", "label": "a"},  # 62: another label
        {"text": "слово два три", "label": "b"},  # 63: another script
        {"text": "12 - 14", "label": "a"},  # 64: no letter
        {"text": "word1 " * 30, "label": " A "},  # 65: spelled otherwise, and cut
        {"text": "word7 word9", "label": "rare"},  # 66
    ]
    rows += [{"text": "word9 word8 word7", "label": label} for label in "baa"]  # 67 to 69
    table = tiny_job.write_rows(tmp_path / "train.jsonl", rows)
    table.write_text(table.read_text() + "no JSON\n")  # 70
    dev = tiny_job.write_rows(tmp_path / "dev.jsonl", [{"text": words[5], "label": "a"}])
    keys = [f"data.dev={dev}", "data.max_length=16", f"output_dir={tmp_path}/out"]
    assert commands.call("audit", table, *keys, "--bundle", encoder, "--fix", "suggest") == 0
    found = issues(tmp_path / "out")
    kinds = {(int(row["line"]), row["kind"]) for row in found}
    expected = {
        (61, "duplicate"), (62, "conflict"), (63, "script"), (64, "no words"), (65, "spelling"),
        (65, "truncated"), (66, "rare label"), (70, "invalid"), (6, "leak"),
        (67, "conflict"), (69, "duplicate"),
    }  # fmt: skip
    assert expected <= kinds
    assert not {(68, "conflict"), (66, "wrong label"), (66, "doubtful label")} & kinds
    assert [row["worth"] for row in found] == sorted((r["worth"] for r in found), reverse=True)
    fixed = [json.loads(line) for line in (tmp_path / "out" / "fixed.jsonl").open()]
    assert len(fixed) == len(rows)
    assert fixed[64]["label"] == "a"


def test_texts_that_are_nearly_the_same():
    rng = np.random.default_rng(0)
    points = rng.normal(size=(3000, 16)).astype(np.float32)
    points[2500] = points[10] + 0.01
    points[20] = points[4]
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    pairs = [pair[:2] for pair in vectors.alike(points, None, 0.98)]
    assert pairs == [(20, 4), (2500, 10)]
    assert [pair[:2] for pair in vectors.alike(points[:1], points[1:], 0.98)] == []


def test_spellings_follow_the_most_frequent():
    counts = np.array([3, 9, 4])
    assert checks.spellings(["card", "Card ", "fee"], counts) == {"card": "Card "}
    labels, given = ["cafe\u0301", "caf\u00e9", "fee"], np.array([0, 1, 2])
    merged = audit._without_spellings(labels, given, counts, np.array([[0.25, 0.5, 0.25]] * 3))
    assert merged[0] == ["caf\u00e9", "fee"]
    assert merged[1].tolist() == [0, 0, 1]
    assert merged[2].tolist() == [[0.75, 0.25]] * 3
    rows = [Example("a", None, labels[0], 2)]
    (issue,) = checks.of_labels(rows, labels, counts)
    assert issue.reason.startswith(r"'cafe\u0301' is written 'caf\xe9'")


@pytest.mark.parametrize(
    ("fields", "header", "quoting"),
    [
        ("{0}\t{1}", "label\ttext_a", "auto"),
        ('"{1}",{0}', "text,label", "auto"),
        ("{1};{0}", "text;label", "none"),
    ],
)
def test_suggested_labels_are_written_in_the_tables_own_form(fields, header, quoting, tmp_path):
    from fleetbert.data import folds, read

    path = tmp_path / ("t.tsv" if "\t" in header else "t.csv")
    path.write_text(f"{header}\n{fields.format('a', 'one, two')}\n{fields.format('b', 'three')}\n")
    how = {"pair": False, "labelled": True, "columns": Columns(quoting=quoting)}
    form = read.table_format(path, **how)
    table = folds.read_records(path, form)
    found = [checks.Issue(1.0, 2, "wrong label", "", "b")]
    fixed = audit._fix(tmp_path, table, form, found, "suggest")
    again = read.read_as(fixed, read.table_format(fixed, **how)).examples
    assert again == [Example("one, two", None, "b", 2), Example("three", None, "b", 3)]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["task.name=regression"], "has no one label for a text"),
        (["model.init=random", "model.vocab={vocab}"], "name an encoder that gives vectors"),
        (
            ["--bundle", "{classifier}"],
            "answers the task classification; name a bundle",
        ),
        (["data.train=other.tsv"], "data.train: the table is "),
    ],
)
def test_what_cannot_be_audited_is_refused(
    words, sentence, faulty, tiny_data, tiny_bundle, tmp_path, capfd
):
    places = {"vocab": tiny_data / "vocab.txt", "classifier": tiny_bundle}
    given = [word.format(**places) for word in words]
    init = [] if "--bundle" in words else [f"model.init={tiny_bundle}"]
    assert commands.call("audit", faulty[0], *init, *given, f"output_dir={tmp_path}") == 2
    assert sentence in capfd.readouterr().err


def test_a_label_that_is_dropped_as_a_whole_is_named(encoder, tmp_path, caplog):
    rows = [{"text": "word1 word2", "label": "ab"[n // 6]} for n in range(11)]
    table = tiny_job.write_rows(tmp_path / "train.jsonl", rows)
    words = ["--bundle", encoder, "--fix", "drop", f"output_dir={tmp_path}/out"]
    assert commands.call("audit", table, *words) == 0
    fixed = tmp_path / "out" / "fixed.jsonl"
    assert [json.loads(line)["label"] for line in fixed.open()] in (["a"], [])
    assert f"{fixed}: no row of the label 'b' is left" in caplog.text
    fixed.write_bytes(table.read_bytes())
    assert commands.call("audit", fixed, *words) == 2  # it would be overwritten
    assert fixed.read_bytes() == table.read_bytes()

"""Cross-validation: `fleetbert train --folds`."""

from __future__ import annotations

import gc
import json
import weakref
from pathlib import Path

import commands
import numpy as np
import pytest
import tiny_job
from scipy.special import log_softmax
from sklearn.metrics import accuracy_score

import fleetbert
from fleetbert import config
from fleetbert.compression.distill import teacher as teachers
from fleetbert.core.errors import UserError
from fleetbert.data import folds as tables
from fleetbert.data import tokenizers
from fleetbert.training import folds
from fleetbert.training import job as training
from fleetbert.training.strategies import connect
from fleetbert.training.texts import open_splits


def test_folds_are_stratified():
    labels = [*("a" * 50), *("b" * 20), *("c" * 3)]
    chosen = tables.stratified(labels, 5, seed=1)
    for label in "abc":
        counts = np.bincount(chosen[np.array(labels) == label], minlength=5)
        assert counts.max() - counts.min() <= 1
    assert (chosen != tables.stratified(labels, 5, seed=2)).any()


def test_a_group_stays_in_one_fold():
    groups = [f"author {n % 17}" for n in range(200)]
    chosen = tables.grouped(groups, 4, seed=0)
    assert all(len({f for g, f in zip(groups, chosen) if g == group}) == 1 for group in groups)
    assert np.ptp(np.bincount(chosen)) <= 12


@pytest.fixture(scope="module")
def folded(tiny_data, tmp_path_factory) -> Path:
    """The folder of a job of three folds, by the command."""
    folder = tmp_path_factory.mktemp("folds")
    config = tiny_job.write_config(
        folder / "job.yaml", tiny_data, folder / "run", {"callbacks.report": True}
    )
    assert commands.call("train", "--config", config, "--folds", 3) == 0
    return folder / "run"


def test_each_row_is_answered_by_the_run_that_did_not_learn_it(folded, tiny_data):
    rows = [json.loads(line) for line in (folded / "predictions.jsonl").read_text().splitlines()]
    table = [line.split("\t") for line in (tiny_data / "train.tsv").read_text().splitlines()]
    assert [row["line"] for row in rows] == list(range(2, len(table) + 1))
    assert [row["given"] for row in rows] == [row[0] for row in table[1:]]
    for fold in (1, 2, 3):
        folder = folded / f"fold-{fold}"
        held = [row for row in rows if row["fold"] == fold]
        learned = (folder / "train.tsv").read_text().splitlines()[1:]
        assert not {"\t".join(table[row["line"] - 1]) for row in held} & set(learned)
        assert len(learned) == len(rows) - len(held)
        answers = fleetbert.load(folder / "bundle")([table[row["line"] - 1][1] for row in held])
        assert [answer.label for answer in answers] == [row["label"] for row in held]
    summary = json.loads((folded / "summary.json").read_text())
    each = [
        accuracy_score(*zip(*[(r["given"], r["label"]) for r in rows if r["fold"] == fold]))
        for fold in (1, 2, 3)
    ]
    assert summary["mean"]["accuracy"] == pytest.approx(np.mean(each))
    error = np.std(each, ddof=1) / np.sqrt(3)
    assert summary["standard_error"]["accuracy"] == pytest.approx(error)
    html = (folded / "report.html").read_text()
    assert f"{np.mean(each):.4f}" in html and f"± {error:.4f} (standard error, " in html


def test_what_is_finished_is_not_trained_again(folded, tiny_data, monkeypatch):
    """And the mean logits of all folds are those of the ensemble on the dev texts, though no two
    models are kept open."""
    monkeypatch.setattr(training, "train", lambda *given, **named: pytest.fail("trains again"))
    engines, load, tables_read = [], folds.answer.load, []
    read_known = folds.evaluate.read_known

    def counted(path: Path):
        gc.collect()
        assert sum(engine() is not None for engine in engines) <= 1
        model = load(path)
        engines.append(weakref.ref(model.engine))
        return model

    def read_once(model, path: str, *rest):
        tables_read.append(path)
        return read_known(model, path, *rest)

    monkeypatch.setattr(folds.answer, "load", counted)
    monkeypatch.setattr(folds.evaluate, "read_known", read_once)
    job = tiny_job.job(tiny_data, folded, {"callbacks.report": True, "data.folds": 3})
    found = folds.train(job)
    monkeypatch.undo()
    assert (len(found.outputs), len(engines), len(tables_read)) == (160, 3, 1)
    dev = [line.split("\t") for line in (tiny_data / "dev.tsv").read_text().splitlines()[1:]]
    models = [fleetbert.load(folded / f"fold-{fold}" / "bundle") for fold in (1, 2, 3)]
    logits = np.mean([np.log(m.predict_proba([row[1] for row in dev])) for m in models], axis=0)
    right = np.mean([("bad", "good")[n] == row[0] for n, row in zip(logits.argmax(1), dev)])
    assert json.loads((folded / "summary.json").read_text())["ensemble"]["accuracy"] == right


def test_folds_of_another_division_are_kept(folded, tiny_data):
    before = {path: path.read_bytes() for path in folded.rglob("train.tsv")}
    assert len(before) == 3
    more = [
        ({"data.folds": 2}, "fold-3: is of a run with more folds"),
        ({"data.folds": 4}, r"train\.tsv: was divided from another table, or with another"),
        ({"data.folds": 3, "trainer.seed": 5}, r"train\.tsv: was divided from another table"),
    ]
    for changes, sentence in more:
        job = tiny_job.job(tiny_data, folded, {"callbacks.report": True, **changes})
        with pytest.raises(UserError, match=sentence):
            folds.train(job)
    assert {path: path.read_bytes() for path in folded.rglob("train.tsv")} == before


def test_a_teacher_is_the_mean_of_all_folds(folded, tiny_data, tmp_path):
    values = tiny_job.values(tiny_data, tmp_path / "student")
    values["model"] = {"init": str(folded / "fold-1" / "model")}
    values["distill"] = {"teacher": str(folded), "hidden_weight": 0.0}
    job = config.Distill.model_validate(values)
    teacher = teachers.open_teacher(job)
    tokenizer = tokenizers.open(teacher.tokenizer)
    [(split, labels), _] = open_splits(job, tokenizer)
    logits = teachers.bundle_logits(teacher, split, tokenizer, connect(job), labels)
    texts = [row.split("\t")[1] for row in (tiny_data / "train.tsv").read_text().splitlines()[1:]]
    models = [fleetbert.load(folded / f"fold-{fold}" / "bundle") for fold in (1, 2, 3)]
    mean = np.mean([np.log(model.predict_proba(texts)) for model in models], axis=0)
    np.testing.assert_allclose(log_softmax(logits, 1), log_softmax(mean, 1), atol=1e-4)


@pytest.mark.parametrize(
    ("task", "table"),
    [("token_classification", "tags"), ("ranking", "ranked"), ("question_answering", "squad")],
)
@pytest.mark.slow
def test_other_tasks(task, table, tiny_data, tmp_path):
    if table == "tags":
        path = tmp_path / "tags.conll"
        tiny_job.write_tags(path, 60, 1)
    elif table == "squad":  # one line, as SQuAD's files are
        path = tmp_path / "squad.json"
        rows = [row for row in tiny_job.question_rows(40, 1) if row["answers"]]
        rows[-1]["answers"] = []  # one fold alone has metrics of such questions
        parts = [
            {"context": row.pop("context"), "qas": [row, {**row, "question": "word2"}]}
            for row in rows
        ]
        path.write_text(json.dumps({"data": [{"paragraphs": parts}]}))
    else:
        path = tiny_job.write_rows(tmp_path / "ranked.jsonl", tiny_job.ranked_rows(20, 1))
    changes = {"task.name": task, "data.train": str(path), "data.dev": None, "data.folds": 2}
    changes["trainer.calibrate"] = 0.3 if table == "squad" else 0.0
    found = folds.train(tiny_job.job(tiny_data, tmp_path / "run", changes))
    assert len(found.outputs) == len(found.table.examples) > 50
    if table == "squad":  # by the thresholds that the run has fitted
        held = tmp_path / "held.jsonl"
        lines = [e.line for e, fold in zip(found.table.examples, found.folds) if fold == 0]
        tables.write(held, found.table, lines)
        metrics = fleetbert.load(tmp_path / "run" / "fold-1" / "bundle").evaluate(held)
        summary = json.loads((tmp_path / "run" / "summary.json").read_text())
        assert summary["folds"][0]["f1"] == pytest.approx(metrics["f1"])
    if table != "tags":  # the documents of a query stay together, and the questions of a context
        shared = [e.text_a if table == "ranked" else e.text_b for e in found.table.examples]
        fold_of = dict(zip(shared, found.folds))
        assert len(fold_of) < len(shared)
        assert [fold_of[text] for text in shared] == found.folds.tolist()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"data.folds": 200}, "has 160 rows, and 200 folds were asked for; ask for fewer"),
        ({"data.folds": 2, "data.group_column": "author"}, "train.tsv:2 has no 'author'"),
        ({"data.folds": 2, "task.name": "mlm"}, "mlm is not cross-validated"),
        ({"data.folds": 2, "task.name": "embedding"}, "embedding is not cross-validated"),
    ],
)
def test_what_cannot_be_divided_is_refused(changes, sentence, tiny_data, tmp_path):
    with pytest.raises(UserError, match=sentence):
        folds.train(tiny_job.job(tiny_data, tmp_path / "run", changes))


def test_python_and_distillation_know_no_folds(tiny_data, tmp_path):
    job = tiny_job.job(tiny_data, tmp_path / "run", {"data.folds": 2})
    with pytest.raises(UserError, match=r"data\.folds: is for `fleetbert train` in one process"):
        training.train(job)

"""`fleetbert compress`: candidates in turn, until one meets the budgets."""

from __future__ import annotations

import functools
import json
import shutil
from pathlib import Path

import pytest
import tiny_bert
import tiny_job

import fleetbert
from fleetbert import bundle as bundles
from fleetbert import config
from fleetbert.cli import main
from fleetbert.compression import search, search_report
from fleetbert.compression.candidate import Candidate
from fleetbert.core.errors import GateFailed, UserError
from fleetbert.engines import answer

SOON = ["int8", "vocabulary", "vocabulary+int8"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def choose(tmp_path_factory) -> Path:
    """A table to choose on."""
    path = tmp_path_factory.mktemp("choose") / "choose.tsv"
    tiny_job.write_table(path, 80, 7)
    return path


@pytest.fixture
def job(bundle, tiny_data, choose, tmp_path):
    def make(**changes: object) -> config.Compress:
        values = {
            "bundle": str(bundle),
            "candidates": SOON,
            "data": {"train": str(tiny_data / "train.tsv"), "batch_size": 16},
            "selection": {"data": str(choose)},
            "gate": {"data": str(tiny_data / "dev.tsv"), "max_accuracy_drop": 0.1},
            "epochs": 1,
            "output_dir": str(tmp_path / "search"),
        }
        return config.Compress.model_validate({**values, **changes})

    return make


def state(folder: str | Path) -> dict:
    return json.loads((Path(folder) / "search.json").read_text())["candidates"]


def test_the_first_that_meets_the_budgets_is_taken(bundle, tiny_data, choose, tmp_path):
    """What it leaves is a bundle of its own; that of the job is as it was."""
    before = {path: path.stat().st_mtime_ns for path in bundle.rglob("*") if path.is_file()}
    size = bundles.read(bundle).variant("float32").bytes / 1e6
    rows = [line.split("\t") for line in choose.read_text().splitlines()[1:]]
    result = fleetbert.compress(
        bundle,
        tiny_data / "train.tsv",
        selection=[(text, label) for label, text in rows],
        gate=tiny_data / "dev.tsv",
        budget_mb=0.7 * size,
        budget_ms=1e4,
        max_drop=0.1,
        candidates=SOON,
        output_dir=tmp_path / "search",
    )
    assert list(state(tmp_path / "search")) == ["int8"]
    assert (result.bundle, result.name) == (tmp_path / "search" / "bundle", "int8-static")
    assert result.size < 0.7 * result.float32_size
    assert (result.n, result.drop <= 0.1, result.speed_ratio > 0) == (60, True, True)
    model = answer.load(result.bundle, "int8-static")
    assert answer.answer(model, ["word1 word2"])[0].label == "bad"
    after = {path: path.stat().st_mtime_ns for path in bundle.rglob("*") if path.is_file()}
    assert {path: after[path] for path in before} == before
    page = result.report.read_text()
    assert "int8" in page
    assert str(tiny_data / "dev.tsv") in page


@pytest.mark.slow
def test_without_budgets_all_are_tried_and_a_killed_search_goes_on(job, tmp_path, monkeypatch):
    """It begins with what was not done; candidates take the steps that others have made."""
    # A quarter of the words: what is saved is far more than what splitting a layer adds.
    words = [f"word{n} word{n + 1}" for n in range(0, 40, 2)]
    rows = [f"{('bad', 'good')[n >= 10]}\t{text}" for n, text in enumerate(words)]
    (tmp_path / "few_words.tsv").write_text("\n".join(["label\ttext_a", *rows, ""]))
    few_words = {"train": str(tmp_path / "few_words.tsv"), "batch_size": 16}
    settings, done = job(data=few_words), []

    def recorded(name: str, step, *given):
        done.append(name)
        if done == ["int8", "vocabulary"]:
            raise KeyboardInterrupt
        return step(*given)

    for name, step in search.STEPS.items():
        monkeypatch.setitem(search.STEPS, name, functools.partial(recorded, name, step))
    with pytest.raises(KeyboardInterrupt):
        search.compress(settings)
    assert list(state(settings.output_dir)) == ["int8"]
    result = search.compress(settings)
    assert done == ["int8", "vocabulary", "vocabulary", "int8"]
    known = state(settings.output_dir)
    assert list(known) == SOON
    fastest = min(known.values(), key=lambda one: one["ms"] / one["float32_ms"])
    assert result.candidate.name == fastest["name"]
    assert known["vocabulary+int8"]["mb"] < min(known["int8"]["mb"], known["vocabulary"]["mb"])

    search.compress(job(data=few_words, budget={"mb": 1.0}))
    assert len(done) == 4
    with pytest.raises(UserError, match="holds the search of another job"):
        search.compress(job(data=few_words, epochs=2))


def test_vectors_are_learned_from_texts_without_numbers(job, tiny_vocab, tmp_path):
    tables = {
        name: tiny_job.write_rows(tmp_path / name, tiny_job.vector_rows(12, seed, 2, seed > 1))
        for seed, name in enumerate(("train.jsonl", "choose.jsonl", "gate.jsonl"), 1)
    }
    train, choose, gate = ({"data": str(path)} for path in tables.values())
    bundle = tiny_bert.make_bundle(tmp_path / "vectors", "embedding", tiny_vocab, "mean")
    data = {"train": train["data"]}
    search.Search(job(bundle=str(bundle), data=data, selection=choose, gate=gate))


def test_what_the_machine_refuses_is_no_fault_of_a_candidate(job, monkeypatch):
    """The same command tries it again."""

    def full(*_: object):
        raise UserError("no room") from OSError("No space left on device")

    monkeypatch.setitem(search.STEPS, "vocabulary", full)
    settings = job(candidates=["vocabulary"])
    with pytest.raises(UserError, match="no room"):
        search.compress(settings)
    assert not (Path(settings.output_dir) / "search.json").exists()


def test_budgets_that_nothing_meets_are_told_with_the_nearest(job):
    settings = job(budget={"mb": 0.001}, candidates=["vocabulary"])
    with pytest.raises(GateFailed, match=r"no candidate meets 0.001 MB.*nearest is vocab"):
        search.compress(settings)
    assert "no candidate" in (Path(settings.output_dir) / "report.html").read_text()
    assert not (Path(settings.output_dir) / "bundle").exists()


def test_the_gate_has_the_last_word(job, tmp_path):
    """It sees texts that the choice did not: here words that neither training nor choosing had."""
    paths = {}
    for name, first in (("train", 0), ("choose", 0), ("gate", 10)):
        rows = [
            f"{label}\tword{start + first + n % 10} word{start + first + n // 10}"
            for label, start in (("bad", 0), ("good", 20))
            for n in range(100)
        ]
        paths[name] = tmp_path / f"{name}.tsv"
        paths[name].write_text("\n".join(["label\ttext_a", *rows, *rows[: len(name)], ""]))
    settings = job(
        candidates=["vocabulary"],
        data={"train": str(paths["train"])},
        selection={"data": str(paths["choose"])},
        gate={"data": str(paths["gate"]), "max_accuracy_drop": 0.1},
    )
    with pytest.raises(GateFailed, match=r"vocabulary: accuracy on .*gate.tsv falls from 1.0000"):
        search.compress(settings)
    assert state(settings.output_dir)["vocabulary"]["drop"]["value"] == 0
    assert not (Path(settings.output_dir) / "bundle").exists()
    assert "falls from" in (Path(settings.output_dir) / "report.html").read_text()


@pytest.mark.slow
def test_steps_that_train(job):
    settings = job(
        candidates=["int8+exit", "prune+int8", "layers+int8", "student+int8"],
        gate={**job().gate.model_dump(), "max_accuracy_drop": 0.5},
    )
    search.compress(settings)
    known = state(settings.output_dir)
    smaller = "prune+int8", "layers+int8", "student+int8"
    assert [known[name]["failed"] for name in smaller] == ["", "", ""]
    assert (
        known["int8+exit"]["variant"] == "early-exit-int8" or "exit" in known["int8+exit"]["failed"]
    )
    made = [bundles.read(Path(settings.output_dir) / known[name]["bundle"]) for name in smaller]
    kept = [bundle.variant("pruned-float32").pruning.kept_heads for bundle in made[:2]]
    assert [sorted(map(len, heads)) for heads in kept] == [[2, 2], [0, 2]]
    student = made[2]
    assert student.variant("float32").bytes < bundles.read(settings.bundle).variant("float32").bytes


def test_what_is_wrong_is_said_before_anything_is_made(job, bundle, tiny_data, tmp_path):
    for table, sentence in [
        ("dev.tsv", r"has the texts of gate\.data"),
        ("train.tsv", r"has the texts of data\.train"),
        ("missing.tsv", "no such file"),
    ]:
        with pytest.raises(UserError, match=sentence):
            search.compress(job(selection={"data": str(tiny_data / table)}))
    with pytest.raises(UserError, match=r"gate\.data: .* has the texts of data\.train"):
        search.compress(job(gate={"data": str(tiny_data / "train.tsv")}))
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"output_dir: cannot write to .*file: File exists"):
        search.compress(job(output_dir=str(tmp_path / "file")))
    folder = tmp_path / "search"
    assert not folder.exists()
    folder.mkdir()
    (folder / "search.json").write_text("{}")
    with pytest.raises(UserError, match=r"search\.json: is not what a search writes; remove it"):
        search.compress(job())
    (folder / "bundle").mkdir()
    (folder / "bundle" / "mine.txt").touch()
    with pytest.raises(UserError, match="exists and is not a bundle, so it is not replaced"):
        search.compress(job())
    shutil.rmtree(folder / "bundle")
    with pytest.raises(ValueError, match=r"selection\.data: name a labelled table"):
        job(selection={})
    with pytest.raises(ValueError, match="candidates: is empty"):
        job(candidates=[])
    shutil.move(str(bundle), str(bundle.parent / "search" / "bundle"))
    with pytest.raises(UserError, match="is the bundle to make smaller"):
        search.compress(job(bundle=str(bundle.parent / "search" / "bundle")))


def test_options_are_keys_by_a_shorter_name(job, capsys):
    settings = job()
    words = [f"bundle={settings.bundle}", f"data.train={settings.data.train}"]
    words += [f"selection.data={settings.selection.data}", f"gate.data={settings.gate.data}"]
    words += [f"output_dir={settings.output_dir}", "candidates=[vocabulary]"]
    with pytest.raises(SystemExit) as left:
        main.main(["compress", "--budget-mb", "0.001", "--max-drop", "0.2", *words])
    assert left.value.code == 3
    assert "meets 0.001 MB, a drop of at most 0.2; the nearest is vocab" in capsys.readouterr().err


def test_the_front_has_those_that_no_other_beats():
    points = [(1.0, 0.5), (2.0, 0.4), (2.0, 0.7), (3.0, 0.7), (4.0, 0.9)]
    made = [Candidate(name=str(n), ms=ms, accuracy=a) for n, (ms, a) in enumerate(points)]
    assert [one.name for one in search_report.front(made, "ms")] == ["0", "2", "4"]

"""`fleetbert tune`: trials below one folder, pruned, and taken up again."""

from __future__ import annotations

import gc
import json
import sys
import weakref
from pathlib import Path

import commands
import pytest
import tiny_job
import yaml

from fleetbert import config
from fleetbert.core.errors import Stopped, UserError
from fleetbert.tune import space as spaces

optuna = pytest.importorskip("optuna", reason="optuna is not installed: pip install '.[tune]'")

SPACE = "learning_rate=1e-5:3e-3:log,batch_size=16|32"


@pytest.fixture
def job(tiny_data, tmp_path):
    return tiny_job.job(tiny_data, tmp_path / "run", {"trainer.epochs": 2})


def trials(folder: Path) -> list[optuna.trial.FrozenTrial]:
    from fleetbert.tune import search

    return search._open(folder).get_trials()


def test_a_space_names_keys_and_what_is_tried(job):
    space = spaces.parse(" epochs = 1:4", job)
    assert space == {"trainer.epochs": spaces.Range(1, 4, True, False)}
    space = spaces.parse(f"{SPACE},optimizer.schedule=linear|cosine,optimizer.beta1=0.8|9e-1", job)
    assert space == {
        "optimizer.learning_rate": spaces.Range(1e-5, 3e-3, False, True),
        "data.batch_size": spaces.Choices([16, 32]),
        "optimizer.schedule": spaces.Choices(["linear", "cosine"]),
        "optimizer.beta1": spaces.Choices([0.8, 0.9]),
    }


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("lerning_rate=1:2", "unknown key lerning_rate; did you mean optimizer.learning_rate?"),
        ("learning_rate", "'learning_rate' is not of the form name=low:high"),
        ("learning_rate=1e-3:1e-5", "the first end has to be below the second"),
        ("learning_rate=0:1e-5:log", "below the second and above 0"),
        ("learning_rate=a:b", "both ends have to be a number"),
        ("batch_size=16.5:32", "both ends have to be an integer"),
        ("batch_size=16", "has one value"),
        ("batch_size=16|0", "^--space: data.batch_size: input should be greater than or equal"),
        ("batch_size=16|32,data.batch_size=1|2", "data.batch_size stands there twice"),
        ("", "is empty"),
        ("trainer=1|2", "trainer is a section; name a key of it, as trainer.KEY"),
        ("data.dev=a|b", "data.dev has to be the same for all trials"),
    ],
)
def test_a_wrong_space_is_answered_with_a_sentence(text, sentence, job):
    with pytest.raises(UserError, match=sentence):
        spaces.parse(text, job)


@pytest.mark.slow
def test_the_best_settings_of_several_trials(tiny_data, tmp_path):
    """In two processes; more trials go on from there, and another job is refused."""
    made = tiny_job.write_config(tmp_path / "job.yaml", tiny_data, tmp_path / "run")
    words = ["tune", "--config", made, "--space", SPACE]
    assert commands.call(*words, "--trials", 4, "--workers", 2) == 0
    folder = tmp_path / "run"
    done = trials(folder)
    assert len(done) == 4
    best = max(done, key=lambda trial: trial.value or 0)
    settings = config.load_as(config.Config, str(folder / "best.yaml"), [])
    assert settings.optimizer.learning_rate == best.params["optimizer.learning_rate"]
    assert settings.data.batch_size == best.params["data.batch_size"]
    assert yaml.safe_load((folder / "best.yaml").read_text())["data"]["max_length"] == 16
    page = (folder / "report.html").read_text()
    assert "optimizer.learning_rate" in page
    assert "importance" in page
    summary = json.loads((folder / f"trial-{best.number + 1}" / "summary.json").read_text())
    assert summary["dev"]["accuracy"] == best.value
    assert not list(folder.glob("trial-*/checkpoints"))
    assert commands.call(*words, "--trials", 5) == 0
    assert len({trial.params["optimizer.learning_rate"] for trial in trials(folder)}) == 5
    assert commands.call(*words, "trainer.seed=4") == 2


FULL = UserError("no room")
FULL.__cause__ = OSError("No space left on device")


@pytest.mark.parametrize("error", [Stopped("SIGTERM"), FULL], ids=["killed", "full"])
def test_a_search_goes_on_where_it_was(error, job, tmp_path, monkeypatch):
    """With the trial that was running, from its checkpoint; what it reported is kept."""
    from fleetbert.training.loop import Run
    from fleetbert.tune import search, trial

    class Killed(trial.Reports):
        def on_step(self, run: Run) -> None:
            if self.trial.number == 1 and run.state.epoch == 1 and run.state.position == 2:
                raise error

    monkeypatch.setattr(trial, "Reports", Killed)
    with pytest.raises(type(error)):
        search.tune(job, "learning_rate=1e-3|2e-3", trials=3)
    assert [t.state.name for t in trials(tmp_path / "run")] == ["COMPLETE", "FAIL"]
    killed = trials(tmp_path / "run")[1].params
    monkeypatch.undo()
    tuned = search.tune(job, "learning_rate=1e-3|2e-3", trials=3)
    done = trials(tmp_path / "run")
    assert [t.state.name for t in done if "folder" not in t.user_attrs][:2] == ["COMPLETE", "FAIL"]
    assert len([t for t in done if search._is_done(t)]) == 3
    again = done[2]
    assert again.params == killed
    assert again.user_attrs["folder"] == "trial-2"
    summary = json.loads((tmp_path / "run" / "trial-2" / "summary.json").read_text())
    assert summary["resumed_at"] > 0
    assert tuned.best.value == max(t.value for t in done if t.value is not None)


def test_what_a_full_disk_leaves_is_no_obstacle(job, tmp_path):
    from fleetbert.tune import search

    search.tune(job, "learning_rate=1e-3|2e-3", trials=1)
    journal = tmp_path / "run" / search.JOURNAL
    whole = journal.read_bytes()
    journal.write_bytes(whole + whole[:20])
    lock = journal.with_name(f"{search.JOURNAL}.lock")
    lock.symlink_to("nowhere")
    search.tune(job, "learning_rate=1e-3|2e-3", trials=2)
    assert journal.read_bytes().startswith(whole)
    assert len(trials(tmp_path / "run")) == 2
    assert not lock.is_symlink()
    for other in (b"of another program\n", whole[:-20] + whole):
        journal.write_bytes(other)
        with pytest.raises(UserError, match=r"trials\.log: is not what a search writes; remove it"):
            search.tune(job, "learning_rate=1e-3|2e-3", trials=2)
        assert journal.read_bytes() == other


def test_trials_that_fall_behind_are_pruned(job, tmp_path, monkeypatch):
    """And no trial saves its last step, which nobody reads."""
    from fleetbert.training import checkpoint
    from fleetbert.tune import search

    saved, save = [], checkpoint.save
    monkeypatch.setattr(checkpoint, "save", lambda *given: saved.append(given[0]) or save(*given))
    monkeypatch.setattr(optuna.Trial, "should_prune", lambda trial: trial.number == 1)
    search.tune(job, "learning_rate=1e-3|2e-3", trials=2)
    states = [trial.state.name for trial in trials(tmp_path / "run")]
    assert states == ["COMPLETE", "PRUNED"]
    assert list(trials(tmp_path / "run")[1].intermediate_values) == [1]
    assert saved == [tmp_path / "run" / "trial-1" / "checkpoints"]  # of its first epoch


def test_a_trial_is_freed_before_the_next(job, monkeypatch):
    from fleetbert.tune import search, trial

    runs, before = [], []

    class Watched(trial.Reports):
        def on_start(self, run):
            before.append([each() for each in runs])
            runs.append(weakref.ref(run.task.network))

    monkeypatch.setattr(trial, "Reports", Watched)
    monkeypatch.setattr(optuna.Trial, "should_prune", lambda trial: trial.number == 1)
    gc.disable()
    try:
        search.tune(job, "learning_rate=1e-3|2e-3", trials=3)
    finally:
        gc.enable()
    assert before == [[], [None], [None, None]]


def test_without_optuna_a_sentence_names_the_extra(tiny_data, tmp_path, monkeypatch, capfd):
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert commands.call("tune", "--space", SPACE, f"data.train={tiny_data}/train.tsv") == 2
    assert "pip install 'fleetbert[tune]'" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"data.dev": None}, "data.dev: settings are compared by a dev table"),
        ({"data.dev": "none.tsv"}, "none.tsv: no such file"),
        ({"model.vocab": "none.txt"}, "none of 3 trials succeeded; the first says: "),
    ],
)
def test_what_cannot_be_tuned_is_refused(changes, sentence, tiny_data, tmp_path):
    from fleetbert.tune import search

    for _ in range(2):  # what has failed altogether does not stand in the way of another job
        with pytest.raises(UserError, match=sentence):
            search.tune(tiny_job.job(tiny_data, tmp_path / "run", changes), SPACE, trials=5)
        changes = {**changes, "trainer.epochs": 3}


def test_nothing_of_failed_trials_stands_in_the_way(tiny_data, tmp_path, monkeypatch):
    from fleetbert.tune import search, trial

    monkeypatch.setattr(trial, "_value", lambda *_: float("nan"))
    for seed in (1, 2):
        job = tiny_job.job(tiny_data, tmp_path / "run", {"trainer.epochs": 1, "trainer.seed": seed})
        with pytest.raises(UserError, match="the first says: the dev texts gave no number"):
            search.tune(job, SPACE, trials=5)

"""However the texts are read, the steps are the same; and no process is left behind."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import processes
import psutil
import pytest
import tiny_job

from fleetbert.core.errors import UserError
from fleetbert.data import workers
from fleetbert.training import reader
from fleetbert.training.strategies.single import Single

TASKS = {
    "classification": {"optimizer.accumulate_steps": 2},
    "pair_classification": {
        "data.train": "pairs.tsv", "data.dev": "pairs-dev.tsv", "data.max_length": 32,
        "data.batching": "pack", "data.batch_tokens": 150, "data.batch_size": None,
    },
    "mlm": {"data.train": "texts.txt", "data.dev": "texts-dev.txt", "data.batching": "pad"},
}  # fmt: skip


def changes_of(name: str, data: Path) -> dict:
    changes = {"task.name": name, **TASKS[name], "trainer.max_steps": 6, "trainer.eval_every": 100}
    for key in ("data.train", "data.dev"):
        if key in changes:
            changes[key] = str(data / changes[key])
    return changes


def children() -> list[psutil.Process]:
    """Processes that this one started and that are at work."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has ended
            if "spawn_main" in " ".join(child.cmdline()):
                found.append(child)
    return found


@pytest.fixture
def read_by_workers(monkeypatch):
    """Counts the steps that workers collect, from the first one: they have started by then."""
    start, received, counted = workers.start, reader._received, []

    def started(*arguments):
        pool = start(*arguments)
        if arguments[1] is reader._take:  # and not of the cache
            pool.submit(reader._collects).result()
        return pool

    def count(*arguments):
        counted.append(1)
        return received(*arguments)

    monkeypatch.setattr(reader.workers, "start", started)
    monkeypatch.setattr(reader, "_received", count)
    return counted


@pytest.mark.parametrize(
    "name",
    [
        "classification",
        pytest.param("pair_classification", marks=pytest.mark.slow),
        pytest.param("mlm", marks=pytest.mark.slow),
    ],
)
def test_losses_do_not_depend_on_how_it_is_read(
    trainer, tiny_data, tmp_path, read_by_workers, name
):
    changes = changes_of(name, tiny_data)
    expected = trainer(tmp_path / "0", changes)["dev"]
    ways = {
        "ahead": {"data.num_workers": 2},
        "cached": {"data.cache": str(tmp_path / "cache")},
        "cached ahead": {"data.num_workers": 1, "data.cache": str(tmp_path / "cache")},
    }
    losses = tiny_job.losses(tmp_path / "0")
    assert len(losses) > 5
    for way, more in ways.items():
        assert trainer(tmp_path / way, {**changes, **more})["dev"] == expected, way
        assert tiny_job.losses(tmp_path / way) == losses, way
    assert len(read_by_workers) > len(losses)  # of two runs all but what they began with
    assert children() == []


def test_a_small_table_stays_in_memory_and_a_large_one_does_not(trainer, tmp_path, monkeypatch):
    trainer(tmp_path, {"trainer.max_steps": 1})
    assert not (tmp_path / "cache").exists()
    monkeypatch.setattr("fleetbert.training.texts.LARGE", 5000)  # the dev table is smaller
    trainer(tmp_path, {"trainer.max_steps": 1})
    assert len(list((tmp_path / "cache").iterdir())) == 1
    trainer(tmp_path / "none", {"trainer.max_steps": 1, "data.cache": "none"})
    assert not (tmp_path / "none" / "cache").exists()


@pytest.mark.parametrize(
    ("train", "dev", "said"),
    [
        ("label\ttext_a\na\tx\na\ty\n", None, r"has the label 'a' only"),
        ("label\ttext_a\na\tx\nb\ty\n", "label\ttext_a\nb\tz\nc\tz\n", r"dev\.tsv:3: label 'c'"),
        (
            "label\ttext_a\na\tx\nb\ty\n",
            "label\ttext_a\nB\ty\n",
            r":2: label 'B' .*is it 'b', written",
        ),
        ("label\ttext_a\na\tx\nb\n", None, r"train\.tsv:3: has 1 tab-separated columns"),
        ("label\ttext_a\n", None, r"train\.tsv: holds no example"),
    ],
)
def test_what_memory_refuses_the_cache_refuses(trainer, tmp_path, train, dev, said):
    (tmp_path / "train.tsv").write_text(train)
    changes = {"data.train": str(tmp_path / "train.tsv"), "data.dev": None}
    if dev:
        (tmp_path / "dev.tsv").write_text(dev)
        changes["data.dev"] = str(tmp_path / "dev.tsv")
    for where in ("none", str(tmp_path / "cache")):
        with pytest.raises(UserError, match=said):
            trainer(tmp_path / "o", {**changes, "data.cache": where})


def test_dev_texts_that_lack_a_label_keep_the_numbers(trainer, tmp_path, tiny_data):
    lines = (tiny_data / "dev.tsv").read_text().splitlines(keepends=True)
    (tmp_path / "dev.tsv").write_text("".join(line for line in lines if not line.startswith("bad")))
    changes = {"data.dev": str(tmp_path / "dev.tsv"), "trainer.max_steps": 5}
    expected = trainer(tmp_path / "0", changes)
    found = trainer(tmp_path / "1", {**changes, "data.cache": str(tmp_path / "cache")})
    assert found["dev"] == expected["dev"]
    assert found["data"] == expected["data"]


def test_a_worker_knows_no_paddle():
    with workers.start(1) as pool:
        pool.submit(reader._take, 1).result()
        modules = pool.submit(eval, "list(__import__('sys').modules)").result()
    assert "fleetbert.training.reader" in modules
    assert "paddle" not in modules


class TestNothingIsLeft:
    def disturbed(self, trainer, output, disturb):
        """A run with workers whose third step calls `disturb`."""
        step = Single.step
        steps = []

        def third(strategy, arrays):
            steps.append(1)
            if len(steps) == 3:
                disturb()
            return step(strategy, arrays)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Single, "step", third)
            trainer(output, {"trainer.epochs": 30, "data.num_workers": 2})

    def test_when_a_worker_is_killed(self, trainer, tmp_path):
        with pytest.raises(UserError, match=r"data\.num_workers: a process that .* was killed"):
            self.disturbed(trainer, tmp_path, lambda: children()[0].kill())
        assert children() == []

    def test_when_a_step_fails(self, trainer, tmp_path):
        def fail():
            assert children()
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            self.disturbed(trainer, tmp_path, fail)
        assert children() == []

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("how", "code"), [("kill -9", -signal.SIGKILL), ("Ctrl-C", 130), ("SIGTERM to all", 143)]
    )
    def test_when_the_job_is_stopped(self, tiny_data, tmp_path, how, code):
        changes = {"trainer.epochs": 1000, "data.num_workers": 1}
        path = tiny_job.write_config(tmp_path / "job.yaml", tiny_data, tmp_path / "o", changes)
        process = processes.start(tmp_path, path)
        try:
            processes.wait_for_loss(process, tmp_path / "o", 3)
            family = psutil.Process(process.pid).children(recursive=True)
            assert family
            if how == "kill -9":
                process.kill()
            else:  # as a terminal and as a batch system do it
                os.killpg(process.pid, signal.SIGINT if how == "Ctrl-C" else signal.SIGTERM)
            assert process.wait(timeout=processes.DEADLINE) == code
            assert not psutil.wait_procs(family, timeout=processes.DEADLINE)[1]
            assert "Traceback" not in processes.said(process)
        finally:
            processes.kill(process)

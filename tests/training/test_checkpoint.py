"""Checkpoints are whole or not taken, and a run goes on from the newest whole one."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import paddle
import pytest
import tiny_job
from safetensors.numpy import load_file

from fleetbert import bundle, tasks
from fleetbert.core import stopping
from fleetbert.core.errors import Stopped, UserError
from fleetbert.training import checkpoint
from fleetbert.training import job as training
from fleetbert.training.callbacks import Callback
from fleetbert.training.callbacks.checkpoint import Checkpoints
from fleetbert.training.texts import TextTask

# Ten steps an epoch.
JOB = {"trainer.epochs": 2, "trainer.checkpoint_every": 6, "trainer.keep_checkpoints": 5}


@pytest.fixture(scope="session")
def whole(trainer, tmp_path_factory):
    """The folder of an undisturbed run: checkpoints of the steps 6, 10, 12, 18 and 20."""
    output = tmp_path_factory.mktemp("whole") / "output"
    trainer(output, JOB)
    return output


@pytest.fixture
def output(whole, tmp_path) -> Path:
    """A copy of it, to be changed."""
    return Path(shutil.copytree(whole, tmp_path / "output"))


def steps(output: Path, name: str = "checkpoints") -> list[int]:
    return [checkpoint.step_of(path) for path in checkpoint.listed(output / name)]


def step(output: Path, number: int) -> Path:
    return output / "checkpoints" / f"step-{number:08d}"


def edit(path: Path, change) -> None:
    fields = json.loads(path.read_text())
    change(fields)
    path.write_text(json.dumps(fields))


def replace(path: Path, target: str) -> None:
    path.unlink()
    path.symlink_to(target)


BAD_DISK = "/proc/self/mem"  # reading it fails with an input/output error
UNREAD = "manifest.json cannot be read"

DAMAGES = {
    "flipped byte": (lambda p: tiny_job.flip(p / "model.pdparams"), "model.pdparams is not what"),
    "cut file": (lambda p: os.truncate(p / "state.json", 10), "state.json is not what was written"),
    "missing file": (lambda p: (p / "optimizer.pdopt").unlink(), "optimizer.pdopt is missing"),
    "unreadable file": (lambda p: replace(p / "state.json", BAD_DISK), "state.json is not what"),
    "missing manifest": (lambda p: (p / "manifest.json").unlink(), UNREAD),
    "cut manifest": (lambda p: os.truncate(p / "manifest.json", 40), UNREAD),
    "manifest of bytes": (lambda p: (p / "manifest.json").write_bytes(b"\xff\xfe"), UNREAD),
    "manifest of a list": (lambda p: (p / "manifest.json").write_text("[1]"), UNREAD),
    "unreadable manifest": (lambda p: replace(p / "manifest.json", BAD_DISK), UNREAD),
    "no files": (
        lambda p: edit(p / "manifest.json", lambda m: m["files"].clear()),
        "does not list",
    ),
    "odd files": (lambda p: edit(p / "manifest.json", lambda m: m.update(files=3)), UNREAD),
    "other format": (lambda p: edit(p / "manifest.json", lambda m: m.update(format=9)), "format 9"),
}


@pytest.mark.parametrize("name", list(DAMAGES))
def test_a_damaged_checkpoint_is_passed_over_and_named(output, name):
    damage, said = DAMAGES[name]
    assert checkpoint.newest_whole(output / "checkpoints") == (step(output, 20), [])
    damage(step(output, 20))
    damage(step(output, 18))
    newest, passed_over = checkpoint.newest_whole(output / "checkpoints")
    assert newest == step(output, 12)
    assert [Path(problem.split(": ")[0]) for problem in passed_over] == [
        step(output, number) for number in (20, 18)
    ]
    assert all(said in problem for problem in passed_over)
    with pytest.raises(UserError, match=f"{step(output, 20)}: .*{said}"):
        checkpoint.load(step(output, 20))


def test_a_file_that_the_disk_cannot_read_is_named(output, monkeypatch):
    def failing(path):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("fleetbert.core.files.sha256", failing)
    problem = checkpoint.broken(step(output, 20))
    assert problem == "model.pdparams cannot be read (Input/output error)"
    assert checkpoint.broken(step(output, 20), quick=True) is None


def test_ranks_on_machines_that_share_no_folder_are_told(whole):
    """One has the newest checkpoint, the other none: no rank goes on."""
    strategy = SimpleNamespace(barrier=lambda: None, gather=lambda mine: [mine, None])
    seen = (
        r"output_dir: the ranks see different newest .* \(rank 0: step 20, rank 1: none\); it must"
    )
    with pytest.raises(UserError, match=seen):
        training._check_same_step(SimpleNamespace(strategy=strategy, folder=whole), step(whole, 20))


def test_all_broken_is_an_error_and_none_starts_anew(output, trainer, capsys):
    for path in checkpoint.listed(output / "checkpoints"):
        tiny_job.flip(path / "model.pdparams")
    with pytest.raises(UserError, match=r"none of the 5 checkpoints .* whole.*trainer.resume=none"):
        trainer(output, JOB)
    assert capsys.readouterr().err.count("passed over") == 5
    trainer(output, {**JOB, "trainer.resume": "none", "trainer.max_steps": 3})
    assert "the former run's checkpoints are in" in capsys.readouterr().err
    assert steps(output, "checkpoints.former") == [6, 10, 12, 18, 20]
    assert steps(output) == [3]
    assert list(tiny_job.losses(output)) == [1, 2, 3]


@pytest.mark.parametrize("read_only", [None, "checkpoints", "model", "bundle"])
def test_results_that_are_mount_points(trainer, small_disk, tmp_path, read_only):
    """They are written, and anew; the former checkpoints stay in the mount. Whether they can be
    written is checked before the first step."""
    for name in ("checkpoints", "model", "bundle"):
        small_disk("8m", tmp_path / name)
    changes = {"trainer.resume": "none", "trainer.max_steps": 2}
    if read_only:
        command = ["mount", "-o", "remount,ro", str(tmp_path / read_only)]
        subprocess.run(command, check=True)
        with pytest.raises(UserError, match=f"cannot write to .*{read_only}: Read-only file"):
            trainer(tmp_path, changes)
        assert not (tmp_path / "metrics.jsonl").exists()
        return
    for seed in (1, 2):
        summary = trainer(tmp_path, {**changes, "trainer.seed": seed}, results=True)
    assert steps(tmp_path, "checkpoints") == steps(tmp_path, "checkpoints/former") == [2]
    assert summary["config"]["trainer"]["seed"] == 2
    bundle.verify(bundle.read(tmp_path / "bundle"), "float32")
    saved = load_file(tmp_path / "model" / "model.safetensors")
    weights = checkpoint.load(step(tmp_path, 2)).tensors["model"]
    name, array = next(iter(saved.items()))
    assert any(np.array_equal(array, w.numpy()) for w in weights.values()), name


@pytest.mark.parametrize(
    ("resumed_at", "removed"),
    [(6, True), (12, False), (10, True)],
)
def test_a_resumed_run_has_the_losses_of_the_undisturbed_one(
    output, whole, trainer, capsys, resumed_at, removed
):
    """Bit for bit, with dropout, within and between epochs; its weights, too. What is broken is
    passed over."""
    newer = [step(output, number) for number in steps(output) if number > resumed_at]
    for path in newer:
        if removed:
            shutil.rmtree(path)
        else:
            tiny_job.flip(path / "model.pdparams")
    trainer(output, JOB)
    said = capsys.readouterr().err
    for path in newer:
        assert (f"passed over a broken checkpoint: {path}" in said) != removed
    assert tiny_job.losses(output) == tiny_job.losses(whole)
    assert checkpoint.newest_whole(output / "checkpoints") == (step(output, 20), [])
    judged = [
        [(row["step"], row["dev.loss"]) for row in tiny_job.rows(folder) if "dev.loss" in row]
        for folder in (output, whole)
    ]
    assert judged[0] == judged[1]
    for file in ("model.pdparams", "optimizer.pdopt"):
        mine, others = (
            paddle.load(str(step(folder, 20) / file), return_numpy=True)
            for folder in (output, whole)
        )
        assert set(mine) == set(others)
        for name, array in mine.items():
            if isinstance(array, np.ndarray):
                np.testing.assert_array_equal(array, others[name], err_msg=name)


@pytest.mark.parametrize(("changes", "sentence"), [({}, ""), ({"trainer.epochs": 1}, "more than")])
def test_a_finished_run_has_nothing_left_to_do(output, whole, trainer, caplog, changes, sentence):
    """Nor has a job that asks for less than is done, which says so."""
    summary = trainer(output, {**JOB, "callbacks.profiler.enabled": True, **changes})
    assert summary["steps"] == 20
    assert summary["dev"]["n"] == 60
    assert tiny_job.losses(output) == tiny_job.losses(whole)
    assert "nothing is left to train: step 20 is done" in caplog.text
    assert (f"{sentence} this job's 10;" in caplog.text) == bool(sentence)


def test_more_epochs_have_the_longer_jobs_rates_from_their_first_step(output, trainer):
    """The checkpoint's own schedule had fallen to 0."""
    trainer(output, {**JOB, "trainer.epochs": 3})
    rates = {row["step"]: row["lr"] for row in tiny_job.rows(output) if "lr" in row}
    assert [rates[n] for n in range(21, 31)] == pytest.approx(
        [2e-3 * (31 - n) / (30 - 3) for n in range(21, 31)]
    )


@pytest.mark.parametrize("how", ["removed", "damaged"])
def test_the_best_checkpoint_is_gone(output, trainer, caplog, how):
    """The newest whole one takes its place, is measured, and the job ends with results."""
    shutil.rmtree(step(output, 20))
    state = json.loads((step(output, 18) / "state.json").read_text())
    assert state["best"]["step"] == 10
    if how == "removed":
        shutil.rmtree(step(output, 10))
    else:
        tiny_job.flip(step(output, 10) / "model.pdparams")
    summary = trainer(output, JOB, results=True)
    assert re.search(
        "the best checkpoint cannot be had any more: .*step-00000010: .*; the weights of step 18 ",
        caplog.text,
    )
    evaluated = [row["step"] for row in tiny_job.rows(output) if "dev.loss" in row]
    assert evaluated == [10, 18, 20]
    assert summary["dev"]["step"] in (18, 20)
    bundle.read(output / "bundle")


@pytest.mark.parametrize(("hook", "best"), [("on_step", 20), ("on_end", None)])
def test_the_best_checkpoint_goes_while_the_job_runs(
    trainer, tmp_path, caplog, monkeypatch, hook, best
):
    """By a metric of which the first evaluation is the best."""
    output, calls = tmp_path / "output", []

    def remove(_, run, *__) -> None:
        if run.state.step in (15, 20):
            shutil.rmtree(step(output, 10), ignore_errors=True)

    monkeypatch.setattr(TextTask, "criterion", lambda *_: tasks.Criterion("falls", False))
    job = trainer.job(output, JOB)
    remover = type("Remover", (Callback,), {hook: remove})()
    falls = {"falls": lambda truth, outputs: -len(calls.append(1) or calls)}
    result = training.train(job, [remover], falls)
    assert result.summary["dev"].get("step") == best
    assert "step-00000010: does not exist" in caplog.text
    assert result.summary["dev"].get("step") == best
    last = paddle.load(str(step(output, 20) / "model.pdparams"))
    exported = load_file(output / "model" / "model.safetensors")
    np.testing.assert_array_equal(
        exported["classifier.bias"], last["network.classifier.bias"].numpy()
    )
    bundle.read(result.bundle)


def test_explicit_path(output, whole, trainer):
    trainer(output, {**JOB, "trainer.resume": str(step(output, 10))})
    assert tiny_job.losses(output) == tiny_job.losses(whole)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("checkpoints/step-00000018", r"optimizer\.pdopt is not what was written"),
        ("none", "does not exist; choose another"),
    ],
)
def test_explicit_path_to_nothing_whole_is_an_error(output, trainer, name, sentence):
    tiny_job.flip(step(output, 18) / "optimizer.pdopt")
    with pytest.raises(UserError, match=f"{output / name}: {sentence}"):
        trainer(output, {**JOB, "trainer.resume": str(output / name)})


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"data.batch_size": 8}, r"data\.batch_size: 16, this job has 8"),
        ({"data.batching": "pad"}, r"data\.batching: bucket"),
        ({"trainer.seed": 5}, r"trainer\.seed: 0, this job has 5"),
        ({"optimizer.learning_rate": 0.5}, r"optimizer\.learning_rate: 0\.002"),
        ({"model.num_hidden_layers": 1}, r"model\.num_hidden_layers: 2"),
        ({"loss.r_drop": 1.0}, r"loss\.r_drop: 0\.0, this job has 1\.0"),
    ],
)
def test_another_job_is_refused_with_the_key(output, trainer, changes, key):
    with pytest.raises(UserError, match=f"was trained with {key}.*trainer.resume=none"):
        trainer(output, {**JOB, **changes})


def test_the_same_data_at_another_path_are_the_same(output, trainer, tiny_data, tmp_path):
    shutil.rmtree(step(output, 20))
    shutil.copytree(tiny_data, tmp_path / "moved")
    moved = type(trainer)(tmp_path / "moved")
    for name in ("dev.tsv", "train.tsv", "vocab.txt"):
        path = tmp_path / "moved" / name
        before = path.read_text()
        path.write_text(before + ("more\n" if name == "vocab.txt" else "good\tword1 word7\n"))
        with pytest.raises(UserError, match=rf"was trained with [a-z.]+: {tiny_data}/{name}, this"):
            moved(output, JOB)
        path.write_text(before)
    moved(output, JOB)
    assert steps(output)[-1] == 20


def test_other_texts_in_the_same_file_are_refused(trainer, tiny_data, tmp_path):
    table = tmp_path / "train.tsv"
    shutil.copyfile(tiny_data / "train.tsv", table)
    changes = {"data.train": str(table), "trainer.max_steps": 2}
    trainer(tmp_path / "output", changes)
    text = table.read_text()
    table.write_text(text.replace("\nbad\t", "\ngood\t", 1))
    with pytest.raises(UserError, match="the training texts have changed"):
        trainer(tmp_path / "output", changes)
    table.write_text(text)
    assert trainer(tmp_path / "output", {**changes, "trainer.max_steps": 3})["steps"] == 3


class TestKeeping:
    def test_the_newest_and_the_best(self, trainer, tmp_path, monkeypatch):
        accuracies = iter([0.5, 0.9, 0.6, 0.6, 0.6])

        def judged(task, answers):
            return {"n": 1, "accuracy": next(accuracies), "loss": 1.0}

        monkeypatch.setattr("fleetbert.training.texts.TextTask.evaluate", judged)
        trainer(
            tmp_path,
            {
                "trainer.eval_every": 2, "trainer.checkpoint_every": 1,
                "trainer.keep_checkpoints": 2,
            },
        )  # fmt: skip
        assert steps(tmp_path) == [4, 9, 10]
        state = json.loads((step(tmp_path, 10) / "state.json").read_text())
        assert state["best"]["step"] == 4

    def test_a_new_best_is_saved_though_no_checkpoint_is_due(self, trainer, tmp_path):
        changes = {"trainer.eval_every": 3, "trainer.checkpoint_every": 100}
        summary = trainer(tmp_path, changes)
        assert summary["dev"]["step"] in steps(tmp_path)
        assert steps(tmp_path)[-1] == 10

    def test_names_that_are_no_checkpoints_are_left_alone(self, output, trainer):
        step(output, 20).rename(output / "checkpoints" / "step-00000020.bak")
        (output / "checkpoints" / "step-mine").mkdir()
        assert steps(output) == [6, 10, 12, 18]
        checkpoint.prune(output / "checkpoints", 1, 6)
        assert steps(output) == [6, 18]
        assert (output / "checkpoints" / "step-00000020.bak").is_dir()
        assert (output / "checkpoints" / "step-mine").is_dir()


TENSORS = {"model": {"w": paddle.ones([64, 64])}, "optimizer": {"m": paddle.ones([64, 64])}}


def assert_untouched(folder: Path):
    """Step 1 is whole, and there is nothing else."""
    assert checkpoint.broken(folder / "step-00000001") is None
    assert [path.name for path in folder.iterdir()] == ["step-00000001"]


class TestFailures:
    @pytest.mark.parametrize("where", ["paddle.save", "os.fsync"])
    @pytest.mark.parametrize("kind", [OSError, RuntimeError])
    def test_a_write_that_fails(self, tmp_path, monkeypatch, where, kind):
        folder = tmp_path / "checkpoints"
        checkpoint.save(folder, {"step": 1}, TENSORS)

        def full(*arguments, **named):
            if kind is OSError:
                raise OSError(errno.ENOSPC, "No space left on device")
            raise RuntimeError("No space left on device")  # as Paddle does at times

        monkeypatch.setattr(where, full)
        with pytest.raises(UserError, match=r"step 2: .*No space left.*earlier .* untouched"):
            checkpoint.save(folder, {"step": 2}, TENSORS)
        monkeypatch.undo()
        assert_untouched(folder)

    def test_what_a_killed_writer_left_is_no_checkpoint(self, tmp_path):
        folder = tmp_path / "checkpoints"
        checkpoint.save(folder, {"step": 1}, TENSORS)
        left = folder / ".writing-step-00000002"
        shutil.copytree(folder / "step-00000001", left)
        assert checkpoint.newest_whole(folder) == (folder / "step-00000001", [])
        checkpoint.save(folder, {"step": 2}, TENSORS)
        assert sorted(path.name for path in folder.iterdir()) == ["step-00000001", "step-00000002"]

    def test_saving_a_step_again_replaces_it(self, tmp_path):
        checkpoint.save(tmp_path, {"step": 1, "epoch": 0}, TENSORS)
        checkpoint.save(tmp_path, {"step": 1, "epoch": 7}, TENSORS)
        loaded = checkpoint.load(tmp_path / "step-00000001")
        assert loaded.state == {"step": 1, "epoch": 7}
        np.testing.assert_array_equal(loaded.tensors["model"]["w"].numpy(), np.ones((64, 64)))

    @pytest.mark.parametrize("kind", ["a file", "below a file", "read-only"])
    def test_an_output_dir_that_cannot_be_written(self, trainer, tmp_path, kind):
        (tmp_path / "file").write_text("")
        folder = {"a file": tmp_path / "file", "below a file": tmp_path / "file" / "x"}.get(kind)
        if kind == "read-only":
            folder = Path("/proc/fleetbert")
        with pytest.raises(UserError, match="output_dir: cannot write to"):
            trainer(folder)


class TestStopping:
    @pytest.mark.parametrize(
        ("signum", "name"), [(signal.SIGTERM, "SIGTERM"), (signal.SIGINT, "Ctrl-C")]
    )
    def test_a_signal_saves_and_the_same_job_goes_on(
        self, whole, trainer, tmp_path, monkeypatch, signum, name
    ):
        once = Checkpoints.on_step

        def stopped_at_seven(callback, run):
            if run.state.step == 7:
                os.kill(os.getpid(), signum)
            once(callback, run)

        monkeypatch.setattr(Checkpoints, "on_step", stopped_at_seven)
        stopping.expect()
        expected = signal.getsignal(signum)
        with pytest.raises(Stopped, match=f"{name}: saved step 7 of 20; the same command"):
            trainer(tmp_path, JOB)
        assert signal.getsignal(signum) == expected
        with pytest.raises(Stopped, match="no step is lost"):
            os.kill(os.getpid(), signal.SIGTERM)
        monkeypatch.undo()
        assert steps(tmp_path)[-1] == 7
        trainer(tmp_path, JOB)
        assert tiny_job.losses(tmp_path) == tiny_job.losses(whole)

    @pytest.mark.parametrize("step", [10, 20])
    def test_a_signal_stops_an_evaluation_which_is_done_when_resumed(
        self, whole, trainer, tmp_path, monkeypatch, step
    ):
        once, evaluated = TextTask.dev_arrays, []

        def signalled_in_the_second_batch(task, part):
            evaluated.append(part)
            if len(evaluated) == 2:
                os.kill(os.getpid(), signal.SIGTERM)
            return once(task, part)

        monkeypatch.setattr(TextTask, "dev_arrays", signalled_in_the_second_batch)
        job = {**JOB, "data.eval_batch_tokens": 64, "trainer.eval_every": step}
        stopping.expect()
        with pytest.raises(Stopped, match=f"SIGTERM: saved step {step} of 20; the same command"):
            trainer(tmp_path, job)
        assert len(evaluated) == 2
        assert steps(tmp_path)[-1] == step
        assert trainer(tmp_path, job)["dev"]["n"] == 60
        first, second = (
            {row["step"]: row["dev.loss"] for row in tiny_job.rows(folder) if "dev.loss" in row}
            for folder in (tmp_path, whole)
        )
        assert set(first) == {step, 20}
        assert first == pytest.approx({at: second[at] for at in first}, rel=1e-5)

    def test_a_second_ctrl_c_does_not_wait(self, trainer, tmp_path):
        class Twice(Callback):
            def after_reading(self, run):
                os.kill(os.getpid(), signal.SIGINT)
                if run.state.step == 0:
                    os.kill(os.getpid(), signal.SIGINT)

        stopping.expect()
        with pytest.raises(KeyboardInterrupt):
            training.train(trainer.job(tmp_path, JOB), [Twice()])
        assert steps(tmp_path) == []

    def test_rows_after_the_checkpoint_are_done_again(self, output, whole, trainer):
        """A killed run's metrics.jsonl: rows of lost steps, and half a row."""
        for number in (12, 18, 20):
            shutil.rmtree(step(output, number))
        lines = (output / "metrics.jsonl").read_text().splitlines(keepends=True)
        (output / "metrics.jsonl").write_text("".join(lines[:15]) + lines[15][:20])
        trainer(output, JOB)
        assert [row["step"] for row in tiny_job.rows(output)] == [
            row["step"] for row in tiny_job.rows(whole)
        ]
        assert tiny_job.losses(output) == tiny_job.losses(whole)

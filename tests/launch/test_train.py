"""launch/train.py as users start it: one process, two ranks, killed and started again."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import processes
import pytest
import several_jobs
import tiny_job
from processes import DEADLINE, SCRIPT, ended, kill, rank, said, wait_for, wait_for_loss

from fleetbert import config

SEVERAL = Path(several_jobs.__file__)
JOB = {"trainer.epochs": 2, "trainer.checkpoint_every": 7, "callbacks.progress": True}
SAME_EVERYWHERE = {
    "model.dropout": 0.0, "trainer.max_steps": 6, "trainer.eval_every": 3,
    "callbacks.profiler.enabled": True, "callbacks.visualdl": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    """start(config, *words, ranks=1, script=launch/train.py) → Popen; no process of it outlives the
    tests."""
    started = []

    def call(config: Path, *words: str, ranks: int = 1, script: Path = SCRIPT) -> subprocess.Popen:
        process = processes.start(
            tmp_path_factory.mktemp("started"),
            config,
            *words,
            launcher=["--nproc_per_node", str(ranks)] if ranks > 1 else None,
            script=script,
            # `make test` gives all others one thread.
            environ={"OMP_NUM_THREADS": "2"} if ranks == 1 else {},
        )
        started.append(process)
        return process

    yield call
    for process in started:
        kill(process)


@pytest.fixture(scope="module")
def write(tiny_data, tmp_path_factory):
    """write(changes) → (config file, its output folder)."""

    def call(changes):
        folder = tmp_path_factory.mktemp("job")
        path = tiny_job.write_config(folder / "job.yaml", tiny_data, folder / "output", changes)
        return path, folder / "output"

    return call


@pytest.fixture(scope="module")
def one_process(start, write):
    """(output folder, Popen) of one process, of which all callbacks are on."""
    changes = {f"callbacks.{name}": True for name in ("progress", "visualdl", "report")}
    path, output = write({**JOB, **changes, "callbacks.profiler.enabled": True})
    return output, start(path)


@pytest.fixture(scope="module")
def undisturbed(one_process):
    """(output folder, what was said) of one process that ran to its end."""
    output, process = one_process
    return output, ended(process)


@pytest.fixture(scope="module")
def two_ranks(start, write):
    path, output = write({**JOB, **SAME_EVERYWHERE})
    return output, ended(start(path, ranks=2))


OTHERS = {
    "compiled": {"trainer.compile": True},
    "masked words": {
        "task.name": "mlm", "data.train": "texts.txt", "data.dev": None, "trainer.max_steps": 4,
        "trainer.compile": True,
    },
    # Of a step's words, and of what is drawn for it, each rank has a share.
    "spans": {"task.name": "token_classification", "data.train": "tags.conll"},
    "ranking": {"task.name": "ranking", "task.negatives": 2, "data.train": "ranking.tsv"},
    "computed twice and attacked": {
        "trainer.recompute": True, "loss.adversarial": 0.5, "loss.class_weights": {"good": 2.0},
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def changes_of(tiny_data, tmp_path_factory):
    """changes_of(name) → that job of `OTHERS`."""
    made = tmp_path_factory.mktemp("tables")
    tiny_job.write_tags(made / "tags.conll", 60, 1)
    tiny_job.write_ranking(made / "ranking.tsv", 20, 1)

    def call(name):
        changes = {**JOB, **SAME_EVERYWHERE, **OTHERS[name], "callbacks.profiler.enabled": False}
        if "data.train" in changes:
            (table,) = (at for at in (made, tiny_data) if (at / changes["data.train"]).exists())
            changes["data.train"] = str(table / changes["data.train"])
            changes.setdefault("data.dev", changes["data.train"])
        return changes

    return call


@pytest.fixture(scope="module")
def others(start, write, changes_of):
    """{name: output folder} of `OTHERS`, trained by the same two ranks."""
    jobs = {name: write(changes_of(name)) for name in OTHERS}
    first, *more = (str(path) for path, _ in jobs.values())
    ended(start(Path(first), *more, ranks=2, script=SEVERAL))
    return {name: output for name, (_, output) in jobs.items()}


class TestHelp:
    @pytest.fixture(scope="class")
    def text(self):
        done = subprocess.run([sys.executable, SCRIPT, "--help"], capture_output=True, text=True)
        assert done.returncode == 0
        return done.stdout

    def test_has_every_key_with_its_default(self, text):
        for name, field in config.fields(config.Config):
            default = re.escape(config.yaml_word(field.default))
            assert re.search(rf"^  {re.escape(name)} .*; default {default}\)$", text, re.M), name

    def test_has_the_commands(self, text):
        assert "paddle.distributed.launch --nproc_per_node 2" in text
        assert "key=value" in text

    def test_is_there_before_paddle(self):
        code = (
            f"import runpy, sys; sys.argv = ['x', '--help']\n"
            f"try:\n    runpy.run_path({str(SCRIPT)!r}, run_name='__main__')\n"
            "except SystemExit: print('paddle' in sys.modules)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.stdout.endswith("False\n")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("--config", "none.yaml"), "error: config none.yaml: cannot be read"),
        (("--config", "{config}", "trainer.epoch=1"), "did you mean trainer.epochs?"),
        ((), "--config"),
    ],
)
def test_errors_exit_with_2_and_one_sentence(write, words, part):
    path, _ = write({})
    words = [word.format(config=path) for word in words]
    done = subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True)
    assert done.returncode == 2
    assert part in done.stderr
    assert "Traceback" not in done.stderr


class TestOneProcess:
    def test_sigterm_while_loading_ends_with_a_sentence(self, start, write, tmp_path):
        """The training texts come from a pipe into which nobody writes."""
        os.mkfifo(tmp_path / "train.tsv")
        path, output = write({"data.train": str(tmp_path / "train.tsv")})
        process = start(path)
        until = time.monotonic() + DEADLINE
        while True:
            try:  # fails until the run has opened the pipe to read it
                pipe = os.open(tmp_path / "train.tsv", os.O_WRONLY | os.O_NONBLOCK)
                break
            except OSError:
                assert process.poll() is None, said(process)
                assert time.monotonic() < until
                time.sleep(0.05)
        until = time.monotonic() + DEADLINE
        # CPython: a signal that comes just before read() begins does not wake it.
        while process.poll() is None:
            assert time.monotonic() < until
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=20)
        assert process.returncode == 143
        os.close(pipe)
        assert "stopped: SIGTERM: no step is lost; the same command goes on" in said(process)
        assert "Traceback" not in said(process)
        assert not (output / "summary.json").exists()

    def test_leaves_everything(self, undisturbed):
        output, text = undisturbed
        names = {path.name for path in output.iterdir()}
        assert names >= {"summary.json", "metrics.jsonl", "checkpoints", "model", "bundle"}
        assert not [name for name in names if name.startswith(".")]
        assert f"done: {output}/summary.json" in text

    def test_leaves_nothing_in_the_current_folder(self, undisturbed, one_process):
        assert [path.name for path in one_process[1].folder.iterdir()] == ["output.txt"]

    def test_says_what_it_read(self, undisturbed):
        assert "train.tsv: 160 texts" in undisturbed[1]

    def test_killed_and_stopped_it_loses_nothing(self, undisturbed, start, write):
        """Killed before the first checkpoint and between two, and asked to stop: the same command
        goes on, and every loss is that of the undisturbed run, bit for bit."""
        path, output = write(JOB)
        # Nothing is saved before the end, however late the kill comes.
        process = start(path, "trainer.checkpoint_every=20", "trainer.eval_every=20")
        wait_for_loss(process, output, 4)
        kill(process)
        assert process.returncode == -signal.SIGKILL
        assert not list(output.glob("checkpoints/step-*"))

        process = start(path)
        wait_for_loss(process, output, 2)
        process.terminate()
        assert process.wait(timeout=DEADLINE) == 143
        text = said(process)
        stopped = "^stopped: SIGTERM: saved step ([0-9]+) of 20; the same command goes on from"
        found = re.search(stopped, text, re.M)
        assert found, text
        assert "Traceback" not in text
        assert (output / "checkpoints" / f"step-{int(found[1]):08d}").is_dir()

        process = start(path)
        wait_for_loss(process, output, 17)
        assert f"resumed at step {found[1]}" in said(process)
        kill(process)

        assert "resumed at step" in ended(start(path))
        assert tiny_job.losses(output) == tiny_job.losses(undisturbed[0])
        summaries = [json.loads((o / "summary.json").read_text()) for o in (output, undisturbed[0])]
        assert summaries[0]["dev"] == summaries[1]["dev"]


class TestTwoRanks:
    def test_losses_are_those_of_one_process(self, two_ranks, here):
        """The same global batches; without dropout, whose masks are a rank's own."""
        output = here({**JOB, **SAME_EVERYWHERE})
        expected = tiny_job.losses(output)
        assert len(expected) == 6
        assert tiny_job.losses(two_ranks[0]) == pytest.approx(expected, abs=1e-4)
        judged = [
            {row["step"]: row["dev.loss"] for row in tiny_job.rows(o) if "dev.loss" in row}
            for o in (two_ranks[0], output)
        ]
        assert set(judged[0]) == {3, 6}
        assert judged[0] == pytest.approx(judged[1], abs=1e-4)

    def test_computed_twice_and_attacked_they_have_the_losses_of_one_process(
        self, others, here, changes_of
    ):
        """One process takes its steps in two halves: a text's words are moved in its half."""
        name = "computed twice and attacked"
        expected = here({**changes_of(name), "optimizer.accumulate_steps": 2})
        assert len(tiny_job.losses(others[name])) == 6
        assert tiny_job.losses(others[name]) == pytest.approx(tiny_job.losses(expected), abs=1e-5)

    @pytest.mark.parametrize("name", ["spans", "ranking"])
    def test_spans_and_ranked_documents_have_the_losses_of_one_process(
        self, others, here, changes_of, name
    ):
        output, expected = others[name], here(changes_of(name))
        assert len(tiny_job.losses(output)) > 3
        assert tiny_job.losses(output) == pytest.approx(tiny_job.losses(expected), abs=1e-4)
        judged = [
            json.loads((folder / "summary.json").read_text())["dev"]
            for folder in (output, expected)
        ]
        figure = judged[0]["metric"]
        assert judged[0][figure] == pytest.approx(judged[1][figure], abs=0.02)

    def test_summary_and_profile_know_of_both(self, two_ranks):
        output, _ = two_ranks
        summary = json.loads((output / "summary.json").read_text())
        assert summary["world_size"] == 2
        assert summary["dev"]["n"] == 60
        assert summary["texts_per_s"] > 0
        profile = json.loads((output / "profile.json").read_text())
        assert [rank["rank"] for rank in profile["ranks"]] == [0, 1]
        assert len(list((output / "visualdl").glob("*.log"))) == 1  # of rank 0 alone
        assert (output / "bundle" / "manifest.json").is_file()

    def test_compiled_they_have_the_same_losses(self, two_ranks, others):
        expected = tiny_job.losses(two_ranks[0])
        assert tiny_job.losses(others["compiled"]) == pytest.approx(expected, abs=1e-5)

    def test_compiled_masked_words_have_the_losses_of_one_process(self, others, here, changes_of):
        expected = here({**changes_of("masked words"), "trainer.compile": False})
        output = others["masked words"]
        assert len(tiny_job.losses(output)) == 4
        assert tiny_job.losses(output) == pytest.approx(tiny_job.losses(expected), abs=1e-4)

    def test_a_killed_rank_has_all_started_again_and_nothing_is_lost(self, two_ranks, start, write):
        """`make endurance` kills either of them fifty times, and has one of them hang."""
        path, output = write({**JOB, **SAME_EVERYWHERE, "trainer.checkpoint_every": 2})
        process = start(path, ranks=2)
        victim = wait_for(lambda: rank(process, 0), process)
        wait_for_loss(process, output, 2)
        victim.kill()
        text = ended(process)
        again = (
            r"rank 0 was killed \(SIGKILL, .*\) \(at step \d\); starting all again, restart 1 of 3"
        )
        assert re.search(again, text), text
        done = re.search(r"done after restarts: 1; (\d+) of (\d+) steps were repeats", text)
        assert done and int(done[2]) - int(done[1]) == 6, text
        assert tiny_job.losses(output) == tiny_job.losses(two_ranks[0])
        saved = [
            o / "checkpoints" / "step-00000006" / "model.pdparams" for o in (output, two_ranks[0])
        ]
        assert saved[0].read_bytes() == saved[1].read_bytes()

    def test_killed_and_started_again_they_lose_nothing(self, two_ranks, start, write, tmp_path):
        """Nor does it matter that they share a token cache and have batches collected for them."""
        ahead = {"data.cache": str(tmp_path), "data.num_workers": 1}
        path, output = write({**JOB, **SAME_EVERYWHERE, "trainer.checkpoint_every": 1, **ahead})
        process = start(path, ranks=2)
        wait_for_loss(process, output, 3)
        kill(process)
        assert not (output / "summary.json").exists()
        assert "resumed at step" in ended(start(path, ranks=2))
        assert len(tiny_job.losses(output)) == 6
        assert tiny_job.losses(output) == tiny_job.losses(two_ranks[0])

    def test_a_rank_that_fails_fails_the_launcher(self, start, write, tmp_path):
        (tmp_path / "train.tsv").write_text("label\ttext_a\nno tab here\n")
        path, output = write({"data.train": str(tmp_path / "train.tsv")})
        process = start(path, ranks=2)
        assert process.wait(timeout=DEADLINE) != 0
        assert re.search(r"error: .*train\.tsv:2: has 1 tab-separated columns", said(process))
        assert not (output / "summary.json").exists()

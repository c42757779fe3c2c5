"""`fleetbert checkpoint ls|verify|rm`, as a user calls it."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path

import fresh
import paddle
import pytest
import tiny_job
from commands import call as command

from fleetbert.training import checkpoint

TENSORS = {"model": {"w": paddle.ones([300, 300])}, "optimizer": {"m": paddle.ones([64, 64])}}


@pytest.fixture
def output(tmp_path) -> Path:
    """Checkpoints of the steps 10 to 50; the best is that of step 20."""
    for step in range(10, 51, 10):
        state = {"step": step, "epoch": step // 20, "best": {"step": min(step, 20)}}
        checkpoint.save(tmp_path / "checkpoints", state, TENSORS)
    rows = [{"step": 20, "loss": 1.0}, {"step": 20, "dev.loss": 0.25, "dev.accuracy": 0.875}]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


@pytest.fixture
def call(output, capsys):
    """call(action, *words) → (exit code, stdout, stderr)."""

    def run(action: str, *words: str) -> tuple[int, str, str]:
        code = command("checkpoint", action, output, *words)
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def steps(output: Path) -> list[int]:
    return [checkpoint.step_of(path) for path in checkpoint.listed(output / "checkpoints")]


def cut(output: Path, step: int) -> None:
    os.truncate(output / "checkpoints" / f"step-{step:08d}" / "model.pdparams", 1000)


class TestList:
    def test_has_a_row_for_each_with_its_marks_and_figures(self, call):
        code, out, _ = call("ls")
        rows = [line.split() for line in out.splitlines()]
        assert code == 0
        assert [row[0] for row in rows] == ["step", "10", "20", "30", "40", "50"]
        assert [row[1] for row in rows[1:]] == ["0", "1", "1", "2", "2"]
        assert all(row[4:6] == ["0.4", "MB"] for row in rows[1:])
        assert rows[2][6:] == ["0.8750", "0.2500", "best"]
        assert rows[5][6:] == ["newest"]
        assert rows[1][6:] == []

    def test_a_cut_one_is_seen_and_is_not_the_newest(self, output, call):
        cut(output, 50)
        lines = call("ls")[1].splitlines()
        assert "BROKEN: model.pdparams is not what was written" in lines[5]
        assert lines[4].endswith("newest")

    def test_before_the_first(self, output, call):
        call("rm", "10", "20", "30", "40", "50", "--force")
        assert call("ls")[:2] == (0, "step  epoch  saved  size  dev accuracy  dev loss\n"
                                     "no checkpoint yet\n")  # fmt: skip

    def test_imports_no_paddle(self, output):
        code = (
            "import sys\nfrom fleetbert.cli import main as cli\n"
            f"try:\n    cli.main(['checkpoint', 'verify', {str(output)!r}])\n"
            "except SystemExit: print('paddle' in sys.modules)"
        )
        done = fresh.python(code)
        assert done.stdout.endswith("step-00000050: whole\nFalse\n"), done.stderr


def test_verify_finds_a_flipped_byte_and_names_its_file(output, call):
    code, out, err = call("verify")
    assert (code, out.count(": whole\n"), err) == (0, 5, "")
    tiny_job.flip(output / "checkpoints" / "step-00000030" / "optimizer.pdopt")
    assert "BROKEN" not in call("ls")[1]
    code, out, err = call("verify")
    assert code == 2
    assert "step-00000030: optimizer.pdopt is not what was written" in out
    assert out.count(": whole\n") == 4
    assert err.startswith("error: 1 broken")


class TestRemove:
    @pytest.mark.parametrize(("step", "kind"), [("20", "best"), ("50", "newest whole")])
    def test_the_best_and_the_newest_need_force(self, output, call, step, kind):
        code, _, err = call("rm", "10", step)
        assert code == 2
        assert f"step {step} is the {kind} checkpoint; nothing was removed" in err
        assert steps(output) == [10, 20, 30, 40, 50]
        assert call("rm", step, "--force")[0] == 0
        assert int(step) not in steps(output)

    def test_a_broken_one_is_not_the_newest(self, output, call):
        cut(output, 50)
        assert "step 40 is the newest whole" in call("rm", "40")[2]
        assert call("rm", "50")[0] == 0
        assert steps(output) == [10, 20, 30, 40]

    @pytest.mark.parametrize(
        ("words", "left", "removed"),
        [
            (["40", "10"], [20, 30, 50], [40, 10]),
            (["--keep", "2"], [20, 40, 50], [10, 30]),
            (["--keep", "9"], [10, 20, 30, 40, 50], []),
            (["--keep", "1", "--force"], [50], [10, 20, 30, 40]),
        ],
    )
    def test_steps_and_all_but_the_newest(self, output, call, words, left, removed):
        code, out, _ = call("rm", *words)
        assert code == 0
        told = [f"removed step-{step:08d}, 0.4 MB\n" for step in removed]
        assert out == "".join(told)
        assert steps(output) == left

    @pytest.mark.parametrize(
        ("words", "sentence"),
        [
            ([], "give either steps to remove or --keep N"),
            (["10", "--keep", "1"], "give either"),
            (["--keep", "0"], "at least 1"),
            (["10", "15"], "no checkpoint of step 15; there are: 10, 20, 30, 40, 50"),
        ],
    )
    def test_mistakes_remove_nothing(self, output, call, words, sentence):
        code, _, err = call("rm", *words)
        assert (code, sentence in err) == (2, True)
        assert steps(output) == [10, 20, 30, 40, 50]

    def test_leftovers_of_killed_writers_go_and_what_is_being_written_stays(self, output, call):
        folder = output / "checkpoints"
        names = (".writing-killed", ".removing-step-00000005", ".writing-alive", "mine")
        for name in names:
            (folder / name).mkdir()
            (folder / name / "model.pdparams").write_bytes(b"half")
        descriptor = os.open(folder / ".writing-alive", os.O_RDONLY)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            assert "3 unfinished" in call("ls")[1]
            out = call("rm", "--keep", "9")[1]
        finally:
            os.close(descriptor)
        assert sorted(out.splitlines()) == [
            "removed .removing-step-00000005, left by a killed run",
            "removed .writing-killed, left by a killed run",
        ]
        assert {name for name in names if (folder / name).exists()} == {".writing-alive", "mine"}


def test_not_an_output_dir(tmp_path, capsys):
    assert command("checkpoint", "ls", tmp_path) == 2
    assert "give the output_dir of a training job" in capsys.readouterr().err

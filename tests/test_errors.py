"""How a command ends: exit codes and what is printed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from fleetbert import errors


@pytest.fixture
def ended(capsys):
    """ended(main, *words) → (exit code, stderr)."""

    def call(main, *words: str):
        with pytest.raises(SystemExit) as caught:
            errors.run(main, list(words))
        return caught.value.code, capsys.readouterr().err

    return call


def raising(error):
    def main(argv):
        raise error

    return main


@pytest.mark.parametrize(("value", "code"), [(None, 0), (0, 0), (3, 3)])
def test_what_main_returns_is_the_exit_code(ended, value, code):
    assert ended(lambda argv: value) == (code, "")


def test_user_error_is_one_line(ended):
    code, said = ended(raising(errors.UserError("data.train: no such file")))
    assert (code, said) == (2, "error: data.train: no such file\n")


@pytest.mark.parametrize("words", [("--debug", "a=1"), ("a=1", "--debug")])
def test_debug_shows_the_stack_and_is_not_seen_by_main(words):
    seen = []

    def main(argv):
        seen.extend(argv)
        raise errors.UserError("x")

    with pytest.raises(errors.UserError):
        errors.run(main, list(words))
    assert seen == ["a=1"]


def no_temporary_folder(argv):
    raise FileNotFoundError(2, "No usable temporary directory found in ['/x']")


@pytest.mark.parametrize(
    ("main", "said"),
    [
        (raising(OSError(28, "No space left on device")), "No space left on device; make room"),
        (raising(OSError(30, "Read-only file system", "/x/y")), "/x/y: Read-only file system; "),
        (raising(PermissionError(13, "Permission denied", "/x")), "/x: Permission denied; "),
        (no_temporary_folder, "TMPDIR: no temporary folder can be written; set TMPDIR"),
    ],
)
def test_what_the_machine_refuses_is_one_line(ended, main, said):
    code, line = ended(main)
    assert code == 2
    assert line.startswith(f"error: {said}")
    assert line.count("\n") == 1


def test_other_errors_of_the_system_are_bugs():
    with pytest.raises(FileNotFoundError):
        errors.run(raising(FileNotFoundError(2, "No such file or directory", "/x")), [])


def test_ctrl_c_that_saved_is_130(ended):
    assert ended(raising(errors.Interrupted("saved"))) == (130, "stopped: saved\n")


def test_stopped_is_143(ended):
    assert ended(raising(errors.Stopped("saved step 3"))) == (143, "stopped: saved step 3\n")


def test_ctrl_c_is_130_without_a_stack(ended):
    assert ended(raising(KeyboardInterrupt())) == (130, "interrupted\n")


def test_a_bug_keeps_its_stack():
    with pytest.raises(ZeroDivisionError):
        errors.run(raising(ZeroDivisionError()), [])


def test_a_closed_pipe_is_silent():
    code = (
        "from fleetbert import errors\n"
        "def main(argv):\n"
        "    for n in range(10**6): print(n)\n"
        "errors.run(main, [])\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout.readline() == b"0\n"
    process.stdout.close()
    said = process.stderr.read()
    process.stderr.close()
    assert (process.wait(), said) == (141, b"")


@pytest.mark.parametrize(("rank", "code"), [(True, 0), (False, -signal.SIGABRT)])
def test_a_rank_leaves_without_the_teardown_of_paddle(rank, code):
    """A module named paddle that aborts at the end stands for Paddle's own libraries."""
    script = (
        "import atexit, os, sys, types\n"
        "from fleetbert import errors\n"
        "sys.modules['paddle'] = types.ModuleType('paddle')\n"
        "atexit.register(os.abort)\n"
        "errors.run(lambda argv: print('done'))\n"
    )
    environ = {**os.environ, **({"PADDLE_TRAINER_ID": "0"} if rank else {})}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environ, stdout=subprocess.PIPE, text=True
    )
    assert done.returncode == code
    assert not rank or done.stdout == "done\n"

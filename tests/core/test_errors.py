"""How a command ends: exit codes and what is printed."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from fresh import python

from fleetbert.core import errors


@pytest.fixture
def ended(capsys):
    """ended(main, *words) → (exit code, stderr)."""

    def call(main, *words: str):
        with pytest.raises(SystemExit) as caught:
            errors.run(main, list(words))
        return caught.value.code, capsys.readouterr().err

    return call


@pytest.mark.parametrize("says", [True, False])
def test_an_error_says_by_its_cause_whether_the_machine_refused(says):
    """Not by what else was on its way when it was raised."""
    with pytest.raises(errors.UserError) as caught:
        try:
            raise FileNotFoundError
        except OSError as error:
            raise errors.UserError("it cannot be read") from (error if says else None)
    assert errors.of_system(caught.value) == says


def raising(error):
    def main(argv):
        raise error

    return main


@pytest.mark.parametrize(("value", "code"), [(None, 0), (0, 0), (3, 3)])
def test_what_main_returns_is_the_exit_code(ended, value, code):
    assert ended(lambda argv: value) == (code, "")


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (errors.UserError("data.train: no such file"), 2, "error: data.train: no such file"),
        (errors.Interrupted("saved"), 130, "stopped: saved"),
        (errors.Stopped("saved step 3"), 143, "stopped: saved step 3"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_what_is_no_bug_is_one_line(ended, error, code, sentence):
    assert ended(raising(error)) == (code, f"{sentence}\n")


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
    ("main", "sentence"),
    [
        (raising(OSError(28, "No space left on device")), "No space left on device; make room"),
        (raising(IsADirectoryError(21, "Is a directory", "/x.json")), "/x.json: Is a directory; "),
        (raising(OSError(30, "Read-only file system", "/x/y")), "/x/y: Read-only file system; "),
        (raising(PermissionError(13, "Permission denied", "/x")), "/x: Permission denied; "),
        (no_temporary_folder, "TMPDIR: no temporary folder can be written; set TMPDIR"),
    ],
)
def test_what_the_machine_refuses_is_one_line(ended, main, sentence):
    code, line = ended(main)
    assert code == 2
    assert line.startswith(f"error: {sentence}")
    assert line.count("\n") == 1


@pytest.mark.parametrize(
    "error", [ZeroDivisionError(), FileNotFoundError(2, "No such file or directory", "/x")]
)
def test_a_bug_keeps_its_stack(error):
    with pytest.raises(type(error)):
        errors.run(raising(error), [])


def test_a_closed_pipe_is_silent():
    code = (
        "from fleetbert.core import errors\n"
        "def main(argv):\n"
        "    for n in range(10**6): print(n)\n"
        "errors.run(main, [])\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout.readline() == b"0\n"
    process.stdout.close()
    output = process.stderr.read()
    process.stderr.close()
    assert (process.wait(), output) == (141, b"")


def test_closed_standard_streams_are_opened(tmp_path):
    """As some daemons start others: a file would get their numbers."""
    code = (
        "import sys\nfrom fleetbert.core import errors\n"
        "def main(argv):\n"
        "    print(sys.stdin.buffer.read())\n"
        "    print(1, file=sys.stderr)\n"
        "    with open(argv[0], 'w') as file: file.write(str(file.fileno()))\n"
        "errors.run(main)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "done")]
    subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command], check=True)
    assert int((tmp_path / "done").read_text()) > 2


@pytest.mark.parametrize(("rank", "code"), [(True, 0), (False, -signal.SIGABRT)])
def test_a_rank_leaves_without_the_teardown_of_paddle(rank, code):
    """A module named paddle that aborts at the end stands for Paddle's own libraries."""
    script = (
        "import atexit, os, sys, types\n"
        "from fleetbert.core import errors\n"
        "sys.modules['paddle'] = types.ModuleType('paddle')\n"
        "atexit.register(os.abort)\n"
        "errors.run(lambda argv: print('done'))\n"
    )
    done = python(script, PADDLE_TRAINER_ID="0" if rank else None)
    assert done.returncode == code
    assert not rank or done.stdout == "done\n"

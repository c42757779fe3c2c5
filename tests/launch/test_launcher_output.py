"""`fleetbert launch`: the merged log, each process's own, the terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import shlex
import struct
import subprocess
import termios
import time

import launched
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetbert.launch.output import LINE_LIMIT, Lines

ONE = ("--servers", "1", "--trainers", "1")
TWO = ("--servers", "1", "--trainers", "2")
QUIET_SERVER = """
if is_server:
    wait_for(run / "stop")
    sys.exit()
"""
STOP = "touch(run / 'stop')\n"


def cut(data: bytes) -> list[bytes]:
    lines = Lines()
    return lines.feed(data) + lines.close()


@given(st.lists(st.sampled_from([b"a", b"\n", b"\r", b"\r\n", b"\xff", b"  ", b"bc"])), st.data())
def test_lines_do_not_depend_on_how_the_bytes_arrive(parts, data):
    whole = b"".join(parts)
    lines, found = Lines(), []
    while whole:
        size = data.draw(st.integers(1, len(whole)))
        found += lines.feed(whole[:size])
        whole = whole[size:]
    assert found + lines.close() == cut(b"".join(parts))


@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"a\r\nb\r\n", [b"a", b"b"]),
        (b"\r10%\r20%\r30%\nnext\n", [b"30%", b"next"]),
        (b"10%\r20%\r", [b"20%"]),
        (b"\r 50%\r      \rmessage\n\r 60%", [b"message", b" 60%"]),
        (b"\r  \r", [b"  "]),
        (b"a\n\nb", [b"a", b"", b"b"]),
        (b"\xff\xfe\x00\n", [b"\xff\xfe\x00"]),
    ],
)
def test_what_a_line_looks_like_in_the_end(data, lines):
    assert cut(data) == lines


def test_a_line_without_end_does_not_fill_the_memory():
    lines = Lines()
    for _ in range(40):
        found = lines.feed(b"x" * (1 << 16))
        assert all(len(line) <= LINE_LIMIT + (1 << 16) for line in found)
    assert len(lines.rest) <= LINE_LIMIT
    for _ in range(1000):
        assert lines.feed(b"a bar of some length\r") == []
    assert len(lines.rest) < 100


def test_the_logs_hold_every_byte_of_every_process(launch):
    """Pieces of lines, bytes that are no UTF-8, long lines, from three processes at once."""
    body = """
import random
rng = random.Random(name)
(here / f"{name}.pieces").mkdir()
written = []
for n in range(300):
    piece = rng.choice([b"\\n", b"word ", b"\\xff\\xfe\\x80", b"x" * 70000, "ü".encode()])
    os.write(rng.choice([1, 2]) if name != "trainer.0" else 2, piece)
    written.append(piece)
(here / f"{name}.written").write_bytes(b"".join(written))
touch(run / f"{name}.done")
wait_for(*(run / f"{n}.done" for n in ("server.0", "trainer.0", "trainer.1")))
"""
    job = launch(body, *TWO)
    assert job.ended() == 0, job.stderr
    merged = job.merged
    for name in ("server.0", "trainer.0", "trainer.1"):
        written = (job.folder / f"{name}.written").read_bytes()
        assert (job.folder / "log" / f"{name}.log").read_bytes() == written
        prefix = f"[{name.replace('.', ' ')}] ".encode()
        lines = [line[len(prefix) :] for line in merged if line.startswith(prefix)]
        whole = b"".join(line + b"\n" * (len(line) <= LINE_LIMIT) for line in lines)
        assert whole.rstrip(b"\n") == written.rstrip(b"\n")
    assert all(line.startswith((b"[launch] ", b"[server ", b"[trainer ")) for line in merged)


def test_the_terminal_shows_trainer_0_only(launch):
    body = """
print("out of", name)
print("err of", name, file=sys.stderr)
print("no end of line", name, end="")
"""
    job = launch(body, *TWO)
    assert job.ended() == 0
    assert job.stdout == "out of trainer.0\nno end of line trainer.0"
    assert job.stderr == "err of trainer.0\n"
    assert b"[trainer 1] err of trainer.1" in job.merged
    assert b"[server 0] no end of line server.0" in job.merged


def test_the_last_lines_are_few_and_short(launch):
    body = """
if name == "trainer.1":
    for n in range(1000):
        print("line", n)
    print("y" * 100000)
    sys.exit(1)
wait_for(run / "never")
"""
    job = launch(body, *TWO)
    assert job.ended() == 1
    lines = [line for line in job.stderr.splitlines() if line.startswith("[trainer 1]")]
    assert lines[:-1] == [f"[trainer 1] line {n}" for n in range(981, 1000)]
    assert lines[-1] == f"[trainer 1] {'y' * 2000} ..."


def test_a_message_of_the_launchers_starts_a_line(launch):
    job = launch(QUIET_SERVER + "os.write(2, b'\\r 10%'); os.abort()", *ONE)
    assert job.ended() == 134
    assert b"\r 10%\nlaunch: trainer 0 crashed" in (job.folder / "stderr.txt").read_bytes()


@pytest.mark.slow
def test_a_new_job_appends_to_the_logs_and_two_at_once_are_refused(launch, tmp_path):
    logs = ("--log_dir", str(tmp_path / "logs"))
    first = launch("touch(run / name); print('first')\nwait_for(here / 'go')", *ONE, *logs)
    first.wait_until_all_run(("server.0", "trainer.0"))
    second = launch("print('second')", *ONE, *logs)
    assert second.ended() == 2
    assert re.fullmatch(
        f"error: --log_dir {logs[1]}: process {first.popen.pid} \\(`.* launch .*`\\) is writing "
        "it; name another folder\n",
        second.stderr,
    )
    (first.folder / "go").touch()
    assert first.ended() == 0
    assert launch("print('third')", *ONE, *logs).ended() == 0
    merged = (tmp_path / "logs" / "merged.log").read_text()
    assert [line for line in merged.splitlines() if line.startswith("[trainer 0]")] == [
        "[trainer 0] first",
        "[trainer 0] third",
    ]
    assert merged.count("[launch] ") == 2


def test_a_full_disk_does_not_end_the_job(launch, tmp_path):
    """/dev/full stands for it."""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "trainer.0.log").symlink_to("/dev/full")
    body = QUIET_SERVER + "print('one', flush=True); print('two', flush=True)\n" + STOP
    job = launch(body, *ONE, "--log_dir", str(tmp_path / "logs"))
    assert job.ended() == 0
    assert job.stdout == "one\ntwo\n"
    assert job.stderr.count("trainer.0.log: No space left on device; lines are missing") == 1


@pytest.mark.slow
def test_a_reader_that_goes_away_does_not_end_the_job(tmp_path):
    """`fleetbert launch ... | head -1`"""
    lines = "for n in range(9999):\n    print('line', n)\ntouch(here / 'done')\n"
    command, how = launched.prepare(tmp_path, QUIET_SERVER + lines + STOP, *ONE)
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{shlex.join(command)} | head -1"],
        **how, capture_output=True, text=True, timeout=launched.DEADLINE,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "line 0\n", "")
    assert (tmp_path / "done").exists()


@pytest.mark.slow
def test_a_reader_that_stalls_does_not_stall_the_job(tmp_path):
    """Nobody reads the pipe, which holds 64 KB; as Ctrl-S on a terminal."""
    body = QUIET_SERVER + "os.write(1, b'x' * 300000 + b'\\n')\ntouch(here / 'done')\n" + STOP
    command, how = launched.prepare(tmp_path, body, *ONE)
    process = subprocess.Popen(command, **how, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.wait(timeout=launched.DEADLINE) == 0
        assert (tmp_path / "done").exists()
        assert (tmp_path / "log" / "trainer.0.log").stat().st_size == 300001
    finally:
        process.kill()
        process.communicate()


def test_closed_streams_are_no_trouble(tmp_path):
    """The launcher's own pipes do not take their places, nor its orphan reaper one for it."""
    body = "time.sleep(0.5)  # for a reaper that is wrong\nprint(name, run.is_dir())\n"
    command, how = launched.prepare(tmp_path, body, *ONE)
    closed = f"{shlex.join(command)} <&- >&- 2>&-"
    assert subprocess.run(["bash", "-c", closed], **how).returncode == 0
    merged = (tmp_path / "log" / "merged.log").read_bytes().splitlines()
    assert sorted(merged[1:]) == [b"[server 0] server.0 True", b"[trainer 0] trainer.0 True"]


def test_a_progress_bar_on_a_terminal(tmp_path):
    """On a terminal trainer 0 has a terminal of the same size; what it writes arrives as it would
    without a launcher, and the merged log has the bar once."""
    bars = """
size = os.get_terminal_size(2)
print(sys.stdout.isatty(), sys.stderr.isatty(), size.columns, size.lines, flush=True)
for n in range(0, 101, 10):
    print(f"\\r{n}%|" + "#" * (n // 10), end="", file=sys.stderr)
print("", file=sys.stderr)
print("done")
"""
    command, how = launched.prepare(tmp_path, QUIET_SERVER + bars + STOP, *ONE)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 43, 117, 0, 0))
    process = subprocess.Popen(
        command,
        **how,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    said, until = b"", time.monotonic() + launched.DEADLINE
    try:
        while time.monotonic() < until:
            if select.select([ours], [], [], 0.1)[0]:
                try:
                    said += os.read(ours, 4096)
                except OSError:  # its end
                    break
        assert process.wait(timeout=launched.DEADLINE) == 0, said
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    bar = b"".join(b"\r%d%%|" % n + b"#" * (n // 10) for n in range(0, 101, 10))
    assert said == b"True True 117 43\r\n" + bar + b"\r\ndone\r\n"
    merged = (tmp_path / "log" / "merged.log").read_bytes().split(b"\n")
    assert [line for line in merged if line.startswith(b"[trainer 0]")] == [
        b"[trainer 0] True True 117 43",
        b"[trainer 0] 100%|##########",
        b"[trainer 0] done",
    ]

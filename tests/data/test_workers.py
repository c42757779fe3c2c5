"""Processes beside this one."""

from __future__ import annotations

import subprocess
import sys

import fresh
import pytest

START = """
import sys
from fleetbert.core import errors
from fleetbert.data import workers

def main(argv):
    with workers.start(1) as pool:
        print(pool.submit(len, "abc").result())

if __name__ == "__main__":
    errors.run(main)
"""


def run(folder, script: str) -> subprocess.CompletedProcess:
    (folder / "start.py").write_text(script)
    return fresh.run("start.py", cwd=folder)


def test_a_script_that_would_run_again_is_refused(tmp_path):
    done = run(tmp_path, START.replace('if __name__ == "__main__":\n    ', ""))
    assert done.returncode == 2, done.stderr
    assert "start.py: processes that read beside the training" in done.stderr
    assert "put them below `if __name__ == '__main__':`, or set data.num_workers=0" in done.stderr
    assert done.stderr.count("\n") == 1
    done = run(tmp_path, START)
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr


DIES = """
import os
if __name__ != "__main__":
    os._exit(1)
from concurrent.futures.process import BrokenProcessPool
from fleetbert.data import workers

with workers.start(1, print, b"a" * (1 << 20)) as pool:
    try:
        pool.submit(len, "abc").result()
    except BrokenProcessPool:
        print("told")
"""


def test_one_that_dies_at_once_is_not_waited_for(tmp_path):
    """Even where more is sent to it than a pipe holds."""
    done = run(tmp_path, DIES)
    assert (done.returncode, done.stdout) == (0, "told\n"), done.stderr


@pytest.mark.parametrize(
    ("option", "why"), [("nr_inodes=1", "No space left on device"), ("ro", "Read-only file system")]
)
def test_a_full_or_forbidden_shm_is_named(tmp_path, option, why):
    """A /dev/shm of its own, as a container has one."""
    (tmp_path / "start.py").write_text(START)
    mount = f"mount -t tmpfs -o {option} none /dev/shm"
    if subprocess.run(["unshare", "-m", "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("may not mount here")
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", f"{mount} && exec {sys.executable} start.py"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(f"error: /dev/shm: {why}, so that no process can be started")
    assert done.stderr.count("\n") == 1

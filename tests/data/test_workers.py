"""Processes beside this one."""

from __future__ import annotations

import subprocess
import sys

import pytest

START = """
import sys
from fleetbert import errors
from fleetbert.data import workers

def main(argv):
    with workers.start(1) as pool:
        print(pool.submit(len, "abc").result())

if __name__ == "__main__":
    errors.run(main)
"""


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

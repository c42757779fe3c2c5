"""SIGTERM and Ctrl-C in the middle of the import of Paddle."""

from __future__ import annotations

import signal

import fresh
import pytest

PROGRAM = """
import importlib.abc, os, subprocess, sys, time
from fleetbert.compat import environment
from fleetbert.core import errors, stopping

class Moment(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == sys.argv[1]:
            number, delay = sys.argv[2:]
            words = ["sh", "-c", f"sleep {delay}; kill -{number} {os.getpid()}"]
            (subprocess.run if delay == "0" else subprocess.Popen)(words)

def main(words):
    stopping.expect("start the same command again")
    sys.meta_path.insert(0, Moment())
    try:
        environment.import_paddle()
        time.sleep(60)
    except Exception as error:
        print(type(error).__name__)
        raise

errors.run(main)
"""

TERMINATED = (143, "stopped: SIGTERM: nothing is half written; start the same command again\n")
INTERRUPTED = (130, "interrupted\n")


@pytest.mark.parametrize(
    ("module", "delay"),
    [
        ("paddle.base.core", 0),
        ("paddle.base.core", 0.1),  # libpaddle is being loaded
        ("paddle.vision", 0),  # Paddle has put its own handler in place
    ],
)
@pytest.mark.parametrize(
    ("number", "end"), [(signal.SIGTERM, TERMINATED), (signal.SIGINT, INTERRUPTED)]
)
def test_a_signal_waits_for_the_import_of_paddle(module, delay, number, end):
    ended = fresh.python(PROGRAM, module, int(number), delay)
    assert (ended.returncode, ended.stderr) == end

"""The device fp16sim (README.md): how to build it, use it and count with it."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def calls(kernel: str) -> int:
    """How often this process has run a float16 kernel, by phi's name; -1 if there is none."""
    library = ctypes.CDLL(str(Path(os.environ["CUSTOM_DEVICE_ROOT"]) / "libfp16sim.so"))
    library.fp16sim_calls.restype = ctypes.c_long
    return library.fp16sim_calls(kernel.encode())


def run_pytest(path: Path, environment: dict[str, str]) -> None:
    """Run the tests of a file in a process with the device (`environment` of the fixture
    `fp16sim`): Paddle looks for devices when it is imported, and never again."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout

"""The C++ programs of deploy/lite, built once for all tests."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
CACHE = ROOT / ".cache" / "lite"
PACKAGES = ("libutf8proc", "nlohmann_json", "cpp-httplib")


def missing() -> str | None:
    """What the programs cannot be built without and this machine does not have, or None."""
    for tool in ("cmake", "g++", "pkg-config"):
        if shutil.which(tool) is None:
            return f"deploy/lite needs {tool}"
    for package in PACKAGES:
        if subprocess.run(["pkg-config", "--exists", package]).returncode:
            return f"deploy/lite needs the library {package} (.ci/packages installs it)"
    return None


@pytest.fixture(scope="session")
def programs() -> Path:
    """The folder with the C++ programs. CMake builds anew only what has changed."""
    reason = missing()
    if reason:
        pytest.skip(reason)
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run("cmake", "-S", ROOT / "deploy" / "lite", "-B", CACHE / "build", *OPTIONS)
        run("cmake", "--build", CACHE / "build", "--parallel", "4")
    return CACHE / "build"


OPTIONS = ("-DFLEETBERT_TESTS=ON", "-DCMAKE_BUILD_TYPE=None", "-DCMAKE_CXX_FLAGS=-O1")


def run(*command) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert not done.returncode, f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"

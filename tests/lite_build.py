"""The C++ programs of deploy/lite, built once for each kind of processor that tests run them on."""

from __future__ import annotations

import fcntl
import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from boards import HERE

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".cache" / "lite"
CMAKE = Path(sys.executable).with_name("cmake")  # of requirements.lock
INSTALL = "`sudo .ci/packages` installs it on Debian and Ubuntu"
LIBRARIES = ("libutf8proc", "nlohmann_json")
BEAST = Path("/usr/include/boost/beast/core.hpp")  # headers without a package of pkg-config's
# All in few files: most of the time goes into the headers.
OPTIONS = (
    "-DFLEETBERT_TESTS=ON", "-DCMAKE_BUILD_TYPE=None",
    "-DCMAKE_UNITY_BUILD=ON", "-DCMAKE_UNITY_BUILD_BATCH_SIZE=0",
)  # fmt: skip
DEADLINE = 300  # seconds that a busy machine may take


class Kind(NamedTuple):
    """target: as bundles call the processor. triplet: Debian's name of another processor than this
    one, whose programs `emulator` runs."""

    target: str
    options: tuple[str, ...] = ()
    triplet: str = ""
    emulator: str = ""


KINDS = {
    "here": Kind(HERE),
    "sanitized": Kind(HERE, ("-DFLEETBERT_SANITIZE=ON",)),
    "aarch64": Kind("armv8", (), "aarch64-linux-gnu", "qemu-aarch64-static"),
    "armv7": Kind("armv7", (), "arm-linux-gnueabihf", "qemu-arm-static"),
}
# What the tests of deploy/lite run; without it those that say so run emulated too.
CHOSEN = os.environ.get("FLEETBERT_LITE_BUILDS", "").split()
EMULATED_TOO = pytest.mark.parametrize(
    "programs",
    CHOSEN or ["here", pytest.param("aarch64", marks=pytest.mark.slow)],
    indirect=True,
    scope="session",
)


class Build(NamedTuple):
    """folder: with the programs. target: as in `Kind`."""

    folder: Path
    target: str
    emulator: tuple[str, ...]

    def command(self, name: str, *words: Any) -> list[str]:
        """What starts one of the programs."""
        return [*self.emulator, str(self.folder / name), *map(str, words)]

    def run(self, name: str, *words: Any, text: str | bytes = "") -> subprocess.CompletedProcess:
        """Run it; text: its input."""
        given = text.encode() if isinstance(text, str) else text
        command = self.command(name, *words)
        return subprocess.run(command, input=given, capture_output=True, timeout=DEADLINE)


def answers_of(done: subprocess.CompletedProcess) -> list[Any]:
    """The lines of JSON that a program wrote."""
    return [json.loads(line) for line in done.stdout.splitlines()]


def refused(done: subprocess.CompletedProcess, *words: str) -> None:
    """A program ended with one line, and these words in it."""
    error = done.stderr.decode()
    assert (done.returncode, done.stdout) == (2, b"")
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    for word in words:
        assert word in error


def _missing(name: str) -> str | None:
    """What a kind of build needs and this machine does not have, in words, or None."""
    kind = KINDS[name]
    compiler = f"{kind.triplet}-g++" if kind.triplet else "g++"
    for tool in (compiler, "pkg-config", *filter(None, [kind.emulator])):
        if shutil.which(tool) is None:
            return f"deploy/lite, {name}, needs {tool}: {INSTALL}"
    environ = dict(os.environ)
    if kind.triplet:
        folders = (f"/usr/lib/{kind.triplet}/pkgconfig", "/usr/share/pkgconfig")
        environ["PKG_CONFIG_LIBDIR"] = ":".join(folders)
    if not BEAST.exists():
        return f"deploy/lite, {name}, needs libboost-dev: {INSTALL}"
    for library in LIBRARIES:
        if subprocess.run(["pkg-config", "--exists", library], env=environ).returncode:
            return f"deploy/lite, {name}, needs the library {library}: {INSTALL}"
    return None


@functools.lru_cache(maxsize=None)
def build(name: str) -> Build:
    """The programs of that kind, or the test is skipped. CMake builds anew only what changed."""
    reason = _missing(name)
    if reason:
        pytest.skip(reason)
    kind = KINDS[name]
    folder = CACHE / name
    # What is measured is what the programs say, and -O0 is soon compiled; emulated it is too slow.
    level = "-O1" if kind.emulator else "-O0"
    options = [*OPTIONS, f"-DCMAKE_CXX_FLAGS_NONE={level}", *kind.options]
    if kind.triplet:
        toolchain = ROOT / "deploy" / "lite" / "cmake" / f"{name}.cmake"
        options.append(f"-DCMAKE_TOOLCHAIN_FILE={toolchain}")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _run(CMAKE, "-S", ROOT / "deploy" / "lite", "-B", folder, *options)
        _run(CMAKE, "--build", folder, "--parallel", "2")
    # Without -L: the loader in /usr/TRIPLET is of another version than the C library that it would
    # find, and the first thread never starts.
    return Build(folder, kind.target, (kind.emulator,) if kind.emulator else ())


def _run(*command: Any) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert not done.returncode, f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"

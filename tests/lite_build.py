"""The C++ programs of deploy/lite, built once for each kind of processor that tests run them on."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from boards import HERE

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".cache" / "lite"
CMAKE = Path(sys.executable).with_name("cmake")  # of requirements.lock
INSTALL = "`sudo .ci/packages` installs it on Debian and Ubuntu"
LIBRARIES = ("libutf8proc", "nlohmann_json", "cpp-httplib")
OPTIONS = ("-DFLEETBERT_TESTS=ON", "-DCMAKE_BUILD_TYPE=None")


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
# What the tests of deploy/lite run.
CHOSEN = os.environ.get("FLEETBERT_LITE_BUILDS", "here aarch64").split()


class Build(NamedTuple):
    """folder: with the programs. target: as in `Kind`."""

    folder: Path
    target: str
    emulator: tuple[str, ...]

    def command(self, name: str, *words: Any) -> list[str]:
        """What starts one of the programs."""
        return [*self.emulator, str(self.folder / name), *map(str, words)]


def missing(name: str) -> str | None:
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
    for library in LIBRARIES:
        if subprocess.run(["pkg-config", "--exists", library], env=environ).returncode:
            return f"deploy/lite, {name}, needs the library {library}: {INSTALL}"
    return None


def build(name: str) -> Build:
    """The programs of that kind; `missing` has to be None. CMake builds anew only what changed."""
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
        _run(CMAKE, "--build", folder, "--parallel", "4")
    # Without -L: the loader in /usr/TRIPLET is of another version than the C library that it would
    # find, and the first thread never starts.
    return Build(folder, kind.target, (kind.emulator,) if kind.emulator else ())


def _run(*command: Any) -> None:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert not done.returncode, f"{done.stdout[-3000:]}\n{done.stderr[-6000:]}"

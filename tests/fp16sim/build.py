"""Builds the plug-in, once for each source and Paddle: `python tests/fp16sim/build.py`."""

from __future__ import annotations

import fcntl
import hashlib
import platform
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

from fleetbert.compat.versions import paddle_version

HERE = Path(__file__).resolve().parent
CACHE = HERE.parent.parent / ".cache" / "fp16sim"
PADDLES = ("2.6.2", "3.3.1")  # whose C++ classes the source knows
OPTIONS = ("-std=c++17", "-O0", "-mavx", "-mf16c", "-fPIC", "-shared", "-w")


def unusable() -> str | None:
    """Why the plug-in cannot be built or run here, or None."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return f"fp16sim is for x86-64 Linux, not {platform.system()} on {platform.machine()}"
    if "f16c" not in Path("/proc/cpuinfo").read_text().split():
        return "fp16sim needs a processor with F16C"
    if paddle_version() not in PADDLES:
        return f"fp16sim is for Paddle {' and '.join(PADDLES)}, not {paddle_version()}"
    if shutil.which("g++") is None:
        return "fp16sim needs g++"
    return None


def build() -> Path:
    """The folder with libfp16sim.so, for CUSTOM_DEVICE_ROOT. RuntimeError with g++'s words."""
    source = HERE / "fp16sim.cc"
    parts = [source.read_bytes(), (HERE / "stub" / "dnnl.hpp").read_bytes()]
    parts += [paddle_version().encode(), " ".join(OPTIONS).encode()]
    folder = CACHE / hashlib.sha256(b"|".join(parts)).hexdigest()[:16]
    if (folder / "libfp16sim.so").is_file():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be compiling it
        if not (folder / "libfp16sim.so").is_file():
            _compile(source, folder)
    return folder


def _compile(source: Path, folder: Path) -> None:
    paddle = Path(sysconfig.get_paths()["purelib"]) / "paddle"
    with tempfile.TemporaryDirectory(dir=CACHE) as aside:
        library = Path(aside, "libfp16sim.so")
        command = ["g++", *OPTIONS, f"-I{paddle}/include", f"-I{HERE}/stub", str(source)]
        command += ["-o", str(library), f"-L{paddle}/base", "-l:libpaddle.so"]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}\n{done.stderr[-3000:]}")
        folder.mkdir(exist_ok=True)
        library.replace(folder / library.name)


if __name__ == "__main__":
    print(unusable() or build())

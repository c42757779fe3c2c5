"""The machine and what is installed on it. Nothing here imports Paddle."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Callable, Iterator

from packaging.requirements import Requirement

from fleetbert.compat import cards, environment, versions
from fleetbert.core import files, limits
from fleetbert.doctor.findings import Finding, broken, not_here, ok

SHM = Path("/dev/shm")
SMALL_SHM = 64 << 20  # bytes; Docker's default, in which two ranks and a reader do not fit
DESCRIPTORS = 1024
EXTRAS = {
    "train": "training, import, quantization",
    "serve": "answers over HTTP and gRPC",
    "tracing": "OpenTelemetry",
    "lite": "models for ARM boards",
    "onnx": "models for ONNX Runtime",
    "tracking": "VisualDL logs",
    "paddlenlp": "models by PaddleNLP's names",
}
FLAGS = {
    "avx2": "fast float32",
    "avx512f": "faster float32",
    "avx512_vnni": "int8 with 8 bits",
    "avx512_bf16": "bfloat16",
    "amx_int8": "int8 in tiles",
    "amx_bf16": "bfloat16 in tiles",
}


def look() -> Iterator[Finding]:
    yield python()
    yield from packages()
    yield processors()
    yield memory()
    yield shared_memory()
    yield descriptors()
    yield from folders()
    yield card()


def python(version: tuple[int, ...] = sys.version_info[:3]) -> Finding:
    text = ".".join(map(str, version))
    first, last = versions.PYTHONS
    if first <= version[:2] <= last:
        return ok("Python", f"{text}, {platform.platform()}")
    return broken("Python", text, versions.OF_PYTHONS)


def packages(
    installed: Callable[[str], str] = importlib.metadata.version,
    required: Callable[[str], list[str] | None] = importlib.metadata.requires,
) -> Iterator[Finding]:
    """The packages that fleetbert needs, by the bounds that it was installed with."""
    try:
        needs = [Requirement(line) for line in required("fleetbert") or []]
    except importlib.metadata.PackageNotFoundError:
        yield not_here("packages", "fleetbert is not installed here", "pip install .")
        return
    wrong = _wrong(needs, None, installed)
    if wrong:
        install = " ".join(f"'{need.name}{need.specifier}'" for _, need in wrong)
        yield broken("packages", "; ".join(text for text, _ in wrong), f"pip install {install}")
    else:
        yield ok("packages", f"fleetbert {installed('fleetbert')}, {_versions(installed)}")
    for extra, purpose in EXTRAS.items():
        if wrong := _wrong(needs, extra, installed):
            remedy = f"pip install 'fleetbert[{extra}]'"
            yield not_here(f"extra {extra}", f"{wrong[0][0]} ({purpose})", remedy)


def _wrong(
    needs: list[Requirement], extra: str | None, installed: Callable[[str], str]
) -> list[tuple[str, Requirement]]:
    wrong = []
    for need in needs:
        of_extra = need.marker is not None and "extra" in str(need.marker)
        if of_extra != (extra is not None):
            continue
        if need.marker is not None and not need.marker.evaluate({"extra": extra or ""}):
            continue
        try:
            version = installed(need.name)
        except importlib.metadata.PackageNotFoundError:
            if not _is_bound_only(need):  # these are of what other packages may bring
                wrong.append((f"{need.name} is not installed", need))
            continue
        if not need.specifier.contains(version, prereleases=True):
            wrong.append((f"{need.name} {version}, where it must be {need.specifier}", need))
    return wrong


def _is_bound_only(need: Requirement) -> bool:
    return all(spec.operator == "<" for spec in need.specifier) and len(need.specifier) > 0


def _versions(installed: Callable[[str], str]) -> str:
    parts = []
    for name in ("paddlepaddle", "paddlepaddle-gpu", "paddlenlp", "numpy", "onnxruntime"):
        try:
            parts.append(f"{name} {installed(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join(parts)


def processors() -> Finding:
    cpuinfo = environment.cpuinfo()
    flags = set(cpuinfo.split())
    name = environment.machine(1)["processor"]
    has = [f"{flag} ({use})" for flag, use in FLAGS.items() if flag in flags]
    lacks = [flag for flag in FLAGS if flag not in flags]
    text = f"{name}; {limits.read()}; has {', '.join(has) or 'none of ' + ', '.join(FLAGS)}"
    if has and lacks:
        text += f"; lacks {', '.join(lacks)}"
    if cpuinfo and "avx2" not in flags and platform.machine() == "x86_64":
        return broken("processors", text, "Paddle's wheels need AVX2: take another machine")
    return ok("processors", text)


def memory() -> Finding:
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    may = min(pages, limits.read().memory or pages)
    text = f"{may / 2**30:.1f} GiB may be used of {pages / 2**30:.1f}"
    if may < 2 << 30:
        return broken("memory", text, "training a small encoder takes 2 GiB: raise the limit")
    return ok("memory", text)


def shared_memory(folder: Path | None = None) -> Finding:
    folder = folder or SHM
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        remedy = "mount it, e.g. docker run --shm-size 1g"
        return broken("shared memory", f"{folder}: {error.strerror}", remedy)
    text = f"{folder} has {free / 2**20:.0f} MiB free"
    if free < SMALL_SHM:
        remedy = f"free {SMALL_SHM >> 20} MiB for ranks and readers, or docker run --shm-size 1g"
        return broken("shared memory", text, remedy)
    return ok("shared memory", text)


def descriptors() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{soft} open files, {hard} when raised"
    if 0 <= hard < DESCRIPTORS:
        return broken("descriptors", text, f"ulimit -n {DESCRIPTORS} or more, for the server")
    return ok("descriptors", text)


def folders() -> Iterator[Finding]:
    """Where libraries and jobs write."""
    yield home(os.environ.get("HOME"), _first_home())
    remedies = {
        tempfile.gettempdir(): ("temporary folder", "set TMPDIR to a folder that can be written"),
        str(Path.cwd()): ("current folder", "jobs write output_dir there: change the folder"),
    }
    for folder, (name, remedy) in remedies.items():
        problem = _problem(folder)
        yield broken(name, f"{folder}: {problem}", remedy) if problem else ok(name, _room(folder))


def home(now: str | None, first: str | None) -> Finding:
    """HOME as it is now, and as this process was given it (`environment` changes it)."""
    given = first or now or str(files.home() or "")
    remedy = "set HOME to a folder that can be written"
    if not given:
        return broken("home", "this user has none", remedy)
    problem = _problem(given)
    if problem is None:
        return ok("home", _room(given))
    if now is not None and now != given and _problem(now) is None:
        text = f"{given} cannot be written ({problem}); libraries keep their files in {now}"
        return not_here("home", text, remedy)
    return broken("home", f"{given}: {problem}", remedy)


def _first_home() -> str | None:
    try:
        variables = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    homes = [os.fsdecode(v[len(b"HOME=") :]) for v in variables if v.startswith(b"HOME=")]
    return homes[0] if homes else None


def _problem(folder: str) -> str | None:
    """Why nothing can be written there."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder) as file:
            file.write(b"0" * 4096)
            file.flush()
    except OSError as error:
        return error.strerror or str(error)
    return None


def _room(folder: str) -> str:
    return f"{folder} can be written, {shutil.disk_usage(folder).free / 2**30:.1f} GiB free"


def card(ask: str = "nvidia-smi") -> Finding:
    """NVIDIA cards, their driver, and whether Paddle's wheel has kernels for them."""
    query = "--query-gpu=name,driver_version,compute_cap,memory.total"
    try:
        done = subprocess.run(
            [ask, query, "--format=csv,noheader"], capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return not_here("GPU", f"no {ask}: all runs on the CPU")
    if done.returncode or not done.stdout.strip():
        return broken("GPU", done.stderr.strip() or done.stdout.strip(), "mend the driver")
    listed = [line.split(", ") for line in done.stdout.strip().splitlines()]
    text = "; ".join(", ".join(parts) for parts in listed)
    version = cards.gpu_version()
    for _, _, capability, _ in listed:
        major, minor = map(int, capability.split("."))
        wrong = cards.problem((major, minor)) if version else "Paddle's wheel is the CPU's"
        if wrong:
            return broken("GPU", f"{text}: {wrong}", cards.wheel((major, minor)))
    return ok("GPU", f"{text}; paddlepaddle-gpu {version}")

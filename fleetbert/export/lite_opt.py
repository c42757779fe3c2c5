"""Paddle Lite's converter `opt`, in a process of its own.

It aborts on what it does not like, and its wheels stop at Python 3.10, so it may have to run in
another Python than this one.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Iterator, Mapping, NamedTuple, Sequence

import numpy as np

from fleetbert.core import files
from fleetbert.core.errors import UserError

log = logging.getLogger(__name__)

PACKAGE = "paddlelite==2.13rc0"
PYTHONS = ("3.10", "3.9", "3.8")
PROCESS = Path(__file__).with_name("lite_process.py")

Batch = Sequence[np.ndarray]


class Converted(NamedTuple):
    """folder: with the .nb files alone; versions: of the converter; kernels: what they need of an
    engine, such as "fc,kARM,kFloat,kNCHW,def"; answers: logits of the batches, if there were
    any."""

    folder: Path
    versions: dict[str, str]
    kernels: list[str]
    answers: list[np.ndarray]


def convert(
    parts: Mapping[str, Path],
    folder: Path,
    target: str,
    *,
    float16: bool = False,
    bits: int | None = None,
    batches: Sequence[Batch] = (),
) -> Converted:
    """Convert the programs (model.pdmodel and model.pdiparams) in the folders `parts` to files of
    these names in `folder`.

    target: places as opt names them: "arm", "x86", "opencl,arm". bits: 8 or 16 makes integers of
    the weights. batches: input_ids and token_type_ids to answer with the converted model, which
    then has to be for x86. They go through all parts: of those after the first, each takes what the
    one before answered, and the token ids.
    UserError if there is no converter, or it fails.
    """
    folder = folder.resolve()  # the converter runs in a folder of its own
    folder.mkdir()
    kernels: set[str] = set()
    inputs = batches
    for name, source in parts.items():
        log.info(f"lite: converting {name} for {target}")
        work = folder.with_name(f"{folder.name}-{name}")
        work.mkdir()
        done = _convert(source, work, target, float16, bits, inputs)
        (work / "model.nb").rename(folder / name)
        kernels.update(done.kernels)
        inputs = [(state, ids) for state, (ids, _) in zip(done.answers, batches)]
    return done._replace(folder=folder, kernels=sorted(kernels))


def _convert(
    source: Path,
    folder: Path,
    target: str,
    float16: bool,
    bits: int | None,
    batches: Sequence[Batch],
) -> Converted:
    """Convert one of them to model.nb in `folder`."""
    job: dict[str, Any] = {
        "model": str((source / "model.pdmodel").resolve()),
        "params": str((source / "model.pdiparams").resolve()),
        "out": "model",  # in `folder`: opt gives it to a shell, which would break it at blanks
        "target": target,
        "float16": float16,
        "integers": f"QUANT_INT{bits}" if bits else "",
    }
    if batches:
        job["batches"] = str(folder / "batches.npz")
        job["answers"] = str(folder / "answers.npz")
        named = {
            f"{s}{n}": values for n, pair in enumerate(batches) for s, values in zip("ab", pair)
        }
        np.savez(job["batches"], **named)
    python, environ = find_python()
    done = subprocess.run(
        [python, "-", json.dumps(job)],  # not by its path: the modules beside it would be found
        input=PROCESS.read_text(encoding="utf-8"),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environ,
        text=True,
        errors="replace",
    )
    about = folder / "model.json"
    if done.returncode or not about.is_file() or not (folder / "model.nb").is_file():
        raise UserError(
            f"Paddle Lite's converter could not convert {source} for {target}: "
            f"{_reason(done.stdout) or f'exit code {done.returncode}'}; try another --precision"
        )
    info = json.loads(about.read_text())
    answers = []
    if batches:
        with np.load(job["answers"]) as arrays:
            answers = [arrays[f"a{number}"] for number in range(len(batches))]
    versions = {name: info[name] for name in ("opt", "paddlelite", "python")}
    return Converted(folder, versions, info["kernels"], answers)


def find_python() -> tuple[str, dict[str, str]]:
    """A Python that has Paddle Lite and NumPy, and the environment to start it with.

    This one if it can; else the first that the machine has.
    """
    if _works(sys.executable, dict(os.environ)):
        return sys.executable, dict(os.environ)
    # Packages on these paths are for this Python.
    environ = {n: v for n, v in os.environ.items() if n not in ("PYTHONPATH", "PYTHONHOME")}
    for python in _pythons():
        if _works(python, environ):
            return python, environ
    raise UserError(
        "Paddle Lite's converter is not installed: it needs Python 3.8 to 3.10 on x86-64 Linux; "
        f"install it with `python3.10 -m pip install {PACKAGE} numpy`, which any Python may then "
        "use from here"
    )


def _works(python: str, environ: dict[str, str]) -> bool:
    try:
        done = subprocess.run(
            [python, "-c", "import numpy; from paddlelite import lite"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environ,
            timeout=300,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _pythons() -> Iterator[str]:
    """Paths of other Pythons, the preferred version first: on PATH, then those of pyenv."""
    pyenv = (
        Path(os.environ.get("PYENV_ROOT", (files.home() or files.NOWHERE) / ".pyenv")) / "versions"
    )
    for version in PYTHONS:
        path = shutil.which(f"python{version}")
        if path:
            yield path
        yield from map(str, sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True))
    path = shutil.which("python3")
    if path:
        yield path


def _reason(output: str) -> str:
    """The line of the converter's output that says most."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    failed = [line for line in lines if "Check failed" in line or "Error" in line]
    return (failed or lines or [""])[-1]

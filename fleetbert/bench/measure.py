"""What both benchmarks share: workers that take turns, medians, tables.

Machines are shared and noisy. So both sides run in one go and by turns, in an order that rotates
every round, and what is compared is the ratio within a round; its median counts.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable, NamedTuple, Sequence

from fleetbert import files
from fleetbert.engines.evaluate import align
from fleetbert.errors import UserError

log = logging.getLogger(__name__)

# Idle thread pools spin before they sleep: Intel's OpenMP, inside Paddle, for 0.2 s.
PAUSE = 0.5
PEERS = Path(__file__).parent
DEFAULT_PEER = ".venv-bench/bin/python"


class Segment(NamedTuple):
    """One engine's turn in one round. `load` is the machine's 1-minute load just before it."""

    round: int
    engine: str
    load: float
    texts: int
    tokens: int  # without padding
    seconds: float
    cpu_seconds: float
    peak_mb: float

    @property
    def texts_per_s(self) -> float:
        return self.texts / max(self.seconds, 1e-9)


class Worker:
    """A measured process: `hello` is what it says when it is ready, `ask` makes it work."""

    def __init__(self, command: list[str], environ: dict[str, str], log: Path):
        self._log = log
        with log.open("wb") as stderr:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env=environ,
                encoding="utf-8",
            )
        try:
            self.hello = self._receive()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Worker:
        return self

    @property
    def pid(self) -> int:
        return self._process.pid

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, **command: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # _receive says why
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        return self._receive()

    def close(self) -> None:
        """End the process, which stops when its input ends."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.close()
            self._process.wait(10)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        finally:
            self._process.stdout.close()

    def kill(self) -> None:
        """End the process at once; a thread that asks it gets a UserError."""
        self._process.kill()

    def _receive(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            said = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise UserError(
                f"a measured process ended with exit code {self._process.wait()}: "
                + ("\n".join(said[-15:]) or "it said nothing")
            )
        message = json.loads(line)
        if "error" in message:
            raise UserError(message["error"])
        return message


def our_worker(
    module: str, job: Path, threads: int, variables: dict[str, str] | None = None
) -> Worker:
    """A worker in this environment: fleetbert.bench.`module` on the file `job`."""
    environ = {**os.environ, "OMP_NUM_THREADS": str(threads), **(variables or {})}
    command = [sys.executable, "-m", f"fleetbert.bench.{module}", str(job)]
    return Worker(command, environ, job.with_suffix(".log"))


def peer_worker(python: str, script: str, job: Path, threads: int) -> Worker:
    """A worker in the peers' environment, without what is set for Paddle's sake."""
    return Worker(
        [python, str(PEERS / script), str(job)], _peer_environ(threads), job.with_suffix(".log")
    )


def check_peer(python: str, command: str, modules: Sequence[str]) -> None:
    """UserError if the interpreter `python` is not there or lacks one of `modules`."""
    look = (
        "import importlib.util as u, sys; print(*(m for m in sys.argv[1:] if not u.find_spec(m)))"
    )
    try:
        done = subprocess.run(
            [python, "-c", look, *modules],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=_peer_environ(1),
            encoding="utf-8",
        )
        problem = f"lacks {', '.join(done.stdout.split())}" if done.stdout.split() else ""
        if done.returncode:
            problem = f"ends with exit code {done.returncode}"
    except OSError as error:
        problem = f"cannot be run: {error.strerror}"
    if problem:
        raise UserError(
            f"{command} needs a Python with {', '.join(modules)}, but {python} {problem}; "
            f"`make venv-bench` makes one in {Path(DEFAULT_PEER).parts[0]}, or name another with "
            "--peer-python"
        )


def _peer_environ(threads: int) -> dict[str, str]:
    """Ours without Python's and MKL's variables: `fleetbert.compat.environment` sets the latter."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MKL_", "KMP_"))
        and name not in ("PYTHONPATH", "PYTHONHOME", "PYTHONSAFEPATH")
    }
    return {**kept, "OMP_NUM_THREADS": str(threads)}


def take_turns(
    rounds: int, engines: Sequence[str], run: Callable[[int, str], Segment]
) -> list[Segment]:
    """`run(round, engine)` for all engines in every round, the first one rotating; says each."""
    segments = []
    for number in range(rounds):
        start = number % len(engines)
        for engine in [*engines[start:], *engines[:start]]:
            time.sleep(PAUSE)
            segment = run(number, engine)
            segments.append(segment)
            say(
                f"round {number + 1} of {rounds}: {engine}: {segment.texts_per_s:.1f} texts/s "
                f"({segment.seconds:.1f} s, load {segment.load:.1f})"
            )
    return segments


def rested(worker: Worker, **command: Any) -> dict[str, Any]:
    """The worker's answer to the command, given when other workers' thread pools sleep."""
    time.sleep(PAUSE)
    return worker.ask(**command)


def load() -> float:
    """The machine's 1-minute load."""
    return os.getloadavg()[0]


def summarize(segments: Sequence[Segment], engine: str) -> dict[str, Any]:
    """An engine's figures: medians of speeds over its segments; sums; CPU time of all threads."""
    mine = [segment for segment in segments if segment.engine == engine]
    speeds = [segment.texts_per_s for segment in mine]
    seconds = max(sum(segment.seconds for segment in mine), 1e-9)
    return {
        "texts_per_s": statistics.median(speeds),
        "lowest": min(speeds),
        "highest": max(speeds),
        "tokens_per_s": statistics.median(s.tokens / max(s.seconds, 1e-9) for s in mine),
        "texts": sum(segment.texts for segment in mine),
        "seconds": seconds,
        "cpu_seconds": sum(segment.cpu_seconds for segment in mine),
        "cpu_ms_per_text": 1000
        * sum(segment.cpu_seconds for segment in mine)
        / max(1, sum(segment.texts for segment in mine)),
        "peak_mb": max(segment.peak_mb for segment in mine),
    }


def ratio(segments: Sequence[Segment], engine: str, reference: str) -> dict[str, Any]:
    """How many times the texts/s of `reference`: in each round, and the median of these."""
    speeds = {(segment.round, segment.engine): segment.texts_per_s for segment in segments}
    rounds = sorted({segment.round for segment in segments})
    ratios = [speeds[number, engine] / speeds[number, reference] for number in rounds]
    return {
        "engine": engine,
        "reference": reference,
        "median": statistics.median(ratios),
        "rounds": ratios,
    }


def ratio_line(found: dict[str, Any]) -> str:
    rounds = " ".join(f"{value:.2f}" for value in found["rounds"])
    return (
        f"{found['engine']}: {found['median']:.2f} times the texts/s of {found['reference']} "
        f"(rounds: {rounds})"
    )


def busy_note(segments: Sequence[Segment], threads: int) -> str | None:
    """A warning if something else ran on the machine; each engine alone is a load of `threads`."""
    highest = max(segment.load for segment in segments)
    if highest <= threads + 0.5:
        return None
    return (
        f"The machine was busy: its load was up to {highest:.1f} where this run alone makes "
        f"{threads}. Measure again when it is quiet."
    )


def table(rows: Sequence[Sequence[str]], markdown: bool) -> str:
    """Rows, the first of them the header, as aligned text or Markdown; numbers to the right."""
    if markdown:
        rules = ["---" if column == 0 else "---:" for column in range(len(rows[0]))]
        return "\n".join(f"| {' | '.join(row)} |" for row in [rows[0], rules, *rows[1:]])
    return "\n".join(align(rows))


def check_output(path: str | None, option: str = "--json") -> None:
    """UserError before the work rather than after it, if the file cannot be written."""
    if path is not None and (not Path(path).resolve().parent.is_dir() or Path(path).is_dir()):
        raise UserError(
            f"{option} {path}: cannot be written there; name a file in an existing folder"
        )


def write_json(path: str, report: dict[str, Any]) -> None:
    try:
        with files.replacing(Path(path).resolve()) as stream:
            stream.write(json.dumps(report, indent=1, ensure_ascii=False).encode() + b"\n")
    except OSError as error:
        raise UserError(
            f"--json {path}: {error.strerror}; name a file that can be written"
        ) from None


def say(text: str) -> None:
    log.info(text)

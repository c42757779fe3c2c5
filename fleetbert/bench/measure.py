"""What every benchmark shares: measured processes, turns, medians, tables.

Machines are shared and noisy. So all that is compared runs in one go and by turns, in an order that
rotates every round. What counts is the ratio within a round, and its median over the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Callable, Iterator, Mapping, NamedTuple, Sequence

from fleetbert.bench import worker
from fleetbert.bench.worker import Json
from fleetbert.compat import environment
from fleetbert.core import files, strict_json
from fleetbert.core.errors import UserError
from fleetbert.engines.engine import default_threads
from fleetbert.engines.evaluate import align

log = logging.getLogger(__name__)

# Idle thread pools spin before they sleep: Intel's OpenMP, inside Paddle, for 0.2 s.
PAUSE = 0.5


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


class Figures(NamedTuple):
    """An engine's turns together: medians of speeds, sums of the rest, CPU time of all threads."""

    texts_per_s: float
    lowest: float
    highest: float
    tokens_per_s: float
    texts: int
    tokens: int
    seconds: float
    cpu_ms_per_text: float
    peak_mb: float


class Ratio(NamedTuple):
    """How many times the texts/s of `reference`: in each round, and the median of these."""

    engine: str
    reference: str
    median: float
    rounds: list[float]

    def __str__(self) -> str:
        rounds = " ".join(f"{value:.2f}" for value in self.rounds)
        return (
            f"{self.engine}: {self.median:.2f} times the texts/s of {self.reference} "
            f"(rounds: {rounds})"
        )


class Worker:
    """A measured process: `hello` is what it says when it is ready, `ask` makes it work."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str], log: Path):
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

    def ask(self, **command: object) -> Json:
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

    def _receive(self) -> Json:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            lines = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise UserError(
                f"a measured process ended with exit code {self._process.wait()}: "
                + ("\n".join(lines[-15:]) or "it printed nothing")
            )
        message: Json = json.loads(line)
        if "error" in message:
            raise UserError(message["error"])
        return message


@contextlib.contextmanager
def workplace() -> Iterator[tuple[Path, contextlib.ExitStack]]:
    """A temporary folder, and a stack of what is ended before it goes."""
    folder = tempfile.TemporaryDirectory(prefix="fleetbert-bench-")
    with folder as name, contextlib.ExitStack() as stack:
        yield Path(name), stack


def work(main: Callable[[worker.Channel, Json], None]) -> None:
    """In a measured process: `main` with its channel and its job, until there is no more to do; a
    UserError is told to whoever asks."""
    channel = worker.Channel()
    try:
        main(channel, json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
    except UserError as error:
        channel.send(error=str(error))
    except worker.Stop:
        pass


def start(
    program: Sequence[str],
    job: Path,
    values: Json,
    threads: int,
    python: str | Path = sys.executable,
    **variables: str,
) -> Worker:
    """A worker on the file `job`, which is written with `values`.

    program: what comes after `python`: `-m` and a module, or a script. python: another
    environment's.
    """
    job.write_text(json.dumps(values), encoding="utf-8")
    environ = {**os.environ, "OMP_NUM_THREADS": str(threads), **variables}
    return Worker([str(python), *program, str(job)], environ, job.with_suffix(".log"))


def together(workers: Sequence[Worker], **command: object) -> list[Json]:
    """Ask all at once; when one fails the others are ended, who would wait for it."""
    with ThreadPoolExecutor(len(workers)) as pool:
        replies = [pool.submit(worker.ask, **command) for worker in workers]
        for reply in as_completed(replies):
            error = reply.exception()
            if error is not None:
                for worker in workers:
                    worker.kill()
                raise error
    return [reply.result() for reply in replies]


def take_turns(
    rounds: int, engines: Sequence[str], run: Callable[[int, str], Json]
) -> list[Segment]:
    """`run(round, engine)` for all engines in every round, the first one rotating; says each. It
    gives what a Segment tells of the turn itself."""
    segments = []
    for number in range(rounds):
        first = number % len(engines)
        for engine in [*engines[first:], *engines[:first]]:
            time.sleep(PAUSE)
            before = load()
            reply = run(number, engine)
            segment = Segment(number, engine, before, *(reply[key] for key in Segment._fields[3:]))
            segments.append(segment)
            say(
                f"round {number + 1} of {rounds}: {engine}: {segment.texts_per_s:.1f} texts/s "
                f"({segment.seconds:.1f} s, load {segment.load:.1f})"
            )
    return segments


def load() -> float:
    return os.getloadavg()[0]


def summarize(segments: Sequence[Segment], engine: str) -> Figures:
    turns = [segment for segment in segments if segment.engine == engine]
    speeds = [turn.texts_per_s for turn in turns]
    texts = sum(turn.texts for turn in turns)
    cpu = sum(turn.cpu_seconds for turn in turns)
    return Figures(
        statistics.median(speeds),
        min(speeds),
        max(speeds),
        statistics.median(turn.tokens / max(turn.seconds, 1e-9) for turn in turns),
        texts,
        sum(turn.tokens for turn in turns),
        sum(turn.seconds for turn in turns),
        1000 * cpu / max(1, texts),
        max(turn.peak_mb for turn in turns),
    )


def ratio(segments: Sequence[Segment], engine: str, reference: str) -> Ratio:
    speeds = {(segment.round, segment.engine): segment.texts_per_s for segment in segments}
    rounds = sorted({segment.round for segment in segments})
    ratios = [speeds[number, engine] / speeds[number, reference] for number in rounds]
    return Ratio(engine, reference, statistics.median(ratios), ratios)


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


def add_numbers(parser: argparse.ArgumentParser, **options: tuple[float, str]) -> None:
    """Options that take a number from 1 on: their defaults and what they are; and those of all
    benchmarks, --rounds and --threads."""
    threads = "CPU threads of each candidate"
    for name, (default, text) in {
        **options,
        "rounds": (3, "turns of each candidate"),
        "threads": (default_threads(), threads),
    }.items():
        parser.add_argument(
            f"--{name}",
            type=at_least_one,
            default=default,
            metavar="N",
            help=f"{text} (default: {default})",
        )


def at_least_one(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no whole number from 1 on")
    return int(text)


def words(text: str) -> list[str]:
    """The type of an option with several values: A,B."""
    return text.split(",")


def output(path: str) -> str:
    """The type of --json: refused before the work rather than after it."""
    if not Path(path).resolve().parent.is_dir() or Path(path).is_dir():
        raise argparse.ArgumentTypeError(f"{path}: cannot be written there")
    return path


def finish(
    arguments: argparse.Namespace,
    rows: Sequence[Sequence[str]],
    notes: Sequence[str],
    segments: Sequence[Segment],
    **figures: object,
) -> None:
    """Print the table and what it means, and write --json."""
    busy = busy_note(segments, arguments.threads)
    notes = [*notes, *([busy] if busy else [])]
    print("\n".join([table(rows, arguments.markdown), "", *notes]))
    if arguments.json is None:
        return
    report = {
        "arguments": vars(arguments),
        "machine": environment.machine(arguments.threads),
        **figures,
        "segments": [segment._asdict() for segment in segments],
        "notes": notes,
    }
    try:
        with files.replacing(Path(arguments.json).resolve()) as stream:
            stream.write(strict_json.dumps(report, indent=1, ensure_ascii=False).encode() + b"\n")
    except OSError as error:
        raise UserError(
            f"--json {arguments.json}: {error.strerror}; name a file that can be written"
        ) from None


def say(text: str) -> None:
    log.info(text)

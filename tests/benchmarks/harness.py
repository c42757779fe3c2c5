"""One harness for all benchmarks of this project beside others.

Each benchmark is a file with `add_arguments(parser)` and `run(arguments) → Result`. What is
compared takes turns (`fleetbert.bench.measure`). Results go to output/benchmarks/ as JSON and
Markdown, and with --publish to docs/benchmarks/<date>-<name>.md as well.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import importlib
import json
import os
import platform
import shlex
import subprocess
from pathlib import Path
from typing import Callable, Mapping, NamedTuple, Sequence

import numpy as np
import psutil

from fleetbert.bench import measure
from fleetbert.bench.measure import Segment, Worker
from fleetbert.bench.worker import Json
from fleetbert.compat import environment
from fleetbert.core import files, limits
from fleetbert.core.errors import UserError

ROOT = Path(__file__).resolve().parents[2]
PEERS = Path(__file__).with_name("peers")
PEER_PYTHON = ".venv-bench/bin/python"
SERVERS_PYTHON = ".venv-servers/bin/python"
BENCHMARKS = {
    "infer": "a bundle's variants beside PyTorch, ONNX Runtime and OpenVINO",
    "serve": "the server beside FastAPI over the same model",
    "embeddings": "vectors by /v1/embeddings beside FastAPI over ONNX Runtime's int8",
    "train": "fine-tuning beside PyTorch + transformers",
    "compress": "what the shipped recipes lose, on six checkpoints and unseen texts",
    "distribute": "training in one process, in ranks and on parameter servers",
    "tasks": "a page of what finetune.py, stsb.py and trec_qa.py have measured; measures nothing",
    "recipes": "recipes of fine-tuning beside none",
    "paddles": "PaddlePaddle 3.3.1 beside 2.6.2: training, answering",
    "network": "two ranks in network namespaces with a slow cable; needs root",
    "cost": "a model of more machines; measures nothing",
}


class Target(NamedTuple):
    """What this project wants to reach: `value` has to be at least (or at most) `limit`."""

    what: str
    value: float
    limit: float
    at_most: bool = False

    def row(self) -> list[str]:
        met = self.value <= self.limit + 1e-9 if self.at_most else self.value >= self.limit
        bound = f"{'at most' if self.at_most else 'at least'} {self.limit:g}"
        return [self.what, f"{self.value:.3f}", bound, "met" if met else "missed"]


class Result(NamedTuple):
    """tables: rows of cells, each with its header first. data: all figures, ready for JSON."""

    title: str
    tables: Sequence[Sequence[Sequence[str]]]
    notes: Sequence[str]
    data: Json
    targets: Sequence[Target] = ()


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser("python tests/benchmarks", description=__doc__)
    subparsers = parser.add_subparsers(dest="name", metavar="NAME", required=True)
    modules = {name: importlib.import_module(f"benchmarks.{name}") for name in BENCHMARKS}
    for name, summary in BENCHMARKS.items():
        subparser = subparsers.add_parser(
            name,
            help=summary,
            description=modules[name].__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        modules[name].add_arguments(subparser)
        subparser.add_argument(
            "--publish",
            nargs="?",
            const=name,
            metavar="PAGE",
            help=f"write docs/benchmarks/<date>-PAGE.md too ({name})",
        )
    arguments = parser.parse_args(argv)
    started = datetime.date.today().isoformat()
    result: Result = modules[arguments.name].run(arguments)
    text = markdown(result, started, f"python tests/benchmarks {shlex.join(argv)}")
    stem = f"{started}-{arguments.publish or arguments.name}"
    folder = Path("output/benchmarks")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{stem}.md").write_text(text, encoding="utf-8")
    data = {"date": started, "argv": list(argv), "machine": machine(), **result.data}
    (folder / f"{stem}.json").write_text(json.dumps(data, indent=1), encoding="utf-8")
    print(text)
    if arguments.publish:
        (ROOT / "docs" / "benchmarks" / f"{stem}.md").write_text(text, encoding="utf-8")


def markdown(result: Result, date: str, command: str) -> str:
    tables = [measure.table(rows, markdown=True) for rows in result.tables]
    if result.targets:
        rows = [["target", "value", "wanted", ""], *(target.row() for target in result.targets)]
        tables.append(measure.table(rows, markdown=True))
    described = "; ".join(f"{key}: {value}" for key, value in machine().items())
    head = [f"# {result.title}", f"{date}, `{command}`.", f"Machine: {described}."]
    return "\n\n".join([*head, *tables, *result.notes]) + "\n"


def machine() -> dict[str, str]:
    flags = ("avx2", "avx512_vnni", "avx512_bf16", "amx_int8")
    known = set(environment.cpuinfo().split())
    told = environment.machine(limits.read().processors)
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "processor": told["processor"],
        "processors": str(told["threads"]),
        "has": " ".join(flag for flag in flags if flag in known) or "-",
        "memory": f"{psutil.virtual_memory().total / 1e9:.0f} GB",
        "load": f"{measure.load():.1f}",
        "system": platform.platform(terse=True),
        "python": told["python"],
        "commit": commit or "-",
    }


def busy(segments: Sequence[Segment], threads: int) -> list[str]:
    note = measure.busy_note(segments, threads)
    return [note] if note else []


def figures_table(
    segments: Sequence[Segment], names: Sequence[str], more: Mapping[str, Mapping[str, str]]
) -> list[list[str]]:
    """A row for each of the sides. more: columns besides, and what stands in each row."""
    rows = [["", "texts/s", "lowest", "highest", *more, "CPU ms/text", "peak MB"]]
    for name in names:
        figures = measure.summarize(segments, name)
        speeds = [f"{value:.1f}" for value in figures[:3]]
        used = [f"{figures.cpu_ms_per_text:.2f}", f"{figures.peak_mb:.0f}"]
        rows.append([name, *speeds, *(column[name] for column in more.values()), *used])
    return rows


def add_steps(parser: argparse.ArgumentParser, data: Sequence[str], name: str, has: str) -> None:
    """Options of what is done in steps, each once: folders of data, and where all goes."""
    for one in data:
        parser.add_argument(f"--{one}", type=Path, metavar="DIR", help=f"has {has}")
    parser.add_argument("--output", type=Path, default=Path("output") / name, metavar="DIR")


def once(path: Path, step: Callable[[], Json]) -> None:
    """Write what a step gives, unless it was written before: a run that was stopped goes on."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        value = step()
        with files.replacing(path) as stream:
            stream.write(json.dumps(value, indent=1).encode())


def shuffled(table: Path, seed: int) -> tuple[str, list[str]]:
    """The header of a table, and its lines in random order."""
    header, *lines = table.read_text(encoding="utf-8").rstrip("\n").split("\n")
    order = np.random.default_rng(seed).permutation(len(lines))
    return header, [lines[number] for number in order]


def write_tables(folder: Path, header: str, parts: Mapping[str, Sequence[str]]) -> dict[str, Path]:
    """A table NAME.tsv of each part's lines."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: folder / f"{name}.tsv" for name in parts}
    for name, lines in parts.items():
        paths[name].write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return paths


def read_pairs(table: Path) -> list[tuple[str, str, float]]:
    """STS-B's: two sentences and a number, no header."""
    with table.open(encoding="utf-8", newline="") as file:
        return [(a, b, float(number)) for a, b, number in csv.reader(file)]


def add_peer(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--peer-python",
        default=PEER_PYTHON,
        metavar="FILE",
        help=f"the interpreter that has the other engines ({PEER_PYTHON})",
    )
    parser.add_argument(
        "--servers-python",
        default=SERVERS_PYTHON,
        metavar="FILE",
        help=f"the one that has other servers and sentence-transformers ({SERVERS_PYTHON})",
    )


def start_peer(python: str, script: str, job: Path, values: Json, threads: int) -> Worker:
    """A worker in the peers' environment, without what is set for Paddle's sake."""
    job.write_text(json.dumps(values), encoding="utf-8")
    command = [python, str(PEERS / script), str(job)]
    return Worker(command, peer_environ(threads), job.with_suffix(".log"))


def check_peer(python: str, modules: Sequence[str]) -> None:
    """UserError if the interpreter `python` is not there or lacks one of `modules`."""
    missing = missing_modules(python, modules)
    if missing:
        raise UserError(
            f"this needs a Python with {', '.join(modules)}, but {python} {missing}; "
            f"`make venv-bench` makes {Path(PEER_PYTHON).parts[0]} and "
            f"{Path(SERVERS_PYTHON).parts[0]}, or name another with --peer-python or "
            "--servers-python"
        )


def missing_modules(python: str, modules: Sequence[str]) -> str:
    """What keeps an interpreter from importing `modules`, in words; empty if nothing does."""
    look = (
        "import importlib.util as u, sys; print(*(m for m in sys.argv[1:] if not u.find_spec(m)))"
    )
    try:
        done = subprocess.run(
            [python, "-c", look, *modules],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=peer_environ(1),
            encoding="utf-8",
            check=False,
        )
    except OSError as error:
        return f"cannot be run: {error.strerror}"
    if done.returncode:
        return f"ends with exit code {done.returncode}"
    return f"lacks {', '.join(done.stdout.split())}" if done.stdout.split() else ""


def peer_environ(threads: int) -> dict[str, str]:
    """Ours without Python's and MKL's variables: `fleetbert.compat.environment` sets the latter."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MKL_", "KMP_"))
        and name not in ("PYTHONPATH", "PYTHONHOME", "PYTHONSAFEPATH")
    }
    return {**kept, "OMP_NUM_THREADS": str(threads)}

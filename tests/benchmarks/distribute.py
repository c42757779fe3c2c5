"""The same training in one process, in ranks, and on parameter servers of this machine, by turns.

  python tests/benchmarks distribute
  python tests/benchmarks distribute --sides ranks --steps 20
  python tests/benchmarks distribute --sides servers --config configs/ps/bert_async.yaml \\
      data.train=train.tsv data.dev=dev.tsv

On CPUs, in float32. All sides do the same steps on the same texts (data.batch_size is of all ranks
or trainers together). One rank with one share of the processors is the reference; one with all of
them stands beside. A side lives only while it has its turn: all at once would not fit into a small
machine's memory. Shown: texts/s, the part of the time that reading takes, what servers read and
wrote (/proc/PID/io), and how long an all-reduce of the gradients takes by itself.
"""

from __future__ import annotations

import argparse
import socket
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, Sequence

import psutil

from benchmarks import harness
from benchmarks.harness import Result
from fleetbert import config as schema
from fleetbert.bench import measure, train
from fleetbert.bench.measure import Segment, Worker
from fleetbert.bench.worker import Json
from fleetbert.engines.engine import default_threads
from fleetbert.errors import UserError
from fleetbert.launch.cluster import Cluster

WARM_UP = 4  # steps of each turn that are not timed
WORKER = (str(Path(__file__).with_name("distribute_worker.py")),)
ONLY_STEPS = (
    "trainer.device=cpu",
    "precision.level=O0",
    "trainer.epochs=100000",
    "trainer.eval_every=1000000",
    "trainer.checkpoint_every=1000000",
)


class Side(NamedTuple):
    """Who trains: `mode` of the servers, or single or collective without any."""

    mode: str
    trainers: int
    threads: int

    @property
    def name(self) -> str:
        kind = "rank" if self.mode in ("single", "collective") else "trainer"
        name = f"{self.trainers} {kind}{'s' * (self.trainers > 1)}"
        name += f" of {self.threads} thread{'s' * (self.threads > 1)}"
        return name if kind == "rank" else f"{self.mode}, {name}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    train.add_job(parser, steps=30, ranks=(2, "and trainers"), servers=(2, "of each cluster"))
    parser.add_argument("--sides", choices=("ranks", "servers", "all"), default="all")


def run(arguments: argparse.Namespace) -> Result:
    processors = default_threads()
    if arguments.ranks < 2:
        raise UserError("--ranks is 1; it has to be at least 2")
    if processors < arguments.ranks:
        raise UserError(
            f"--ranks is {arguments.ranks}, but this process may use {processors} processors"
        )
    if schema.load(arguments.config, arguments.overrides).task.name == "ctr":
        raise UserError("this measures BERT; task.name is ctr")
    sides = {side.name: side for side in all_sides(arguments.sides, arguments.ranks, processors)}
    facts: dict[str, Json] = {}
    turns: dict[str, list[list[Json]]] = {name: [] for name in sides}

    def turn(number: int, name: str) -> Segment:
        load = measure.load()
        facts[name], replies = train_side(sides[name], arguments)
        turns[name].append(replies)
        seconds = max(reply["seconds"] for reply in replies)
        texts, tokens, cpu, peak = (
            sum(reply[key] for reply in replies)
            for key in ("texts", "tokens", "cpu_seconds", "peak_mb")
        )
        return Segment(number, name, load, texts, tokens, seconds, cpu, peak)

    segments = measure.take_turns(arguments.rounds, list(sides), turn)
    notes = [f"{arguments.steps} steps a turn, {arguments.servers} servers, {arguments.config}."]
    for name, fact in facts.items():
        if fact["all_reduce"]:
            seconds, size = statistics.median(fact["all_reduce"]), 4 * fact["parameters"]
            notes.append(
                f"{name}: an all-reduce of {size / 1e6:.1f} MB of gradients alone takes "
                f"{1000 * seconds:.0f} ms ({size / seconds / 1e9:.2f} GB/s)."
            )
    single = next(iter(sides))
    return Result(
        f"Training {facts[single]['texts']} texts of {facts[single]['mean_tokens']:.1f} tokens",
        [table_rows(sides, segments, turns, arguments.steps)],
        [*notes, *harness.busy(segments, processors + 1)],
        {"segments": [segment._asdict() for segment in segments], "turns": turns, "facts": facts},
    )


def all_sides(wanted: str, ranks: int, processors: int) -> list[Side]:
    """The first is what all are compared with."""
    share = processors // ranks
    sides = [Side("single", 1, share), Side("single", 1, share * ranks)]
    sides.append(Side("collective", ranks, share))
    if wanted == "ranks":
        return sides
    modes = [Side(mode, ranks, share) for mode in ("async", "sync", "geo")]
    return [*(sides if wanted == "all" else sides[:1]), Side("async", 1, share), *modes]


def train_side(side: Side, arguments: argparse.Namespace) -> tuple[Json, list[Json]]:
    """What is trained, and what each rank or trainer reports of its steps. `moved`: bytes that the
    servers read and wrote meanwhile, with the first."""
    steps = arguments.steps
    overrides = [*arguments.overrides, *ONLY_STEPS, f"trainer.max_steps={WARM_UP + steps + 1}"]
    with tempfile.TemporaryDirectory(prefix="fleetbert-bench-") as name, ExitStack() as stack:
        folder, servers = Path(name), []
        if side.mode in ("single", "collective"):
            workers = start_ranks(stack, folder, arguments.config, overrides, side)
        else:
            servers, workers = start_cluster(
                stack, folder, arguments.config, overrides, side, arguments.servers
            )
        facts = measure.together(workers, start=True)[0]
        measure.together(workers, steps=WARM_UP, untimed=WARM_UP)
        before = [moved(server.pid) for server in servers]
        replies = measure.together(workers, steps=steps, untimed=0)
        after = [moved(server.pid) for server in servers]
        replies[0]["moved"] = [
            sum(end[way] - start[way] for start, end in zip(before, after)) for way in (0, 1)
        ]
        for process in (*workers, *servers):
            process.kill()
    return facts, replies


def start_ranks(
    stack: ExitStack, folder: Path, config: str, overrides: Sequence[str], side: Side
) -> list[Worker]:
    """The processes of all ranks, with what paddle.distributed.launch would tell them."""
    words = [*overrides, f"strategy.name={side.mode}"]
    endpoints = [f"127.0.0.1:{port}" for port in free_ports(side.trainers)]
    workers = []
    for rank, endpoint in enumerate(endpoints):
        variables = {
            "PADDLE_TRAINER_ID": str(rank),
            "PADDLE_TRAINERS_NUM": str(side.trainers),
            "PADDLE_CURRENT_ENDPOINT": endpoint,
            "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
            "PADDLE_LOCAL_SIZE": str(side.trainers),
            "PADDLE_DISTRI_BACKEND": "gloo",
        }
        told = variables if side.mode == "collective" else {}
        worker = train.open_training(
            config, words, folder, side.threads, WORKER, f"rank-{rank}", **told
        )
        workers.append(stack.enter_context(worker))
    return workers


def start_cluster(
    stack: ExitStack, folder: Path, config: str, overrides: Sequence[str], side: Side, servers: int
) -> tuple[list[Worker], list[Worker]]:
    """Servers and trainers, with what `fleetbert launch` would tell them."""
    place = folder / "run"
    place.mkdir()
    cluster = Cluster(servers, side.trainers)
    stack.callback(cluster.close)
    words = [*overrides, "strategy.name=parameter_server", f"strategy.mode={side.mode}"]
    started: dict[str, list[Worker]] = {"server": [], "trainer": []}
    for role, count in (("server", servers), ("trainer", side.trainers)):
        for number in range(count):
            threads = 1 if role == "server" else side.threads
            variables = cluster.environ(role, number, 0, place, folder)
            variables["OMP_NUM_THREADS"] = str(threads)
            worker = train.open_training(
                config, words, folder, threads, WORKER, f"{role}-{number}", **variables
            )
            started[role].append(stack.enter_context(worker))
    return started["server"], started["trainer"]


def free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for opened in sockets:
            opened.bind(("127.0.0.1", 0))
        return [opened.getsockname()[1] for opened in sockets]


def moved(process: int) -> tuple[int, int]:
    """Bytes that a process has read and written so far, sockets among it; on Linux."""
    counts = psutil.Process(process).io_counters()
    return counts.read_chars, counts.write_chars


def table_rows(
    sides: dict[str, Side],
    segments: Sequence[Segment],
    turns: dict[str, list[list[Json]]],
    steps: int,
) -> list[list[str]]:
    """A header and a row for each side. Efficiency: of what the processors used would give, if each
    share gave what the first side does. MB: of one trainer and step."""
    single, first = next(iter(sides.items()))
    head = ["", "ms/step", "texts/s", "lowest", "highest", "speed-up", "efficiency", "reader"]
    rows = [[*head, "sent MB", "got MB", "peak MB"]]
    for name, side in sides.items():
        figures = measure.summarize(segments, name)
        speed_up = measure.ratio(segments, name, single).median
        used = side.trainers * side.threads / first.threads
        reading = statistics.median(
            max(reply["reading"] for reply in turn) / max(reply["seconds"] for reply in turn)
            for turn in turns[name]
        )
        part = steps * side.trainers * len(turns[name])
        sent, got = (sum(turn[0]["moved"][way] for turn in turns[name]) for way in (0, 1))
        rows.append(
            [
                name,
                f"{1000 * figures.seconds / (steps * len(turns[name])):.0f}",
                *(f"{value:.1f}" for value in figures[:3]),
                f"{speed_up:.2f}",
                f"{speed_up / used:.0%}",
                f"{reading:.2%}",
                *(f"{way / part / 1e6:.2f}" if way else "-" for way in (sent, got)),
                f"{figures.peak_mb:.0f}",
            ]
        )
    return rows

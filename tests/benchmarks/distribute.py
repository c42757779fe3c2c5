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
import statistics
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
from fleetbert.core.errors import UserError
from fleetbert.engines.engine import default_threads
from fleetbert.launch.cluster import Cluster
from fleetbert.launch.process import Process

WARM_UP = 4  # steps of each turn that are not timed
WORKER = (str(Path(__file__).with_name("training_worker.py")), "rank")
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
    if schema.load_as(schema.Config, arguments.config, arguments.overrides).task.name == "ctr":
        raise UserError("this measures BERT; task.name is ctr")
    sides = {side.name: side for side in all_sides(arguments.sides, arguments.ranks, processors)}
    facts: dict[str, Json] = {}
    turns: dict[str, list[list[Json]]] = {name: [] for name in sides}

    def turn(_: int, name: str) -> Json:
        facts[name], replies = train_side(sides[name], arguments)
        turns[name].append(replies)
        summed = ("texts", "tokens", "cpu_seconds", "peak_mb")
        return {
            "seconds": max(reply["seconds"] for reply in replies),
            **{key: sum(reply[key] for reply in replies) for key in summed},
        }

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
    with measure.workplace() as (folder, stack):
        servers, workers = start(stack, folder, arguments, overrides, side)
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


def start(
    stack: ExitStack,
    folder: Path,
    arguments: argparse.Namespace,
    overrides: Sequence[str],
    side: Side,
) -> tuple[list[Worker], list[Worker]]:
    """Servers, and ranks or trainers, with what their launcher would tell them."""
    if side.mode in ("single", "collective"):
        words = [f"strategy.name={side.mode}"]
        told = tell_ranks(side.trainers) if side.mode == "collective" else [{}]
        processes = {f"rank-{rank}": own for rank, own in enumerate(told)}
    else:
        words = ["strategy.name=parameter_server", f"strategy.mode={side.mode}"]
        place = folder / "run"
        place.mkdir()
        cluster = Cluster(arguments.servers, side.trainers)
        stack.callback(cluster.close)
        processes = {
            f"{role}-{number}": cluster.environ(Process(role, number), place, folder)
            for role, count in (("server", arguments.servers), ("trainer", side.trainers))
            for number in range(count)
        }
    servers, workers = [], []
    for name, variables in processes.items():
        is_server = name.startswith("server")
        threads = 1 if is_server else side.threads
        variables["OMP_NUM_THREADS"] = str(threads)
        worker = train.open_training(
            arguments.config, [*overrides, *words], folder, threads, WORKER, name, **variables
        )
        (servers if is_server else workers).append(stack.enter_context(worker))
    return servers, workers


def tell_ranks(count: int) -> list[dict[str, str]]:
    """As paddle.distributed.launch does."""
    cluster = Cluster(0, count)
    cluster.close()
    endpoints = [f"127.0.0.1:{port}" for port in cluster.ports]
    return [
        {
            "PADDLE_TRAINER_ID": str(rank),
            "PADDLE_TRAINERS_NUM": str(count),
            "PADDLE_CURRENT_ENDPOINT": endpoint,
            "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
            "PADDLE_LOCAL_SIZE": str(count),
            "PADDLE_DISTRI_BACKEND": "gloo",
        }
        for rank, endpoint in enumerate(endpoints)
    ]


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
    more: dict[str, dict[str, str]] = {
        name: {} for name in ("ms/step", "speed-up", "efficiency", "reader", "sent MB", "got MB")
    }
    for name, side in sides.items():
        seconds = sum(one.seconds for one in segments if one.engine == name)
        speed_up = measure.ratio(segments, name, single).median
        used = side.trainers * side.threads / first.threads
        reading = statistics.median(
            max(reply["reading"] for reply in turn) / max(reply["seconds"] for reply in turn)
            for turn in turns[name]
        )
        part = steps * side.trainers * len(turns[name])
        moved = (sum(turn[0]["moved"][way] for turn in turns[name]) for way in (0, 1))
        cells = [
            f"{1000 * seconds / (steps * len(turns[name])):.0f}",
            f"{speed_up:.2f}",
            f"{speed_up / used:.0%}",
            f"{reading:.2%}",
            *(f"{way / part / 1e6:.2f}" if way else "-" for way in moved),
        ]
        for column, cell in zip(more.values(), cells):
            column[name] = cell
    return harness.figures_table(segments, list(sides), more)

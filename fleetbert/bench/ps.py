"""`fleetbert bench ps`: the same training in one process, in ranks, and on parameter servers.

A side lives only while it has its turn: servers and trainers of all sides at once would not fit
into the memory of a small machine. What goes to and fro is counted twice: in the trainers, by what
each push and pull carries, and at the servers' processes, by what they read and write
(/proc/PID/io), which has requests, answers and all their wrapping in it.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from fleetbert import config as schema
from fleetbert.bench import measure, scaling
from fleetbert.bench.measure import Segment, Worker
from fleetbert.compat import environment
from fleetbert.engines.engine import default_threads
from fleetbert.errors import UserError
from fleetbert.launch.cluster import Cluster

WARM_UP = 4  # steps of each turn that are not timed
KINDS = ("dense_pushed", "dense_pulled", "rows_pushed", "rows_pulled")


class Side(NamedTuple):
    """Who trains: `mode` of the servers, or single or collective without any."""

    mode: str
    trainers: int

    @property
    def name(self) -> str:
        if self.mode == "single":
            return "local"
        return f"{self.mode}, {self.trainers} " + (
            "ranks" if self.mode == "collective" else "trainer" + "s" * (self.trainers > 1)
        )


def bench(
    config: str,
    overrides: list[str],
    *,
    servers: int,
    trainers: int,
    steps: int,
    rounds: int,
) -> dict[str, Any]:
    """Train by turns locally, in `trainers` ranks, and with one and `trainers` trainers on
    `servers` servers; returns the report, ready for JSON. Every side does the same steps:
    `data.batch_size` is of all trainers together, each of which has one share of the processors."""
    given = {"servers": servers, "trainers": trainers, "steps": steps, "rounds": rounds}
    for name, value in given.items():
        least = 2 if name == "trainers" else 1
        if value < least:
            raise UserError(f"--{name} is {value}; it has to be at least {least}")
    processors = default_threads()
    if processors < trainers:
        raise UserError(
            f"--trainers is {trainers}, but this process may use {processors} processors"
        )
    if schema.load(config, overrides).task.name == "ctr":
        raise UserError("bench ps measures BERT; task.name is ctr")
    share = processors // trainers
    sides = {side.name: side for side in all_sides(trainers)}
    job = scaling.only_steps(config, overrides, WARM_UP + steps + 1)
    facts: dict[str, dict[str, Any]] = {}
    turns: dict[str, list[dict[str, Any]]] = {name: [] for name in sides}

    def run(number: int, name: str) -> Segment:
        with tempfile.TemporaryDirectory(prefix="fleetbert-bench-") as folder, ExitStack() as stack:
            load, side = measure.load(), sides[name]
            kept: list[Worker] = []
            if side.mode in ("single", "collective"):
                place = Path(folder) / "ranks"
                working = scaling.start_ranks(stack, place, job, side.trainers, share)
            else:
                kept, working = _start(stack, Path(folder), job, side, servers, share)
            facts[name] = {**scaling.together(working, start=True)[0], **working[0].hello}
            scaling.together(working, steps=WARM_UP, untimed=WARM_UP)
            before = [_traffic(server.pid) for server in kept]
            replies = scaling.together(working, steps=steps, untimed=0)
            after = [_traffic(server.pid) for server in kept]
            for process in (*working, *kept):
                process.kill()
        turns[name].append(
            {
                "bytes": _sum([reply.get("bytes", {}) for reply in replies]),
                "servers_read": sum(b[0] - a[0] for a, b in zip(before, after)),
                "servers_wrote": sum(b[1] - a[1] for a, b in zip(before, after)),
            }
        )
        sums = {
            n: sum(r[n] for r in replies) for n in ("texts", "tokens", "peak_mb", "cpu_seconds")
        }
        seconds = max(reply["seconds"] for reply in replies)
        return Segment(
            number, name, load, sums["texts"], sums["tokens"], seconds, sums["cpu_seconds"],
            sums["peak_mb"],
        )  # fmt: skip

    segments = measure.take_turns(rounds, list(sides), run)
    served = next(found for found in facts.values() if "settings" in found)
    settings = served["settings"]
    engines = {
        name: {
            **measure.summarize(segments, name),
            "trainers": side.trainers,
            "speed_up": measure.ratio(segments, name, "local")["median"],
            "step_ms": statistics.median(
                1000 * s.seconds / steps for s in segments if s.engine == name
            ),
        }
        for name, side in sides.items()
    }
    return {
        "bench": "ps",
        "config": config,
        "overrides": overrides,
        "machine": environment.machine(processors),
        "versions": served["versions"],
        "data": {key: served[key] for key in ("texts", "mean_tokens")},
        "weights": {key: served[key] for key in ("dense", "rows", "width")},
        "servers": servers,
        "steps": steps,
        "settings": settings,
        "engines": engines,
        "traffic": {
            name: traffic(turns[name], side, steps, served, settings)
            for name, side in sides.items()
            if side.mode != "single"
        },
        "busy": measure.busy_note(segments, share * trainers + 1),
        "segments": [segment._asdict() for segment in segments],
    }


def all_sides(trainers: int) -> list[Side]:
    alone = [Side("single", 1), Side("collective", trainers), Side("async", 1)]
    return [*alone, *(Side(mode, trainers) for mode in ("async", "sync", "geo"))]


def traffic(
    turns: list[dict[str, Any]],
    side: Side,
    steps: int,
    weights: dict[str, Any],
    settings: dict[str, int],
) -> dict[str, Any]:
    """Bytes that one trainer sends and gets in a step, means over all turns, beside what the
    method needs at the least.

    Needed are, of the dense weights, a push each step and a pull after every `pull_every` steps
    (async), each step (sync), or both after every `k_steps` (geo); of the words each row that was
    pulled or pushed, once, with its id. A collective rank sends and gets 2 (n - 1) / n of all
    weights in a ring all-reduce (Patarasuk and Yuan 2009), which was not measured.
    """
    dense, width = 4 * weights["dense"], weights["width"]
    if side.mode == "collective":
        everything = dense + 4 * weights["rows"] * width
        ring = 2 * (side.trainers - 1) / side.trainers * everything
        return {"needed": {"sent": ring, "received": ring}}
    part = steps * side.trainers * len(turns)
    counted = _sum([turn["bytes"] for turn in turns])
    pushes = 1 / settings["k_steps"] if side.mode == "geo" else 1.0
    pulls = 1 / settings["pull_every"] if side.mode == "async" else pushes
    # Each word that is pulled is pushed again.
    words = counted["words"] / 2 / part * (8 + 4 * width)
    return {
        "counted": {kind: counted.get(kind, 0) / part for kind in KINDS},
        "needed": {
            "dense_pushed": dense * pushes,
            "dense_pulled": dense * pulls,
            "rows_pushed": words,
            "rows_pulled": words,
        },
        "sockets": {
            "sent": sum(turn["servers_read"] for turn in turns) / part,
            "received": sum(turn["servers_wrote"] for turn in turns) / part,
        },
    }


def format_report(report: dict[str, Any], markdown: bool = False) -> str:
    """The tables and what they mean."""
    speeds = [["", "ms/step", "texts/s", "lowest", "highest", "beside local", "peak MB"]]
    for name, found in report["engines"].items():
        speeds.append(
            [
                name,
                f"{found['step_ms']:.0f}",
                *(f"{found[key]:.1f}" for key in ("texts_per_s", "lowest", "highest")),
                f"{found['speed_up']:.2f}",
                f"{found['peak_mb']:.0f}",
            ]
        )
    bytes_ = [["", *(f"{kind.replace('_', ' ')} (needed)" for kind in KINDS), "sockets out", "in"]]
    for name, found in report["traffic"].items():
        if "counted" in found:
            cells = [
                f"{found['counted'][kind] / 1e6:.2f} ({found['needed'][kind] / 1e6:.2f})"
                for kind in KINDS
            ]
            sockets = found["sockets"]
            bytes_.append(
                [name, *cells, *(f"{sockets[way] / 1e6:.2f}" for way in ("sent", "received"))]
            )
    weights, data, on = report["weights"], report["data"], report["machine"]
    lines = [
        f"Training in float32 on {on['processor']}, {on['threads']} processors; {data['texts']} "
        f"texts of {data['mean_tokens']:.1f} tokens, {report['steps']} steps a round, "
        f"{report['servers']} servers",
        "",
        measure.table(speeds, markdown),
        "",
        f"MB that one trainer sends and gets in a step; {weights['dense'] * 4 / 1e6:.1f} MB of "
        f"dense weights, a word table of {weights['rows'] * weights['width'] * 4 / 1e6:.1f} MB:",
        "",
        measure.table(bytes_, markdown),
        "",
        *(
            f"{name}: each sends and gets {found['needed']['sent'] / 1e6:.1f} MB in a ring "
            "all-reduce (computed)."
            for name, found in report["traffic"].items()
            if "counted" not in found
        ),
    ]
    return "\n".join([*lines, *([report["busy"]] if report["busy"] else [])])


def _start(
    stack: ExitStack, folder: Path, job: dict[str, Any], side: Side, servers: int, threads: int
) -> tuple[list[Worker], list[Worker]]:
    """Servers and trainers, with what `fleetbert launch` would tell them."""
    run = folder / "run"
    run.mkdir()
    cluster = Cluster(servers, side.trainers)
    stack.callback(cluster.close)
    own = [
        f"output_dir={json.dumps(str(folder / 'output'))}",
        "strategy.name=parameter_server",
        f"strategy.mode={side.mode}",
    ]
    said = {**job, "overrides": [*job["overrides"], *own]}
    found: dict[str, list[Worker]] = {"server": [], "trainer": []}
    for role, count in (("server", servers), ("trainer", side.trainers)):
        for number in range(count):
            path = folder / f"{role}-{number}.json"
            path.write_text(json.dumps(said), encoding="utf-8")
            mine = 1 if role == "server" else threads
            variables = cluster.environ(role, number, 0, run, folder)
            variables["OMP_NUM_THREADS"] = str(mine)
            started = measure.our_worker("ours_ps", path, mine, variables)
            found[role].append(stack.enter_context(started))
    return found["server"], found["trainer"]


def _traffic(process: int) -> tuple[int, int]:
    """Bytes that a process has read and written so far, sockets among it (0 off Linux)."""
    try:
        text = Path(f"/proc/{process}/io").read_text(encoding="utf-8")
    except OSError:
        return 0, 0
    counts = dict(line.split(": ") for line in text.splitlines())
    return int(counts["rchar"]), int(counts["wchar"])


def _sum(counts: list[dict[str, int]]) -> dict[str, int]:
    """By name."""
    names = {name for found in counts for name in found}
    return {name: sum(found.get(name, 0) for found in counts) for name in names}

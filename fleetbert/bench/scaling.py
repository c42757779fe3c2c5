"""`fleetbert bench scaling`: the same training in one rank and in several, by turns.

How much of a step is the all-reduce is measured in two ways. Each step is done twice, once with
and once without the ranks' sharing of gradients (`no_sync`), on the same texts; what the first
takes longer is what sharing costs in training, copies to and from its buffers included. Beside it
stands a bare all-reduce of as many bytes while nothing else runs: that is what the link needs.
"""

from __future__ import annotations

import json
import socket
import statistics
import tempfile
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Sequence

from fleetbert.bench import measure
from fleetbert.bench.measure import Segment, Worker
from fleetbert.compat import environment
from fleetbert.engines.engine import default_threads
from fleetbert.errors import UserError

# Steps of each side that are not timed: memory is taken, threads are started.
WARM_UP = 3


def bench(
    config: str, overrides: list[str], *, ranks: int, steps: int, rounds: int
) -> dict[str, Any]:
    """Train by turns in one rank with one share of the processors, in one with all, and in `ranks`
    with a share each; returns the report, ready for JSON. Every side does the same steps, that is
    the same texts: `data.batch_size` is of all ranks together."""
    for name, value, least in (("ranks", ranks, 2), ("steps", steps, 1), ("rounds", rounds, 1)):
        if value < least:
            raise UserError(f"--{name} is {value}; it has to be at least {least}")
    processors = default_threads()
    if processors < ranks:
        raise UserError(f"--ranks is {ranks}, but this process may use {processors} processors")
    share = processors // ranks
    sides = {
        _name(1, share): (1, share),
        _name(1, share * ranks): (1, share * ranks),
        _name(ranks, share): (ranks, share),
    }
    single, _, several = sides
    job = only_steps(config, overrides, WARM_UP + rounds * steps + steps + 1)
    with tempfile.TemporaryDirectory(prefix="fleetbert-bench-") as folder, ExitStack() as stack:
        groups: dict[str, list[Worker]] = {}
        facts: dict[str, dict[str, Any]] = {}
        for number, (name, (size, threads)) in enumerate(sides.items()):
            measure.say(f"starting {name}")
            place = Path(folder) / str(number)
            groups[name] = start_ranks(stack, place, job, size, threads)
            facts[name] = together(groups[name], start=True)[0]
        readings: dict[str, list[float]] = {name: [] for name in sides}

        def run(number: int, name: str) -> Segment:
            load = measure.load()
            untimed = 0 if number else WARM_UP
            replies = together(groups[name], steps=steps + untimed, untimed=untimed)
            seconds = max(reply["seconds"] for reply in replies)
            readings[name].append(max(reply["reading"] for reply in replies) / seconds)
            sums = {n: sum(r[n] for r in replies) for n in ("texts", "tokens", "peak_mb")}
            cpu = sum(reply["cpu_seconds"] for reply in replies)
            return Segment(
                number, name, load, sums["texts"], sums["tokens"], seconds, cpu, sums["peak_mb"]
            )

        segments = measure.take_turns(rounds, list(sides), run)
        measure.say("steps with and without the all-reduce")
        replies = together(groups[several], steps=steps, untimed=0, both_ways=True)
    engines = {
        name: {
            **measure.summarize(segments, name),
            "ranks": size,
            "threads": threads,
            "reader_ratio": statistics.median(readings[name]),
            **efficiency(segments, name, single, size * threads // share),
        }
        for name, (size, threads) in sides.items()
    }
    return {
        "bench": "scaling",
        "config": config,
        "overrides": overrides,
        "machine": environment.machine(processors),
        "versions": groups[single][0].hello["versions"],
        "data": {key: facts[several][key] for key in ("texts", "mean_tokens")},
        "steps": steps,
        "engines": engines,
        "all_reduce": all_reduce(replies[0]["pairs"], facts[several]),
        "busy": measure.busy_note(segments, share * ranks),
        "segments": [segment._asdict() for segment in segments],
    }


def together(workers: Sequence[Worker], **command: Any) -> list[dict[str, Any]]:
    """Ask all ranks at once; when one fails the others are ended, who would wait for it."""
    with ThreadPoolExecutor(len(workers)) as pool:
        asked = [pool.submit(worker.ask, **command) for worker in workers]
        for answer in as_completed(asked):
            if answer.exception() is not None:
                for worker in workers:
                    worker.kill()
                raise answer.exception()  # type: ignore[misc]
    return [answer.result() for answer in asked]


def efficiency(segments: Sequence[Segment], name: str, single: str, shares: int) -> dict[str, Any]:
    """texts/s as a part of what so many times the single one would give; medians of the rounds."""
    found = measure.ratio(segments, name, single)
    return {"speed_up": found["median"], "efficiency": found["median"] / shares}


def all_reduce(pairs: Sequence[Sequence[float]], facts: dict[str, Any]) -> dict[str, Any]:
    """What sharing gradients costs a step, from its steps both ways (seconds with, without)."""
    bare = statistics.median(facts["all_reduce"])
    return {
        "megabytes": facts["parameters"] * 4 / 1e6,
        "step_ms": 1000 * statistics.median(pair[0] for pair in pairs),
        "step_without_ms": 1000 * statistics.median(pair[1] for pair in pairs),
        "share": statistics.median(1 - without / shared for shared, without in pairs),
        "bare_ms": 1000 * bare,
        "bare_gigabytes_per_s": facts["parameters"] * 4 / bare / 1e9,
        "pairs": [list(pair) for pair in pairs],
    }


def format_report(report: dict[str, Any], markdown: bool = False) -> str:
    """The table and what it means."""
    head = ["", "texts/s", "lowest", "highest", "speed-up", "efficiency", "reader", "peak MB"]
    rows = [head]
    for name, found in report["engines"].items():
        rows.append(
            [
                name,
                *(f"{found[key]:.1f}" for key in ("texts_per_s", "lowest", "highest")),
                f"{found['speed_up']:.2f}",
                f"{found['efficiency']:.0%}",
                f"{found['reader_ratio']:.2%}",
                f"{found['peak_mb']:.0f}",
            ]
        )
    data, on, cost = report["data"], report["machine"], report["all_reduce"]
    lines = [
        f"Training in float32 on {on['processor']}, {on['threads']} processors; {data['texts']} "
        f"texts of {data['mean_tokens']:.1f} tokens, {report['steps']} steps a round",
        "",
        measure.table(rows, markdown),
        "",
        f"All-reduce: {cost['share']:.1%} of a step ({cost['step_ms']:.0f} ms with it, "
        f"{cost['step_without_ms']:.0f} ms without); {cost['megabytes']:.1f} MB of gradients alone "
        f"take {cost['bare_ms']:.0f} ms ({cost['bare_gigabytes_per_s']:.2f} GB/s).",
    ]
    return "\n".join([*lines, *([report["busy"]] if report["busy"] else [])])


def _name(ranks: int, threads: int) -> str:
    return f"{ranks} rank{'s' * (ranks > 1)} of {threads} thread{'s' * (threads > 1)}"


def only_steps(config: str, overrides: Sequence[str], most: int) -> dict[str, Any]:
    """The job for workers that do nothing but steps in float32 on the CPU, at most so many."""
    return {
        "config": config,
        "overrides": [
            *overrides,
            "trainer.device=cpu",
            "trainer.resume=none",
            "precision.level=O0",
            "callbacks.progress=false",
            "callbacks.visualdl=false",
            "callbacks.profiler.enabled=false",
            "trainer.epochs=100000",
            f"trainer.max_steps={most}",
            "trainer.eval_every=1000000",
            "trainer.checkpoint_every=1000000",
        ],
    }


def start_ranks(
    stack: ExitStack, folder: Path, job: dict[str, Any], size: int, threads: int
) -> list[Worker]:
    """The processes of `size` ranks, with what paddle.distributed.launch would tell them."""
    folder.mkdir()
    output = f"output_dir={json.dumps(str(folder / 'output'))}"
    strategy = f"strategy.name={'collective' if size > 1 else 'single'}"
    said = {**job, "overrides": [*job["overrides"], output, strategy]}
    endpoints = [f"127.0.0.1:{port}" for port in _free_ports(size)]
    workers = []
    for rank, endpoint in enumerate(endpoints):
        path = folder / f"rank-{rank}.json"
        path.write_text(json.dumps(said), encoding="utf-8")
        variables = {
            "PADDLE_TRAINER_ID": str(rank),
            "PADDLE_TRAINERS_NUM": str(size),
            "PADDLE_CURRENT_ENDPOINT": endpoint,
            "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
            "PADDLE_LOCAL_SIZE": str(size),
            "PADDLE_DISTRI_BACKEND": "gloo",
        }
        started = measure.our_worker("ours_scaling", path, threads, variables if size > 1 else {})
        workers.append(stack.enter_context(started))
    return workers


def _free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for opened in sockets:
            opened.bind(("127.0.0.1", 0))
        return [opened.getsockname()[1] for opened in sockets]

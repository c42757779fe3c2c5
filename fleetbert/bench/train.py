"""`fleetbert bench train`: the same fine-tuning here and in PyTorch + transformers, by turns."""

from __future__ import annotations

import json
import math
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from fleetbert.bench import measure
from fleetbert.bench.measure import Segment, Worker
from fleetbert.compat import environment
from fleetbert.errors import UserError

# Steps of each side that are not timed: memory is taken, threads are started.
WARM_UP = 5


def bench(
    config: str,
    overrides: list[str],
    *,
    steps: int,
    rounds: int,
    full: bool,
    threads: int,
    peer_python: str,
) -> dict[str, Any]:
    """Train by turns and return the report, ready for JSON.

    Both sides train the same token ids from the same initial weights. Every round each side does
    `steps` steps; with `full` the rounds together are the whole training, and the report has the
    dev accuracy of both after each epoch.
    """
    for name, value in (("steps", steps), ("rounds", rounds), ("threads", threads)):
        if value < 1:
            raise UserError(f"--{name} is {value}; it has to be at least 1")
    measure.check_peer(peer_python, "bench train", ("torch", "transformers", "numpy"))
    with tempfile.TemporaryDirectory(prefix="fleetbert-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        ours, peer = _start(stack, folder, config, overrides, threads, peer_python)
        workers = {worker.hello["engine"]: worker for worker in (peer, ours)}
        plans = _plan(workers, steps, rounds, full)
        replies: dict[str, dict[str, Any]] = {}

        def run(number: int, engine: str) -> Segment:
            load = measure.load()
            untimed = 0 if number else WARM_UP
            reply = workers[engine].ask(steps=plans[engine][number], untimed=untimed)
            replies[engine] = reply
            figures = ("texts", "tokens", "seconds", "cpu_seconds", "peak_mb")
            return Segment(number, engine, load, *(reply[figure] for figure in figures))

        segments = measure.take_turns(rounds, list(workers), run)
    hello = ours.hello
    reference, engine = workers
    return {
        "bench": "train",
        "config": config,
        "overrides": overrides,
        "machine": environment.machine(threads),
        "versions": {name: worker.hello["versions"] for name, worker in workers.items()},
        "data": {key: hello[key] for key in ("texts", "dev_texts", "mean_tokens")},
        "full": full,
        "steps": plans,
        "engines": {
            name: {
                **measure.summarize(segments, name),
                "dev_accuracy": replies[name]["dev"] if full else None,
            }
            for name in workers
        },
        "ratio": measure.ratio(segments, engine, reference),
        "busy": measure.busy_note(segments, threads),
        "segments": [segment._asdict() for segment in segments],
    }


def _start(
    stack: ExitStack, folder: Path, config: str, overrides: list[str], threads: int, python: str
) -> tuple[Worker, Worker]:
    """Ours, which writes what the peer begins with, then the peer."""
    job = {
        "config": config,
        "threads": threads,
        "overrides": [
            *overrides,
            "trainer.device=cpu",
            "trainer.resume=none",
            "strategy.name=single",
            "precision.level=O0",
            "callbacks.progress=false",
            f"output_dir={json.dumps(str(folder / 'output'))}",
        ],
    }
    (folder / "ours.json").write_text(json.dumps(job), encoding="utf-8")
    measure.say(f"reading {config}, its texts and weights")
    ours = stack.enter_context(measure.our_worker("ours_train", folder / "ours.json", threads))
    measure.say(f"starting the peer in {python}")
    peer = measure.peer_worker(python, "peer_train.py", folder / "peer.json", threads)
    return ours, stack.enter_context(peer)


def _plan(workers: dict[str, Worker], steps: int, rounds: int, full: bool) -> dict[str, list[int]]:
    """Each side's steps in each round; the first holds the warm-up too."""
    totals = {name: worker.hello["total_steps"] for name, worker in workers.items()}
    shortest = min(totals.values())
    most = (shortest - WARM_UP) // rounds
    if most < 1:
        raise UserError(
            f"the whole training has {shortest} steps: too few for {rounds} rounds; "
            "give more texts, more trainer.epochs or fewer --rounds"
        )
    if full:
        return {name: split(total, rounds) for name, total in totals.items()}
    if most < steps:
        measure.say(f"{most} steps a round instead of {steps}: the training has {shortest}")
    steps = min(steps, most)
    return {name: [steps + WARM_UP, *[steps] * (rounds - 1)] for name in totals}


def split(total: int, parts: int) -> list[int]:
    """`total` as that many whole numbers that differ by 1 at most."""
    return [total * (part + 1) // parts - total * part // parts for part in range(parts)]


def format_report(report: dict[str, Any], markdown: bool = False) -> str:
    """The table and what it means."""
    header = [
        "",
        "texts/s",
        "lowest",
        "highest",
        "tokens/s",
        "tokens/text",
        "CPU ms/text",
        "peak MB",
    ]
    rows = [[*header, "dev accuracy"] if report["full"] else header]
    for name, found in report["engines"].items():
        tokens = [s["tokens"] for s in report["segments"] if s["engine"] == name]
        row = [
            name,
            *(f"{found[key]:.1f}" for key in ("texts_per_s", "lowest", "highest")),
            f"{found['tokens_per_s']:.0f}",
            f"{sum(tokens) / found['texts']:.1f}",
            f"{found['cpu_ms_per_text']:.1f}",
            f"{found['peak_mb']:.0f}",
        ]
        if report["full"]:
            row.append(f"{found['dev_accuracy'][-1]:.4f}" if found["dev_accuracy"] else "-")
        rows.append(row)
    data, on = report["data"], report["machine"]
    lines = [
        f"Fine-tuning in float32, {on['threads']} threads of {on['processor']}; "
        f"{data['texts']} texts of {data['mean_tokens']:.1f} tokens",
        "",
        measure.table(rows, markdown),
        "",
        measure.ratio_line(report["ratio"]),
        _accuracy_line(report),
    ]
    return "\n".join([*lines, *([report["busy"]] if report["busy"] else [])])


def _accuracy_line(report: dict[str, Any]) -> str:
    if not report["full"]:
        return "Accuracy was not compared; --full trains all epochs on both sides and does."
    epochs = {name: found["dev_accuracy"] for name, found in report["engines"].items()}
    if not all(epochs.values()):
        return "Accuracy was not compared: the config names no dev texts."
    last = [values[-1] for values in epochs.values()]
    n = report["data"]["dev_texts"]
    error = math.sqrt(max(value * (1 - value) for value in last) / n)
    each = "; ".join(
        f"{name} {' '.join(f'{value:.4f}' for value in values)}" for name, values in epochs.items()
    )
    return (
        f"Accuracy on {n} dev texts after each epoch: {each}. The last differ by "
        f"{abs(last[0] - last[1]):.4f}; the standard error of one is {error:.4f}."
    )

"""`fleetbert bench train`: the steps of a training job, beside the same job with other settings."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Mapping, Sequence

from fleetbert.bench import measure
from fleetbert.bench.measure import Segment, Worker
from fleetbert.bench.worker import Json
from fleetbert.compat import environment
from fleetbert.core.errors import UserError

DESCRIPTION = """\
Measure the steps of a training job in one process: texts/s, tokens/s, ms per step, memory.

  fleetbert bench train --config configs/sst2.yaml data.train=train.tsv data.dev=dev.tsv
  fleetbert bench train --config configs/sst2.yaml --beside data.batching=pack \\
      --beside data.batching=pad,data.batch_size=16

Each --beside adds the same job with these keys changed; the jobs run by turns. The first 5 steps,
start-up, evaluation and checkpoints are not timed. The output goes to a temporary folder, which is
removed. --full trains all epochs in --rounds parts and shows the accuracy on the dev texts.
"""
# Steps of each side that are not timed: memory is taken, threads are started.
WARM_UP = 5
AS_IT_IS = "the job"
WORKER = ("-m", "fleetbert.bench.train_worker")
# What a measured training does not need.
QUIET = (
    "trainer.resume=none",
    "callbacks.progress=false",
    "callbacks.visualdl=false",
    "callbacks.report=false",
    "callbacks.profiler.enabled=false",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_job(parser)
    parser.add_argument(
        "--beside",
        action="append",
        default=[],
        metavar="K=V,K=V",
        help="keys of another job to compare with; may be given several times",
    )
    parser.add_argument("--full", action="store_true", help="train all epochs of every job")


def add_job(
    parser: argparse.ArgumentParser, steps: int = 100, **numbers: tuple[float, str]
) -> None:
    """The options of every benchmark of training."""
    parser.add_argument(
        "--config",
        default="configs/bench.yaml",
        metavar="FILE",
        help="YAML file of the job (configs/bench.yaml)",
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="changes to the config")
    measure.add_numbers(parser, steps=(steps, "of each side in a round"), **numbers)


def run(arguments: argparse.Namespace) -> None:
    sides = {AS_IT_IS: [], **{words: words.split(",") for words in arguments.beside}}
    with measure.workplace() as (folder, stack):
        workers, facts = {}, {}
        for number, (side, more) in enumerate(sides.items()):
            measure.say(f"starting {side}")
            overrides = [*arguments.overrides, "strategy.name=single", *more]
            subfolder = folder / str(number)
            workers[side] = stack.enter_context(
                open_training(arguments.config, overrides, subfolder, arguments.threads)
            )
            facts[side] = workers[side].ask(start=True)
        totals = {side: fact["total_steps"] for side, fact in facts.items()}
        plans = plan(totals, arguments.steps, arguments.rounds, arguments.full)
        replies, segments = train(workers, plans, arguments.rounds)
    data, on = facts[AS_IT_IS], environment.machine(arguments.threads)
    notes = [
        f"Trained on {data['device_name']}, {on['threads']} threads of {on['processor']}: "
        f"{data['texts']} texts of {data['mean_tokens']:.1f} tokens.",
        *(str(measure.ratio(segments, side, AS_IT_IS)) for side in sides if side != AS_IT_IS),
    ]
    rows, last = table_rows(replies, segments), report(replies, segments)
    measure.finish(arguments, rows, notes, segments, facts=facts, steps=plans, engines=last)


def open_training(
    config: str,
    overrides: Sequence[str],
    folder: Path,
    threads: int,
    program: Sequence[str] = WORKER,
    name: str = "job",
    python: str = sys.executable,
    **variables: str,
) -> Worker:
    """A process that trains this job in segments; program: another worker than `train_worker`.

    name: of its files in `folder`, where several ranks share one; variables: of its environment,
    python: another's.
    """
    folder.mkdir(exist_ok=True)
    output = f"output_dir={json.dumps(str(folder / 'output'))}"
    job = {"config": config, "overrides": [*overrides, *QUIET, output]}
    return measure.start(program, folder / f"{name}.json", job, threads, python, **variables)


def plan(totals: Mapping[str, int], steps: int, rounds: int, full: bool) -> dict[str, list[int]]:
    """Each side's steps in each round; the first holds the warm-up too."""
    shortest = min(totals.values())
    most = (shortest - WARM_UP) // rounds
    if most < 1:
        raise UserError(
            f"the whole training has {shortest} steps: too few for {rounds} rounds; "
            "give more texts, more trainer.epochs or fewer --rounds"
        )
    if full:
        return {side: split(total, rounds) for side, total in totals.items()}
    if most < steps:
        measure.say(f"{most} steps a round instead of {steps}: the training has {shortest}")
    steps = min(steps, most)
    return {side: [steps + WARM_UP, *[steps] * (rounds - 1)] for side in totals}


def split(total: int, parts: int) -> list[int]:
    """`total` as that many whole numbers that differ by 1 at most."""
    return [total * (part + 1) // parts - total * part // parts for part in range(parts)]


def train(
    workers: Mapping[str, Worker], plans: Mapping[str, Sequence[int]], rounds: int
) -> tuple[dict[str, Json], list[Segment]]:
    replies: dict[str, Json] = {}

    def turn(number: int, side: str) -> Json:
        untimed = 0 if number else WARM_UP
        replies[side] = workers[side].ask(steps=plans[side][number], untimed=untimed)
        return replies[side]

    return replies, measure.take_turns(rounds, list(workers), turn)


def report(replies: Mapping[str, Json], segments: Sequence[Segment]) -> Json:
    return {
        side: {**measure.summarize(segments, side)._asdict(), "last": reply}
        for side, reply in replies.items()
    }


def table_rows(replies: Mapping[str, Json], segments: Sequence[Segment]) -> list[list[str]]:
    header = ["", "texts/s", "lowest", "highest", "tokens/s", "tokens/text", "ms/step"]
    rows = [[*header, "CPU ms/text", "peak MB", "GPU MB", "loss", "dev accuracy"]]
    for side, reply in replies.items():
        figures = measure.summarize(segments, side)
        gpu, loss, dev = reply.get("device_mb"), reply.get("losses"), reply["dev"]
        rows.append(
            [
                side,
                *(f"{value:.1f}" for value in figures[:3]),
                f"{figures.tokens_per_s:.0f}",
                f"{figures.tokens / figures.texts:.1f}",
                f"{1000 * reply['seconds'] / max(1, reply['steps']):.0f}",
                f"{figures.cpu_ms_per_text:.1f}",
                f"{figures.peak_mb:.0f}",
                "-" if gpu is None else f"{gpu:.0f}",
                f"{loss[-1]:.4f}" if loss else "-",
                " ".join(f"{value:.4f}" for value in dev) or "-",
            ]
        )
    return rows

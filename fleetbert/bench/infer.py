"""`fleetbert bench infer`: the variants of a bundle answer the same texts, by turns.

The times are from token ids to logits, padding included.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import NamedTuple, Sequence

import numpy as np

from fleetbert import bundle as bundles
from fleetbert import tasks
from fleetbert.bench import infer_table, infer_texts, lengths, measure
from fleetbert.bench.infer_table import Measured
from fleetbert.bench.infer_texts import Texts
from fleetbert.bench.measure import Segment, Worker
from fleetbert.bench.worker import Json
from fleetbert.compat import environment
from fleetbert.core.errors import UserError
from fleetbert.data.records import Example

DESCRIPTION = """\
Measure the variants of a bundle by turns: texts/s, latency of one text, memory, accuracy.

  fleetbert bench infer --bundle output/sst2/bundle --data dev.tsv
  fleetbert bench infer --bundle output/sst2/bundle --data dev.tsv --engines float32,int8-static

Each engine answers the same texts one at a time, in batches of 32 in arrival order padded to the
longest, and in batches of similar length with at most 2,048 tokens. The times are from token ids to
logits. The bundle is not changed. `--orders arrival:8,length:8` measures other batches. `--lengths`
measures the time of a text by its length and the size of its batch instead:

  fleetbert bench infer --bundle output/sst2/bundle --lengths --report lengths.html
"""
EXACT = ("float32", "onnx")  # compute what was trained, but for rounding
WORKER = ("-m", "fleetbert.bench.infer_worker")


class Row(NamedTuple):
    """A line of the table: who answers in which order, and the speed of an early exit (None: the
    variant's own)."""

    engine: str
    order: str
    worker: Worker
    speed: float | None = None
    drop: float = 0.0  # accuracy that this speed may lose

    @property
    def label(self) -> str:
        drop = f" at -{100 * self.drop:g} pt" if self.drop else ""
        return f"{self.engine}{drop}, {self.order}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bundle", required=True, metavar="DIR", help="the bundle to measure")
    parser.add_argument(
        "--engines",
        type=measure.words,
        metavar="A,B",
        help="variants to measure (default: all that run here)",
    )
    parser.add_argument(
        "--lengths",
        nargs="?",
        type=lengths.numbers,
        const=lengths.numbers(lengths.LENGTHS),
        metavar="N,N",
        help=f"time by these lengths, in tokens (without a value {lengths.LENGTHS}), instead of "
        "--orders",
    )
    parser.add_argument(
        "--sizes",
        type=lengths.numbers,
        default=lengths.numbers(lengths.SIZES),
        metavar="N,N",
        help=f"batch sizes of --lengths (default: {lengths.SIZES})",
    )
    parser.add_argument(
        "--report", type=measure.output, metavar="FILE", help="--lengths: a page with the curves"
    )
    infer_texts.add_arguments(parser)


def run(arguments: argparse.Namespace) -> None:
    bundle = bundles.read(arguments.bundle)
    task = tasks.of(bundle.task)
    task.check_answers(str(arguments.bundle))
    task.check_of_texts(str(arguments.bundle), "fleetbert bench infer")
    if arguments.report and not arguments.lengths:
        raise UserError("--report: is for --lengths; give --lengths, or --json for the figures")
    points = arguments.lengths and lengths.points(
        arguments.lengths, arguments.sizes, bundle.max_length
    )
    engines, missing = choose(bundle, arguments.engines), []
    with measure.workplace() as (folder, stack):
        texts = infer_texts.tokenize(
            bundle, arguments.data, arguments.texts, arguments.orders, folder, points
        )
        workers: dict[str, Worker] = {}
        for engine in engines:
            try:
                worker = open_engine(bundle, engine, texts, arguments.threads)
            except UserError as error:  # a variant for another processor
                if arguments.engines is not None:
                    raise
                missing.append(f"{engine} ({error})")
            else:
                workers[engine] = stack.enter_context(worker)
        if not workers:
            raise UserError(f"there is no engine to measure: {'; '.join(missing)}")
        drops = [] if points else arguments.drops
        rows = plan_rows(bundle, workers, list(texts.plans), drops)
        measured, segments = answer(rows, texts, bundle.labels, arguments.rounds)
    known = [
        f"Answered with {arguments.threads} threads of {environment.machine(1)['processor']}: "
        f"{len(texts.examples)} texts of {texts.tokens / len(texts.examples):.1f} tokens from "
        f"{arguments.data or 'api_docs'}. Tokenizing is not timed.",
        *([f"Not measured: {'; '.join(missing)}."] if missing else []),
    ]
    orders = [f"{order}: {infer_texts.described(order)}." for order in arguments.orders]
    notes = [*known, *([] if points else orders), *infer_table.difference_notes(measured, EXACT)]
    table = lengths.table_rows(measured, points) if points else infer_table.table_rows(measured)
    measure.finish(
        arguments, table, notes, segments, engines=infer_table.report(measured), missing=missing
    )
    if arguments.report:
        page = Path(arguments.report)
        lengths.write_report(page, bundle.root, measured, points, notes, arguments)
        measure.say(f"report: {page}")


def choose(bundle: bundles.Bundle, wanted: Sequence[str] | None) -> list[str]:
    variants = [variant.name for variant in bundle.manifest.variants]
    for name in wanted or []:
        if name not in variants:
            raise UserError(f"--engines: {name} is unknown; choose from {', '.join(variants)}")
    return variants if wanted is None else list(wanted)


def open_engine(
    bundle: bundles.Bundle,
    engine: str,
    texts: Texts,
    threads: int,
    python: str = sys.executable,
) -> Worker:
    measure.say(f"starting {engine}")
    job = {
        "bundle": str(bundle.root),
        "variant": engine,
        "texts": str(texts.path),
        "plans": texts.plans,
        "threads": threads,
    }
    path = texts.path.with_name(f"{engine}.json")
    return measure.start(WORKER, path, job, threads, python)


def plan_rows(
    bundle: bundles.Bundle,
    workers: dict[str, Worker],
    orders: Sequence[str],
    drops: Sequence[float],
) -> dict[str, Row]:
    """Every engine in every order, by label; those that leave early at higher speeds as well."""
    variants = {variant.name: variant for variant in bundle.manifest.variants}
    rows = []
    for engine, worker in workers.items():
        for order in orders:
            rows.append(Row(engine, order, worker))
            for drop in drops:
                speed = faster_speed(variants[engine], drop) if engine in variants else None
                if speed is not None:
                    rows.append(Row(engine, order, worker, speed, drop))
    return {row.label: row for row in rows}


def faster_speed(variant: bundles.Variant, drop: float) -> float | None:
    """The largest speed at which no more than `drop` of float32's accuracy is lost on the data that
    it was chosen on; None where that is no more than the variant's own."""
    measured = next(iter(variant.accuracy), None)
    if measured is None or measured.float32_accuracy is None:
        return None
    if not isinstance(variant, bundles.EarlyExitVariant):
        return None
    least = measured.float32_accuracy - drop - 1e-9
    good = [point.speed for point in variant.by_speed if point.accuracy >= least]
    return max((speed for speed in good if speed > variant.speed), default=None)


def answer(
    rows: dict[str, Row], texts: Texts, labels: Sequence[str], rounds: int
) -> tuple[dict[str, Measured], list[Segment]]:
    """Have all rows answer the texts, once uncounted and then by turns."""
    logits: dict[str, np.ndarray] = {}
    first_seconds: dict[str, float] = {}
    times: dict[str, list[list[float]]] = {label: [] for label in rows}
    for label, row in rows.items():
        measure.say(f"first pass, not counted: {label}")
        saved = texts.path.with_name("logits.npy")
        reply = row.worker.ask(plan=row.order, speed=row.speed, save=str(saved))
        first_seconds[label] = reply["seconds"]
        logits[label] = np.load(saved)

    def run(_: int, label: str) -> Json:
        row = rows[label]
        reply = answer_all(row.worker, row.order, texts, row.speed)
        times[label].append(reply["times"])
        return reply

    segments = measure.take_turns(rounds, list(rows), run)
    first = next(iter(logits.values()))
    measured = {}
    for label, row in rows.items():
        batches = texts.plans[row.order]
        tokens = sum(int(texts.encodings.lengths[indices].sum()) for indices, _ in batches)
        slots = sum(len(indices) * length for indices, length in batches)
        timed = row.order in texts.timed
        measured[label] = Measured(
            row.engine,
            row.order,
            measure.summarize(segments, label),
            len(batches),
            1 - tokens / slots,
            percentile_ms(times[label], 50) if timed else None,
            percentile_ms(times[label], 99) if timed else None,
            accuracy(logits[label], texts.examples, labels),
            float(np.abs(logits[label] - first).max()),
            first_seconds[label],
        )
    return measured, segments


def answer_all(worker: Worker, order: str, texts: Texts, speed: float | None = None) -> Json:
    """A turn: what the worker reports, and how much it answered."""
    reply = worker.ask(plan=order, speed=speed, save=None)
    answered = [number for indices, _ in texts.plans[order] for number in indices]
    tokens = int(texts.encodings.lengths[answered].sum())
    return {**reply, "texts": len(answered), "tokens": tokens}


def percentile_ms(rounds: Sequence[Sequence[float]], percentile: int) -> float:
    """Of the seconds in each round; the median over the rounds."""
    return statistics.median(1000 * float(np.percentile(turn, percentile)) for turn in rounds)


def accuracy(
    logits: np.ndarray, examples: Sequence[Example], labels: Sequence[str]
) -> float | None:
    """None unless all texts have labels that the bundle knows."""
    index = {label: number for number, label in enumerate(labels)}
    truth = [index.get(example.label or "", -1) for example in examples]
    return None if min(truth) < 0 else float((logits.argmax(1) == truth).mean())

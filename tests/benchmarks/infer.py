"""A bundle's variants and the same model in other engines, each at its best, by turns.

  python tests/benchmarks infer --bundle output/sst2/bundle --data dev.tsv --orders sorted
  python tests/benchmarks infer --bundle output/sst2/bundle --data dev.tsv --orders single \\
      --texts 400 --publish single

As `fleetbert bench infer`. Peers take the model as training writes it beside the bundle, in
`model`, and keep what they make of it in `peers`, with --calibration's first 300 texts. Each peer
has three settings: all are tried on a part of the texts, and the fastest takes part in the turns.
A peer that its Python lacks or that fails is named with its error.
"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from typing import NamedTuple, Sequence

from benchmarks import harness
from benchmarks.harness import Result, Target
from fleetbert import bundle as bundles
from fleetbert.bench import infer, infer_table, infer_texts, measure
from fleetbert.bench.infer import Row
from fleetbert.bench.infer_table import Measured
from fleetbert.bench.infer_texts import Texts
from fleetbert.bench.measure import Worker
from fleetbert.bench.worker import Json
from fleetbert.core.errors import UserError
from fleetbert.data import tokenizers

CALIBRATION = 300
TRIED = 8  # batches that a setting is tried on
TRY = "try "  # before the name of an order


class Peer(NamedTuple):
    """Another engine: what its Python needs, and what the job of each of its settings says."""

    needs: Sequence[str]
    settings: dict[str, Json]
    servers: bool = False  # whether it is in the environment of the servers


TORCH = ("torch", "transformers")
ORT8 = "ONNX Runtime int8"
PEERS = {
    "PyTorch": Peer(
        TORCH,
        {
            "eager, bfloat16": {"peer": "torch", "dtype": "bfloat16"},
            "torch.compile, float32": {"peer": "torch", "compiled": True},
            "torch.compile, bfloat16": {"peer": "torch", "compiled": True, "dtype": "bfloat16"},
        },
    ),
    "PyTorch int8": Peer(
        (*TORCH, "torchao"),
        {
            "torchao": {"peer": "torch", "dtype": "torchao"},
            "torchao, torch.compile": {"peer": "torch", "compiled": True, "dtype": "torchao"},
            "quantize_dynamic": {"peer": "torch", "dtype": "quantize_dynamic"},
        },
    ),
    ORT8: Peer(
        ("onnxruntime", "onnx", *TORCH),
        {
            "fused, dynamic": {"peer": "onnxruntime", "form": "dynamic"},
            "fused, dynamic, 2 callers": {"peer": "onnxruntime", "form": "dynamic", "callers": 2},
            "fused, static": {"peer": "onnxruntime", "form": "static"},
        },
    ),
    "OpenVINO int8": Peer(
        ("openvino", "nncf", *TORCH),
        {
            "NNCF mixed": {"peer": "openvino", "preset": "mixed"},
            "NNCF performance": {"peer": "openvino", "preset": "performance"},
            "NNCF mixed, 2 streams": {"peer": "openvino", "preset": "mixed", "callers": 2},
        },
    ),
    "sentence-transformers int8": Peer(
        ("sentence_transformers", "optimum", "onnxruntime"),
        {
            f"ONNX {name}": {"peer": "sentence", "processor": name}
            for name in ("avx2", "avx512", "avx512_vnni")
        },
        servers=True,
    ),
}
# How many times the best peer's texts/s are wanted, of single texts its p50.
WANTED = {("int8-static", "sorted"): 1.7, ("onnx-int8", "single"): 1.0}
EQUAL = 0.003  # a peer that loses so much more accuracy is not compared with


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bundle", required=True, metavar="DIR", help="the bundle to measure")
    parser.add_argument("--engines", type=measure.words, metavar="A,B", help="(all that are there)")
    parser.add_argument(
        "--peers", type=measure.words, default=list(PEERS), metavar="A,B", help="(all of them)"
    )
    parser.add_argument("--calibration", metavar="FILE", help="texts for peers' int8 (--data)")
    infer_texts.add_arguments(parser)
    harness.add_peer(parser)


def run(arguments: argparse.Namespace) -> Result:
    for name in arguments.peers:
        if name not in PEERS:
            raise UserError(f"--peers: {name} is unknown; choose from {', '.join(PEERS)}")
    with measure.workplace() as (folder, stack):
        bundle = bundles.read(arguments.bundle)
        engines = [name for name in infer.choose(bundle, arguments.engines) if name != "onnx"]
        texts = infer_texts.tokenize(
            bundle, arguments.data, arguments.texts, arguments.orders, folder
        )
        with_parts = with_trials(texts)
        tried, rows, missing = [["", "tried, texts/s"]], {}, []
        for name in arguments.peers:
            try:
                trials = try_settings(name, bundle, with_parts, arguments, stack)
            except UserError as error:
                missing.append(f"{name} ({error})")
                continue
            for order, (speeds, best, worker) in trials.items():
                words = ", ".join(f"{setting} {speed}" for setting, speed in speeds.items())
                tried.append([f"{name}, {order}", words])
                if worker is not None:
                    row = Row(f"{name} ({best})", order, worker)
                    rows[row.label] = row
        workers = {
            engine: stack.enter_context(infer.open_engine(bundle, engine, texts, arguments.threads))
            for engine in engines
        }
        ours = infer.plan_rows(bundle, workers, arguments.orders, arguments.drops)
        measured, segments = infer.answer({**ours, **rows}, texts, bundle.labels, arguments.rounds)
        versions = sorted({row.worker.hello["engine"] for row in rows.values()})
    compared = [
        line for label in ours for line in [beside_best(label, list(rows), measured)] if line
    ]
    return Result(
        f"Answering {len(texts.examples)} texts of {texts.tokens / len(texts.examples):.1f} tokens",
        [infer_table.table_rows(measured), *[[COMPARED, *compared]] * bool(compared), tried],
        [
            *(f"{order}: {infer_texts.described(order)}." for order in arguments.orders),
            f"{arguments.threads} threads. Tokenizing is not timed. A peer's settings were tried "
            f"on {TRIED} batches (single: 100 texts); its peak MB holds what compiling took.",
            "Peers: " + (", ".join(versions) or "none") + ".",
            *([f"Not measured: {'; '.join(missing)}."] if missing else []),
            *harness.busy(segments, arguments.threads),
        ],
        {"engines": infer_table.report(measured), "versions": versions},
        [
            Target(f"{engine}, {order}: beside the best peer", float(line[2]), least)
            for (engine, order), least in WANTED.items()
            for line in compared
            if line[0] == f"{engine}, {order}"
        ],
    )


def with_trials(texts: Texts) -> Texts:
    """With a plan of a part of each order's batches, as TRY and its name."""
    trials = {}
    for order, batches in texts.plans.items():
        every = max(1, len(batches) // TRIED)
        trials[TRY + order] = batches[:100] if order == "single" else batches[::every]
    return texts._replace(plans={**texts.plans, **trials})


def try_settings(
    name: str, bundle: bundles.Bundle, texts: Texts, arguments: argparse.Namespace, stack: ExitStack
) -> dict[str, tuple[dict[str, str], str, Worker | None]]:
    """Of each order: every setting's texts/s (or why there is none), the fastest, and its worker,
    which stays open."""
    peer = PEERS[name]
    python = arguments.servers_python if peer.servers else arguments.peer_python
    harness.check_peer(python, peer.needs)
    trials: dict[str, dict[str, float]] = {order: {} for order in arguments.orders}
    workers, failed = {}, {}
    for number, (setting, values) in enumerate(peer.settings.items()):
        measure.say(f"trying {name}: {setting}")
        job = {**peer_job(bundle, arguments.calibration or arguments.data), **values}
        try:
            worker = open_peer(f"{values['peer']}{number}", job, texts, python, arguments.threads)
            stack.enter_context(worker)
            for order, speeds in trials.items():
                for _ in range(2):
                    reply = infer.answer_all(worker, TRY + order, texts)
                speeds[setting] = reply["texts"] / reply["seconds"]
        except UserError as error:
            failed[setting] = f"failed: {str(error).splitlines()[-1][:200]}"
        else:
            workers[setting] = worker
            kept = {max(speeds, key=speeds.__getitem__) for speeds in trials.values() if speeds}
            for loser in set(workers) - kept:
                workers.pop(loser).close()
    chosen = {}
    for order, speeds in trials.items():
        best = max(workers, key=lambda setting: speeds[setting], default="")
        told = {setting: f"{speed:.0f}" for setting, speed in speeds.items()}
        chosen[order] = ({**told, **failed}, best, workers.get(best))
    return chosen


def peer_job(bundle: bundles.Bundle, calibration: str | None) -> Json:
    """Where a peer's engine has its model from, and where it keeps what it makes of it with the
    texts of the table `calibration`."""
    files = bundle.root.resolve().with_name("peers")
    files.mkdir(exist_ok=True)
    folder = files / "calibration"
    if not folder.is_dir():
        folder.mkdir()
        infer_texts.tokenize(bundle, calibration, CALIBRATION, ["single"], folder)
    return {
        "folder": str(bundle.root.resolve().with_name("model")),
        "files": str(files),
        "calibration": str(folder / "texts.npz"),
        "pad_id": tokenizers.open(bundle).pad_id,
        "labels": len(bundle.labels),
    }


def open_peer(name: str, job: Json, texts: Texts, python: str, threads: int) -> Worker:
    job = {**job, "texts": str(texts.path), "plans": texts.plans, "threads": threads}
    path = texts.path.with_name(f"{name}.json")
    return harness.start_peer(python, "infer.py", path, job, threads)


COMPARED = ["", "best peer", "times its speed", "accuracy", "its accuracy", "CPU ms/text", "its"]


def beside_best(
    label: str, peers: Sequence[str], measured: dict[str, Measured]
) -> list[str] | None:
    """A row of COMPARED: a variant beside the fastest peer in the same order that loses no more
    than EQUAL of accuracy; single texts by p50."""
    ours = measured[label]
    rivals = [
        row
        for row in (measured[name] for name in peers)
        if row.order == ours.order and (row.accuracy or 0) >= (ours.accuracy or 0) - EQUAL
    ]
    if not rivals:
        return None

    def speed(row: Measured) -> float:
        return 1 / row.p50_ms if row.p50_ms else row.figures.texts_per_s

    best = max(rivals, key=speed)
    accuracies = ["-" if row.accuracy is None else f"{row.accuracy:.4f}" for row in (ours, best)]
    used = [f"{row.figures.cpu_ms_per_text:.2f}" for row in (ours, best)]
    return [label, best.engine, f"{speed(ours) / speed(best):.2f}", *accuracies, *used]

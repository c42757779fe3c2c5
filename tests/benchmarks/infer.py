"""A bundle's variants and the same model in PyTorch, ONNX Runtime and OpenVINO, by turns.

  python tests/benchmarks infer --bundle output/sst2/bundle --data dev.tsv
  python tests/benchmarks infer --bundle output/sst2/bundle --data dev.tsv --add dynamic,static \\
      --calibration train.tsv --orders sorted

As `fleetbert bench infer`, on a copy of the bundle: --add quantizes it. Peers that the other Python
lacks are left out. Speed alone needs no trained model: a job with trainer.max_steps=1 makes any.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import NamedTuple, Sequence

import numpy as np

from benchmarks import harness, models
from benchmarks.harness import Result, Target
from fleetbert import bundle as bundles
from fleetbert.bench import infer, infer_table, measure
from fleetbert.bench.infer import Texts
from fleetbert.bench.infer_table import Measured
from fleetbert.bench.measure import Segment, Worker
from fleetbert.bench.worker import Json
from fleetbert.core.errors import UserError

# Texts that int8 is calibrated with where nothing is known of accuracy.
CALIBRATION = 64


class Peer(NamedTuple):
    """Another engine: how tables call it, what its Python needs, what its job says besides."""

    label: str
    needs: Sequence[str]
    settings: Json
    int8: str | None = None  # how ONNX Runtime quantizes the model for it


PEERS = {
    "torch": Peer("PyTorch eager", ("torch", "transformers"), {"peer": "torch"}),
    "ort": Peer("ONNX Runtime float32", ("onnxruntime",), {"peer": "onnxruntime"}),
    "ort-int8": Peer(
        "ONNX Runtime dynamic int8", ("onnxruntime",), {"peer": "onnxruntime"}, "dynamic"
    ),
    "openvino": Peer("OpenVINO float32", ("openvino",), {"peer": "openvino"}),
    "openvino-int8": Peer("OpenVINO int8", ("openvino",), {"peer": "openvino"}, "static"),
}
EXACT = (*infer.EXACT, *(PEERS[name].label for name in ("torch", "ort", "openvino")))
FLOAT32, ORT8 = "float32", PEERS["ort-int8"].label
EARLY_EXIT = "early-exit-int8"
# Times the texts/s of another row, at least; of single texts p50 counts. MiniLM on SST-2.
SPEEDS = (
    ("int8-static, sorted", f"{FLOAT32}, arrival", 4.9),
    (f"{EARLY_EXIT}, sorted", f"{FLOAT32}, arrival", 6.5),
    (f"{EARLY_EXIT}, sorted", f"{ORT8}, arrival", 3.5),
    (f"{EARLY_EXIT}, sorted", f"{ORT8}, sorted", 1.9),
    (f"{EARLY_EXIT} at -1.5 pt, sorted", f"{FLOAT32}, arrival", 8.0),
    ("int8-dynamic, sorted", f"{FLOAT32}, sorted", 0.9),
    ("int8-static, sorted", f"{FLOAT32}, sorted", 2.8),
    ("int8-static, sorted", f"{ORT8}, sorted", 1.4),
    ("int8-static, single", f"{ORT8}, single", 1.0),
    (f"{EARLY_EXIT}, single", f"{ORT8}, single", 1.0),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--bundle", required=True, metavar="DIR", help="the bundle to measure")
    parser.add_argument("--engines", type=measure.words, metavar="A,B", help="(all that are there)")
    parser.add_argument(
        "--add", type=measure.words, default=[], metavar="A,B", help="methods, jobs"
    )
    parser.add_argument("--calibration", metavar="FILE", help="texts for --add (those of --data)")
    parser.add_argument("--targets", choices=("sst2",), help="what has to be reached")
    infer.add_texts(parser)
    harness.add_peer(parser)


def run(arguments: argparse.Namespace) -> Result:
    harness.check_peer(arguments.peer_python, ("numpy",))
    with measure.workplace() as (folder, stack):
        bundle = bundles.read(shutil.copytree(arguments.bundle, folder / "bundle"))
        if arguments.add and not arguments.data:
            raise UserError("--add needs --data, with labels")
        for method in arguments.add:
            calibration = arguments.calibration or arguments.data
            bundle = models.add_variant(bundle, method, calibration, arguments.data)
        engines, missing = choose(bundle, arguments.engines, arguments.peer_python)
        if any(engine in PEERS and "torch" not in engine for engine in engines):
            bundle = models.with_onnx(bundle, folder / "bundle")
        texts = infer.tokenize(bundle, arguments.data, arguments.texts, arguments.orders, folder)
        workers = {}
        for engine in engines:
            if engine in PEERS:
                model = Path(arguments.bundle).with_name("model")
                job = peer_model(engine, bundle, texts, folder, model)
                worker = open_peer(engine, job, texts, arguments)
            else:
                worker = infer.open_engine(bundle, engine, texts, arguments.threads)
            workers[PEERS[engine].label if engine in PEERS else engine] = worker
            stack.enter_context(worker)
        sizes = {variant.name: variant.bytes for variant in bundle.manifest.variants}
        rows = infer.plan_rows(bundle, workers, arguments.orders, arguments.drops)
        measured, segments = infer.answer(rows, texts, bundle.labels, arguments.rounds)
        versions = {engine: worker.hello.get("engine") for engine, worker in workers.items()}
    sized = [["", "MB", "of float32"]]
    for engine, bytes_of in sizes.items():
        sized.append([engine, f"{bytes_of / 1e6:.1f}", f"{bytes_of / sizes[FLOAT32]:.3f}"])
    return Result(
        f"Answering {len(texts.examples)} texts of {texts.tokens / len(texts.examples):.1f} tokens",
        [infer_table.table_rows(measured), sized],
        [
            *(f"{order}: {infer.described(order)}." for order in arguments.orders),
            f"{arguments.threads} threads. Tokenizing is not timed.",
            *infer_table.difference_notes(measured, EXACT),
            "Peers: " + (", ".join(sorted({v for v in versions.values() if v})) or "none") + ".",
            *([f"Not measured: {'; '.join(missing)}."] if missing else []),
            *harness.busy(segments, arguments.threads),
        ],
        {"engines": infer_table.report(measured), "versions": versions, "sizes": sizes},
        targets(measured, segments) if arguments.targets else [],
    )


def choose(
    bundle: bundles.Bundle, wanted: Sequence[str] | None, python: str
) -> tuple[list[str], list[str]]:
    """Variants and peers that are measured, and what is not there, in words."""
    asked = [name for name in wanted or PEERS if name in PEERS]
    ours = None if wanted is None else [name for name in wanted if name not in PEERS]
    engines, missing = infer.choose(bundle, ours), []
    for name in asked:
        lacking = harness.missing_modules(python, PEERS[name].needs)
        if lacking:
            missing.append(f"{PEERS[name].label} ({python} {lacking})")
        else:
            engines.append(name)
    return [name for name in engines if name != "onnx" or wanted], missing


def open_peer(name: str, model: Json, texts: Texts, arguments: argparse.Namespace) -> Worker:
    measure.say(f"starting {PEERS[name].label}")
    job = {
        **model,
        "texts": str(texts.path),
        "plans": texts.plans,
        "threads": arguments.threads,
    }
    path = texts.path.with_name(f"{name}.json")
    return harness.start_peer(arguments.peer_python, "infer.py", path, job, arguments.threads)


def peer_model(
    name: str, bundle: bundles.Bundle, texts: Texts, folder: Path, model: Path | None = None
) -> Json:
    """What a peer's job says of its model, which is made in `folder` of the bundle's ONNX; PyTorch
    takes the folder `model`, as training writes it beside the bundle."""
    peer = PEERS[name]
    with np.load(texts.path) as file:
        job = {**peer.settings, "labels": len(bundle.labels), "pad_id": int(file["pad_id"])}
    if name == "torch":
        return {**job, "model": str(model)}
    model = bundle.folder("onnx") / "model.onnx"
    target = folder / name / "model.onnx"
    target.parent.mkdir()
    if peer.int8 == "dynamic":
        model = models.quantize_onnx(model, target)
    if peer.int8 == "static":
        model = models.quantize_onnx_static(model, target, calibration(texts))
    return {**job, "model": str(model)}


def calibration(texts: Texts) -> list[dict[str, np.ndarray]]:
    """A few of the texts, one a batch, as an ONNX model takes them."""
    encodings = texts.encodings
    batches = []
    for number in range(0, len(encodings.ids), max(1, len(encodings.ids) // CALIBRATION)):
        ids = np.asarray(encodings.ids[number], np.int64)[None]
        types = np.zeros_like(ids)
        types[0, encodings.first_lengths[number] :] = 1
        mask = np.ones_like(ids)
        batches.append({"input_ids": ids, "token_type_ids": types, "attention_mask": mask})
    return batches


def targets(measured: dict[str, Measured], segments: Sequence[Segment]) -> list[Target]:
    wanted = []
    for engine, reference, least in SPEEDS:
        if engine not in measured or reference not in measured:
            continue
        ours, other = measured[engine].p50_ms, measured[reference].p50_ms
        if ours is not None and other is not None:
            wanted.append(Target(f"{engine}: p50, beside {reference}", other / ours, least))
        else:
            times = measure.ratio(segments, engine, reference).median
            wanted.append(Target(f"{engine}: texts/s, beside {reference}", times, least))
    return wanted

"""What makes models smaller and faster: quantize, distill, early_exit, compress."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from fleetbert import bundle as bundles
from fleetbert import config as configs
from fleetbert.api import pairs
from fleetbert.api.arguments import folder_of, job_of, keys_of
from fleetbert.api.functions import remedy, run_of
from fleetbert.api.model import PathLike
from fleetbert.api.results import Run, Variant
from fleetbert.compat import environment
from fleetbert.config.names import COLUMNS
from fleetbert.core import extras, stopping
from fleetbert.core.arguments import checked
from fleetbert.core.errors import UserError
from fleetbert.core.files import below_home
from fleetbert.data import in_memory
from fleetbert.data.in_memory import Table

if TYPE_CHECKING:
    from fleetbert.compression import pipeline, search


@checked
def quantize(
    bundle: PathLike,
    *,
    method: str | None = None,
    calibration: Table | None = None,
    gate: Table | None = None,
    max_drop: float | None = None,
    train: Table | None = None,
    dev: Table | None = None,
    name: str | None = None,
    output_dir: PathLike | None = None,
    config: PathLike | None = None,
    **keys: object,
) -> Variant:
    """Add a smaller or faster variant to a bundle if it keeps the accuracy.

    method: static (the default), dynamic, qat, prune, onnx or bfloat16; `fleetbert quantize
        --help`.
    calibration: texts like those to come, for static and onnx; labels are not needed.
    gate: the labelled table on which the variant is compared with float32.
    max_drop: the accuracy (0 to 1) that the variant may lose on `gate`. Default: 0.005.
    train, dev: tables to train on, for qat and prune.
    name: the variant's name. Default: int8-static, pruned-float32, ..., depending on the method.
    output_dir: the folder for checkpoints and in-memory tables. Default: bundle/../quantize.
    config, keys: as in `train`; `fleetbert quantize --help-all` lists the keys.

    Raises GateFailed if the variant loses more than `max_drop`. The bundle then stays unchanged,
    but the report is written. Raises UserError if an argument or the data is invalid.
    """
    extras.need("train", "quantization")
    named = {"method": method, "gate.max_accuracy_drop": max_drop, "name": name, "bundle": bundle}
    given = keys_of(keys, named)
    tables = in_memory.of_splits(
        {
            "calibration.data": calibration,
            "gate.data": gate,
            "data.train": train,
            "data.dev": dev,
        }
    )
    output_dir = _beside(bundle, "quantize") if output_dir is None else output_dir
    job = job_of(configs.Quantize, given, tables, config, output_dir, unlabelled="calibration.data")
    if int(os.environ.get("PADDLE_TRAINERS_NUM", "1")) > 1:
        raise UserError("quantize: is for one process; ranks are for launch/quantize.py")
    pairs.refuse_of_bundle(job, tables, "calibration")
    environment.import_paddle()
    from fleetbert.compression import pipeline  # loads Paddle

    return _added(pipeline.quantize(job), job.bundle)


@checked
def distill(
    teacher: PathLike,
    train: Table | None = None,
    dev: Table | None = None,
    *,
    kind: str | None = None,
    layers: int | None = None,
    output_dir: PathLike | None = None,
    config: PathLike | None = None,
    **keys: object,
) -> Run:
    """Train a smaller model to answer as a trained model does.

    teacher: `Run.model`, or a bundle (which gives logits, but no hidden states).
    train, dev, output_dir (default: output/distill-1, ...), config: as in `train`.
    kind: student (the default) learns the teacher's logits and hidden states. In theseus the
        student's layers gradually replace the teacher's.
    layers: the number of layers of the student. Default: 3.
    keys: epochs, batch_size, learning_rate, max_length, seed, device and init as in `train`;
        `fleetbert distill --help-all` lists the other keys.

    Raises UserError if an argument or the data is invalid.
    """
    extras.need("train", "distillation")
    named = {"distill.kind": kind, "model.num_hidden_layers": layers, "distill.teacher": teacher}
    given = keys_of(keys, named)
    tables = in_memory.of_splits({"data.train": train, "data.dev": dev})
    with folder_of("distill", output_dir, config, given) as folder:
        job = job_of(configs.Distill, given, tables, config, folder)
        job = pairs.of_pairs(job, pairs.written(job, tables))
        environment.import_paddle()
        from fleetbert.compression.distill import job as distillation  # loads Paddle

        with stopping.expected_by_program(remedy("distill", job)):
            return run_of(distillation.distill(job))


@checked
def early_exit(
    bundle: PathLike,
    texts: Table,
    *,
    gate: Table | None = None,
    max_drop: float | None = None,
    config: PathLike | None = None,
    **keys: object,
) -> list[Variant]:
    """Add early-exit variants: a text skips the remaining layers once an inner head is certain.

    texts: texts like those that the model will answer. Labels are not needed, because the heads
        learn from the model's answers. In-memory tables are saved in bundle/../early-exit.
    gate, max_drop: as in `quantize`.
    config, keys: as in `train`; `fleetbert distill --help-all` lists the keys of kind `self`.

    Returns the added variants. The list is empty if no exit would make the model faster.
    Raises GateFailed and UserError as `quantize` does.
    """
    extras.need("train", "training early exits")
    named = {"bundle": bundle, "gate.max_accuracy_drop": max_drop}
    given = keys_of(keys, named, short=COLUMNS)  # its seed is a key by that name
    tables = in_memory.of_splits({"data.train": texts, "gate.data": gate})
    folder = _beside(bundle, "early-exit")
    job = job_of(configs.SelfDistill, given, tables, config, folder, unlabelled="data.train")
    pairs.refuse_of_bundle(job, tables, "train")
    environment.import_paddle()
    from fleetbert.compression.distill import exits  # loads Paddle

    return [_added(result, job.bundle) for result in exits.add_variants(job)]


@checked
def compress(
    bundle: PathLike,
    train: Table,
    *,
    selection: Table,
    gate: Table,
    budget_ms: float | None = None,
    budget_mb: float | None = None,
    max_drop: float | None = None,
    output_dir: PathLike | None = None,
    config: PathLike | None = None,
    **keys: object,
) -> Variant:
    """Make the model that meets your budgets: try methods in turn, the cheapest first.

    bundle: the bundle to make smaller; it stays as it is.
    train: a labelled table to calibrate and train with.
    selection, gate: labelled tables: candidates are compared on the first, and the chosen one is
        compared with float32 on the second. The three tables must differ.
    budget_ms, budget_mb: milliseconds of one text alone; megabytes of the model and its tokenizer.
        Without them all candidates are tried, and the fastest is taken.
    max_drop: the accuracy (0 to 1) that may be lost. Default: 0.01.
    output_dir: the folder of the new bundle, the report and the candidates. An unfinished search
        resumes. Default: bundle/../compress.
    config, keys: as in `train`; `fleetbert compress --help-all` lists the keys.

    Returns the variant in the new bundle; its speed_ratio is that of one text alone. Raises
    GateFailed if no candidate meets the budgets, and UserError as `quantize` does.
    """
    extras.need("train", "compress")
    named = {
        "bundle": bundle,
        "budget.ms": budget_ms,
        "budget.mb": budget_mb,
        "gate.max_accuracy_drop": max_drop,
    }
    tables = in_memory.of_splits(
        {"data.train": train, "selection.data": selection, "gate.data": gate}
    )
    output_dir = _beside(bundle, "compress") if output_dir is None else output_dir
    given = keys_of(keys, named, short=COLUMNS)
    job = job_of(configs.Compress, given, tables, config, output_dir)
    pairs.refuse_of_bundle(job, tables)
    environment.import_paddle()
    from fleetbert.compression import search  # loads Paddle

    with stopping.expected_by_program("call fleetbert.compress again to go on from there"):
        chosen = search.compress(job)
    speed_ratio = chosen.candidate.float32_ms / chosen.candidate.ms
    return _variant(chosen, job.bundle, chosen.accuracy, speed_ratio)


def _beside(bundle: PathLike, name: str) -> Path:
    return Path(below_home(bundle)).parent / name


def _added(result: pipeline.Result, source: PathLike) -> Variant:
    variant = result.bundle.variant(result.variant)
    assert variant.comparison is not None  # the gate has measured it
    return _variant(result, source, variant.accuracy[0], variant.comparison.speed_ratio)


def _variant(
    result: pipeline.Result | search.Chosen,
    source: PathLike,
    measured: bundles.Accuracy,
    speed_ratio: float,
) -> Variant:
    """source: the bundle that the variant was made from."""
    # The gate has measured both.
    assert measured.float32_accuracy is not None
    assert measured.drop is not None
    assert result.report is not None
    return Variant(
        result.bundle.root,
        result.variant,
        measured.accuracy,
        measured.float32_accuracy,
        measured.n,
        speed_ratio,
        result.bundle.variant(result.variant).bytes,
        bundles.read(source).variant("float32").bytes,
        result.report,
        (measured.drop.low, measured.drop.high),
        measured.metric,
    )

"""The way of every quantized variant into its bundle, one way:

open      the bundle, the float32 source and the gate's table: read, verified, tokenized once
prepare   what the method does before the bundle is touched: calibrate, choose, train
write     the variant's files, by what `prepare` gave
measure   accuracy, speed and size beside float32, with the engine that will serve it
accept    the gate
report    the evidence, of a variant that was stopped too
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
from pathlib import Path
from typing import Callable

from fleetbert import bundle as bundles
from fleetbert import config
from fleetbert.compression import auto_compression, report, sensitivity
from fleetbert.compression.gate import too_few
from fleetbert.compression.static import split_pieces
from fleetbert.compression.texts import Feeds
from fleetbert.compression.work import Ready, Result, Work, open_work
from fleetbert.core import extras
from fleetbert.core.errors import GateFailed
from fleetbert.graph import int8, weights

log = logging.getLogger(__name__)

# Of gate.data, for the error of each layer.
TEXTS_FOR_ERRORS = 64


# Does the work; None on ranks that write nothing, a Result where the method wrote a new bundle.
Prepare = Callable[[Work], "Ready | Result | None"]
# Modules with a function `prepare`. Imported when a job asks for them: those that train bring the
# trainer and PaddleNLP, seconds.
METHODS = {
    "dynamic": "fleetbert.compression.dynamic",
    "static": "fleetbert.compression.static",
    "qat": "fleetbert.compression.qat",
    "prune": "fleetbert.compression.prune",
    "onnx": "fleetbert.compression.onnx_int8",
    "bfloat16": "fleetbert.compression.bfloat16",
    "paddleslim": "fleetbert.compression.auto_compression",
    "vocabulary": "fleetbert.compression.vocabulary",
}


def quantize(job: config.Quantize) -> Result:
    """Add the variant that `job` describes to its bundle.

    GateFailed, which leaves the bundle as it was, where more accuracy is lost than
    `gate.max_accuracy_drop`; UserError for what is wrong with the job, its data or its bundle.
    Both a variant and a failure at the gate write a report. Of several ranks the first adds it.
    """
    # Of several ranks the first is the one that writes.
    is_first = os.environ.get("PADDLE_TRAINER_ID", "0") == "0"
    name = variant_name(job)
    with bundles.writing(job.bundle, name) if is_first else contextlib.nullcontext():
        return _quantize(job, name)


def _quantize(job: config.Quantize, name: str) -> Result:
    prepare = load(job.method)
    work = open_work(job)
    ready = prepare(work)
    if ready is None:
        return Result(work.bundle, name)
    if isinstance(ready, Result):
        return ready
    work.source, bundle = ready.source, work.bundle
    with bundles.adding(bundle.root, name) as new:
        origin = {"name": name, "made_from": job.source}
        variant = ready.write(new.folder).model_copy(update=origin)
        log.info(f"{name}: measuring on {job.gate.data} beside float32")
        variant = work.gate.measure(variant, new.folder)
        (accuracy,) = variant.accuracy
        caution = too_few(accuracy, job.gate.max_accuracy_drop)
        if caution:
            log.info(f"{job.gate.data}: {caution}")
        texts = sensitivity.spread(work.gate.few(TEXTS_FOR_ERRORS))
        variant = with_output_errors(work, variant, new.folder, texts)
        refused = work.gate.refusal(name, accuracy, worst(variant), variant.alone_difference)
        if refused is None:
            bundle = new.add(variant)
            variant = bundle.variant(name)
            log.info(f"added {name} to {bundle.root}")
    log.info(f"{name}: writing the report")
    page = report.write(work, bundle, variant, texts, refused)
    if refused is not None:
        raise GateFailed(refused)
    return Result(bundle, name, page)


def load(method: str) -> Prepare:
    """What prepares a variant by this method. UserError where its packages are not installed."""
    if method == "onnx":
        extras.need("onnx", "method: onnx")
    prepare: Prepare = importlib.import_module(METHODS[method]).prepare
    return prepare


def variant_name(job: config.Quantize) -> str:
    """`name`, or what the method makes; `pruned-` before it if it was made from pruned-float32."""
    names = {"prune": "pruned-float32", "onnx": "onnx-int8"}
    names.update({name: name for name in ("bfloat16", "vocabulary")})
    if job.method == "paddleslim":
        names["paddleslim"] = auto_compression.variant_name(job)
    made = names.get(job.method, f"int{job.bits}-{job.method}")
    former = job.source[: -len("float32")] if job.source.endswith("float32") else f"{job.source}-"
    return job.name or former + made


def with_output_errors(
    work: Work, variant: bundles.Variant, folder: Path, texts: list[Feeds]
) -> bundles.Variant:
    """The variant in `folder` with the token error of each quantized layer on `texts`."""
    if not isinstance(variant, (bundles.Int8Variant, bundles.WeightOnlyVariant)):
        return variant
    layers = work.source.layers
    quantized, others = weights.load(folder)
    corrections = {
        name: others[bias][: len(layers.parameters[bias])] - layers.parameters[bias]
        for name, bias in int8.biases(layers.program).items()
        if name in quantized
    }
    pieces = split_pieces(getattr(variant, "split", {}))
    thresholds = report.of_layers(variant, "thresholds")
    errors = sensitivity.output_errors(layers, quantized, thresholds, texts, corrections, pieces)
    return variant.model_copy(update={"output_errors": errors})


def worst(variant: bundles.Variant, most: int = 3) -> str:
    """The layers whose outputs quantization changes most, or that pruning took most from, as words
    for a message."""
    if isinstance(variant, bundles.ProgramVariant) and variant.pruning:
        lost = variant.pruning.lost_importance
        names = sorted(lost, key=lambda name: -lost[name])[:most]
        return (
            f"the parts that lost most of what matters are {', '.join(names)}; a smaller "
            "prune.layers, heads or feed_forward leaves more, and more trainer.epochs mend more"
        )
    errors = report.of_layers(variant, "output_errors")
    if not errors:
        return "`skip` leaves layers in float32, and method: static tells which change most"
    names = report.most_changed(variant, most)
    listed = ", ".join(f"{name} ({errors[name]:.1%})" for name in names)
    return f"the layers with the largest token error are {listed}; `skip` leaves layers in float32"

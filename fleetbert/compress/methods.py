"""What each method of a quantization job does: the variant's files, from the bundle's source."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

from fleetbert import bundle as bundles
from fleetbert import config
from fleetbert.errors import UserError

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from fleetbert.compress.calibrate import Batches
    from fleetbert.compress.variants import Prepared
    from fleetbert.data.read import Example

Write = Callable[[Path], bundles.Variant]
# The kind of variants that a method may start from.
FLOAT32 = "paddle-inference"


def variant_name(job: config.Quantize) -> str:
    """`name`, or what the method makes; `pruned-` before it if it was made from pruned-float32."""
    made = "pruned-float32" if job.method == "prune" else f"int{job.bits}-{job.method}"
    former = job.source[: -len("float32")] if job.source.endswith("float32") else f"{job.source}-"
    return job.name or former + made


def open_method(job: config.Quantize, bundle: bundles.Bundle) -> Write | None:
    """What the job's method does before the bundle is touched; see METHODS."""
    source = bundle.variant(job.source)
    if source.kind != FLOAT32:
        raise UserError(
            f"source: the variant {source.name} of {bundle.root} is of kind {source.kind}; name "
            "float32, or one that method: prune made"
        )
    bundles.verify(bundle, job.source)
    return METHODS[job.method](job, bundle)


def _dynamic(job: config.Quantize, bundle: bundles.Bundle) -> Write:
    from fleetbert.compress import variants

    source = bundle.folder(job.source)
    return lambda folder: variants.write_dynamic(source, folder, job.bits, job.skip)


def _static(job: config.Quantize, bundle: bundles.Bundle) -> Write:
    from fleetbert.compress import variants

    prepared = _calibrated(job, bundle)
    return lambda folder: variants.write_mix(prepared, folder)


def _search(job: config.Quantize, bundle: bundles.Bundle) -> Write:
    from fleetbert.compress import search, sensitivity
    from fleetbert.graph import program as programs

    prepared = _calibrated(job, bundle)
    found = sensitivity.groups(programs.read(bundle.folder(job.source) / "model.pdmodel"))
    groups = {name: [w for w in names if w not in prepared.left] for name, names in found.items()}
    groups = {name: names for name, names in groups.items() if names}
    measure = search.Measure(bundle, str(job.gate.data), prepared, groups, job.threads, log.info)
    log.info(f"measuring {len(groups)} groups of layers alone, then mixes, on {job.gate.data}")
    whole, drop = job.search.whole_curve, job.gate.max_accuracy_drop
    return lambda folder: search.write_best(measure, folder, drop, whole)


def _calibrated(job: config.Quantize, bundle: bundles.Bundle) -> Prepared:
    """The source with the ranges of its activations, for any mix of float32 and int8."""
    from fleetbert.compress import adaround, clip, sensitivity, variants

    settings, source = job.calibration, bundle.folder(job.source)
    batches = read_batches(settings, bundle)
    log.info(f"calibrating with {settings.algorithm}: {len(batches.batches)} batches")
    prepared = variants.prepare_static(source, batches, algorithm=settings.algorithm, skip=job.skip)
    if settings.clip == "auto":
        log.info(f"trying lower thresholds of layers' inputs on {job.gate.data}")
        texts = config.Calibration(data=job.gate.data, texts=clip.TEXTS)
        prepared = clip.clip(prepared, source, read_batches(texts, bundle), log.info)
    if settings.rounding == "round":
        return prepared
    thresholds = variants.input_thresholds(prepared)
    layers = sensitivity.Layers(source)
    learned = adaround.learn(prepared.found, layers, list(iter(batches)), thresholds, log.info)
    return prepared._replace(found=learned, method={**prepared.method, "rounding": "adaround"})


def _qat(job: config.Quantize, bundle: bundles.Bundle) -> Write | None:
    from fleetbert.compress import qat, variants

    batches = _before_training(job, bundle)
    trained = qat.train(job, bundle)
    if trained is None:
        return None

    def write(folder: Path) -> bundles.Variant:
        with tempfile.TemporaryDirectory() as temporary:
            qat.write_program(trained, bundle.folder(job.source), Path(temporary))
            variant = variants.write_qat(
                Path(temporary), folder, batches, trained.thresholds, job.skip
            )
        return _beside_network(variant, folder, trained.network, batches, job.threads)

    return write


def _prune(job: config.Quantize, bundle: bundles.Bundle) -> Write | None:
    from fleetbert.compress import prune

    batches = _before_training(job, bundle)
    pruned = prune.train(job, bundle)
    if pruned is None:
        return None

    def write(folder: Path) -> bundles.Variant:
        variant = prune.write(pruned, bundle.folder(job.source), folder)
        return _beside_network(variant, folder, pruned.network, batches, job.threads)

    return write


def _before_training(job: config.Quantize, bundle: bundles.Bundle) -> Batches:
    """A few batches of gate.data; UserError for what would only be found after the training."""
    from fleetbert.engines import answer, evaluate

    if bundle.task.name == "mlm":
        raise UserError(
            f"method: {job.method}: {bundle.root} predicts masked words; it takes classifiers"
        )
    evaluate.read_known(answer.load(bundle.root, "float32", "cpu", 1), str(job.gate.data))
    return read_batches(config.Calibration(data=job.gate.data, texts=16), bundle)


def _beside_network(
    variant: bundles.Variant, folder: Path, network: Any, batches: Batches, threads: int | None
) -> bundles.Variant:
    """The variant with the largest difference of logits between it and the trained network."""
    from fleetbert.compress import tuning
    from fleetbert.engines import engine

    served = engine.open_folder(variant.kind, folder, "cpu", threads)
    differences = [
        abs(served(*batch.values()) - tuning.answers(network, batch)).max() for batch in batches
    ]
    return variant.model_copy(update={"max_difference_to_network": float(max(differences))})


# What each method does before the bundle is touched, and what then writes the variant's files;
# None on ranks that write nothing.
METHODS: dict[str, Callable[[config.Quantize, bundles.Bundle], Write | None]] = {
    "dynamic": _dynamic,
    "prune": _prune,
    "qat": _qat,
    "static": _static,
    "search": _search,
}


def read_batches(settings: config.Calibration, bundle: bundles.Bundle) -> Batches:
    """Calibration texts as batches for the bundle's model; UserError as `data.read` raises it."""
    import numpy as np

    from fleetbert.compress.calibrate import Batches
    from fleetbert.data import tokenizers

    examples = read_unlabelled(str(settings.data), bundle.task.pair, "calibration.data")
    random = np.random.default_rng(settings.seed)
    chosen = [examples[i] for i in random.permutation(len(examples))[: settings.texts]]
    return Batches(
        tokenizers.open(bundle),
        [example.text_a for example in chosen],
        [example.text_b or "" for example in chosen] if bundle.task.pair else None,
        bundle.max_length,
        settings.batch_tokens,
    )


def read_unlabelled(path: str, pair: bool, key: str) -> list[Example]:
    """The texts of a table, or of a file with one a line; UserError names the job's `key`."""
    from fleetbert.data import read

    if Path(path).suffix.lower() in (".tsv", *read.JSON_SUFFIXES):
        return read.read(path, pair=pair, labelled=False).examples
    if pair:
        raise UserError(f"{key}: {path}: pairs need a .tsv or .jsonl with text_b")
    return read.read_texts(path).examples

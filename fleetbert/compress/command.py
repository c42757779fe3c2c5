"""The command line of quantization, for `launch/quantize.py` and `fleetbert quantize`."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Dict, List

from fleetbert import bundle as bundles
from fleetbert import config
from fleetbert.compress import methods
from fleetbert.errors import GateFailed, UserError

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    import numpy as np

    from fleetbert.compress.gate import Measured

DESCRIPTION = """\
Add a smaller and faster variant to a bundle, if it keeps the accuracy that you ask for.

  fleetbert quantize --config configs/quantize/static.yaml bundle=output/sst2/bundle \\
      calibration.data=train.tsv gate.data=dev.tsv

  python -m paddle.distributed.launch --nproc_per_node 2 launch/quantize.py \\
      --config configs/quantize/qat.yaml bundle=output/sst2/bundle

method: prune makes a float32 variant, pruned-float32, that any method takes as its source:

  fleetbert quantize --config configs/quantize/prune.yaml bundle=output/sst2/bundle
  fleetbert quantize --config configs/quantize/static.yaml bundle=output/sst2/bundle \\
      source=pruned-float32

Every variant is measured on gate.data beside float32, with the engine that serves it. One that
loses more than gate.max_accuracy_drop is not added, and the exit status is 3.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "keys:\n" + config.help_text(config.Quantize)
    parser.add_argument("--config", required=True, metavar="FILE", help="YAML file of the job")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="changes to the config")


def run(arguments: argparse.Namespace) -> None:
    """Read the job, quantize, measure, and add the variant."""
    job = config.load_as(config.Quantize, arguments.config, arguments.overrides)
    if job.method in config.TRAINED:
        from fleetbert.train import stopping
        from fleetbert.train.command import supervise

        stopping.expect()
        supervise(job)
    elif int(os.environ.get("PADDLE_TRAINERS_NUM", "1")) > 1:
        raise UserError(
            f"method: {job.method} is for one process; start it without paddle.distributed.launch"
        )

    from fleetbert.compat import environment

    environment.import_paddle()
    quantize(job)


def main(argv: list[str]) -> None:
    """Parse `argv` and run; the overrides may stand anywhere among the options."""
    parser = argparse.ArgumentParser(
        description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    parser.add_argument("--debug", action="store_true", help="show the stack of an error")
    run(parser.parse_intermixed_args(argv))


def quantize(job: config.Quantize) -> bundles.Bundle:
    """Add the variant that `job` describes to its bundle; GateFailed leaves the bundle alone.

    Both write a report; see `config.Quantize.report`.
    Of several ranks the first adds it; the others return the bundle as they found it. UserError
    while another process writes the same variant.
    """
    bundle = bundles.read(job.bundle)
    bundles.verify(bundle, "float32")
    rank = int(os.environ.get("PADDLE_TRAINER_ID", "0"))
    name = methods.variant_name(job)
    with contextlib.nullcontext() if rank else bundles.writing(bundle.root, name):
        return _quantize(job, bundle)


def _quantize(job: config.Quantize, bundle: bundles.Bundle) -> bundles.Bundle:
    from fleetbert.compress import gate

    write = methods.open_method(job, bundle)
    if write is None:
        return bundle
    name = methods.variant_name(job)

    def fill(folder: Path) -> bundles.Variant:
        variant = write(folder)
        log.info(f"{name}: measuring on {job.gate.data} beside float32")
        measured = gate.measure(bundle, folder, variant.kind, str(job.gate.data), job.threads)
        log.info(describe(name, measured))
        texts = read_few(bundle, str(job.gate.data))
        if variant.kind != methods.FLOAT32:
            variant = with_output_errors(variant, bundle.folder(job.source), folder, texts)
        variant = variant.model_copy(
            update={
                "name": name,
                "made_from": job.source,
                **gate.evidence(measured),
            }
        )
        try:
            gate.check(name, measured, job.gate.max_accuracy_drop, lambda: worst(variant))
        except GateFailed as error:
            write_report(job, bundle, variant, texts, str(error))
            raise
        seen.append(texts)
        return variant

    seen: list[Texts] = []
    added = bundles.add_variant(bundle.root, name, fill)
    log.info(f"added {name} to {bundle.root}")
    write_report(job, added, added.variant(name), seen[0], None)
    return added


# Of gate.data, for the error of each layer.
TEXTS_FOR_ERRORS = 64

# Batches of token ids, as feeds of a program.
Texts = List[Dict[str, "np.ndarray"]]


def describe(name: str, measured: Measured) -> str:
    """A measurement as one line."""
    return (
        f"{name}: accuracy {measured.accuracy:.4f} (float32 {measured.float32_accuracy:.4f}, "
        f"{measured.n} texts), {measured.speed_ratio:.2f} times its texts/s, "
        f"{measured.size / 1e6:.1f} MB ({measured.size / measured.float32_size:.3f} of float32), "
        f"logits within {measured.max_logit_difference:.3f}"
    )


def read_few(bundle: bundles.Bundle, data: str) -> Texts:
    """A few batches of the texts in `data`, short ones and long ones."""
    from fleetbert.compress import sensitivity

    settings = config.Calibration(data=data, texts=TEXTS_FOR_ERRORS)
    return sensitivity.spread(list(iter(methods.read_batches(settings, bundle))))


def with_output_errors(
    variant: bundles.Variant, source: Path, folder: Path, texts: Texts
) -> bundles.Variant:
    """The variant in `folder` with the error that each quantized layer's output has on `texts`."""
    from fleetbert.compress import sensitivity
    from fleetbert.graph import weights

    quantized, _ = weights.load(folder)
    layers = sensitivity.Layers(source)
    thresholds = variant.thresholds if isinstance(variant, bundles.Int8Variant) else {}
    errors = sensitivity.output_errors(layers, quantized, thresholds, texts)
    return variant.model_copy(update={"output_errors": errors})


def write_report(
    job: config.Quantize,
    bundle: bundles.Bundle,
    variant: bundles.Variant,
    texts: Texts,
    failed: str | None,
) -> None:
    """Write the report of the bundle with `variant`, which the gate may have stopped: `failed`."""
    from fleetbert.compat import environment
    from fleetbert.compress import report, sensitivity
    from fleetbert.engines import engine
    from fleetbert.graph import program as programs

    path = Path(job.report) if job.report else bundle.root / report.NAME
    source = bundle.folder(job.source)
    groups = sensitivity.groups(programs.read(source / "model.pdmodel"))
    layers = sensitivity.Layers(source)
    errors = report.output_errors(variant)
    names = sorted(errors, key=lambda name: -errors[name])[: report.MOST_DRAWN]
    thresholds = variant.thresholds if isinstance(variant, bundles.Int8Variant) else {}
    report.write(
        path,
        report.points(bundle, variant, str(variant.accuracy[0].data_sha256)),
        variant,
        title=bundle.root.resolve().parent.name + "/" + bundle.root.resolve().name,
        failed=failed,
        max_drop=job.gate.max_accuracy_drop,
        data=str(job.gate.data),
        parts={name: part for part, weights in groups.items() for name in weights},
        drawn=report.histograms(names, layers.parameters, list(layers.run(texts)), thresholds),
        job=job.model_dump(),
        machine=environment.machine(job.threads or engine.default_threads()),
    )
    log.info(f"report: {path}")


def worst(variant: bundles.Variant, most: int = 3) -> str:
    """The layers whose outputs quantization changes most, or that pruning took most from, as words
    for a message."""
    if isinstance(variant, bundles.ProgramVariant) and variant.pruning:
        lost = variant.pruning.lost_importance
        names = sorted(lost, key=lambda name: -lost[name])[:most]
        return (
            f"the parts that lost most of what matters are {', '.join(names)}; a smaller "
            "prune.heads or prune.feed_forward leaves more, and more trainer.epochs mend more"
        )
    from fleetbert.compress import report

    errors = report.output_errors(variant)
    names = sorted(errors, key=lambda name: -errors[name])[:most]
    listed = ", ".join(f"{name} (by {errors[name]:.1%})" for name in names)
    return f"the layers whose outputs change most are {listed}; `skip` leaves layers in float32"

"""The command line of quantization, for `launch/quantize.py` and `fleetbert quantize`."""

from __future__ import annotations

import argparse
import os

from fleetbert import config
from fleetbert.cli import job_options
from fleetbert.compat import environment
from fleetbert.core import extras, stopping
from fleetbert.core.errors import UserError

DESCRIPTION = """\
Add a smaller and faster variant to a bundle, if it keeps the accuracy that you ask for.

  fleetbert quantize --config configs/quantize/static.yaml bundle=output/sst2/bundle \\
      calibration.data=train.tsv gate.data=dev.tsv

  python -m paddle.distributed.launch --nproc_per_node 2 launch/quantize.py \\
      --config configs/quantize/qat.yaml bundle=output/sst2/bundle

method: prune makes the variant pruned-float32, which other methods take as their source:

  fleetbert quantize --config configs/quantize/prune.yaml bundle=output/sst2/bundle
  fleetbert quantize --config configs/quantize/static.yaml bundle=output/sst2/bundle \\
      source=pruned-float32

Every variant is evaluated on gate.data and compared with float32, by the engine that serves it. If
it loses more than gate.max_accuracy_drop, it is rejected, and the exit status is 3.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    job_options.add_job(parser, {"quantize": config.Quantize})


def run(arguments: argparse.Namespace) -> None:
    """Read the job, quantize, measure, and add the variant."""
    extras.need("train", "quantization")
    job = config.load_as(config.Quantize, arguments.config, arguments.overrides)
    trains = job.method in config.TRAINED
    if trains:
        stopping.expect()
        job_options.supervise(job)
    elif int(os.environ.get("PADDLE_TRAINERS_NUM", "1")) > 1:
        raise UserError(
            f"method: {job.method} is for one process; start it without paddle.distributed.launch"
        )
    environment.import_paddle()
    from fleetbert.compression import pipeline  # with Paddle, which --help has no need of

    pipeline.load(job.method)
    if trains:
        stopping.expect()  # the imports took its handler away
    pipeline.quantize(job)


def main(argv: list[str]) -> None:
    run(job_options.parse(argv, DESCRIPTION, add_arguments))

"""The command line of quantization, for `launch/quantize.py` and `fleetbert quantize`."""

from __future__ import annotations

import argparse
import os

from fleetbert import config
from fleetbert.compat import environment
from fleetbert.errors import UserError
from fleetbert.train import stopping
from fleetbert.train.command import supervise

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
    trains = job.method in config.TRAINED
    if trains:
        stopping.expect()
        supervise(job)
    elif int(os.environ.get("PADDLE_TRAINERS_NUM", "1")) > 1:
        raise UserError(
            f"method: {job.method} is for one process; start it without paddle.distributed.launch"
        )
    environment.import_paddle()
    from fleetbert.compress import pipeline  # with Paddle, which --help has no need of

    pipeline.load(job.method)
    if trains:
        stopping.expect()  # the imports took its handler away
    pipeline.quantize(job)


def main(argv: list[str]) -> None:
    """Parse `argv` and run; the overrides may stand anywhere among the options."""
    parser = argparse.ArgumentParser(
        description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    parser.add_argument("--debug", action="store_true", help="show the stack of an error")
    run(parser.parse_intermixed_args(argv))

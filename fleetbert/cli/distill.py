"""The command line of distillation, for `launch/distill.py` and `fleetbert distill`."""

from __future__ import annotations

import argparse

from fleetbert import config
from fleetbert.cli import job_options
from fleetbert.compat import environment
from fleetbert.core import extras
from fleetbert.launch import ranks

DESCRIPTION = """\
Train a smaller model to do what a trained one does; one process, or many as in training.

  fleetbert distill --config configs/distill/student.yaml \\
      distill.teacher=output/sst2/model [key=value ...]
  python -m paddle.distributed.launch --nproc_per_node 2 launch/distill.py --config ...

distill.kind=student: the student learns the teacher's logits and hidden states, and the labels.
distill.kind=theseus: each student layer replaces a group of the teacher's layers, at random and
ever more often (OUTPUT_DIR/replacing), and then the student trains alone. Either result is a run
like any other. `fleetbert quantize --config configs/quantize/static.yaml bundle=OUTPUT_DIR/bundle`
makes its bundle smaller.

distill.kind=self: exit heads after the model's inner layers learn from its last layer, on texts
without labels. The bundle gets early-exit variants, where a text skips the remaining layers once a
head is certain of its answer:

  fleetbert distill --config configs/distill/self.yaml bundle=output/sst2/bundle

Several ranks share the texts that the heads learn from; rank 0 evaluates and adds the variants.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    job_options.add_job(parser, {"distill": config.Distill, "distill self": config.SelfDistill})


def run(arguments: argparse.Namespace) -> None:
    """Read the job and distill."""
    if config.distills_itself(arguments.config, arguments.overrides):
        job = config.load_as(config.SelfDistill, arguments.config, arguments.overrides)
        extras.need("train", "training early exits")
        ranks.supervised(config.Strategy().hang_timeout, resumes=False)
        environment.import_paddle()
        from fleetbert.compression.distill import exits  # with Paddle, as below

        exits.add_variants(job)
        return

    distillation = job_options.read(arguments, config.Distill)
    if distillation is None:
        return
    from fleetbert.compression.distill.job import distill

    distill(distillation)


def main(argv: list[str]) -> None:
    run(job_options.parse(argv, DESCRIPTION, add_arguments))

"""The command line of distillation, for `launch/distill.py` and `fleetbert distill`."""

from __future__ import annotations

import argparse

from fleetbert import config
from fleetbert.cli import job_options
from fleetbert.compat import environment
from fleetbert.launch import ranks

DESCRIPTION = """\
Train a smaller model to do what a trained one does; one process, or many as in training.

  fleetbert distill --config configs/distill/student.yaml \\
      distill.teacher=output/sst2/model [key=value ...]
  python -m paddle.distributed.launch --nproc_per_node 2 launch/distill.py --config ...

student: learns the teacher's logits and hidden states, and the labels. theseus: each of its layers
takes the place of a group of the teacher's, by chance and ever more often, and then they learn on
alone (OUTPUT_DIR/replacing has the first part). The result is a run like any other, whose bundle
`fleetbert quantize --config configs/quantize/static.yaml bundle=OUTPUT_DIR/bundle` makes smaller.

self: the model teaches itself to answer after fewer layers. Heads after its inner layers learn from
the last one, on texts without labels, and a bundle gets variants whose texts leave as soon as a
head is certain of them:

  fleetbert distill --config configs/distill/self.yaml bundle=output/sst2/bundle

Several ranks share the texts that the heads learn from; the first one measures and adds.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    job_options.add_job(parser, {"distill": config.Distill, "distill self": config.SelfDistill})


def run(arguments: argparse.Namespace) -> None:
    """Read the job and distill."""
    if config.distills_itself(arguments.config, arguments.overrides):
        job = config.load_as(config.SelfDistill, arguments.config, arguments.overrides)
        ranks.supervised(config.Strategy().hang_timeout, resumes=False)
        environment.import_paddle()
        from fleetbert.compress.distill import exits  # with Paddle, as below

        exits.add_variants(job)
        return

    distillation = job_options.read(arguments, config.Distill)
    from fleetbert.compress.distill.job import distill

    distill(distillation)


def main(argv: list[str]) -> None:
    run(job_options.parse(argv, DESCRIPTION, add_arguments))

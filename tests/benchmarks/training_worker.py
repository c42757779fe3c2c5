"""This project's side of `train.py` and `distribute.py`: a training in segments, as
`fleetbert.bench.train_worker` says, that tells more before its first step.

Beside a peer it writes what that begins with: the token ids (train.npz, dev.npz) and the initial
weights, head included. A rank tells how long sharing the gradients takes by itself. A parameter
server says hello and serves until it is killed.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np
import paddle
import paddle.distributed as dist

from fleetbert import config as schema
from fleetbert.bench import train_worker, worker
from fleetbert.bench.worker import Json
from fleetbert.core.errors import UserError
from fleetbert.models import weights
from fleetbert.training.loop import Run
from fleetbert.training.strategies.parameter_server import server

# What Fleet puts into one all-reduce at most (DistributedStrategy.fuse_grad_size_in_MB).
BUCKET = 32 << 20


class Writer(train_worker.Pacer):
    def facts(self, run: Run) -> Json:
        task, job, folder = run.task, run.job, Path(run.job.output_dir).parent
        if job.task.name == "mlm":
            raise UserError("the peer trains classification; task.name is mlm")
        weights.save_folder(task.network, task.source, folder / "initial")
        for name, split in (("train", task.train), ("dev", task.dev)):
            if split is not None:
                np.savez(
                    folder / f"{name}.npz",
                    ids=np.concatenate(split.encodings.ids),
                    lengths=split.encodings.lengths,
                    first_lengths=split.encodings.first_lengths,
                    labels=split.labels,
                )
        peer = {
            "labels": len(task.labels),
            "pad_id": task.tokenizer.pad_id,
            "batch_size": job.data.batch_size or 32,
            "optimizer": job.optimizer.model_dump(),
            "epochs": job.trainer.epochs,
            "max_steps": job.trainer.max_steps,
            "seed": job.trainer.seed,
        }
        return {**super().facts(run), "peer": peer}


class Rank(train_worker.Pacer):
    def facts(self, run: Run) -> Json:
        trained = [p for p in run.task.network.parameters() if not p.stop_gradient]
        parameters = sum(int(weight.size) for weight in trained)
        ranks = run.job.strategy.name == "collective"
        seconds = all_reduce_seconds(parameters) if ranks else []
        return {**super().facts(run), "parameters": parameters, "all_reduce": seconds}


def all_reduce_seconds(parameters: int, times: int = 5) -> list[float]:
    """Of sharing so many float32 gradients when nothing else runs; the first time is left out."""
    sizes = [BUCKET // 4] * (parameters * 4 // BUCKET) + [parameters % (BUCKET // 4)]
    buckets = [paddle.zeros([size]) for size in sizes if size]
    seconds = []
    for _ in range(times + 1):
        dist.barrier()
        began = time.perf_counter()
        for bucket in buckets:
            dist.all_reduce(bucket)
        seconds.append(time.perf_counter() - began)
    return seconds[1:]


if __name__ == "__main__":
    kind = sys.argv.pop(1)
    if server.is_server():
        worker.Channel().send()
        said = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
        server.serve(schema.load_as(schema.Config, said["config"], said["overrides"]))
    else:
        train_worker.main({"writer": Writer, "rank": Rank}[kind])

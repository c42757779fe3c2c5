"""This project's side of `train.py`: writes what the peer begins with, then trains in segments.

The token ids (train.npz, dev.npz) and the initial weights, head included, are the peer's too.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fleetbert.bench import train_worker
from fleetbert.bench.worker import Json
from fleetbert.errors import UserError
from fleetbert.models import weights
from fleetbert.train.loop import Run


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


if __name__ == "__main__":
    train_worker.main(Writer)

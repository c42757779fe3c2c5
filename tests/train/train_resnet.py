"""ResNet-18 on made images through the training loop, in as many ranks as the launcher starts.

  python train_resnet.py OUTPUT_DIR ACCUMULATE_STEPS [plain] [compiled]

Trains once for each word, into OUTPUT_DIR/plain and so on.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np

import fleetbert.compat.prepared  # noqa: F401  before the first import of paddle

import paddle  # isort: skip
import paddle.nn.functional as F

from fleetbert import config
from fleetbert.tasks import Criterion
from fleetbert.train.callbacks import build
from fleetbert.train.loop import Run
from fleetbert.train.strategies import connect
from fleetbert.train.trainable import Trainable

CLASSES, IMAGES, DEV, BATCH = 3, 64, 12, 8


class Images(Trainable):
    """Noise, with more of the colour of its class. A `Trainable`."""

    fingerprint = "made of noise"  # a class's own value is as good as a property

    def __init__(self):
        paddle.seed(1)
        self.network = paddle.vision.models.resnet18(num_classes=CLASSES)
        rng = np.random.default_rng(2)
        self.labels = rng.integers(0, CLASSES, IMAGES + DEV)
        self.images = rng.normal(size=(IMAGES + DEV, CLASSES, 32, 32)).astype(np.float32)
        self.images[np.arange(IMAGES + DEV), self.labels] += 1

    def plan(self, epoch):
        order = np.random.default_rng([3, epoch]).permutation(IMAGES)
        return np.split(order, IMAGES // BATCH)

    def micro_batches(self, indices, epoch, parts, shard):
        return [self.arrays(part, len(indices)) for part in np.array_split(indices, parts)[shard]]

    def arrays(self, part, step):
        return {
            "images": paddle.to_tensor(self.images[part]),
            "labels": paddle.to_tensor(self.labels[part]),
            "step": step,
            "n_texts": len(part),
            "n_tokens": 0,
        }

    def loss(self, model, arrays):
        losses = F.cross_entropy(model(arrays["images"]), arrays["labels"], reduction="sum")
        return losses / arrays["step"]

    def dev_batches(self):
        return np.split(np.arange(IMAGES, IMAGES + DEV), 4)

    def dev_arrays(self, part):
        return self.arrays(part, len(part))

    def predict(self, network, arrays):
        logits = network(arrays["images"])
        losses = F.cross_entropy(logits, arrays["labels"], reduction="none").flatten()
        right = logits.argmax(-1) == arrays["labels"]
        return {"losses": losses.numpy(), "right": right.numpy()}

    def evaluate(self, parts):
        means = {n: float(np.mean([part[n] for part in parts])) for n in ("losses", "right")}
        return {"n": DEV, "loss": means["losses"], "accuracy": means["right"]}

    def criterion(self, metrics):
        return Criterion("accuracy", False)

    def locate(self, indices):
        return [{"image": int(index)} for index in indices]

    def describe(self):
        return {"data": {"train": {"images": IMAGES}, "dev": {"images": DEV}}}


def make_job(output: Path, accumulate: int) -> config.Config:
    """Trained in `output`, whose name says whether it is compiled. It names files that texts would
    come from, and none is read."""
    values = {
        "data": {"train": "none"},
        "model": {"vocab": "none"},
        "optimizer": {"learning_rate": 1e-3, "accumulate_steps": accumulate},
        "trainer": {
            "device": "cpu",
            "max_steps": 6,
            "log_every": 1,
            "eval_every": 3,
            "checkpoint_every": 100,
            "compile": output.name == "compiled",
        },
        "output_dir": str(output),
    }
    return config.Config.model_validate(values)


def main(output: Path, accumulate: int, names: list[str]) -> None:
    jobs = [make_job(output / name, accumulate) for name in names]
    strategy = connect(jobs[0])
    for job in jobs:
        run = Run(job, strategy, Images())
        run.callbacks = build(run)
        if strategy.rank == 0:
            run.folder.mkdir(parents=True)
        strategy.barrier()
        summary = run.train()
        if strategy.rank == 0:
            (run.folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])

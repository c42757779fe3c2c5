"""Train ResNet-50 on a folder of images, in one rank or several: see resnet.md."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import tempfile
from pathlib import Path

import numpy as np
import static_graph
import yaml

import fleetbert.compat.prepared  # noqa: F401  before the first import of paddle

import paddle  # isort: skip
import paddle.nn.functional as F
from paddle.vision import datasets, models, transforms

from fleetbert import config
from fleetbert.core import errors
from fleetbert.tasks import Criterion
from fleetbert.training.job import train_with
from fleetbert.training.strategies import connect
from fleetbert.training.trainable import Trainable

# Each key can be changed on the command line, as those of launch/train.py.
JOB = {
    "data.batch_size": 32,
    "model.vocab": "none",  # is of texts
    "optimizer.name": "sgd",  # whose steps show any difference between ranks, and no rounding
    "optimizer.learning_rate": 0.02,
    "optimizer.schedule": "constant",
    "optimizer.warmup_ratio": 0.0,
    "optimizer.max_grad_norm": 0.0,
    "trainer.epochs": 1,
    "trainer.log_every": 1,
    "trainer.resume": "none",
    "callbacks.progress": False,
    "output_dir": "output/resnet",
}
MEAN, DEVIATION = 127.5, 63.75  # of a channel, 0 to 255


class Reader:
    """Decodes, crops and recolours images: a `Collector`, which other processes can have too."""

    def __init__(self, folder: str, size: int, batch: int):
        files = datasets.DatasetFolder(folder)
        self.classes, self.load, self.batch = files.classes, files.loader, batch
        mixed = np.random.default_rng(0).permutation(len(files.samples))
        self.samples = [files.samples[number] for number in mixed]
        self.dev = np.arange(len(mixed) // 10)  # every tenth is to measure on
        self.train = np.arange(len(self.dev), len(mixed))
        last = [transforms.Transpose(), transforms.Normalize([MEAN] * 3, [DEVIATION] * 3)]
        self.as_it_is = transforms.Compose([transforms.Resize((size, size)), *last])
        varied = [transforms.RandomResizedCrop(size, (0.7, 1.0)), transforms.ColorJitter(0.4, 0.4)]
        self.varied = transforms.Compose([*varied, *last])

    def plan(self, epoch):
        """The images of each step; those that fill no batch are left out."""
        order = np.random.default_rng([1, epoch]).permutation(self.train)
        return np.split(order[: len(order) // self.batch * self.batch], len(order) // self.batch)

    def micro_batches(self, indices, epoch, parts, shard):
        shares = np.array_split(indices, parts)[shard]
        return [self.arrays(share, len(indices), epoch) for share in shares]

    def arrays(self, part, step, epoch=None):
        """Of a part of a step's images; without an epoch as they are."""
        images = []
        for number in part:
            image = self.load(self.samples[number][0]).convert("RGB")
            if epoch is None:
                images.append(self.as_it_is(image))
            else:  # the same crop and colours in any process
                random.seed(1000003 * epoch + int(number))
                np.random.seed(random.randrange(1 << 32))
                images.append(self.varied(image))
        return {
            "inputs": {"x": np.stack(images).astype(np.float32)},  # (part, 3, size, size)
            "labels": np.array([self.samples[number][1] for number in part]),
            "weight": np.full(len(part), 1 / step, np.float32),
            "n_texts": len(part),
            "n_tokens": 0,
        }


class Images(Trainable):
    """What loop and strategies ask for."""

    fingerprint = "images"

    def __init__(self, reader: Reader, network: str, seed: int):
        self.collector = reader
        paddle.seed(seed)
        self.network = getattr(models, network)(num_classes=len(reader.classes))

    def loss(self, model, arrays):
        logits = model(**arrays["inputs"]).astype("float32")
        losses = F.cross_entropy(logits, arrays["labels"], reduction="none")
        return (losses.flatten() * arrays["weight"]).sum()

    def dev_batches(self):
        dev = self.collector.dev
        return np.array_split(dev, -(-len(dev) // self.collector.batch))

    def dev_arrays(self, part):
        return self.tensors(self.collector.arrays(part, len(part)))

    def predict(self, network, arrays):
        logits = network(**arrays["inputs"]).astype("float32")
        losses = F.cross_entropy(logits, arrays["labels"], reduction="none").flatten()
        right = logits.argmax(-1) == arrays["labels"]
        return {"losses": losses.numpy(), "right": right.numpy()}

    def evaluate(self, parts):
        losses, right = (np.concatenate([part[n] for part in parts]) for n in ("losses", "right"))
        return {"n": len(right), "loss": float(losses.mean()), "accuracy": float(right.mean())}

    def criterion(self, metrics):  # noqa: ARG002
        return Criterion("accuracy", False)

    def locate(self, indices):
        return [{"file": self.collector.samples[index][0]} for index in indices]


def write_digits(folder: Path, count: int, pixels: int) -> None:
    """The first of scikit-learn's 1,797 digits, scaled up: folder/CLASS/NUMBER.png."""
    from PIL import Image
    from sklearn.datasets import load_digits

    folder.parent.mkdir(parents=True, exist_ok=True)
    digits = load_digits()
    with tempfile.TemporaryDirectory(dir=folder.parent) as aside:
        for number, (image, label) in enumerate(zip(digits.images[:count], digits.target)):
            path = Path(aside, "digits", str(label), f"{number}.png")
            path.parent.mkdir(parents=True, exist_ok=True)
            grey = Image.fromarray((image * 15.9).astype(np.uint8))
            grey.resize((pixels, pixels), Image.BICUBIC).convert("RGB").save(path)
        with contextlib.suppress(OSError):  # another rank has them ready
            Path(aside, "digits").rename(folder)


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", help="a folder for each class in it (scikit-learn's digits)")
    parser.add_argument("--digits", type=int, default=1797, help="how many of these")
    parser.add_argument("--pixels", type=int, default=256, help="of their sides as files")
    parser.add_argument("--network", default="resnet50", help="of paddle.vision.models")
    parser.add_argument("--size", type=int, default=64, help="of an image's sides for the network")
    parser.add_argument("--parts", type=int, default=2, help="of a step, for ranks to share out")
    parser.add_argument("--static", action="store_true", help="as a static graph; losses only")
    parser.add_argument("changes", nargs="*", metavar="key=value", help="as of launch/train.py")
    given = parser.parse_intermixed_args(argv)
    changes = {key: yaml.safe_load(value) for key, value in (w.split("=") for w in given.changes)}
    keys = {**JOB, **changes}
    folder = Path(given.images or f"{keys['output_dir']}/{given.digits}-digits-{given.pixels}")
    if given.images is None and not folder.exists():
        write_digits(folder, given.digits, given.pixels)
    # Batch normalization looks at one part: as many parts give the same losses in any ranks.
    ranks = int(os.environ.get("PADDLE_TRAINERS_NUM", "1"))
    keys.update({"data.train": str(folder), "optimizer.accumulate_steps": given.parts // ranks})
    job = config.from_keys(config.Config, keys)
    reader = Reader(str(folder), given.size, job.data.batch_size)
    if given.static:
        task = Images(reader, given.network, job.trainer.seed)
        classes, rate = len(reader.classes), job.optimizer.learning_rate
        losses, _ = static_graph.train(
            task,
            job,
            lambda: getattr(models, given.network)(num_classes=classes),
            lambda: paddle.optimizer.SGD(rate),
            given.parts,
        )
        static_graph.show(losses)
        return
    strategy = connect(job)
    task = Images(reader, given.network, job.trainer.seed)
    summary = train_with(strategy, job, lambda *_: task, lambda *_: None)
    if strategy.rank == 0:
        rows = map(json.loads, Path(job.output_dir, "metrics.jsonl").read_text().splitlines())
        static_graph.show([row["loss"] for row in rows if "loss" in row])
        dev, figures = summary["dev"], summary["profile"] or summary
        print(
            f"accuracy {dev['accuracy']:.4f} on {dev['n']} images, "
            f"{figures['texts_per_s']:.1f} images/s, reader ratio {figures['reader_ratio']:.1%}"
        )


if __name__ == "__main__":
    errors.run(main)

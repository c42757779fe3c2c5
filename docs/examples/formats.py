"""The forms of one model side by side, by batch size and order of texts: see formats.md."""

from __future__ import annotations

import argparse
import resource
import tempfile
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from matplotlib import pyplot, rcParams

import fleetbert.compat.prepared  # noqa: F401  before the first import of paddle

import paddle  # isort: skip

from fleetbert import bundle as bundles
from fleetbert.bench import infer, infer_texts, worker
from fleetbert.compression import from_program
from fleetbert.core import errors
from fleetbert.data import ragged, tokenizers
from fleetbert.models import task_heads, weights

ORDERS = {"arrival": "as texts come", "length": "sorted by length"}


class Eager:
    """The network as Python runs it, layer by layer; asked as the processes of `bench infer`."""

    def __init__(self, bundle: bundles.Bundle, texts: infer_texts.Texts):
        self.texts, self.pad_id = texts, tokenizers.open(bundle).pad_id
        source = from_program.open_bundle(bundle, dropout=0.0)
        shape = weights.bert_config(source, len(bundle.labels), 0, self.pad_id)
        self.network = task_heads.build(bundle.task.name, shape)
        weights.load(self.network, source, bundle.labels)
        self.network.eval()

    def ask(self, plan, speed, save) -> worker.Json:  # noqa: ARG002  speed is of early exit
        clock = worker.Clock()
        clock.start()
        parts = []
        with paddle.no_grad():
            batches = (np.asarray(indices) for indices, _ in self.texts.plans[plan])
            for indices, batch in ragged.of(self.texts.encodings).parts(batches):
                ids, types, _ = map(paddle.to_tensor, ragged.pad(batch, self.pad_id))
                parts.append((indices, self.network(ids, types).numpy()))
        clock.stop()
        if save:
            logits = np.empty((len(self.texts.examples), parts[0][1].shape[1]), np.float32)
            for indices, part in parts:
                logits[indices] = part
            np.save(save, logits)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        used = {"seconds": clock.seconds, "cpu_seconds": clock.cpu_seconds}
        return {**used, "peak_mb": peak, "times": []}


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("bundle", help="with the variants to compare; it is not changed")
    parser.add_argument("data", help="texts to answer; with labels accuracy is shown")
    parser.add_argument("--variants", nargs="+", help="to compare (all)")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--texts", type=int, default=256, help="only the first N of them")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--picture", default="formats.svg")
    given = parser.parse_args(argv)

    bundle = bundles.read(given.bundle)
    orders = [f"{order}:{size}" for order in ORDERS for size in given.batch_sizes]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        texts = infer_texts.tokenize(bundle, given.data, given.texts, orders, Path(folder))
        workers = {"eager": Eager(bundle, texts)}
        for name in infer.choose(bundle, given.variants):
            opened = infer.open_engine(bundle, name, texts, given.threads)
            workers[name] = stack.enter_context(opened)
        rows = infer.plan_rows(bundle, workers, orders, drops=[])
        measured, _ = infer.answer(rows, texts, bundle.labels, given.rounds)
    for order, meaning in ORDERS.items():
        sizes = " ".join(f"{size:>7}" for size in given.batch_sizes)
        print(f"{'texts/s, ' + meaning:<28} {sizes} accuracy   first pass")
        for name in workers:
            turns = [measured[f"{name}, {order}:{size}"] for size in given.batch_sizes]
            speeds = " ".join(f"{row.figures.texts_per_s:>7.1f}" for row in turns)
            known = turns[-1].accuracy
            # The first pass compiles each shape, and is in no other figure.
            first = sum(row.first_seconds for row in turns)
            accuracy = "-" if known is None else format(known, ".4f")
            print(f"{name:<28} {speeds} {accuracy:>8} {1000 * first:>9.0f} ms")
    draw(measured, list(workers), given.batch_sizes, given.picture)


def draw(measured: dict[str, infer.Measured], names: list[str], sizes: list[int], path: str):
    rcParams["svg.fonttype"] = "none"  # text, not outlines
    figure, both = pyplot.subplots(1, 2, figsize=(9, 3.6), sharey=True)
    for axes, (order, meaning) in zip(both, ORDERS.items()):
        for name in names:
            rates = [measured[f"{name}, {order}:{size}"].figures.texts_per_s for size in sizes]
            axes.plot(sizes, rates, marker="o", label=name)
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.set_xlabel(f"texts a batch, {meaning}")
        axes.set_ylim(0)
        axes.grid(color="#dddddd")
    both[0].set_ylabel("texts a second")
    both[0].legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    errors.run(main)

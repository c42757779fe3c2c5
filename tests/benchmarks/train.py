"""The same fine-tuning here and through PyTorch + transformers, by turns.

  python tests/benchmarks train --full
  python tests/benchmarks train --config configs/sst2.yaml data.train=train.tsv data.dev=dev.tsv

Both train the same token ids from the same weights in float32 on the CPU, with the same batch size,
learning rate, warm-up, decay and clipping. PyTorch does it the plain way: random order, padded to
the longest text of the batch. Here batches are as the config says. --full trains all epochs on both
sides, cut into --rounds parts, and compares the accuracy.
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks import harness
from benchmarks.harness import Result
from fleetbert.bench import measure, train

OURS = "fleetbert"
WORKER = str(Path(__file__).with_name("train_worker.py"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    train.add_job(parser)
    parser.add_argument("--full", action="store_true", help="train all epochs on both sides")
    harness.add_peer(parser)


def run(arguments: argparse.Namespace) -> Result:
    harness.check_peer(arguments.peer_python, ("torch", "transformers", "numpy"))
    with tempfile.TemporaryDirectory(prefix="fleetbert-bench-") as name, ExitStack() as stack:
        folder = Path(name) / "ours"
        overrides = [*arguments.overrides, "trainer.device=cpu", "strategy.name=single"]
        overrides.append("precision.level=O0")
        ours = stack.enter_context(
            train.open_training(
                arguments.config, overrides, folder, arguments.threads, program=(WORKER,)
            )
        )
        facts = ours.ask(start=True)  # the peer begins with what it has written
        job = {**facts["peer"], "folder": str(folder), "threads": arguments.threads}
        peer = stack.enter_context(
            harness.start_peer(
                arguments.peer_python, "train.py", folder / "peer.json", job, arguments.threads
            )
        )
        workers = {peer.hello["engine"]: peer, OURS: ours}
        totals = {peer.hello["engine"]: peer.hello["total_steps"], OURS: facts["total_steps"]}
        plans = train.plan(totals, arguments.steps, arguments.rounds, arguments.full)
        replies, segments = train.train(workers, plans, arguments.rounds)
    reference = next(iter(workers))
    return Result(
        f"Fine-tuning on {facts['texts']} texts of {facts['mean_tokens']:.1f} tokens",
        [train.table_rows(replies, segments)],
        [
            f"Float32, {arguments.threads} threads, {arguments.config}.",
            str(measure.ratio(segments, OURS, reference)),
            *harness.busy(segments, arguments.threads),
        ],
        {
            "engines": train.report(replies, segments),
            "versions": {"ours": facts["versions"], "peer": peer.hello["versions"]},
        },
    )

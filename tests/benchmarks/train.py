"""The same fine-tuning here and through PyTorch + transformers, by turns.

  python tests/benchmarks train --full
  python tests/benchmarks train --mixed --config configs/sst2.yaml data.train=... data.dev=...
  python tests/benchmarks train --config configs/sst2.yaml data.train=train.tsv data.dev=dev.tsv

Both train the same token ids from the same weights in float32 on the CPU, with the same batch size,
learning rate, warm-up, decay and clipping. PyTorch does it the plain way: random order, padded to
the longest text of the batch. Here batches are as the config says. --full trains all epochs on both
sides, cut into --rounds parts, and compares the accuracy. --mixed adds bfloat16 on both sides, and
PyTorch with texts grouped by length (transformers' sampler; sentence-transformers has none) and
compiled by torch.compile besides. The sampler sorts 50 batches together, the longest texts first,
so --steps should be a multiple of 50.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Sequence

from benchmarks import harness
from benchmarks.harness import Result, Target
from fleetbert.bench import measure, train

OURS, OURS_MIXED = "fleetbert", "fleetbert, bfloat16"
MIXED = ("precision.level=O1", "precision.dtype=bfloat16")
# PyTorch: whether in bfloat16, grouped by length, compiled.
FORMS = [
    (bfloat16, grouped, compiled)
    for bfloat16 in (False, True)
    for grouped, compiled in ((False, False), (True, False), (True, True))
]
# Times the texts/s of PyTorch's fastest form in the same precision.
WANTED = 1.9
WORKER = (str(Path(__file__).with_name("training_worker.py")), "writer")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    train.add_job(parser)
    parser.add_argument("--full", action="store_true", help="train all epochs on both sides")
    parser.add_argument("--mixed", action="store_true", help="bfloat16 and grouped texts too")
    harness.add_peer(parser)


def _beside_best(ratios: Sequence[measure.Ratio]) -> list[Target]:
    """Each of ours beside the fastest of PyTorch's forms in the same precision."""
    targets = []
    for ours in (OURS, OURS_MIXED):
        rivals = [
            ratio
            for ratio in ratios
            if ratio.engine == ours
            and ratio.reference not in (OURS, OURS_MIXED)
            and ("bfloat16" in ratio.reference) == (ours == OURS_MIXED)
        ]
        if rivals:
            best = min(rivals, key=lambda ratio: ratio.median)
            targets.append(Target(f"{ours}: texts/s, beside {best.reference}", best.median, WANTED))
    return targets


def run(arguments: argparse.Namespace) -> Result:
    harness.check_peer(arguments.peer_python, ("torch", "transformers", "numpy"))
    with measure.workplace() as (place, stack):
        folder = place / "ours"
        overrides = [*arguments.overrides, "trainer.device=cpu", "strategy.name=single"]
        workers, totals = {}, {}
        for side in (OURS, OURS_MIXED) if arguments.mixed else (OURS,):
            level = MIXED if side == OURS_MIXED else ("precision.level=O0",)
            own = place / ("ours" if side == OURS else "mixed")
            workers[side] = stack.enter_context(
                train.open_training(
                    arguments.config,
                    [*overrides, *level],
                    own,
                    arguments.threads,
                    program=WORKER if side == OURS else train.WORKER,
                )
            )
            found = workers[side].ask(start=True)
            totals[side] = found["total_steps"]
            if side == OURS:
                facts = found  # the peers begin with what it has written
        versions = {"ours": facts["versions"]}
        for number, form in enumerate(FORMS if arguments.mixed else FORMS[:1]):
            job = {**facts["peer"], "folder": str(folder), "threads": arguments.threads}
            job.update(zip(("bfloat16", "grouped", "compiled"), form))
            peer = stack.enter_context(
                harness.start_peer(
                    arguments.peer_python,
                    "train.py",
                    folder / f"peer{number}.json",
                    job,
                    arguments.threads,
                )
            )
            workers[peer.hello["engine"]] = peer
            totals[peer.hello["engine"]] = peer.hello["total_steps"]
            versions["peer"] = peer.hello["versions"]
        plans = train.plan(totals, arguments.steps, arguments.rounds, arguments.full)
        replies, segments = train.train(workers, plans, arguments.rounds)
    ratios = [
        measure.ratio(segments, side, other)
        for side in (OURS, OURS_MIXED)
        for other in workers
        if side in workers and side != other and (side, other) != (OURS, OURS_MIXED)
    ]
    return Result(
        f"Fine-tuning on {facts['texts']} texts of {facts['mean_tokens']:.1f} tokens",
        [train.table_rows(replies, segments)],
        [
            f"Float32 but for what is named otherwise, {arguments.threads} threads, "
            f"{arguments.config}.",
            *map(str, ratios),
            *harness.busy(segments, arguments.threads),
        ],
        {
            "engines": train.report(replies, segments),
            "versions": versions,
        },
        _beside_best(ratios) if arguments.mixed else [],
    )

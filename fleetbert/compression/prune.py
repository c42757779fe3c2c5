"""Pruning: whole layers, attention heads and feed-forward units go, and what stays is trained on.

Nothing is masked: q, k, v and linear1 lose columns, the attention's output and linear2 lose rows,
so that the result is a smaller BERT, which is exported as any other. A head keeps its width; the
hidden size stays.

PaddleSlim's OFA with PaddleNLP's `ofa_utils` (2.8.1) prunes so too, but does not fit: it takes
over the network's forward functions and PaddleNLP's own training loop, without these checkpoints
and ranks, and takes magnitudes of gradients that are added up over texts, whose signs cancel.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from pathlib import Path
from typing import Iterator

import numpy as np
from paddle.utils import unique_name

from fleetbert import bundle as bundles
from fleetbert.compression import importance, tuning
from fleetbert.compression.importance import Importance, Kept
from fleetbert.compression.work import Ready, Work
from fleetbert.data import tokenizers
from fleetbert.export.program import export_program, versions
from fleetbert.models.task_heads import Headed
from fleetbert.tasks import loss as losses
from fleetbert.training.strategies.single import Single
from fleetbert.training.texts import Arrays

log = logging.getLogger(__name__)


def prepare(work: Work) -> Ready | None:
    """Prune the job's source and train it on, or go on from the newest checkpoint.

    `job.output_dir` then holds what a training run leaves but model/ and bundle/. None on ranks
    other than the first. UserError for what training does not take.
    """
    measured: Importance
    kept: Kept

    def change(task: tuning.Tuned, whole: Headed, connected: Single) -> None:
        nonlocal measured, kept
        measured, kept = connected.from_first(lambda: choose(task, whole))
        task.network = narrow(whole, kept)
        if connected.rank == 0:
            log.info(describe(measured, kept))

    network = tuning.train(work, change)
    if network is None:
        return None
    return Ready(work.source, functools.partial(write, work, network, measured, kept))


def choose(task: tuning.Tuned, whole: Headed) -> tuple[Importance, Kept]:
    """What stays of a network, by texts of the training, and what that was decided by."""
    settings = task.job.prune
    measured = importance.measure(whole, _batches(task), losses.of(task.task))
    shares = settings.layers, settings.heads, settings.feed_forward
    return measured, importance.choose(measured, *shares)


def describe(measured: Importance, kept: Kept) -> str:
    (layers, heads), units = measured.heads.shape, measured.feed_forward.shape[1]
    return (
        f"{len(kept.heads)} of {layers} layers stay; each layer keeps {kept.heads.shape[1]} of "
        f"{heads} attention heads and {kept.units.shape[1]} of {units} feed-forward units"
    )


def narrow(network: Headed, kept: Kept) -> Headed:
    """A network with only those layers, heads and units of another."""
    layers, heads = kept.heads.shape
    config = dataclasses.replace(
        network.network.config,
        num_hidden_layers=layers,
        kept_heads=heads,
        intermediate_size=kept.units.shape[1],
    )
    narrowed = type(network)(config)
    names = narrowed.network.state_dict()
    tensors = {n: each.numpy() for n, each in network.network.state_dict().items() if n in names}
    width = network.network.bert.encoder.layers[0].self_attn.head_dim
    narrowed.network.set_state_dict(narrow_tensors(tensors, kept, width))
    return narrowed


def narrow_tensors(tensors: dict[str, np.ndarray], kept: Kept, width: int) -> dict[str, np.ndarray]:
    """The tensors (PaddleNLP's names) of the layers that stay, without what is not kept of them;
    width: columns of a head."""
    narrowed = dict(tensors)
    for layer, (some_heads, units) in enumerate(zip(*kept)):
        columns = (some_heads[:, None] * width + np.arange(width)).ravel()
        prefix = f"bert.encoder.layers.{layer}."
        for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "linear1"):
            chosen = units if name == "linear1" else columns
            for kind in ("weight", "bias"):
                narrowed[f"{prefix}{name}.{kind}"] = tensors[f"{prefix}{name}.{kind}"][..., chosen]
        for name, chosen in (("self_attn.out_proj", columns), ("linear2", units)):
            narrowed[f"{prefix}{name}.weight"] = tensors[f"{prefix}{name}.weight"][chosen]
    return narrowed


def write(
    work: Work, trained: Headed, measured: Importance, kept: Kept, folder: Path
) -> bundles.Variant:
    """The program of the trained network, whose logits are compared with the network's."""
    # Without the training's changes, and named as in a process of its own.
    with unique_name.guard():
        network = type(trained)(trained.network.config)
    network.set_state_dict(trained.state_dict())
    opened = tokenizers.open(work.bundle)
    limits = {"max_length": work.bundle.max_length, "vocab_size": opened.vocab_size}
    difference = export_program(network, folder, pad_id=opened.pad_id, **limits)
    gone = len(measured.heads) - len(kept.heads)
    return bundles.ProgramVariant(
        name="pruned-float32",
        runs_on=["x86", "gpu", "armv8"],
        versions=versions(),
        pruning=bundles.Pruning(
            heads=(measured.heads.shape[1], kept.heads.shape[1]),
            feed_forward=(measured.feed_forward.shape[1], kept.units.shape[1]),
            kept_heads=[*kept.heads.tolist(), *([] for _ in range(gone))],
            importance_of_heads=measured.heads.tolist(),
            lost_importance=importance.lost(measured, kept),
        ),
        max_difference_to_network=difference,
    )


def _batches(task: tuning.Tuned) -> Iterator[Arrays]:
    """Steps of training as arrays with a text in each row, `prune.texts` examples in all."""
    collector, left = task.collector, task.job.prune.texts
    steps = collector.plan(0)
    for number in np.random.default_rng(task.job.trainer.seed).permutation(len(steps)):
        part = steps[number][:left]
        left -= len(part)
        if len(part):
            yield task.tensors(
                collector.arrays(part, np.ones(len(part), np.float32), part, 0, False)
            )

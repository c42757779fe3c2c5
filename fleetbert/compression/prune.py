"""Pruning: whole attention heads and feed-forward units go, and what stays is trained on.

Nothing is masked: q, k, v and linear1 lose columns, the attention's output and linear2 lose rows,
so that any engine runs the smaller program as it runs the larger one. A head keeps its width; the
hidden size stays.

PaddleSlim's OFA with PaddleNLP's `ofa_utils` (2.8.1) prunes so too, but does not fit: it takes
over the network's forward functions and PaddleNLP's own training loop, without these checkpoints
and ranks, and takes magnitudes of gradients that are added up over texts, whose signs cancel.
"""

from __future__ import annotations

import functools
import logging
from pathlib import Path
from typing import Iterator, NamedTuple, cast

import numpy as np
import paddle

from fleetbert import bundle as bundles
from fleetbert.compat.static_graph import static_graph
from fleetbert.compression import from_program, importance, tuning
from fleetbert.compression.importance import Importance, Kept
from fleetbert.compression.work import Ready, Work
from fleetbert.export.program import versions
from fleetbert.graph import program as programs
from fleetbert.graph.program import ProgramDesc
from fleetbert.models import sources, task_heads, weights
from fleetbert.models.network import FIELDS, Shape
from fleetbert.tasks import loss as losses
from fleetbert.training.strategies.single import Single
from fleetbert.training.texts import Arrays

log = logging.getLogger(__name__)


class Pruned(NamedTuple):
    """arrays: trained parameters under the source program's names; network: in evaluation mode, as
    it was trained."""

    arrays: dict[str, np.ndarray]
    network: paddle.nn.Layer
    importance: Importance
    kept: Kept


def prepare(work: Work) -> Ready | None:
    """Prune the job's source and train it on, or go on from the newest checkpoint.

    `job.output_dir` then holds what a training run leaves but model/ and bundle/. None on ranks
    other than the first. UserError for what training or the bundle's program does not take.
    """
    names = from_program.names(work.source.program, f"{work.bundle.root}: {work.job.source}")
    measured: Importance
    kept: Kept

    def change(task: tuning.Tuned, whole: paddle.nn.Layer, connected: Single) -> None:
        nonlocal measured, kept
        measured = connected.from_first(
            lambda: importance.measure(whole, _batches(task), losses.of(task.task))
        )
        settings = work.job.prune
        kept = importance.choose(measured, settings.heads, settings.feed_forward)
        task.network = narrow(whole, kept, work.bundle)
        if connected.rank == 0:
            log.info(
                f"each layer keeps {kept.heads.shape[1]} of {measured.heads.shape[1]} attention "
                f"heads and {kept.units.shape[1]} of {measured.feed_forward.shape[1]} feed-forward "
                "units"
            )

    network = tuning.train(work, change)
    if network is None:
        return None
    pruned = Pruned(tuning.parameters(network, names), network, measured, kept)
    return Ready(work.source, functools.partial(write, work, pruned))


def narrow(network: paddle.nn.Layer, kept: Kept, bundle: bundles.Bundle) -> paddle.nn.Layer:
    """A network with only those heads and units of a classifier."""
    whole = network.network.config
    shape = cast(Shape, {field: getattr(whole, field) for field in FIELDS})
    shape["kept_heads"], shape["intermediate_size"] = kept.heads.shape[1], kept.units.shape[1]
    shape["pooler_act"] = whole.pooler_act
    if bundle.task.pooling is not None:
        shape["pooling"] = bundle.task.pooling
    tensors = {name: tensor.numpy() for name, tensor in network.network.state_dict().items()}
    width = network.network.bert.encoder.layers[0].self_attn.head_dim
    source = sources.Source(
        str(bundle.root), shape, bundle.tokenizer, narrow_tensors(tensors, kept, width)
    )
    pruned = task_heads.build(
        bundle.task.name, weights.bert_config(source, whole.num_labels, whole.vocab_size)
    )
    weights.load(pruned, source)
    return pruned


def narrow_tensors(tensors: dict[str, np.ndarray], kept: Kept, width: int) -> dict[str, np.ndarray]:
    """The tensors (PaddleNLP's names) without what is not kept; width: columns of a head."""
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


def write(work: Work, pruned: Pruned, folder: Path) -> bundles.Variant:
    """The source's program, narrowed and with the trained parameters; its logits are compared with
    the network's."""
    program = programs.copy(work.source.program)
    narrow_program(program, pruned.arrays, pruned.kept.heads.shape[1])
    programs.write_model(folder, program, pruned.arrays)
    measured, kept = pruned.importance, pruned.kept
    variant = bundles.ProgramVariant(
        name="pruned-float32",
        runs_on=["x86", "gpu", "armv8"],
        versions=versions(),
        pruning=bundles.Pruning(
            heads=(measured.heads.shape[1], kept.heads.shape[1]),
            feed_forward=(measured.feed_forward.shape[1], kept.units.shape[1]),
            kept_heads=kept.heads.tolist(),
            importance_of_heads=measured.heads.tolist(),
            lost_importance=importance.lost(measured, kept),
        ),
    )
    return tuning.beside_network(variant, folder, pruned.network, work)


def narrow_program(program: ProgramDesc, arrays: dict[str, np.ndarray], heads: int) -> None:
    """Let a classifier's program have the parameters `arrays` and so many heads, in place.

    Names stay the same, so that `skip` and a report mean the same layers in both.
    """
    block = program.blocks[0]
    for variable in block.vars:
        if variable.name in arrays:
            variable.type.lod_tensor.tensor.dims[:] = arrays[variable.name].shape
    width = 0
    for op in block.ops:
        if op.type != "reshape2":
            continue
        shape = list(programs.attribute(op, "shape").ints)
        if len(shape) == 4:  # [texts, length, hidden] -> [texts, length, heads, width]
            width = shape[3]
            shape[2] = heads
        else:  # and back
            shape[2] = heads * width
        programs.set_attributes(op, shape=shape)
    _infer_shapes(program)


def _infer_shapes(program: ProgramDesc) -> None:
    """Give all variables the shapes that follow from the parameters' and the operators'."""
    with static_graph():
        known = paddle.static.Program.parse_from_string(program.SerializeToString())
    block = known.global_block()
    for op in block.ops:
        if op.type not in ("feed", "fetch"):
            op.desc.infer_shape(block.desc)
    shapes = {
        variable.name: variable.type.lod_tensor.tensor.dims
        for variable in ProgramDesc.FromString(known.desc.serialize_to_string()).blocks[0].vars
    }
    for variable in program.blocks[0].vars:
        if variable.type.HasField("lod_tensor"):
            variable.type.lod_tensor.tensor.dims[:] = shapes[variable.name]


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

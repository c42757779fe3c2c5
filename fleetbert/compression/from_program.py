"""A bundle's float32 program → the weights and the shape of the BERT that it was exported from.

A program has Paddle's names for parameters (`linear_38.w_0`), which count what a process built. So
they are told by the order in which they are used, which is the order of the layers.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from paddle import nn

from fleetbert import bundle as bundles
from fleetbert import tasks
from fleetbert.core.errors import UserError
from fleetbert.data import tokenizers
from fleetbert.graph import program as programs
from fleetbert.graph.program import ProgramDesc
from fleetbert.models import task_heads, weights
from fleetbert.models.network import PROJECTION, Shape
from fleetbert.models.sources import Source

# Of one layer, in the order in which its forward uses them.
LAYER_LINEAR = (
    *(f"self_attn.{name}_proj" for name in ("q", "k", "v", "out")),
    "linear1",
    "linear2",
)
LAYER_NORM = ("norm1", "norm2")
# After the layers: of vectors nothing, of tags, of what is told of a whole text.
HEADS = ((), ("classifier",), ("bert.pooler.dense", "classifier"))
# Of Linears with an activation after them.
ACTIVATED = ("bert.encoder.layers.0.linear1.bias", "bert.pooler.dense.bias")
DROPOUT = 0.1  # of a network whose program does not say it
EMBEDDINGS = ("word_embeddings", "position_embeddings", "token_type_embeddings")


class Names(NamedTuple):
    """PaddleNLP's names by the program's names: of all parameters, and of the Linear weights
    alone, in the order in which they are used. activation, pooler_act: as `hidden_act` calls
    those of the layers and of the pooler."""

    parameters: dict[str, str]
    linear: dict[str, str]
    activation: str
    pooler_act: str


def open_bundle(bundle: bundles.Bundle, dropout: float, variant: str = "float32") -> Source:
    """A float32 variant of a bundle as a source of weights, for training.

    A program does not say what dropout it was trained with, so it is given here. UserError for
    programs of other networks.
    """
    program, arrays = programs.read_model(bundle.folder(variant))
    named = names(program, f"{bundle.root}: {variant}")
    tensors = {named.parameters[name]: array for name, array in arrays.items()}
    block = program.blocks[0]
    heads = programs.attribute(next(op for op in block.ops if op.type == "reshape2"), "shape")
    norm = next(op for op in block.ops if op.type == "layer_norm")
    words, positions, types = (tensors[f"bert.embeddings.{n}.weight"] for n in EMBEDDINGS)
    kept, of_head = heads.ints[2:]
    width = tensors["bert.encoder.layers.0.norm1.bias"].size
    shape: Shape = {
        "vocab_size": len(words),
        "hidden_size": width,
        "num_hidden_layers": len(named.linear) // len(LAYER_LINEAR),
        "num_attention_heads": width // of_head,
        "kept_heads": kept,
        "intermediate_size": tensors["bert.encoder.layers.0.linear1.bias"].size,
        "hidden_act": named.activation,
        "hidden_dropout_prob": dropout,
        "attention_probs_dropout_prob": dropout,
        "max_position_embeddings": len(positions),
        "type_vocab_size": len(types),
        "layer_norm_eps": programs.attribute(norm, "epsilon").f,
        "pad_token_id": tokenizers.open(bundle).pad_id,
        "pooler_act": named.pooler_act,
    }
    if PROJECTION in tensors:
        shape["embedding_size"] = words.shape[1]
    if bundle.task.pooling is not None:
        shape["pooling"] = bundle.task.pooling
    labels = tuple(bundle.task.labels)
    return Source(str(bundle.root), shape, bundle.tokenizer, tensors, head_labels=labels)


def network_of(source: Source, bundle: bundles.Bundle) -> nn.Layer:
    """The network of a bundle's weights, or of what was made of them, in evaluation mode."""
    tokenizer = tokenizers.open(source.tokenizer)
    outputs = tasks.of(bundle.task).outputs(bundle.labels)
    shape = weights.bert_config(source, outputs, tokenizer.vocab_size, tokenizer.pad_id)
    network = task_heads.build(bundle.task.name, replace(shape, initializer_range=0.0))
    weights.load(network, source, bundle.labels)
    network.eval()
    return network


def save_folder(bundle: bundles.Bundle, folder: Path) -> None:
    """Write a bundle's float32 as a run's `model` folder, which teaches and is trained further."""
    source, task = open_bundle(bundle, DROPOUT), tasks.of(bundle.task)
    fields = task.head_fields()
    weights.save_folder(network_of(source, bundle), source, folder, bundle.labels, fields)


def names(program: ProgramDesc, where: str) -> Names:
    """What each parameter of a float32 program is called in the network."""
    ops = program.blocks[0].ops
    stored = set(programs.parameter_names(program))
    used: tuple[list[str], ...] = ([], [], [], [], [])
    tables, matrices, biases, scales, shifts = used
    for op in ops:
        slots = {slot.parameter: slot.arguments[0] for slot in op.inputs if slot.arguments}
        if op.type == "lookup_table_v2":
            tables.append(slots["W"])
        elif op.type == "layer_norm":
            scales.append(slots["Scale"])
            shifts.append(slots["Bias"])
        elif op.type == "matmul_v2" and slots["Y"] in stored:
            matrices.append(slots["Y"])
        elif op.type == "elementwise_add" and slots["Y"] in stored:
            biases.append(slots["Y"])
    layers = [f"bert.encoder.layers.{n}" for n in range(len(scales) // len(LAYER_NORM))]
    linear = [PROJECTION[: -len(".weight")]] if _is_projected(program) else []
    linear += [f"{layer}.{name}" for layer in layers for name in LAYER_LINEAR]
    linear += HEADS[min(max(len(matrices) - len(linear), 0), len(HEADS) - 1)]
    norm = ["bert.embeddings.layer_norm"]
    norm += [f"{layer}.{name}" for layer in layers for name in LAYER_NORM]
    expected = [[f"bert.embeddings.{name}.weight" for name in EMBEDDINGS]]
    expected += [[f"{name}.{kind}" for name in linear] for kind in ("weight", "bias")]
    expected += [[f"{name}.{kind}" for name in norm] for kind in ("weight", "bias")]
    pairs = (pair for some, known in zip(used, expected) for pair in zip(some, known))
    parameters = dict(pairs)
    fits = list(map(len, used)) == list(map(len, expected)) and set(parameters) == stored
    by_name = {name: parameter for parameter, name in parameters.items()}
    activation, pooler_act = (
        _activation(program, by_name[bias]) if bias in by_name else None for bias in ACTIVATED
    )
    if not fits or activation is None or (ACTIVATED[1] in by_name and pooler_act is None):
        raise UserError(
            f"{where} is not the program of a BERT as training exports it, so it cannot be trained "
            "further; choose method: static or dynamic"
        )
    linear_names = {name: parameters[name] for name in matrices}
    return Names(parameters, linear_names, activation, pooler_act or "tanh")


def _is_projected(program: ProgramDesc) -> bool:
    """Whether one Linear alone reads the normalized embeddings."""
    block = program.blocks[0]
    norm = next(op for op in block.ops if op.type == "layer_norm")
    readers = programs.consumers(block, programs.argument(norm.outputs, "Y"))
    return [op.type for op in readers] == ["matmul_v2"]


def _activation(program: ProgramDesc, before: str) -> str | None:
    """The name of the activation after the Linear whose bias is the parameter `before`, in a
    program as training exports it; None if it is none of these."""
    block = program.blocks[0]
    add = next(op for op in programs.consumers(block, before) if op.type == "elementwise_add")
    readers = programs.consumers(block, programs.argument(add.outputs, "Out"))
    kinds = sorted(op.type for op in readers)
    if kinds == ["elementwise_mul", "scale"]:
        return "quick_gelu"
    if kinds == ["gelu"]:
        return "gelu_new" if programs.attribute(readers[0], "approximate").b else "gelu"
    return kinds[0] if len(kinds) == 1 and kinds[0] in ("relu", "silu", "tanh") else None

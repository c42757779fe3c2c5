"""A BERT cut into groups of its layers, which texts may leave between."""

from __future__ import annotations

from typing import Iterator, Sequence

from fleetbert.graph.program import ProgramDesc, argument, cut, output_names


def count_layers(program: ProgramDesc) -> int:
    """Encoder layers of a BERT: each has one softmax, over attention."""
    return sum(op.type == "softmax" for op in program.blocks[0].ops)


def layer_outputs(program: ProgramDesc) -> list[str]:
    """The variables [texts, length, width] that a BERT's encoder layers give, in their order."""
    norms = [argument(op.outputs, "Y") for op in program.blocks[0].ops if op.type == "layer_norm"]
    return norms[2::2]  # the first is the embeddings', then there are two a layer


def cut_groups(program: ProgramDesc, ends: Sequence[int]) -> Iterator[tuple[int, ProgramDesc]]:
    """A BERT in groups of layers, each with the number of its last layer, which `ends` are.

    The first takes input_ids and token_type_ids, the others hidden states and input_ids; the last
    gives logits, the others hidden states.
    """
    layers = layer_outputs(program)
    start = None
    for end in ends:
        inputs = ("input_ids", "token_type_ids") if start is None else (start, "input_ids")
        start = layers[end - 1]
        yield end, cut(program, inputs, output_names(program) if end == len(layers) else [start])

"""Operators of ONNX Runtime's own, each of which does what many of ONNX's do.

A text alone is hundreds of calls of operators, most of them of microseconds. MiniLM in `onnx-int8`
with static scales answers one in 0.82 of the time with these two, and many texts in 0.96
(docs/benchmarks/2026-11-29-xeon.md). They are described in ONNX Runtime's docs/ContribOperators.md.
"""

from __future__ import annotations

from collections import Counter
from typing import Iterator, NamedTuple

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from fleetbert.compression import onnx_layers
from fleetbert.compression.onnx_layers import OWN

# Of queries, keys and values of heads, which were (texts, length, heads, width of a head).
AXES = ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3])
MASK = "attention_mask"  # the input (texts, length): 1 for tokens, 0 for padding


def fuse(model: ModelProto) -> None:
    """Replace what the two operators do; a layer that is built otherwise stays as it is."""
    graph = _Graph(model)
    attentions = list(_attentions(graph))
    replaced = [*attentions, *_norms(graph)]
    gone = {id(node) for each in replaced for node in each.nodes}
    instead = {id(each.nodes[-1]): each.by for each in replaced}
    nodes = [
        instead.get(id(n), n) for n in model.graph.node if id(n) in instead or id(n) not in gone
    ]
    if attentions:
        mask = helper.make_node("Cast", [MASK], [f"{MASK}@int32"], to=TensorProto.INT32)
        nodes.insert(0, mask)
    tensors = [numpy_helper.from_array(array, name) for name, array in graph.arrays.items()]
    onnx_layers.rebuild(model, nodes, tensors)


class _Replaced(NamedTuple):
    """nodes: the last of them gives what `by` gives."""

    nodes: list[NodeProto]
    by: NodeProto


class _Other(Exception):
    """A layer is built otherwise."""


class _Graph:
    def __init__(self, model: ModelProto):
        self.arrays = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
        self.nodes = list(model.graph.node)
        self._makers = {name: node for node in self.nodes for name in node.output}
        self._readers = Counter(name for node in self.nodes for name in node.input)
        self._reader = {name: node for node in self.nodes for name in node.input}

    def maker(self, name: str, kind: str) -> NodeProto:
        """The node of this kind that makes what only one other reads."""
        node = self._makers.get(name)
        if node is None or node.op_type != kind or self._readers[name] != 1:
            raise _Other
        return node

    def reader(self, node: NodeProto, kind: str) -> NodeProto:
        """The only node that reads what this one makes."""
        name = node.output[0]
        if self._readers[name] != 1 or self._reader[name].op_type != kind:
            raise _Other
        return self._reader[name]

    def is_made(self, name: str, kind: str) -> bool:
        return name in self._makers and self._makers[name].op_type == kind

    def sources(self, name: str) -> set[str]:
        """The inputs of the model that this depends on."""
        if name in self.arrays:
            return set()
        if name not in self._makers:
            return {name}
        return {source for each in self._makers[name].input for source in self.sources(each)}


def _attentions(graph: _Graph) -> Iterator[_Replaced]:
    for node in graph.nodes:
        if node.op_type == "Softmax":
            try:
                yield _attention(graph, node)
            except _Other:
                continue


def _attention(graph: _Graph, softmax: NodeProto) -> _Replaced:
    """From integers to a layer's context: softmax(q k^T factor + mask) v, of heads side by side."""
    masked = graph.maker(softmax.input[0], "Add")
    scores = graph.maker(masked.input[0], "MatMul")
    scaled = graph.maker(scores.input[0], "Mul")
    context = graph.reader(softmax, "MatMul")
    turned = graph.reader(context, "Transpose")
    last = graph.reader(turned, "Reshape")
    inner, products = [masked, scores, scaled, softmax, context, turned], []
    for name, axes in zip((scaled.input[0], scores.input[1], context.input[1]), AXES):
        heads = graph.maker(name, "Transpose")
        split = graph.maker(heads.input[0], "Reshape")
        if list(heads.attribute[0].ints) != axes:
            raise _Other
        inner += [heads, split]
        products.append(graph.maker(split.input[0], "MatMulIntegerToFloat"))
    source, _, scale, _, zero, *_ = products[0].input
    alike = all(each.input[0] == source and each.input[6:] for each in products)
    stored = {scaled.input[1], split.input[1]} <= set(graph.arrays)
    if not alike or not stored or graph.sources(masked.input[1]) != {MASK}:
        raise _Other
    joined = f"{source}@qkv"
    for suffix, place in (("", 1), ("@scale", 3), ("@bias", 6)):
        parts = [graph.arrays[each.input[place]] for each in products]
        graph.arrays[joined + suffix] = np.concatenate(parts, -1)
    graph.arrays[f"{joined}@zero"] = np.zeros(len(graph.arrays[f"{joined}@bias"]), np.int8)
    scales = [scale, f"{joined}@scale", f"{MASK}@int32", zero, f"{joined}@zero"]
    by = helper.make_node(
        "QAttention",
        [source, joined, f"{joined}@bias", *scales],
        [last.output[0]],
        domain=OWN,
        num_heads=int(graph.arrays[split.input[1]][2]),
        scale=float(graph.arrays[scaled.input[1]]),
    )
    return _Replaced([*inner, *products, last], by)


def _norms(graph: _Graph) -> Iterator[_Replaced]:
    """A residual and the norm of the sum, where the residual is a norm too."""
    for node in graph.nodes:
        if node.op_type != "LayerNormalization":
            continue
        try:
            total = graph.maker(node.input[0], "Add")
        except _Other:
            continue
        if any(graph.is_made(name, "LayerNormalization") for name in total.input):
            epsilon = next(a.f for a in node.attribute if a.name == "epsilon")
            by = helper.make_node(
                "SkipLayerNormalization",
                [*total.input, *node.input[1:]],
                node.output[:1],
                domain=OWN,
                epsilon=epsilon,
            )
            yield _Replaced([total, node], by)

"""Paddle's static mode, for what builds and runs programs."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator, Sequence

import numpy as np

import fleetbert.compat.prepared  # noqa: F401  isort: skip
import paddle

from fleetbert.compat import versions


@contextlib.contextmanager
def static_graph() -> Iterator[None]:
    """Static mode, and the former mode afterwards. Programs in it are ProgramDescs on Paddle 3 too:
    3.3.1's own are of another kind, which its quantization and our passes cannot read."""
    dynamic = paddle.in_dynamic_mode()
    paddle.enable_static()
    old = paddle.pir_utils.OldIrGuard() if versions.is_paddle_3() else contextlib.nullcontext()
    try:
        with old:
            yield
    finally:
        if dynamic:
            paddle.disable_static()


@contextlib.contextmanager
def quick_graphs() -> Iterator[None]:
    """Paddle's passes over an `IrGraph` look through all of its nodes for each link that they make
    (to assert that it has both ends) and for each scale that they add, half of the time of
    quantizing MiniLM. In here they link without looking, and stored variables are noted."""
    graph = paddle.base.framework.IrGraph
    find, create = graph.all_persistable_nodes, graph.create_persistable_node
    link, remove = graph.link_to, graph.safe_remove_nodes
    stored: dict[Any, set[Any]] = {}  # by graph

    def stored_nodes(graph: Any) -> set[Any]:
        if graph not in stored:
            stored[graph] = find(graph)
        return stored[graph]

    def create_noted(graph: Any, *described: Any, **named: Any) -> Any:
        node = create(graph, *described, **named)
        stored_nodes(graph).add(node)
        return node

    def remove_noted(graph: Any, nodes: Any) -> None:
        stored.pop(graph, None)
        remove(graph, nodes)

    graph.all_persistable_nodes, graph.create_persistable_node = stored_nodes, create_noted
    graph.link_to, graph.safe_remove_nodes = _link_to, remove_noted
    try:
        yield
    finally:
        graph.all_persistable_nodes, graph.create_persistable_node = find, create
        graph.link_to, graph.safe_remove_nodes = link, remove


def _link_to(_: Any, node_in: Any, node_out: Any) -> None:
    node_in.append_output(node_out)
    node_out.append_input(node_in)


def weight_scales(steps: Sequence[float], largest: int, weight: np.ndarray) -> np.ndarray:
    """Scales (the magnitude that becomes the integer `largest`) of a weight [inputs, outputs], from
    the steps that WeightQuantization wrote; 3.3.1 with NumPy 2 writes none."""
    if not steps:
        return np.asarray(np.abs(weight).max(0))
    return np.array(steps, np.float32) * np.float32(largest)

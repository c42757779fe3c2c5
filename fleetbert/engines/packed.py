"""A program whose passes have been run, or a group of its layers, on packed rows.

Embeddings are added up in NumPy. A text alone goes through the same operators as in a row with
others, because in int8 its answer would not be the same otherwise: Paddle's `self_dp_attention`,
which knows no mask, takes a tenth less time (MiniLM), and rounds otherwise.
"""

from __future__ import annotations

from typing import Callable, Mapping, Optional, Sequence

import numpy as np

from fleetbert.data import ragged
from fleetbert.data.packing import PackedLayout, pack
from fleetbert.data.ragged import Texts
from fleetbert.engines import predictor
from fleetbert.engines.predictor import Predict
from fleetbert.graph import bfloat16, embeddings, packed
from fleetbert.graph.embeddings import Table
from fleetbert.graph.program import Parameters, ProgramDesc

# (states, texts, layout) → states of a group of layers; the last group gives the outputs
# [texts, ...]. States are float32 [tokens, width], those of the layout's rows. A group that begins
# with the embeddings takes None instead.
Group = Callable[[Optional[np.ndarray], Texts, PackedLayout], np.ndarray]


def open_group(
    program: ProgramDesc,
    parameters: Parameters,
    threads: int,
    streams: bool = False,
    apart: Mapping[str, Table] | None = None,
) -> list[Group]:
    """Open a BERT for CPUs whose passes have been run, or a group of its layers.

    streams: one for each of the threads instead of one for them all; see `predictor.open_fused`.
    apart: tables that `parameters` need not have.
    """
    start = embeddings.take_out(program, parameters, apart)
    split = (1, threads) if streams else (threads, 1)
    rest, needed = packed.rewrite(start.program, start.inputs)
    inputs = (start.inputs[0], *needed)
    rows = predictor.open_fused(bfloat16.convert(rest), start.parameters, inputs, *split)
    tables = start.tables  # without the parameters: Paddle has copied them
    return [_group(tables, needed, predict) for predict in rows]


def _group(tables: list[embeddings.Table], needed: Sequence[str], predict: Predict) -> Group:
    """predict: takes the states and the fields of the layout `needed`."""

    def run(states: np.ndarray | None, texts: Texts, layout: PackedLayout) -> np.ndarray:
        if tables:
            ids, types = pack(texts.ids, layout), pack(ragged.token_types(texts), layout)
            states = embeddings.add_up(tables, ids, types, layout.positions)
        assert states is not None
        fields = (getattr(layout, name) for name in needed)
        (outputs,) = predict(states.reshape(*layout.shape, -1), *fields)
        return outputs.reshape(-1, outputs.shape[-1])

    return run

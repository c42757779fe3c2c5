"""The model of docs/scaling.md."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pytest
from benchmarks import cost

from fleetbert.bench import measure

DOC = Path(__file__).parents[2] / "docs" / "scaling.md"


def test_parameters_are_those_of_the_published_models():
    assert cost.BASE.parameters == 109_482_240
    assert cost.LARGE.parameters == 335_141_888


@pytest.mark.slow
def test_a_network_has_as_many():
    from paddlenlp.transformers import BertConfig, BertModel

    shape = cost.Shape("tiny", layers=2, hidden=16, words=50, positions=32)
    config = BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=32, type_vocab_size=2,
    )  # fmt: skip
    assert sum(int(weight.size) for weight in BertModel(config).parameters()) == shape.parameters


@pytest.mark.parametrize("gpus", [2, 3, 8])
def test_ring_seconds_is_what_a_played_ring_takes(gpus):
    """Reduce-scatter, then all-gather: in each turn every rank hands one piece to the next."""
    values = np.random.default_rng(0).normal(size=(gpus, gpus, 5))  # rank, piece, number
    expected, sent = values.sum(0), 0
    for turn in range(2 * (gpus - 1)):
        pieces = [values[rank, (rank - turn) % gpus].copy() for rank in range(gpus)]
        for rank, piece in enumerate(pieces):
            place = values[(rank + 1) % gpus, (rank - turn) % gpus]
            place[:] = piece if turn >= gpus - 1 else place + piece
        sent += pieces[0].nbytes
    np.testing.assert_allclose(values, np.stack([expected] * gpus))
    assert cost.ring_seconds(expected.nbytes, gpus, 1e3) == pytest.approx(sent / 1e3)


def test_the_slowest_link_counts():
    ethernet = cost.NETWORKS[-1]
    assert cost.all_reduce_seconds(8e9, 8, ethernet) == pytest.approx(1.75 * 8e9 / 300e9)
    assert cost.all_reduce_seconds(8e9, 16, ethernet) == pytest.approx(1.875 * 8e9 / 3.125e9)


def test_operations_are_six_for_a_weight_and_the_attentions():
    shape = cost.Shape("x", 1, 8)
    rest = shape.step_operations(2, 4) - 6 * shape.layer_weights * 8
    assert rest == 3 * 2 * (2 * 2 * 4 * 4 * 8)  # 2 texts; scores and sums: 2 products of 4x8x4


def test_the_page_has_the_tables_that_the_command_prints():
    page = DOC.read_text(encoding="utf-8")
    for table in cost.run(argparse.Namespace()).tables:
        assert measure.table(table, markdown=True) in page

"""The model of docs/scaling.md."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest
from benchmarks import cost

from fleetbert.bench import measure

DOC = Path(__file__).parents[2] / "docs" / "scaling.md"


def test_parameters_are_those_of_the_published_models():
    assert cost.BASE.parameters == 109_482_240
    assert cost.LARGE.parameters == 335_141_888


def test_the_slowest_link_counts():
    """Each rank of n sends 2 (n - 1) / n of the bytes: it reduces and scatters, then gathers."""
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


def test_gloo_on_a_ring():
    """Two ranks send and copy all bytes once; a ring of n has 2 (n - 1) hops for each bucket."""
    assert cost.gloo_seconds(1, cost.ETHERNET[0]) == 0
    two = 90.9e6 / 1.25e9 + 90.9e6 / 1.08e9 + 2 * 3 * 50e-6
    assert cost.gloo_seconds(2, cost.ETHERNET[0]) == pytest.approx(two)

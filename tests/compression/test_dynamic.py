"""Weights as integers: Paddle's own, and what it refuses, beside NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from fleetbert.compression import dynamic
from fleetbert.compression.work import Source, weight_errors
from fleetbert.engines import engine
from fleetbert.engines.alike import random_batch
from fleetbert.graph import program as programs
from fleetbert.graph import weights
from fleetbert.graph.mul import to_mul


def arrays_of(folder):
    program = programs.read(folder / "model.pdmodel")
    return programs.read_parameters(program, folder / "model.pdiparams")


def test_products_as_mul_give_the_same_logits(whole_program, tmp_path):
    program = to_mul(programs.read(whole_program / "model.pdmodel"), arrays_of(whole_program))
    kinds = [op.type for op in program.blocks[0].ops]
    assert kinds.count("mul") == 2 * 6 + 2
    programs.write(tmp_path / "model.pdmodel", program)
    (tmp_path / "model.pdiparams").write_bytes((whole_program / "model.pdiparams").read_bytes())
    batch = random_batch(np.random.default_rng(0), (3, 32), 100)
    expected = engine.open_folder(engine.FLOAT32, whole_program, "cpu", 1)(*batch)
    np.testing.assert_allclose(
        engine.open_folder(engine.FLOAT32, tmp_path, "cpu", 1)(*batch), expected, atol=1e-6
    )


@pytest.mark.parametrize("bits", [8, 16])
def test_every_matrix_and_table_is_integers(whole_program, bits):
    """Against a quantization written out here: integers, scales and the largest error."""
    arrays = arrays_of(whole_program)
    found = dynamic.quantize_weights(Source(whole_program), bits)
    matrices = {name for name, array in arrays.items() if array.ndim == 2}
    assert set(found.weights) == matrices
    assert all(array.ndim < 2 for array in found.others.values())
    steps = 2 ** (bits - 1) - 1
    for name, (integers, scales, axis) in found.weights.items():
        exact = arrays[name]
        assert axis == (0 if name.startswith("embedding") else 1)
        largest = np.abs(exact).max(1 - axis, keepdims=True)
        np.testing.assert_allclose(scales, largest.ravel(), rtol=1e-6)
        assert integers.dtype == f"int{bits}"
        assert np.abs(integers - exact / largest * steps).max() <= 0.5 + 1e-2
        error = np.abs(weights.widen(found.weights[name]) - exact)
        assert (error <= largest / steps * 0.51).all()


def test_a_table_of_zeros_has_no_error():
    """As the types of tokens of an imported DistilBERT, without a warning of 0 / 0."""
    tables = {"zeros": np.zeros((2, 4), np.float32), "one": np.full((2, 4), 0.5, np.float32)}
    made = {name: weights.quantize(table, 0) for name, table in tables.items()}
    with np.errstate(all="raise"):
        assert weight_errors(made, tables) == {"zeros": 0.0, "one": pytest.approx(0, abs=1e-6)}


def test_what_is_skipped_stays_float32(whole_program):
    arrays = arrays_of(whole_program)
    some = [
        next(n for n in arrays if n.startswith("linear")),
        programs.embedding_tables(programs.read(whole_program / "model.pdmodel"))[0],
    ]
    found = dynamic.quantize_weights(Source(whole_program), 8, some)
    for name in some:
        assert name not in found.weights
        np.testing.assert_array_equal(found.others[name], arrays[name])

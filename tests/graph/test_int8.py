"""int8 programs against the quantized arithmetic in NumPy; units in pieces, of which each is cut at
the threshold."""

from __future__ import annotations

import numpy as np
import pytest
from activation import FORMULAS
from passes import ask, linear, make_batch

from fleetbert.compat import environment
from fleetbert.engines import engine
from fleetbert.graph import int8, split, weights
from fleetbert.graph import program as programs
from fleetbert.graph.first_token import first_token_only
from fleetbert.graph.fuse import fuse, merge_transposes

STEPS = int8.weight_steps(environment.cpuinfo())


def limited(weight):
    """As `int8.limit_weights` rounds it."""
    integers = np.rint(weight.integers * np.float32(STEPS / 127))
    return weights.Quantized(integers, weight.scales * np.float32(127 / STEPS), weight.axis)


# Of a layer's weights: of the whole network, and of one with half its heads and 48 units.
WEIGHTS = {
    "whole_program": {(64, 64), (64, 128), (128, 64)},
    "pruned_program": {(64, 32), (32, 64), (64, 48), (48, 64)},
}


@pytest.fixture(params=WEIGHTS)
def program(request):
    """(folder of a tiny classifier's program, the shapes of its layers' weights)."""
    return request.getfixturevalue(request.param), WEIGHTS[request.param]


@pytest.fixture
def folder(program):
    return program[0]


def run_layers(fused, thresholds, quantized, outputs):
    """The named variables of the int8 program."""
    program = int8.to_int8(fused.program, thresholds, quantized)
    widened = {name: weights.widen(one) for name, one in quantized.items()}
    batch = make_batch([32, 27, 16, 3])
    return ask(program, {**fused.parameters, **widened}, *batch, outputs=outputs)


def test_each_layer_computes_the_quantized_arithmetic(program):
    """Every layer of the program, square and not, beside `simulate` on the same input."""
    folder, shapes = program
    fused = fuse(folder)
    checked = set()
    for op in int8.linear_layers(fused.program)[:-1]:
        layer = linear(op, fused.parameters)
        weight = fused.parameters[layer.weight]
        quantized = {layer.weight: weights.quantize(weight, 1)}
        outputs = layer.source, layer.target
        x, y = run_layers(fused, {layer.source: 2.5}, quantized, outputs)
        simulated = int8.simulate(x, 2.5, limited(quantized[layer.weight]))
        expected = layer.activation(simulated + layer.bias)
        np.testing.assert_allclose(y, expected, atol=2e-5 * np.abs(expected).max())
        # The reference is no copy of float32: rounding shows.
        exact = layer.activation(x @ weight + layer.bias)
        assert np.abs(exact - expected).max() > 1e-3 * np.abs(exact).max()
        checked.add(weight.shape)
    assert shapes <= checked


def test_layers_that_hand_on_integers_compute_the_same(folder):
    """GELU's output goes to the next layer as int8: the pair beside the two simulated."""
    fused = fuse(folder)
    pair = next(
        (op, reader)
        for op in int8.linear_layers(fused.program)
        for reader in programs.consumers(
            fused.program.blocks[0], programs.argument(op.outputs, "Out")
        )
        if reader.type == "fc"
    )
    first, second = (linear(op, fused.parameters) for op in pair)
    quantized = {
        name: weights.quantize(fused.parameters[name], 1) for name in (first.weight, second.weight)
    }
    thresholds = {first.source: 3.0, second.source: 4.0}
    x, y = run_layers(fused, thresholds, quantized, (first.source, second.target))
    inner = int8.simulate(x, 3.0, limited(quantized[first.weight])) + first.bias
    inner = FORMULAS["gelu"](inner)
    expected = int8.simulate(inner, 4.0, limited(quantized[second.weight])) + second.bias
    # A value of the first layer may round to its neighbour: one step of 4 / 127 in a few of 128.
    assert np.abs(y - expected).max() < 0.02 * np.abs(expected).max()
    assert np.median(np.abs(y - expected)) < 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("rewrite", [merge_transposes, first_token_only])
def test_rewrites_leave_the_logits_alone(folder, rewrite):
    batch = make_batch([48, 33, 5, 20, 2])
    fused = fuse(folder)
    before = fused.program.SerializeToString()
    program = rewrite(fused.program)
    assert len(program.blocks[0].ops) != len(fused.program.blocks[0].ops)
    assert fused.program.SerializeToString() == before
    expected = engine.open_folder(engine.FLOAT32, folder, "cpu", 1)(*batch)
    np.testing.assert_allclose(ask(program, fused.parameters, *batch)[0], expected, atol=1e-5)


@pytest.mark.parametrize("activation", ["gelu_erf", "gelu_tanh", "relu"])
def test_cut_pieces_add_up_to_the_unit(activation):
    x = np.linspace(-9, 27.9, 3000, dtype=np.float32)[:, None]
    formula = FORMULAS["relu" if activation == "relu" else "gelu"]
    exact = formula(x)
    some = split.pieces([1] * 6, 4.0)
    np.testing.assert_allclose(some.lower, [4, 8, 12, 16, 20, 24])
    weight, bias = np.array([[0.5, 0.25]], np.float32), np.array([0.0, 1.0], np.float32)
    # Unit 1 is 0.25 of its input and 1: x.
    actual = split.outputs(4 * (x - 1), weight, bias, activation, some)
    np.testing.assert_allclose(actual, formula(x - some.lower), atol=1e-3)
    whole = np.minimum(exact, 4) + np.minimum(actual, 4).sum(1, keepdims=True)
    assert np.abs(whole - exact).max() < (1e-4 if activation == "relu" else 0.18)
    assert np.abs(np.minimum(exact, 4) - exact).max() > 23  # what a cut alone does


def test_units_are_named_once_for_each_piece():
    some = split.pieces([3, 5, 3, 3], 2.0)
    assert some.units.tolist() == [3, 5, 3, 3]
    assert some.lower.tolist() == [2, 2, 4, 6]

"""int8 programs against the quantized arithmetic in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special

from fleetbert.compat import environment
from fleetbert.engines import engine, predictor
from fleetbert.engines.alike import random_batch
from fleetbert.graph import int8, weights
from fleetbert.graph import program as programs
from fleetbert.graph.first_token import first_token_only
from fleetbert.graph.fuse import fuse, merge_transposes

SHAPES = ((3, 32), (1, 128))
STEPS = int8.weight_steps(environment.cpuinfo())


def limited(weight):
    """As `int8.limit_weights` rounds it."""
    integers = np.rint(weight.integers * np.float32(STEPS / 127))
    return weights.Quantized(integers, weight.scales * np.float32(127 / STEPS), weight.axis)


def gelu(x):
    return x * 0.5 * (1 + special.erf(x / np.sqrt(2)))


ACTIVATIONS = {"": lambda x: x, "gelu_erf": gelu, "tanh": np.tanh}


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


def saved(folder, program, quantized, parameters):
    programs.write(folder / "x86.pdmodel", program)
    others = {name: array for name, array in parameters.items() if name not in quantized}
    weights.save(folder, quantized, others)
    predict = predictor.open_as_it_is(*predictor.read_integers(folder), 1)
    return lambda *batch: predict(*batch)[0]


def run_layer(folder, tmp_path, outputs, thresholds, quantized, batch):
    """The named variables of the int8 program, for a batch."""
    fused = fuse(folder)
    int8_program = int8.to_int8(fused.program, thresholds, quantized)
    found = []
    for output in outputs:
        program = programs.copy(int8_program)
        fetch = next(op for op in program.blocks[0].ops if op.type == "fetch")
        fetch.inputs[0].arguments[0] = output
        found.append(saved(tmp_path, program, quantized, fused.parameters)(*batch))
    return found


@pytest.mark.parametrize("shape", SHAPES)
def test_each_layer_computes_the_quantized_arithmetic(program, tmp_path, shape):
    """Every layer of the program, square and not, beside `simulate` on the same input."""
    folder, shapes = program
    fused = fuse(folder)
    random = np.random.default_rng(1)
    batch = random_batch(random, shape, 100)
    checked = set()
    for layer in int8.linear_layers(fused.program)[:-1]:
        source = programs.argument(layer.inputs, "Input")
        weight = programs.argument(layer.inputs, "W")
        target = programs.argument(layer.outputs, "Out")
        named = [found.s for found in layer.attrs if found.name == "fuse_activation"]
        activation = ACTIVATIONS["".join(named)]
        quantized = {weight: weights.quantize(fused.parameters[weight], 1)}
        x, y = run_layer(folder, tmp_path, [source, target], {source: 2.5}, quantized, batch)
        bias = fused.parameters[programs.argument(layer.inputs, "Bias")]
        expected = activation(int8.simulate(x, 2.5, limited(quantized[weight])) + bias)
        np.testing.assert_allclose(y, expected, atol=2e-5 * np.abs(expected).max())
        # The reference is no copy of float32: rounding shows.
        exact = activation(x @ fused.parameters[weight] + bias)
        assert np.abs(exact - expected).max() > 1e-3 * np.abs(exact).max()
        checked.add(fused.parameters[weight].shape)
    assert shapes <= checked


def test_layers_that_hand_on_integers_compute_the_same(folder, tmp_path):
    """GELU's output goes to the next layer as int8: the pair beside the two simulated."""
    fused = fuse(folder)
    batch = random_batch(np.random.default_rng(2), (4, 32), 100)
    first, second = next(
        (layer, reader)
        for layer in int8.linear_layers(fused.program)
        for reader in programs.consumers(
            fused.program.blocks[0], programs.argument(layer.outputs, "Out")
        )
        if reader.type == "fc"
    )
    source, between = (programs.argument(layer.inputs, "Input") for layer in (first, second))
    names = [programs.argument(layer.inputs, "W") for layer in (first, second)]
    biases = [fused.parameters[programs.argument(o.inputs, "Bias")] for o in (first, second)]
    quantized = {name: weights.quantize(fused.parameters[name], 1) for name in names}
    target = programs.argument(second.outputs, "Out")
    x, y = run_layer(
        folder, tmp_path, [source, target], {source: 3.0, between: 4.0}, quantized, batch
    )
    inner = gelu(int8.simulate(x, 3.0, limited(quantized[names[0]])) + biases[0])
    expected = int8.simulate(inner, 4.0, limited(quantized[names[1]])) + biases[1]
    # A value of the first layer may round to its neighbour: one step of 4 / 127 in a few of 128.
    assert np.abs(y - expected).max() < 0.02 * np.abs(expected).max()
    assert np.median(np.abs(y - expected)) < 1e-4 * np.abs(expected).max()


@pytest.mark.parametrize("rewrite", [merge_transposes, first_token_only])
def test_rewrites_leave_the_logits_alone(folder, tmp_path, rewrite):
    batch = random_batch(np.random.default_rng(3), (5, 48), 100)
    fused = fuse(folder)
    before = fused.program.SerializeToString()
    program = rewrite(fused.program)
    assert len(program.blocks[0].ops) != len(fused.program.blocks[0].ops)
    assert fused.program.SerializeToString() == before
    found = saved(tmp_path, program, {}, fused.parameters)(*batch)
    expected = engine.open_folder(engine.FLOAT32, folder, "cpu", 1)(*batch)
    np.testing.assert_allclose(found, expected, atol=1e-5)

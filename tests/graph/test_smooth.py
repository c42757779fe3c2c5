"""Inputs whose channels are divided by what weights take: the same answers, in every form."""

from __future__ import annotations

import numpy as np
import pytest
from passes import INPUTS, ask, ask_rows, make_batch

from fleetbert.compat import environment
from fleetbert.compression.work import Source
from fleetbert.engines import engine
from fleetbert.graph import int8, smooth
from fleetbert.graph import program as programs
from fleetbert.graph.first_token import first_token_only
from fleetbert.graph.fuse import merge_transposes
from fleetbert.graph.weights import Quantized, quantize, widen


@pytest.fixture(scope="module")
def source(whole_program):
    return Source(whole_program)


@pytest.fixture(scope="module")
def scales(source):
    random = np.random.default_rng(0)
    return {
        name: np.exp(random.normal(size=len(source.arrays[weights[0]]))).astype(np.float32)
        for name, weights in smooth.inputs(source.program).items()
    }


@pytest.fixture(scope="module")
def smoothed(source, scales):
    return Source.of(*smooth.smooth(source.program, source.arrays, scales))


@pytest.fixture(scope="module")
def batch():
    return make_batch([32, 27, 5])


@pytest.fixture(scope="module")
def feeds(batch):
    return dict(zip(INPUTS, batch))


@pytest.fixture(scope="module")
def logits(source, batch):
    return engine.open_folder(engine.FLOAT32, source.folder, "cpu", 1)(*batch)


def test_inputs_are_those_of_attention_and_of_each_feed_forward(source):
    actual = smooth.inputs(source.program)
    assert [len(weights) for weights in actual.values()] == [3, 1, 1] * 2
    free = [smooth.is_free(source.program, name) for name in actual]
    assert free == [False, True, False] * 2


def test_it_answers_as_before(source, smoothed, batch, logits):
    actual = engine.open_folder(engine.FLOAT32, smoothed.folder, "cpu", 1)(*batch)
    np.testing.assert_allclose(actual, logits, atol=2e-5)
    kinds = [op.type for op in smoothed.program.blocks[0].ops]
    former = [op.type for op in source.program.blocks[0].ops]
    assert kinds.count("elementwise_mul") == former.count("elementwise_mul") + 2 * 2


def test_the_last_layer_still_computes_the_first_token_only(smoothed, batch, logits):
    program, parameters = smoothed.fused
    program = first_token_only(merge_transposes(program))
    last = programs.attentions(program.blocks[0])[-1]
    assert last.one_query
    np.testing.assert_allclose(ask(program, parameters, *batch)[0], logits, atol=2e-5)
    # What the query reads is divided after the first token was taken.
    query = programs.argument(last.query.inputs, "Input")
    product = programs.producer(program.blocks[0], query)
    assert product.type == "elementwise_mul"
    assert programs.argument(product.inputs, "X").endswith("@first")
    np.testing.assert_allclose(ask_rows(program, parameters, *batch), logits, atol=2e-5)


def test_inputs_and_weights_are_what_numpy_computes(source, smoothed, scales, feeds):
    """x / s of each channel and s * w of each row; attention's output through the value layer."""
    (before,), (after,) = source.layers.run([feeds]), smoothed.layers.run([feeds])
    inputs = list(smooth.inputs(source.program).items())
    for place, (name, weights) in enumerate(inputs):
        for number, weight in enumerate(weights):
            divided = before[weight] / scales[name]
            np.testing.assert_allclose(after[weight], divided, rtol=2e-4, atol=2e-5)
            expected = source.arrays[weight] * scales[name][:, None]
            if number == 2:  # the value layer, before attention's output
                by, bias = scales[inputs[place + 1][0]], weight.replace(".w_", ".b_")
                expected = expected / by
                np.testing.assert_allclose(smoothed.arrays[bias], source.arrays[bias] / by, 1e-6)
            np.testing.assert_allclose(smoothed.arrays[weight], expected, rtol=1e-6)


def test_its_int8_layers_compute_what_numpy_does(source, smoothed, scales, batch, feeds):
    """The product, the rounding and the integers of the first query layer, beside the
    arithmetic by its definition on inputs of the program as it was."""
    name, (weight, *_) = next(iter(smooth.inputs(source.program).items()))
    fused = smoothed.fused
    (x,) = (inputs[weight] / scales[name] for inputs in source.layers.run([feeds]))
    threshold = 0.8 * float(np.abs(x).max())
    quantized = {weight: quantize(source.arrays[weight] * scales[name][:, None], 1)}
    thresholds = {name + smooth.SMOOTH: threshold}
    program = int8.to_int8(fused.program, thresholds, quantized)
    output = programs.argument(int8.linear_layers(program)[0].outputs, "Out")
    parameters = {**fused.parameters, weight: widen(quantized[weight])}
    actual = ask(program, parameters, *batch, outputs=[output])[0][batch[0] != 0]
    steps = int8.weight_steps(environment.cpuinfo())
    bias = source.arrays[int8.biases(fused.program)[weight]]
    integers, scales, axis = quantized[weight]
    limited = Quantized(np.rint(integers * np.float32(steps / 127)), scales * 127 / steps, axis)
    expected = int8.simulate(x, threshold, limited) + bias
    assert np.std(expected) > 0.1
    # A value that lies between two integers may go to either: a step at most.
    step = threshold / 127 * np.abs(widen(quantized[weight])).max()
    assert np.abs(actual - expected).max() < 2 * step
    assert np.abs(actual - expected).mean() < 1e-3 * np.abs(expected).mean()

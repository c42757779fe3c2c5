"""Which inputs are smoothed and how much, and the correction of biases, beside NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from compressing import job
from tiny_bert import make_network

from fleetbert.compression import sensitivity, smooth, static, work
from fleetbert.compression.observed import observe
from fleetbert.compression.work import Source
from fleetbert.engines.alike import random_batch
from fleetbert.export import program as export
from fleetbert.graph import int8
from fleetbert.graph import smooth as graph
from fleetbert.graph import weights as quantization


def feeds(seed):
    random = np.random.default_rng(seed)
    shapes = [(12, 32), (10, 32), (8, 48), (8, 48), (6, 64), (6, 64)]
    batches = [random_batch(random, shape, 100) for shape in shapes]
    return [dict(zip(("input_ids", "token_type_ids"), batch)) for batch in batches]


def test_scales_are_those_of_the_paper():
    largest = np.array([4.0, 1.0, 0.25])
    weights = [np.array([[0.5, -1], [2, 1], [0.1, 0]]), np.array([[0.1], [-4], [1]])]
    rows = np.array([1.0, 4.0, 1.0])  # over both layers that read the input
    for exponent in (0.5, 0.8):
        by_hand = largest**exponent / rows ** (1 - exponent)
        found = smooth.scales_of(largest, weights, exponent)
        np.testing.assert_allclose(found / found[0], by_hand / by_hand[0], rtol=1e-6)
        assert np.log(found).sum() == pytest.approx(0, abs=1e-5)


@pytest.fixture(scope="module")
def uneven(tmp_path_factory):
    """A network two channels of whose norms are 30 times as large as the others, with weights that
    make up for it: what training does to BERTs."""
    network = make_network()
    state = network.state_dict()
    for name, tensor in state.items():
        array = tensor.numpy()
        if name.endswith(("norm1.weight", "layer_norm.weight")):
            array[[3, 40]] *= 30
            tensor.set_value(array)
        if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight", "linear1.weight")):
            array[[3, 40]] /= 30
            tensor.set_value(array)
    folder = tmp_path_factory.mktemp("uneven")
    export.save_program(network, folder)
    return Source(folder)


@pytest.fixture(scope="module")
def observed(uneven):
    return observe(uneven.layers, feeds(0))


def errors_of(source, batches):
    """The token error of each layer that can be smoothed, by its definition, thresholds being the
    mean of the largest values of the calibration batches."""
    layers = source.layers
    maxima = {}
    for inputs in layers.run(feeds(0)):
        for name, x in inputs.items():
            maxima.setdefault(name, []).append(np.abs(x).max())
    quantized = {name: quantization.quantize(layers.parameters[name], 1) for name in maxima}
    thresholds = {name: float(np.mean(found)) for name, found in maxima.items()}
    return sensitivity.output_errors(layers, quantized, thresholds, batches)


def test_uneven_inputs_are_smoothed_and_other_texts_gain(uneven, observed):
    found = smooth.choose(uneven.program, uneven.layers, observed)
    inputs = graph.inputs(uneven.program)
    first = next(iter(inputs))  # q, k and v of layer 0, behind the embeddings' norm
    assert first in found.by_input
    scales = found.by_input[first]
    assert set(np.argsort(scales)[-2:]) == {3, 40}
    after = Source.of(*graph.smooth(uneven.program, uneven.arrays, found.by_input))
    unseen = feeds(7)
    before, errors = errors_of(uneven, unseen), errors_of(after, unseen)
    for name in inputs[first]:
        assert errors[name] < 0.4 * before[name]
    assert all(errors[name] < 1.05 * before[name] for name in found.smoothed)
    # What the manifest will tell is what `sensitivity` finds on the calibration texts.
    calibrated = errors_of(after, sensitivity.spread(feeds(0)))
    for (name, *others), source in zip(inputs.values(), inputs):
        if not others and source in found.by_input:
            assert calibrated[name] == pytest.approx(found.smoothed[name].error, rel=0.2)


def test_a_product_stands_only_where_it_is_worth_it(uneven, observed, monkeypatch):
    """Attention's outputs cost nothing, so that any gain will do there."""
    monkeypatch.setattr(smooth, "WORTH", 0.99)
    found = smooth.choose(uneven.program, uneven.layers, observed)
    assert all(graph.is_free(uneven.program, name) for name in found.by_input)
    assert all(one.error < one.former_error for one in found.smoothed.values())


def test_layers_that_stay_float32_are_left_alone(uneven, observed):
    inputs = graph.inputs(uneven.program)
    first, names = next(iter(inputs.items()))
    found = smooth.choose(uneven.program, uneven.layers, observed, names)
    assert first not in found.by_input
    assert not set(names) & set(found.smoothed)


@pytest.fixture(scope="module")
def corrected(trained, tiny_data):
    """The tiny job's classifier, calibrated, and what that started from."""
    opened = work.open_work(job(trained, tiny_data))
    return opened, static.calibrated(opened)


def test_biases_take_the_mean_change_away(corrected):
    opened, prepared = corrected
    batches = sensitivity.spread(opened.calibration_batches)
    thresholds = prepared.thresholds
    layers = opened.source.layers
    sums = {name: [] for name in thresholds}
    for inputs in layers.run(batches):
        for name, threshold in thresholds.items():
            x = inputs[name]
            y = int8.simulate(x, threshold, prepared.weights[name])
            sums[name].append(x @ layers.parameters[name] - y)
    for name, changes in sums.items():
        mean = np.concatenate(changes).mean(0)
        np.testing.assert_allclose(prepared.corrections[name], mean, atol=1e-5)
        assert np.abs(mean).max() > 0


def test_biases_are_written_with_their_corrections(corrected, tmp_path):
    _, prepared = corrected
    variant = static.write(prepared, tmp_path)
    assert variant.bias_corrected
    _, others = quantization.load(tmp_path)
    fused = prepared.source.fused
    biases = int8.biases(fused.program)
    for name, correction in prepared.corrections.items():
        expected = fused.parameters[biases[name]] + correction
        np.testing.assert_allclose(others[biases[name]], expected, atol=1e-6)

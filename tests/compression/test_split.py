"""Feed-forwards with units in pieces: chosen where one unit is far above the others, and served."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_bert import make_network

from fleetbert.compression import sensitivity, split, static
from fleetbert.compression.observed import observe
from fleetbert.compression.texts import feeds
from fleetbert.compression.work import Source
from fleetbert.data.tokenizers import Encodings
from fleetbert.engines import engine
from fleetbert.export import program as export
from fleetbert.graph import program as programs
from fleetbert.graph import weights

TALL = 7  # the unit


def batches(seed):
    random = np.random.default_rng(seed)
    ids = [random.integers(5, 100, length) for length in random.integers(6, 40, 90)]
    encodings = Encodings(ids, np.array([len(one) for one in ids]), 0)
    return feeds(encodings, range(90), 0)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A network one unit of whose feed-forwards is 40 times as large, and its row a fortieth; as it
    is calibrated, and in pieces."""
    network = make_network()
    for name, tensor in network.state_dict().items():
        array = tensor.numpy()
        if "linear1" in name:
            array[..., TALL] *= 40
            tensor.set_value(array)
        if name.endswith("linear2.weight"):
            array[TALL] /= 40
            tensor.set_value(array)
    folder = tmp_path_factory.mktemp("tall")
    export.save_program(network, folder)
    source = Source(folder)
    observed = observe(source.layers, batches(0))
    plain = static.of_texts(source, observed)
    return source, plain, static.in_pieces(plain, observed)


def test_the_large_unit_is_split_and_other_texts_gain(prepared):
    source, plain, pieces = prepared
    found = pieces.variant.split
    pairs = split.graph.pairs(source.fused.program)
    assert set(found) == set(pairs)  # both layers
    errors = []
    for one in (plain, pieces):
        quantized = dict(one.weights)
        some = static.split_pieces(one.variant.split)
        for name in some:
            first = pairs[name].first
            quantized[first] = split.graph.widen_first(quantized[first], some[name])
            quantized[name] = split.graph.widen_second(quantized[name], some[name])
        errors.append(
            sensitivity.output_errors(
                source.layers, quantized, one.thresholds, batches(3), {}, some
            )
        )
    for name, one in found.items():
        assert TALL in one.units and len(one.units) % split.BLOCK == 0
        assert one.threshold < one.former and one.error < 0.6 * one.former_error
        assert errors[1][name] < 0.7 * errors[0][name]
        assert errors[1][pairs[name].first] == errors[0][pairs[name].first]


def test_it_is_served(prepared, tmp_path):
    """The error of the logits falls, and both programs say the shapes that are stored."""
    source, *both = prepared
    float32 = engine.open_folder("paddle-inference", source.folder, "cpu", 1)
    texts = batches(5)
    exact = np.concatenate([float32(*feed.values()) for feed in texts])
    errors = []
    for number, one in enumerate(both):
        folder = tmp_path / str(number)
        folder.mkdir()
        variant = static.write(one, folder)
        assert set(variant.split) == set(one.variant.split)
        opened = engine.open_folder(engine.INT8, folder, "cpu", 1)
        answers = np.concatenate([opened(*feed.values()) for feed in texts])
        errors.append(float(np.square(answers - exact).mean() ** 0.5))
        quantized, others = weights.load(folder)
        for name in ("x86.pdmodel", "model.pdmodel"):
            program = programs.read(folder / name)
            for stored in programs.parameter_names(program):
                dims = programs.variable(program.blocks[0], stored).type.lod_tensor.tensor.dims
                array = quantized[stored].integers if stored in quantized else others.get(stored)
                if array is not None and array.size > 1:
                    assert tuple(dims) == array.shape, stored
    assert errors[1] < 0.8 * errors[0]


def test_each_unit_gets_the_pieces_that_it_needs():
    largest = np.array([1.0, 9.5, 2.5, -0.1, 4.0, *[0.1] * 15], np.float32)
    units = split.needed(largest, 2.0, 16)
    assert len(units) == split.BLOCK
    times = np.bincount(units)
    assert all(times[[1, 2, 4]] >= [4, 1, 1])
    assert split.needed(largest, 0.4, 16) is None
    assert len(split.needed(largest, 10.0, 16)) == 0

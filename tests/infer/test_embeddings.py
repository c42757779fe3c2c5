"""The first operators of a BERT in NumPy, against the same operators in Paddle."""

from __future__ import annotations

import numpy as np
import pytest
import shapes
from tiny_bert import make_network

from fleetbert import program as programs
from fleetbert.compress import onednn
from fleetbert.export import program as export
from fleetbert.infer import embeddings, engine

SHAPES = ((1, 16), (5, 32))


@pytest.fixture(scope="module")
def fused(tmp_path_factory):
    folder = tmp_path_factory.mktemp("float32")
    export.save_program(make_network(), folder)
    return onednn.fused(folder)


def make_batch(texts, length):
    """Random token ids and types, the ends of all rows but the first padded."""
    generator = np.random.default_rng([texts, length])
    input_ids = generator.integers(5, 195, (texts, length))
    for row in range(1, texts):
        input_ids[row, generator.integers(2, length) :] = 0
    return input_ids, generator.integers(0, 2, (texts, length))


@pytest.mark.parametrize("shape", SHAPES)
def test_every_group_of_layers_gives_the_same_bits(fused, shape):
    input_ids, types = make_batch(*shape)
    state = None
    for _, group in programs.cut_groups(fused.program, [1, 2]):
        arrays = (input_ids, types) if state is None else (state, input_ids)
        in_paddle = shapes.open_all(group, fused.parameters)(*arrays)
        state = engine.open_fused(group, fused.parameters, 1)[0](*arrays)
        assert state.std() > 0.01
        np.testing.assert_array_equal(state, in_paddle)


def test_the_rest_has_no_tables(fused):
    """They would be in memory twice."""
    first = next(programs.cut_groups(fused.program, [1, 2]))[1]
    start = embeddings.take_out(first, fused.parameters)
    assert not any(op.type == "lookup_table_v2" for op in start.program.blocks[0].ops)
    assert max(len(array) for array in start.parameters.values()) < 195


@pytest.mark.parametrize(("token", "kind"), [(195, 0), (-1, 0), (5, 99), (5, -1)])
def test_ids_that_no_table_has_are_refused(fused, token, kind):
    (run,) = engine.open_fused(fused.program, fused.parameters, 1)
    input_ids, types = make_batch(1, 16)
    input_ids[0, 3], types[0, 3] = token, kind
    with pytest.raises(IndexError):
        run(input_ids, types)

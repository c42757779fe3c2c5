"""Programs whose texts share rows against all operators in Paddle as they were."""

from __future__ import annotations

import numpy as np
import pytest
from passes import ask, ask_rows, make_batch

from fleetbert.graph import embeddings, groups, packed, weights
from fleetbert.graph import int8 as to_int8
from fleetbert.graph import program as programs
from fleetbert.graph.first_token import first_token_only


def quantized(fused, left=None):
    """The program in int8, but for the layer of the number `left`, and its parameters."""
    program = first_token_only(fused.program)
    layers = to_int8.linear_layers(program)
    read = {
        programs.argument(op.inputs, "W"): programs.argument(op.inputs, "Input")
        for number, op in enumerate(layers)
        if number != left
    }
    integers = {weight: weights.quantize(fused.parameters[weight], 1) for weight in read}
    program = to_int8.to_int8(program, dict.fromkeys(read.values(), 4.0), integers)
    widened = {name: weights.widen(one) for name, one in integers.items()}
    return program, {**fused.parameters, **widened}


@pytest.fixture(scope="module")
def int8(fused):
    return quantized(fused)


MANY = [[16, 3, 9], [16] * 4, [1, 16], [*range(1, 17)] * 9]
ALONE = [[1], [2], [13], [139], [512]]


@pytest.mark.parametrize("first_only", [False, True])
@pytest.mark.parametrize("lengths", [*MANY, *ALONE])
def test_the_answers_in_float32_are_the_same(fused, first_only, lengths):
    program = first_token_only(fused.program) if first_only else fused.program
    batch = make_batch(lengths)
    (whole,) = ask(program, fused.parameters, *batch)
    assert whole.std() > 0.01
    # Kernels for AVX2 add in another order where there are more rows.
    np.testing.assert_allclose(ask_rows(program, fused.parameters, *batch), whole, atol=1e-5)


@pytest.mark.parametrize("lengths", [*MANY, *ALONE])
def test_the_answers_in_int8_are_the_same_bits(int8, lengths):
    batch = make_batch(lengths)
    (whole,) = ask(*int8, *batch)
    assert whole.std() > 0.01
    np.testing.assert_array_equal(ask_rows(*int8, *batch), whole)


@pytest.mark.parametrize("left", [0, 2], ids=["query", "value"])
@pytest.mark.parametrize("lengths", [[11], [16, 3, 9]])
def test_layers_of_one_input_may_be_in_float32_and_int8(fused, left, lengths):
    """An int8 copy of the input once passed for another input, and the layer for the last one."""
    partly, batch = quantized(fused, left), make_batch(lengths)
    np.testing.assert_allclose(ask_rows(*partly, *batch), ask(*partly, *batch)[0], atol=1e-5)


def test_a_text_does_not_see_those_beside_it(int8):
    ids, types = make_batch([10, 12, 9], 16)  # one row of 32
    before = ask_rows(*int8, ids, types)
    ids[1, :12] = ids[1, 11::-1].copy()
    after = ask_rows(*int8, ids, types)
    np.testing.assert_array_equal(after[[0, 2]], before[[0, 2]])
    assert np.abs(after[1] - before[1]).max() > 1e-3


def test_a_program_has_the_inputs_that_it_needs(fused, int8):
    """Groups of layers before the last ask for no text."""
    actual = []
    for _, program in groups.cut_groups(int8[0], [1, 2]):
        start = embeddings.take_out(program, int8[1])
        rest, needed = packed.rewrite(start.program, start.inputs)
        actual.append(needed)
        feeds = [op for op in rest.blocks[0].ops if op.type == "feed"]
        assert len(feeds) == 1 + len(needed)
        ops = rest.blocks[0].ops
        named = {actual.name for actual in rest.blocks[0].vars}
        assert {name for op in ops for name in programs.arguments(op)} <= named
    assert actual == [["mask"], ["first_tokens", "queries", "answers", "query_mask"]]
    start = embeddings.take_out(fused.program, fused.parameters)
    assert packed.rewrite(start.program, start.inputs)[1] == ["mask", "first_tokens"]

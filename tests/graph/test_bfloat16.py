"""Products in bfloat16 against NumPy in float64; where roundings stand in a program."""

from __future__ import annotations

import numpy as np
import pytest
from halves import nearest, needs_bfloat16
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from passes import INPUTS, ask, ask_rows, linear, make_batch

from fleetbert.graph import bfloat16
from fleetbert.graph import program as programs
from fleetbert.graph.first_token import first_token_only


def layers(program):
    return [op for op in program.blocks[0].ops if op.type == "fc"]


def weight(layer):
    return programs.argument(layer.inputs, "W")


def read_and_written(program, op):
    """The data types of what an operator multiplies, and of what it writes."""
    block = program.blocks[0]
    names = [n for s in op.inputs if s.parameter not in bfloat16.STORED for n in s.arguments]
    names.append(programs.argument(op.outputs, "Out"))
    actual = [programs.variable(block, n).type.lod_tensor.tensor.data_type for n in names]
    return actual[:-1], actual[-1]


FLOAT32 = {"layer_norm", "elementwise_add", "fused_matmul", "softmax"}  # all but Linear layers
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False, allow_subnormal=False)


@settings(max_examples=200)
@given(arrays.arrays(np.float32, st.integers(1, 20), elements=FLOATS))
def test_rounding_is_to_the_nearest(values):
    """`paddle.cast` is no reference: it cuts the last bits off (2.6.2)."""
    actual = bfloat16.widened(bfloat16.rounded(values))
    with np.errstate(over="ignore"):  # above the largest there is infinity
        np.testing.assert_array_equal(actual, nearest(values).astype(np.float32))


def test_rounding_takes_the_even_one_of_two():
    values = np.array([1, 1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 1 + 2**-8 + 2**-20, 0], np.float32)
    actual = bfloat16.widened(bfloat16.rounded(values))
    np.testing.assert_array_equal(actual, [1, 1, 1 + 2**-6, -1, 1 + 2**-7, 0])
    random = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    again = bfloat16.widened(bfloat16.rounded(random))
    np.testing.assert_array_equal(bfloat16.rounded(again), bfloat16.rounded(random))


def test_what_products_read_is_rounded_and_what_others_read_is_not(fused):
    left = [weight(layers(fused.program)[-1])]
    marked = bfloat16.mark(first_token_only(fused.program), left)
    program = bfloat16.convert(marked)
    block = program.blocks[0]
    float32, half = programs.VarType.FP32, programs.VarType.BF16
    chosen = [op for op in block.ops if bfloat16.is_marked(op)]
    assert chosen == layers(program)[:-1]
    for op in chosen:
        read, written = read_and_written(program, op)
        assert set(read) == {half}
        readers = programs.consumers(block, programs.argument(op.outputs, "Out"))
        assert (written == half) == all(map(bfloat16.is_marked, readers))
    for op in block.ops:
        if op.type in FLOAT32 or op in layers(program)[-1:]:
            read = [programs.variable(block, n) for s in op.inputs for n in s.arguments]
            assert {one.type.lod_tensor.tensor.data_type for one in read} == {float32}
    assert {op.type for op in block.ops} >= FLOAT32
    roundings = [programs.argument(op.inputs, "Input") for op in block.ops if op.type == "quantize"]
    assert len(roundings) == len(set(roundings)) > 2


def test_a_program_without_marks_stays_as_it_is(fused):
    assert bfloat16.convert(fused.program) == fused.program
    before = fused.program.SerializeToString()
    bfloat16.convert(bfloat16.mark(fused.program))
    assert fused.program.SerializeToString() == before


@needs_bfloat16
@pytest.mark.parametrize("lengths", [[32, 27, 9], [128]])
def test_each_layer_computes_what_float64_does_of_rounded_numbers(fused, lengths):
    batch = make_batch(lengths)
    for number, op in enumerate(layers(fused.program)):
        layer = linear(op, fused.parameters)
        others = [weight(other) for other in layers(fused.program) if other is not op]
        program = bfloat16.mark(fused.program, others)
        program = bfloat16.convert(programs.cut(program, INPUTS, [layer.target]))
        (x,) = ask(fused.program, fused.parameters, *batch, outputs=[layer.source])
        (y,) = ask(program, fused.parameters, *batch)
        w, bias = fused.parameters[layer.weight], layer.bias.astype(np.float64)
        expected = layer.activation(nearest(x) @ nearest(w) + bias).reshape(y.shape)
        largest = np.abs(expected).max()
        np.testing.assert_allclose(y, expected, atol=2e-5 * largest, err_msg=str(number))
        # The reference is no copy of float32: rounding shows, within its bound.
        exact = layer.activation(x.astype(np.float64) @ w + bias).reshape(y.shape)
        bound = 2 * 2.0**-9 * (np.abs(x).astype(np.float64) @ np.abs(w)).reshape(y.shape)
        error = np.abs(exact - y)
        assert error.max() > 1e-4 * largest
        assert (error <= 1.2 * bound + 1e-5 * largest).all()  # GELU's slope is 1.13 at most


@needs_bfloat16
def test_attention_that_was_marked_before_is_computed_in_float32(fused):
    batch = make_batch([16, 3, 9])
    program = bfloat16.mark(first_token_only(fused.program))
    expected = ask_rows(program, fused.parameters, *batch)
    for layer in programs.attentions(program.blocks[0]):
        for op in (layer.scores, layer.softmax, layer.mixed):
            programs.set_attributes(op, use_mkldnn=True, mkldnn_data_type="bfloat16")
    np.testing.assert_array_equal(ask_rows(program, fused.parameters, *batch), expected)


@needs_bfloat16
@pytest.mark.parametrize("left", [None, "query", "value"])
@pytest.mark.parametrize("lengths", [[11], [16, 3, 9], [16] * 4, [1, 16]])
def test_packed_rows_answer_as_the_whole_program(fused, left, lengths):
    """Also where one of the layers that read the first layer's input stays in float32."""
    place = {None: -1, "query": 0, "value": 2}[left]
    program = bfloat16.mark(first_token_only(fused.program), [weight(layers(fused.program)[place])])
    batch = make_batch(lengths)
    (whole,) = ask(bfloat16.convert(program), fused.parameters, *batch)
    (exact,) = ask(fused.program, fused.parameters, *batch)
    actual = ask_rows(program, fused.parameters, *batch)
    largest = np.abs(exact).max()
    assert 1e-4 * largest < np.abs(whole - exact).max() < 0.1 * largest
    np.testing.assert_allclose(actual, whole, atol=1e-3 * largest)

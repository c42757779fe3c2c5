"""weights.safetensors: integers, scales, and what programs get of them."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors import safe_open

from fleetbert.graph import program as programs
from fleetbert.graph import weights

MATRICES = arrays.arrays(
    np.float32,
    st.tuples(st.integers(1, 6), st.integers(1, 6)),
    elements=st.floats(-1e3, 1e3, width=32),
)


@settings(max_examples=100)
@given(MATRICES, st.sampled_from([0, 1]), st.sampled_from([8, 16]))
def test_widened_is_within_half_a_step(matrix, axis, bits):
    actual = weights.quantize(matrix, axis, bits)
    step = np.abs(matrix).max(1 - axis, keepdims=True) / (2 ** (bits - 1) - 1)
    assert np.abs(actual.integers).max() <= 2 ** (bits - 1) - 1
    assert (np.abs(weights.widen(actual) - matrix) <= 0.501 * step + 1e-6).all()


@settings(max_examples=50)
@given(MATRICES, st.sampled_from([0, 1]))
def test_integers_survive_widening(matrix, axis):
    """oneDNN makes integers of the widened weights: they have to be the same ones."""
    actual = weights.quantize(matrix, axis)
    shape = (-1, 1) if axis == 0 else (1, -1)
    again = np.rint(weights.widen(actual) * np.float32(127) / actual.scales.reshape(shape))
    np.testing.assert_array_equal(again, actual.integers)


@pytest.mark.parametrize("bits", [8, 16])
def test_what_is_saved_is_loaded(tmp_path, bits):
    random = np.random.default_rng(0)
    quantized = {"w": weights.quantize(random.normal(size=(3, 4)).astype("float32"), 1, bits)}
    others = {"b": np.arange(4, dtype=np.float32), "scalar": np.float32(2).reshape(())}
    weights.save(tmp_path, quantized, others)
    actual, rest = weights.load(tmp_path)
    np.testing.assert_array_equal(actual["w"].integers, quantized["w"].integers)
    np.testing.assert_array_equal(actual["w"].scales, quantized["w"].scales)
    assert actual["w"].axis == 1
    assert rest.keys() == others.keys()
    for name in rest:
        np.testing.assert_array_equal(rest[name], others[name])


def test_bfloat16_is_saved_as_such_and_loaded(tmp_path):
    halves = {"w": np.arange(12, dtype=np.uint16).reshape(3, 4), "odd": np.array([7], np.uint16)}
    others = {"b": np.arange(5, dtype=np.float32), "pad": np.array([3]), "scalar": np.float32(2)}
    weights.save_halves(tmp_path, halves, others)
    with safe_open(tmp_path / weights.NAME, framework="numpy") as file:  # others can read it
        kinds = {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
    assert kinds == {"w": "BF16", "odd": "BF16", "b": "F32", "pad": "I64", "scalar": "F32"}
    actual = weights.load_halves(tmp_path)
    for some, expected in zip(actual, (halves, others)):
        assert some.keys() == expected.keys()
        for name, array in some.items():
            np.testing.assert_array_equal(array, expected[name])
            assert array.dtype == expected[name].dtype


def test_float32_weights_are_made_one_at_a_time():
    """Paddle copies what it loads: all of them together would be there twice."""
    program = programs.ProgramDesc()
    block = program.blocks.add(idx=0, parent_idx=-1)
    quantized = {}
    for number in range(16):
        name = f"w{number}"
        quantized[name] = weights.quantize(np.full((256, 256), number, np.float32), 1)
        programs.new_variable(block, name, programs.VarType.FP32, [256, 256])
        block.vars[-1].persistable = True
    tracemalloc.start()
    parameters = weights.pick(quantized, {}, program)
    sizes = [len(part) for part in programs.parameter_parts(parameters)]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert max(sizes) == 256 * 256 * 4 and len(sizes) == 2 * len(quantized)
    assert peak < 6 * max(sizes)

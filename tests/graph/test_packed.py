"""Programs whose texts share rows, against all operators in Paddle as they were."""

from __future__ import annotations

import numpy as np
import pytest
import shapes

from fleetbert import bundle as bundles
from fleetbert.data.packing import packed_layout
from fleetbert.engines import predictor
from fleetbert.engines.alike import random_batch
from fleetbert.engines.packed import open_group
from fleetbert.graph import embeddings, groups, packed, weights
from fleetbert.graph import int8 as to_int8
from fleetbert.graph import program as programs
from fleetbert.graph.first_token import first_token_only


@pytest.fixture(scope="module")
def int8(tiny_bundle, tmp_path_factory):
    folder = tmp_path_factory.mktemp("int8")
    bundle = bundles.read(shapes.add_int8_and_early_exit(tiny_bundle, folder).root)
    return predictor.read_integers(bundle.folder("int8-static"))


@pytest.fixture(scope="module", params=["query", "value"])
def partly_int8(request, fused, tmp_path_factory):
    """One of the layers that read the first layer's input stays in float32."""
    program = first_token_only(fused.program)
    layers = to_int8.linear_layers(program)
    left = layers[{"query": 0, "value": 2}[request.param]]
    read = [(programs.argument(op.inputs, "Input"), programs.argument(op.inputs, "W"))
            for op in layers if op is not left]  # fmt: skip
    quantized = {weight: weights.quantize(fused.parameters[weight], 1) for _, weight in read}
    folder = tmp_path_factory.mktemp("partly-int8")
    thresholds = {source: 4.0 for source, _ in read}
    programs.write(folder / "x86.pdmodel", to_int8.to_int8(program, thresholds, quantized))
    others = {name: one for name, one in fused.parameters.items() if name not in quantized}
    weights.save(folder, quantized, others)
    return predictor.read_integers(folder)


def make_batch(lengths, length):
    """Random texts of so many tokens, padded to `length`."""
    batch = random_batch(np.random.default_rng(lengths), (len(lengths), length), 195)
    batch[0][np.arange(length) >= np.array(lengths)[:, None]] = 0
    return batch


def answer(program, parameters, ids, types):
    """That of a program whose texts share rows."""
    return open_group(program, parameters, 1)[0](ids, types, packed_layout(ids != 0))


@pytest.mark.parametrize("first_only", [False, True])
@pytest.mark.parametrize("lengths", [[5], [16, 3, 9], [16] * 4, [1, 16], list(range(1, 17)) * 9])
def test_the_answers_in_float32_are_the_same(fused, first_only, lengths):
    program = first_token_only(fused.program) if first_only else fused.program
    batch = make_batch(lengths, 16)
    (whole,) = predictor.open_as_it_is(program, fused.parameters, 1)(*batch)
    found = answer(program, fused.parameters, *batch)
    assert whole.std() > 0.01
    # Kernels for AVX2 add in another order where there are more rows.
    np.testing.assert_allclose(found, whole, atol=1e-5)


@pytest.mark.parametrize("lengths", [[16, 3, 9], [16] * 4, [1, 16], list(range(1, 17)) * 9])
def test_the_answers_in_int8_are_the_same_bits(int8, lengths):
    batch = make_batch(lengths, 16)
    (whole,) = predictor.open_as_it_is(*int8, 1)(*batch)
    assert whole.std() > 0.01
    np.testing.assert_array_equal(answer(*int8, *batch), whole)


@pytest.mark.parametrize("lengths", [[11], [16, 3, 9]])
def test_layers_of_one_input_may_be_in_float32_and_int8(partly_int8, lengths):
    """An int8 copy of the input once passed for another input, and the layer for the last one."""
    batch = make_batch(lengths, max(lengths))
    (whole,) = predictor.open_as_it_is(*partly_int8, 1)(*batch)
    np.testing.assert_allclose(answer(*partly_int8, *batch), whole, atol=1e-5)


def test_padding_between_tokens_and_in_the_first_place(int8):
    ids, types = make_batch([16, 7, 12], 16)
    ids[0, 4], ids[2, 0] = 0, 0
    (whole,) = predictor.open_as_it_is(*int8, 1)(ids, types)
    np.testing.assert_array_equal(answer(*int8, ids, types), whole)


def test_a_row_of_padding_says_the_same_beside_any_other(int8):
    (run,) = open_group(*int8, 1)
    found = []
    for others in ([16, 5], [3, 11]):
        ids, types = make_batch([*others, 1], 16)
        ids[2], types[2] = 0, 0
        found.append(run(ids, types, packed_layout(ids != 0))[2])
    np.testing.assert_array_equal(*found)


def test_a_text_does_not_see_those_beside_it(int8):
    (run,) = open_group(*int8, 1)
    ids, types = make_batch([10, 12, 9], 16)  # one row of 32
    before = run(ids, types, packed_layout(ids != 0))
    ids[1, :12] = ids[1, 11::-1].copy()
    after = run(ids, types, packed_layout(ids != 0))
    np.testing.assert_array_equal(after[[0, 2]], before[[0, 2]])
    assert np.abs(after[1] - before[1]).max() > 1e-3


def test_a_program_has_the_inputs_that_it_needs(fused, int8):
    """Groups of layers before the last ask for no text."""
    found = []
    for _, program in groups.cut_groups(int8[0], [1, 2]):
        start = embeddings.take_out(program, int8[1])
        rest, needed = packed.rewrite(start.program, start.inputs)
        found.append(needed)
        feeds = [op for op in rest.blocks[0].ops if op.type == "feed"]
        assert len(feeds) == 1 + len(needed)
        ops = rest.blocks[0].ops
        named = {found.name for found in rest.blocks[0].vars}
        assert {name for op in ops for name in programs.arguments(op)} <= named
    assert found == [["mask"], ["first_tokens", "queries", "answers", "query_mask"]]
    start = embeddings.take_out(fused.program, fused.parameters)
    assert packed.rewrite(start.program, start.inputs)[1] == ["mask", "first_tokens"]

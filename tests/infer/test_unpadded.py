"""Programs that compute on the tokens of a batch without its padding, against all operators in
Paddle as they were."""

from __future__ import annotations

import numpy as np
import pytest
import shapes
from hypothesis import given
from hypothesis import strategies as st

from fleetbert import bundle as bundles
from fleetbert import program as programs
from fleetbert.compress import onednn
from fleetbert.infer import embeddings, engine, unpadded
from fleetbert.infer.alike import random_batch


@pytest.fixture(scope="module")
def int8(tiny_bundle, tmp_path_factory):
    folder = tmp_path_factory.mktemp("int8")
    bundle = bundles.read(shapes.add_int8_and_early_exit(tiny_bundle, folder).root)
    return engine._from_integers(bundle.folder("int8-static"))


def make_batch(lengths, length):
    """Random texts of so many tokens, padded to `length`."""
    batch = random_batch(np.random.default_rng(lengths), (len(lengths), length), 195)
    batch[0][np.arange(length) >= np.array(lengths)[:, None]] = 0
    return batch


@given(st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=40))
def test_every_token_is_found_again(rows):
    real = np.array(rows)
    spread, collect, first = unpadded.places(real)
    texts, length = real.shape
    place = np.arange(texts * length).reshape(texts, length)
    real[:, 0] = True
    count = np.count_nonzero(real)
    assert collect[:count].tolist() == place[real].tolist()
    assert not collect[count:].any()
    assert count <= len(collect) <= count * (1 + 1 / 64)
    assert bin(len(collect)).rstrip("0") <= "0b1111111" and len(bin(len(collect)).strip("0b")) <= 7
    np.testing.assert_array_equal(collect[spread], np.where(real, place, place[:, :1]))
    np.testing.assert_array_equal(collect[first], place[:, :1])


@pytest.mark.parametrize("first_token_only", [False, True])
@pytest.mark.parametrize("lengths", [[5], [16, 3, 9], [16] * 4, [1, 16], list(range(1, 17)) * 9])
def test_the_answers_in_float32_are_the_same(fused, first_token_only, lengths):
    program = programs.copy(fused.program)
    if first_token_only:
        onednn.first_token_only(program)
    batch = make_batch(lengths, 16)
    whole = shapes.open_all(program, fused.parameters)(*batch)
    found = engine.open_fused(program, fused.parameters, 1)[0](*batch)
    assert whole.std() > 0.01
    np.testing.assert_allclose(found, whole, atol=1e-6)


@pytest.mark.parametrize("lengths", [[16, 3, 9], [16] * 4, [1, 16], list(range(1, 17)) * 9])
def test_the_answers_in_int8_are_the_same_bits(int8, lengths):
    batch = make_batch(lengths, 16)
    whole = shapes.open_all(*int8)(*batch)
    assert whole.std() > 0.01
    np.testing.assert_array_equal(engine.open_fused(*int8, 1)[0](*batch), whole)


def test_padding_between_tokens_and_in_the_first_place(int8):
    ids, types = make_batch([16, 7, 12], 16)
    ids[0, 4], ids[2, 0] = 0, 0
    whole = shapes.open_all(*int8)(ids, types)
    np.testing.assert_array_equal(engine.open_fused(*int8, 1)[0](ids, types), whole)


def test_a_row_of_padding_says_the_same_beside_any_other(int8):
    (run,) = engine.open_fused(*int8, 1)
    found = []
    for others in ([16, 5], [3, 11]):
        ids, types = make_batch([*others, 1], 16)
        ids[2], types[2] = 0, 0
        found.append(run(ids, types)[2])
    np.testing.assert_array_equal(*found)


def test_only_attention_has_rows(int8):
    start = embeddings.take_out(*int8)
    rest = unpadded.rewrite(start.program, start.inputs)
    ops = rest.blocks[0].ops
    ranks = [programs.attribute(op, "in_num_col_dims").i for op in ops if op.type == "fc"]
    # a layer's query, key and value, and the rest of it; the last layer is of [CLS]; two heads
    assert ranks == [*(2, 2, 2, 1, 1, 1), *(2, 2, 2, 2, 2, 2), *(1, 1)]
    assert [op.type for op in ops].count("lookup_table_v2") == 2 + 2
    named = {found.name for found in rest.blocks[0].vars}
    assert {name for op in ops for name in programs._arguments(op)} <= named


def test_what_gives_the_states_of_all_tokens_keeps_them(fused):
    start = embeddings.take_out(fused.program, fused.parameters)
    assert unpadded.fits(start.program)
    group = next(programs.cut_groups(fused.program, [1, 2]))[1]
    assert not unpadded.fits(group)
    copied = programs.copy(start.program)
    copied.blocks[0].ops.add(type="transpose2")
    assert not unpadded.fits(copied)

"""The first operators of a BERT in NumPy, against the same operators in Paddle."""

from __future__ import annotations

import numpy as np
import pytest
from passes import ask, ask_rows, layout_of, make_batch, texts_of

from fleetbert.engines.packed import open_group
from fleetbert.graph import embeddings, groups, weights


@pytest.mark.parametrize("lengths", [[16, 9], [32, 3, 30, 17, 2]])
def test_every_group_of_layers_gives_the_same(fused, lengths):
    # With AVX-512 the same bits; kernels for AVX2 add in another order where there are more rows.
    input_ids, types = make_batch(lengths)
    texts, at = texts_of(input_ids, types), layout_of(input_ids)
    rows, state, rest = input_ids, None, types
    for _, group in groups.cut_groups(fused.program, [1, 2]):
        (rows,) = ask(group, fused.parameters, rows, rest)
        state = open_group(group, fused.parameters, 1)[0](state, texts, at)
        rest = input_ids
        assert state.std() > 0.01
        if rows.ndim == 3:  # of all tokens; what lies beside them in the line is padding
            tokens = rows[input_ids != 0]
            np.testing.assert_allclose(state[at.places], tokens, rtol=1e-6, atol=5e-6)
        else:
            np.testing.assert_allclose(state, rows, rtol=1e-6, atol=5e-6)


def test_states_are_read_where_they_are_and_left_as_they_were(fused):
    """Paddle is lent the array; a later call with a smaller one must not write there."""
    *_, (_, group) = groups.cut_groups(fused.program, [1, 2])
    (run,) = open_group(group, fused.parameters, 1)
    random = np.random.default_rng(0)
    given = []
    for shape in ((40, 32), (2, 16), (1, 20), (40, 32), (3, 16)):
        input_ids, _ = make_batch(random.integers(2, shape[1], shape[0]), shape[1])
        texts, at = texts_of(input_ids), layout_of(input_ids)
        state = random.normal(size=(len(at.positions), 64)).astype(np.float32)
        given.append((texts, at, state, state.copy(), run(state, texts, at)))
    for texts, at, state, before, actual in given:
        np.testing.assert_array_equal(state, before)
        again = open_group(group, fused.parameters, 1)[0](before, texts, at)
        np.testing.assert_array_equal(actual, again)


def test_the_rest_has_no_tables(fused):
    """They would be in memory twice."""
    first = next(groups.cut_groups(fused.program, [1, 2]))[1]
    start = embeddings.take_out(first, fused.parameters)
    assert not any(op.type == "lookup_table_v2" for op in start.program.blocks[0].ops)
    assert max(len(array) for array in start.parameters.values()) < 195


@pytest.mark.parametrize("token", [195, -1])
def test_ids_that_no_table_has_are_refused(fused, token):
    input_ids, types = make_batch([16])
    input_ids[0, 3] = token
    with pytest.raises(IndexError):
        ask_rows(fused.program, fused.parameters, input_ids, types)


def test_rows_of_integers_are_widened_bit_by_bit_as_the_table():
    random = np.random.default_rng(0)
    tables = [random.normal(size=(rows, 16)).astype(np.float32) for rows in (50, 12, 2)]
    integers = [weights.quantize(table, 0) for table in tables]
    widened = [weights.widen(one) for one in integers]
    ids = random.integers(0, 50, (3, 12)), random.integers(0, 2, (3, 12)), np.arange(12)
    np.testing.assert_array_equal(
        embeddings.add_up(integers, *ids), embeddings.add_up(widened, *ids)
    )
    with pytest.raises(IndexError):
        embeddings.add_up(integers, ids[0] + 50, *ids[1:])


def test_the_words_of_an_int8_program_stay_integers(fused, tmp_path):
    """Opened with them or with the table widened, it answers the same bits."""
    (name,) = embeddings.words(fused.program)
    others = dict(fused.parameters)
    weights.save(tmp_path, {name: weights.quantize(others.pop(name), 0)}, others)
    quantized, others = weights.load(tmp_path)
    tables = embeddings.integer_tables(fused.program, quantized)
    assert list(tables) == [name]
    assert tables[name].integers.dtype == np.int8
    assert not tables[name].integers.flags.owndata  # it lies in the file
    without = weights.pick(quantized, others, fused.program, tables)
    assert name not in without
    batch = make_batch([32, 3, 30, 17, 2])
    actual = ask_rows(fused.program, without, *batch, apart=tables)
    whole = weights.pick(quantized, others, fused.program)
    np.testing.assert_array_equal(actual, ask_rows(fused.program, whole, *batch))

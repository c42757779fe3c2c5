"""The program for one row without padding, against all operators in Paddle as they were."""

from __future__ import annotations

import numpy as np
import paddle
import pytest

from fleetbert.compat import environment
from fleetbert.compat.paddlenlp import BertConfig
from fleetbert.data.packing import packed_layout
from fleetbert.engines import predictor
from fleetbert.engines.alike import random_batch
from fleetbert.engines.packed import open_group
from fleetbert.export import program as export
from fleetbert.graph import embeddings, single_row
from fleetbert.graph import program as programs
from fleetbert.graph.first_token import first_token_only
from fleetbert.graph.fuse import fuse, merge_transposes
from fleetbert.models import heads


def rewrite(program, parameters):
    start = embeddings.take_out(program, parameters)
    return single_row.rewrite(start.program, start.parameters, *start.inputs)


def test_attention_is_one_operator_and_the_mask_is_gone(fused):
    program, parameters = rewrite(fused.program, fused.parameters)
    kinds = [op.type for op in program.blocks[0].ops]
    assert kinds.count("self_dp_attention") == 2
    assert kinds.count("feed") == 1
    assert not {"softmax", "fused_matmul"} & {*kinds}
    assert kinds.count("fc") == 2 * 4 + 2  # a layer's, the pooler, the classifier
    assert {*parameters} == {*programs.parameter_names(program)}


def test_a_last_layer_for_one_token_keeps_its_products(fused):
    rest, _ = rewrite(first_token_only(fused.program), fused.parameters)
    kinds = [op.type for op in rest.blocks[0].ops]
    assert (kinds.count("self_dp_attention"), kinds.count("fused_matmul")) == (1, 2)


@pytest.mark.parametrize("first_only", [False, True])
@pytest.mark.parametrize("length", [1, 2, 13, 139, 512])
def test_a_text_without_padding_gets_the_answer_of_all_operators(fused, length, first_only):
    program = first_token_only(fused.program) if first_only else fused.program
    batch = random_batch(np.random.default_rng(length), (1, length), 195)
    (whole,) = predictor.open_as_it_is(program, fused.parameters, 1)(*batch)
    found = open_group(program, fused.parameters, 1)[0](*batch, packed_layout(batch[0] != 0))
    np.testing.assert_allclose(found, whole, atol=1e-5)


def test_the_mean_over_a_text_needs_no_mask(tmp_path):
    """On processors that can, tests/export/test_embedding.py asks such programs single texts."""
    paddle.seed(1)
    shape = {"vocab_size": 195, "hidden_size": 64, "num_hidden_layers": 2}
    network = heads.build(
        "embedding", BertConfig(num_attention_heads=4, intermediate_size=128, **shape)
    )
    export.save_program(network, tmp_path)
    fused = fuse(tmp_path)
    program, _ = rewrite(merge_transposes(fused.program), fused.parameters)
    kinds = [op.type for op in program.blocks[0].ops]
    assert kinds.count("feed") == kinds.count("reduce_mean") == 1
    assert not {"exp", "matmul", "softmax"} & {*kinds}


@pytest.mark.parametrize("padding", [slice(0, 1), slice(5, 9)])
def test_rows_with_padding_are_answered_by_the_program_that_knows_a_mask(fused, padding):
    (run,) = open_group(fused.program, fused.parameters, 1)
    input_ids, types = random_batch(np.random.default_rng(0), (1, 32), 195)
    input_ids[0, padding] = 0
    (whole,) = predictor.open_as_it_is(fused.program, fused.parameters, 1)(input_ids, types)
    found = run(input_ids, types, packed_layout(input_ids != 0))
    np.testing.assert_allclose(found, whole, atol=1e-5)


def test_it_is_for_processors_that_can_and_for_models_that_are_not_wide(fused, monkeypatch):
    monkeypatch.setattr(
        environment, "cpuinfo", lambda: "flags : avx2 " + " ".join(single_row.NEEDED)
    )
    assert single_row.fits(fused.program)
    monkeypatch.setattr(single_row, "WIDEST", 32)
    assert not single_row.fits(fused.program)
    monkeypatch.setattr(single_row, "WIDEST", 64)
    monkeypatch.setattr(environment, "cpuinfo", lambda: "flags : avx2 avx512f")
    assert not single_row.fits(fused.program)

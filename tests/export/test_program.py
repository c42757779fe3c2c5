"""The program in a bundle is the network, without what inference does not need."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_bert import VOCAB, export, make_network

from fleetbert import bundle as bundles
from fleetbert.core.errors import UserError
from fleetbert.engines import engine
from fleetbert.engines.alike import random_batch
from fleetbert.graph import program as programs
from fleetbert.graph import tidy


def test_the_program_answers_like_the_network(tmp_path, tiny_vocab):
    import paddle

    network = make_network()
    network.train()
    bundle = export(tmp_path / "bundle", network, tiny_vocab, made_from="a test")
    assert network.training, "the network is left as it was"
    variant = bundle.variant("float32")
    assert variant.made_from == "a test"
    assert variant.max_difference_to_network < 1e-4
    assert [file.path for file in variant.files] == [
        "float32/model.pdiparams",
        "float32/model.pdmodel",
    ]
    network.eval()
    run = engine.open_folder(engine.FLOAT32, bundle.folder("float32"), "cpu", 2)
    random = np.random.default_rng(5)
    for shape in [(1, 16), (7, 48), (2, 512)]:
        input_ids, token_type_ids = random_batch(random, shape, len(VOCAB))
        expected = network(paddle.to_tensor(input_ids), paddle.to_tensor(token_type_ids)).numpy()
        found = run(input_ids, token_type_ids)
        assert found.dtype == np.float32
        assert found.std() > 0.1, "answers that differ, or the comparison says nothing"
        np.testing.assert_allclose(found, expected, atol=1e-4)


def test_the_program_holds_nothing_needless(tiny_bundle):
    path = bundles.read(tiny_bundle).folder("float32") / "model.pdmodel"
    block = programs.read(path).blocks[0]
    kinds = [op.type for op in block.ops]
    assert "dropout" not in kinds
    # The mask's -1e4 and a scale of q in each of two layers; no scale of 1 at the end.
    assert kinds.count("scale") == 3
    ends = {op.type: op for op in block.ops if op.type in ("feed", "fetch")}
    assert ends["fetch"].inputs[0].arguments[0] == "logits"
    for op in block.ops:
        if op.type == "fill_constant":
            shape = next(attribute for attribute in op.attrs if attribute.name == "shape")
            assert list(shape.longs) == [1]
    known = {variable.name for variable in block.vars}
    for op in block.ops:
        for slot in [*op.inputs, *op.outputs]:
            assert known.issuperset(slot.arguments)


def test_a_network_of_nan_is_refused_and_the_old_bundle_stays(tmp_path, tiny_vocab):
    import paddle

    network = make_network()
    old = export(tmp_path / "bundle", network, tiny_vocab)
    with paddle.no_grad():
        weight = network.network.classifier.weight
        weight.set_value(np.full(weight.shape, np.nan, np.float32))
    with pytest.raises(UserError, match="differ from the network's by nan"):
        export(tmp_path / "bundle", network, tiny_vocab)
    bundles.verify(bundles.read(tmp_path / "bundle"), "float32")
    assert bundles.read(tmp_path / "bundle").manifest == old.manifest
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]


def test_a_length_that_cannot_be_padded_is_refused(tmp_path, tiny_vocab):
    network = make_network(positions=100)
    with pytest.raises(UserError, match=r"100 tokens \(max_length\) are padded to 104"):
        export(tmp_path / "bundle", network, tiny_vocab, max_length=100)
    export(tmp_path / "bundle", network, tiny_vocab, max_length=96)


def test_tidy_twice_is_tidy_once(tiny_bundle):
    tidied = programs.read(bundles.read(tiny_bundle).folder("float32") / "model.pdmodel")
    before = tidied.SerializeToString(deterministic=True)
    assert tidy.tidy(tidied).SerializeToString(deterministic=True) == before

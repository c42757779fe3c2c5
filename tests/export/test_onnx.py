"""The onnx variant is float32 in another form, or it is not there."""

from __future__ import annotations

import pytest
import tiny_job

from fleetbert import bundle as bundles
from fleetbert.core.errors import UserError
from fleetbert.export import onnx


def test_the_variant_says_how_it_was_made(tiny_bundle):
    variant = bundles.read(tiny_bundle).variant("onnx")
    bundles.verify(bundles.read(tiny_bundle), "onnx")
    assert variant.made_from == "float32"
    assert variant.opset == 17
    assert variant.max_difference_to_float32 < 1e-4
    assert set(variant.versions) == {"fleetbert", "paddle2onnx", "onnxruntime"}


def test_weights_are_where_quantizers_look_for_them(tiny_bundle):
    import onnx as onnx_format

    graph = onnx_format.load(bundles.read(tiny_bundle).folder("onnx") / "model.onnx").graph
    stored = {tensor.name for tensor in graph.initializer}
    products = [node for node in graph.node if node.op_type in ("MatMul", "Gemm")]
    assert len([node for node in products if node.input[1] in stored]) >= 12
    assert not [node for node in graph.node if node.op_type == "Constant"]


@pytest.mark.slow
def test_the_operator_set_is_the_one_asked_for(copied_bundle):
    import onnx as onnx_format

    bundle = onnx.export_onnx(copied_bundle, 11)
    model = onnx_format.load(str(bundle.folder("onnx") / "model.onnx"))
    assert [found.version for found in model.opset_import] == [11]
    inputs = [tensor.name for tensor in model.graph.input]
    assert inputs == ["input_ids", "token_type_ids", "attention_mask"]
    assert [found.name for found in model.graph.output] == ["logits"]
    for found in model.graph.input:  # batch and length are free
        assert [size.dim_value for size in found.type.tensor_type.shape.dim] == [0, 0]


@pytest.mark.parametrize("difference", [0.01, float("nan")])
def test_a_model_that_differs_is_not_added(copied_bundle, monkeypatch, difference):
    before = bundles.read(copied_bundle).manifest
    monkeypatch.setattr(onnx, "convert", lambda source, target, opset: target.touch())
    monkeypatch.setattr(onnx, "_compare", lambda *arguments: difference)
    with pytest.raises(UserError, match="differ from float32's by"):
        onnx.export_onnx(copied_bundle)
    assert bundles.read(copied_bundle).manifest == before
    bundles.verify(bundles.read(copied_bundle), "onnx")
    found = sorted(path.name for path in copied_bundle.iterdir())
    assert found == ["README.md", "float32", "manifest.json", "onnx", "vocab.txt"]


@pytest.mark.parametrize("opset", [0, 10, 20])
def test_an_operator_set_that_cannot_be_is_refused(tiny_bundle, opset):
    with pytest.raises(UserError, match=f"opset is {opset}; choose one from 11 to 19"):
        onnx.export_onnx(tiny_bundle, opset)


def test_a_converter_that_fails_is_quoted(copied_bundle, monkeypatch):
    monkeypatch.setattr(onnx, "_CONVERT", "raise SystemExit('no such operator')")
    with pytest.raises(UserError, match="no such operator"):
        onnx.export_onnx(copied_bundle)


def test_a_changed_program_is_not_converted(copied_bundle):
    tiny_job.flip(copied_bundle / "float32" / "model.pdiparams")
    with pytest.raises(UserError, match=r"model\.pdiparams is not the file"):
        onnx.export_onnx(copied_bundle)

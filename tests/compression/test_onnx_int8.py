"""int8 for ONNX Runtime: its arithmetic, the choice between its forms, the way through the gate."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import onnx
import pytest
from compressing import job
from onnx import TensorProto, helper, numpy_helper

from fleetbert import bundle as bundles
from fleetbert.compression import gate, onnx_int8, onnx_layers, pipeline
from fleetbert.core.device import CPU
from fleetbert.core.errors import GateFailed, UserError
from fleetbert.deploy.inference.repository import variants
from fleetbert.engines import answer

SKIPPED = "linear_1*"


def wanted(bundle: Path, data: Path, **changes):
    usual = {"calibration.texts": 64, "selection.texts": 40, "skip": [SKIPPED]}
    return job(bundle, data, "onnx", {**usual, **changes})


@pytest.fixture(scope="module")
def added(trained, tiny_data, tmp_path_factory) -> Path:
    bundle = Path(shutil.copytree(trained, tmp_path_factory.mktemp("onnx") / "bundle"))
    result = pipeline.quantize(wanted(bundle, tiny_data))
    assert result.variant == "onnx-int8"
    return bundle


@pytest.mark.slow
def test_both_forms_are_measured_and_one_is_a_variant_like_the_others(added):
    bundle = bundles.read(added)
    variant = bundle.variant("onnx-int8")
    assert isinstance(variant, bundles.OnnxInt8Variant)
    assert set(variant.tried) == {"dynamic", "static"}
    assert variant.tried_on.startswith("32 texts held out of ")  # a fifth of the table
    assert variant.activations == onnx_int8.choose(variant.tried, 0.05)
    assert all(one.texts_per_s > 0 for one in variant.tried.values())
    measured = variant.accuracy[0]
    assert measured.n == 60 and measured.float32_accuracy > 0.8
    assert variant.comparison.size_ratio < 0.6
    assert 0 < variant.comparison.max_logit_difference < 0.2
    assert variant.alone_difference < 1e-5
    assert set(variant.versions) == {"fleetbert", "paddlepaddle", "paddle2onnx", "onnxruntime"}
    bundles.verify(bundle, "onnx-int8")
    assert "onnx-int8" in variants.candidates(bundle, CPU)  # of `variant: auto`
    assert "| onnx-int8 |" in (added / "README.md").read_text(encoding="utf-8")
    assert "onnx-int8</th>" in (added / "quantize-report.html").read_text(encoding="utf-8")


def by_the_tool(model: onnx.ModelProto, left: list[str], _: None) -> list[str]:
    """Dynamic scales of ONNX Runtime's tool, one for a batch."""
    from onnxruntime import quantization

    with tempfile.TemporaryDirectory() as temporary:
        path = f"{temporary}/model.onnx"
        onnx.save(model, path)
        quantization.quantize_dynamic(path, path, op_types_to_quantize=["MatMul"])
        model.CopyFrom(onnx.load(path))
    return []


@pytest.mark.slow
def test_scales_of_a_batch_do_not_pass_and_old_variants_have_them_one_by_one(
    bundle, tiny_data, monkeypatch, caplog
):
    """`method: onnx` of fleetbert up to 2026-11, whose manifests do not say `alone_difference`."""
    settings = wanted(bundle, tiny_data, **{"onnx.activations": "dynamic"})
    texts = [" ".join(row.split()[1:]) for row in (tiny_data / "dev.tsv").open()][1:]

    def largest_difference(model: answer.Model) -> float:
        batches = ([text] for text in texts)
        alone = [answer.compute_logits(model, batch, None).values for batch in batches]
        together = answer.compute_logits(model, texts, None).values
        return float(np.abs(np.concatenate(alone) - together).max())

    monkeypatch.setattr(gate, "ALONE_DIFFERENCE", 1e-5)  # the tiny model's scores differ little
    assert pipeline.quantize(settings).bundle.variant("onnx-int8").alone_difference < 1e-5
    assert largest_difference(answer.load(bundle, "onnx-int8")) < 1e-5
    monkeypatch.setattr(onnx_layers, "to_int8", by_the_tool)
    old = settings.model_copy(update={"name": "old"})
    with pytest.raises(GateFailed, match="between the text alone and in a batch with others"):
        pipeline.quantize(old)
    assert bundles.read(bundle).names == ["float32", "onnx-int8"]
    monkeypatch.setattr(gate, "ALONE_DIFFERENCE", 1.0)
    assert pipeline.quantize(old).bundle.variant("old").alone_difference > 1e-5
    assert largest_difference(answer.load(bundle, "old")) > 1e-5
    path = bundle / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    del manifest["variants"][2]["alone_difference"]
    path.write_text(json.dumps(manifest), encoding="utf-8")
    caplog.clear()
    assert largest_difference(answer.load(bundle, "old")) == 0
    assert caplog.text.count("its texts are computed one by one") == 1
    answer.load(bundle, "float32")
    assert caplog.text.count("one by one") == 1


@pytest.mark.slow
def test_layers_that_skip_names_stay_float32(added):
    variant = bundles.read(added).variant("onnx-int8")
    assert any(name.startswith("linear_1") for name in variant.float32_layers)
    graph = onnx.load(str(added / "onnx-int8" / "model.onnx")).graph
    kinds = {one.name: one.data_type for one in graph.initializer}
    for name in variant.float32_layers:
        assert kinds[name] == TensorProto.FLOAT
    left = [node for node in graph.node if node.op_type == "MatMul" and node.input[1] in kinds]
    assert {node.input[1] for node in left} == set(variant.float32_layers)
    alone = sum("softmax" in name for node in graph.node for name in node.input)
    joined = sum(node.op_type == "QAttention" for node in graph.node)
    assert alone + joined == 2  # attention, whose products of activations are float32 in both
    integers = [one for one in graph.initializer if one.data_type == TensorProto.INT8]
    assert len(integers) >= 3
    assert all(np.abs(numpy_helper.to_array(one).astype(int)).max() <= 64 for one in integers)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("form", ["dynamic", "static"])
def test_a_layer_computes_what_numpy_does(form, bias):
    """Jacob et al. 2018, equation 4: unsigned inputs with a zero point, signed weights without.
    Dynamic scales are each row's own, of which one is of zeros, and one much larger."""
    random = np.random.default_rng(0)
    weight = random.normal(size=(24, 10)).astype(np.float32) * np.geomspace(1, 30, 10)[None]
    weight = weight.astype(np.float32)
    added = random.normal(size=10).astype(np.float32) * bias
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product" if bias else "y"]),
        *([helper.make_node("Add", ["product", "b"], ["y"])] * bias),
    ]
    graph = helper.make_graph(
        nodes,
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 24])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 10])],
        [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(added, "b")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    x = random.normal(size=(7, 24)).astype(np.float32) + 0.5
    if form == "dynamic":
        x[2:4] *= [[0], [100]]
    seen = x * 0.5
    ranges = {"w": (float(seen.min()), float(seen.max()))}
    assert onnx_layers.to_int8(model, (), None if form == "dynamic" else ranges) == ["w"]
    onnx.checker.check_model(model)
    import onnxruntime

    session = onnxruntime.InferenceSession(model.SerializeToString())
    found = session.run(["y"], {"x": x})[0]
    step = np.maximum(np.abs(x).max(1, keepdims=True) / 127, 1e-30)
    zero = 128
    if form == "static":
        step = (seen.max() - seen.min()) / 255
        zero = np.round(-seen.min() / step)
    x8 = np.clip(np.round(x / step) + zero, 0, 255)
    scales = np.abs(weight).max(0) / 64
    w8 = np.clip(np.round(weight / scales), -64, 64)
    expected = (x8 - zero) @ w8 * step * scales + added
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)
    error = np.abs(found - x @ weight - added).max()
    assert error > 0.01  # the comparison can tell


def test_the_faster_form_that_keeps_the_accuracy_is_taken():
    def tried(dynamic, static):
        made = {"dynamic": dynamic, "static": static}
        return {form: bundles.OnnxTried(drop=d, texts_per_s=s) for form, (d, s) in made.items()}

    assert onnx_int8.choose(tried((0.0, 100), (0.004, 120)), 0.005) == "static"
    assert onnx_int8.choose(tried((0.0, 100), (0.006, 120)), 0.005) == "dynamic"
    assert onnx_int8.choose(tried((0.01, 100), (0.02, 120)), 0.005) == "dynamic"


@pytest.mark.slow
def test_the_gate_stops_it_and_what_it_cannot_do_is_refused(bundle, tiny_data):
    dynamic = {"onnx.activations": "dynamic"}
    with pytest.raises(GateFailed, match="`skip` leaves layers in float32"):
        pipeline.quantize(wanted(bundle, tiny_data, **dynamic, **{"gate.max_accuracy_drop": -0.5}))
    assert bundles.read(bundle).names == ["float32"]
    with pytest.raises(UserError, match="matches no weight"):
        pipeline.quantize(wanted(bundle, tiny_data, **dynamic, skip=["layer9*"]))

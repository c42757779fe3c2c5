"""ONNX Runtime's own operators answer as those that they replace."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from fleetbert import bundle as bundles
from fleetbert.compression import onnx_fused, onnx_layers
from fleetbert.export import onnx as export

LAYERS = 2


@pytest.fixture(scope="module")
def float32(trained, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    export.convert(bundles.read(trained).folder("float32"), path)
    return path


def in_int8(float32: Path, form: str, left: tuple[str, ...] = ()) -> ModelProto:
    model = onnx.load(str(float32))
    names = [tensor.name for tensor in model.graph.initializer]
    ranges = None if form == "dynamic" else dict.fromkeys(names, (-3.0, 3.0))
    onnx_layers.to_int8(model, left, ranges)
    return model


def count(model: ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


def answer(model: ModelProto) -> np.ndarray:
    """Of three texts, two of them padded."""
    ids = np.random.default_rng(0).integers(5, 100, (3, 9))
    mask = np.arange(9)[None] < [[9], [4], [1]]
    feed = {"input_ids": ids * mask, "attention_mask": mask, "token_type_ids": ids % 2}
    session = onnxruntime.InferenceSession(model.SerializeToString())
    return session.run(None, {name: array.astype(np.int64) for name, array in feed.items()})[0]


@pytest.mark.parametrize("form", ["static", "dynamic"])
def test_answers_stay(float32, form):
    """Dynamic scales multiply what attention reads, so that only norms are joined there."""
    model = in_int8(float32, form)
    expected, before = answer(model), count(model)
    onnx_fused.fuse(model)
    after = count(model)
    assert after["QAttention"] == (LAYERS if form == "static" else 0)
    assert before["Softmax"] - after["Softmax"] == after["QAttention"]
    assert after["SkipLayerNormalization"] == 2 * LAYERS
    np.testing.assert_allclose(answer(model), expected, atol=1e-5)
    assert np.ptp(expected, axis=0).min() > 1e-3  # the texts' answers differ


def test_what_is_built_otherwise_stays(float32):
    """Scores with more than the mask, as those with relative positions; a layer in float32."""
    model = in_int8(float32, "static")
    softmax = next(node for node in model.graph.node if node.op_type == "Softmax")
    masked = next(node for node in model.graph.node if softmax.input[0] in node.output)
    at = list(model.graph.node).index(masked)
    shift = numpy_helper.from_array(np.array(0.5, np.float32), "shift")
    model.graph.initializer.append(shift)
    kinds = [
        helper.make_node("Cast", ["token_type_ids"], ["kinds"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMax", ["kinds"], ["kind"], keepdims=0),
        helper.make_node("Mul", ["kind", "shift"], ["moved"]),
        helper.make_node("Add", [masked.input[1], "moved"], ["more"]),
    ]
    masked.input[1] = "more"
    for number, node in enumerate(kinds):
        model.graph.node.insert(at + number, node)
    expected = answer(model)
    onnx_fused.fuse(model)
    assert count(model)["QAttention"] == LAYERS - 1
    np.testing.assert_allclose(answer(model), expected, atol=1e-5)

    model = in_int8(float32, "static")
    heads = next(node for node in model.graph.node if node.op_type == "Transpose")
    heads.attribute[0].ints[:] = [1, 2, 0, 3]
    onnx_fused.fuse(model)
    assert count(model)["QAttention"] == LAYERS - 1

    product = next(
        node for node in in_int8(float32, "static").graph.node if "MatMul" in node.op_type
    )
    model = in_int8(float32, "static", left=(product.input[1],))
    onnx_fused.fuse(model)
    assert count(model)["QAttention"] == LAYERS - 1

"""The forms of a model that the benchmarks compare: as ONNX, and in int8."""

from __future__ import annotations

import shutil
from pathlib import Path

import onnx
from onnxruntime import quantization
from onnxruntime.quantization.shape_inference import quant_pre_process

from fleetbert import bundle as bundles
from fleetbert.bench import measure
from fleetbert.core.errors import UserError

ORT = "ONNX Runtime"


def with_onnx(bundle: bundles.Bundle, copy: Path) -> bundles.Bundle:
    """The bundle if it has ONNX, else (a copy of) it with ONNX added."""
    if any(variant.name == "onnx" for variant in bundle.manifest.variants):
        bundles.verify(bundle, "onnx")
        return bundle
    from fleetbert.export.onnx import export_onnx  # loads Paddle

    measure.say("exporting to ONNX")
    if bundle.root != copy:
        shutil.copytree(bundle.root, copy)
    return export_onnx(copy)


def _folded(model: Path, target: Path) -> str:
    """The path of the model as the quantizers take it, beside `target`: paddle2onnx writes weights
    as Constant nodes, which they pass over without a word; these are initializers."""
    path = str(target.with_name("folded.onnx"))
    quant_pre_process(str(model), path, skip_symbolic_shape=True)
    return path


def quantize_onnx(model: Path, target: Path) -> Path:
    """ONNX Runtime's own dynamic quantization, with its defaults."""
    quantization.quantize_dynamic(
        _folded(model, target), str(target), weight_type=quantization.QuantType.QInt8
    )
    if all(node.op_type != "MatMulInteger" for node in onnx.load(str(target)).graph.node):
        raise UserError(f"{ORT} left {model} as it was: nothing to compare with")
    return target

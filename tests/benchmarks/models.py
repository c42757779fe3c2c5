"""The forms of a model that the benchmarks compare: as ONNX, and in int8."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Iterator, Sequence

import numpy as np
import onnx
from onnxruntime import quantization
from onnxruntime.quantization.shape_inference import quant_pre_process

import fleetbert
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


def add_variant(bundle: bundles.Bundle, method: str, calibration: str, data: str) -> bundles.Bundle:
    """The bundle with the variant of a method (or of a YAML job) added; no gate stops it."""
    job = {"config": method} if method.endswith((".yaml", ".yml")) else {"method": method}
    if "method" in job:
        job["calibration"] = calibration
    fleetbert.quantize(bundle.root, **job, gate=data, max_drop=1)
    return bundles.read(bundle.root)


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


def quantize_onnx_static(
    model: Path, target: Path, batches: Sequence[dict[str, np.ndarray]]
) -> Path:
    """ONNX Runtime's static quantization of the matrix products, calibrated on `batches`.

    The result has QuantizeLinear and DequantizeLinear around them, which OpenVINO runs in int8.
    """

    class Reader(quantization.CalibrationDataReader):
        def __init__(self) -> None:
            self.left: Iterator[dict[str, np.ndarray]] = iter(batches)

        def get_next(self) -> dict[str, np.ndarray] | None:
            return next(self.left, None)

    quantization.quantize_static(
        _folded(model, target),
        str(target),
        Reader(),
        per_channel=True,
        op_types_to_quantize=["MatMul"],
        activation_type=quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8,
        # Products of two activations, as attention's, stay float32: as in this project.
        extra_options={"MatMulConstBOnly": True},
    )
    return target

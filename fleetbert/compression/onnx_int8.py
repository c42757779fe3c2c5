"""The variant `onnx-int8`: whole Linear layers in int8 for ONNX Runtime, by its own tool.

The float32 source, smoothed where the job says so, becomes ONNX (`export.onnx`), and
`onnxruntime.quantization` makes integers of it, in one of two forms:

dynamic  each token of a layer's input has a scale of its own (`token_scales`)
static   it is the mean over calibration batches; the layer's output stays float32

Weights have 7 bits and a scale for each output: with 8, processors without VNNI overflow. The word
table becomes integers too, with one scale, as ONNX has no other; products of two activations stay
float32. What is ours here is the source, the choice between the forms, and the gate.
"""

from __future__ import annotations

import logging
import statistics
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Sequence

import onnx as onnx_format
from onnxruntime import quantization
from onnxruntime.quantization.onnx_model import ONNXModel

from fleetbert import bundle as bundles
from fleetbert.compression import token_scales
from fleetbert.compression.gate import Sample, texts_per_s
from fleetbert.compression.texts import Feeds
from fleetbert.compression.work import Ready, Work
from fleetbert.core import progress
from fleetbert.core.errors import UserError
from fleetbert.engines import engine
from fleetbert.export import onnx
from fleetbert.export.program import versions

log = logging.getLogger(__name__)

DYNAMIC, STATIC = "dynamic", "static"
MODEL = "model.onnx"
KINDS = ["MatMul", "Gather"]
SETTINGS = {
    "op_types_to_quantize": KINDS,
    "weight_type": quantization.QuantType.QInt8,
    "per_channel": True,
    "reduce_range": True,
}
STATIC_SETTINGS = {
    "quant_format": quantization.QuantFormat.QDQ,
    "activation_type": quantization.QuantType.QUInt8,
    "extra_options": {"CalibMovingAverage": True, "OpTypesToExcludeOutputQuantization": KINDS},
}


def prepare(work: Work) -> Ready:
    """Quantize the source in the form that `onnx.activations` names, or in the better one."""
    left = work.source.float32_layers(work.job.skip)
    activations = work.job.onnx.activations
    with tempfile.TemporaryDirectory(prefix="fleetbert-onnx-") as temporary:
        log.info("onnx: converting the model")
        float32 = Path(temporary) / MODEL
        onnx.convert(work.source.folder, float32)
        fold(float32)
        made = {}
        for form in (DYNAMIC, STATIC) if activations == "auto" else (activations,):
            made[form] = Path(temporary) / form
            made[form].mkdir()
            batches = work.calibration_batches if form == STATIC else None
            log.info(f"onnx: quantizing with {form} scales")
            quantize(float32, made[form] / MODEL, left, batches)
        chosen: str = activations
        tried: dict[str, bundles.OnnxTried] = {}
        tried_on = None
        if activations == "auto":
            tried = compare(made, work.selection, work.gate.threads)
            tried_on, chosen = work.selection.name, choose(tried, work.gate.max_drop)
        model = (made[chosen] / MODEL).read_bytes()

    def write(folder: Path) -> bundles.Variant:
        (folder / MODEL).write_bytes(model)
        return bundles.OnnxInt8Variant(
            name="onnx-int8",
            runs_on=["x86", "armv8"],
            versions={**versions(), **onnx.packages()},
            opset=onnx.OPSET,
            activations=chosen,
            float32_layers=left,
            smoothed=dict(work.smoothed),
            tried=tried,
            tried_on=tried_on,
        )

    return Ready(work.source, write)


def fold(path: Path) -> None:
    """Write the ONNX file `path` anew, as ONNX Runtime's tool reads it."""
    model = ONNXModel(onnx_format.load(str(path)))
    model.replace_gemm_with_matmul()  # the dynamic form does, under other names; static takes none
    model.save_model_to_file(str(path))


def quantize(
    float32: Path, target: Path, left: Sequence[str] = (), batches: Sequence[Feeds] | None = None
) -> None:
    """Quantize the ONNX file `float32`, which `fold` has written, into `target`: static with
    calibration `batches`, else dynamic. left: names of weights whose layers stay float32."""
    graph = onnx_format.load(str(float32)).graph
    stored = {tensor.name for tensor in graph.initializer}
    # Products of two activations, as attention's, stay float32.
    skipped = [
        node.name
        for node in graph.node
        if set(left) & set(node.input) or (node.op_type == "MatMul" and node.input[1] not in stored)
    ]
    files, settings = (str(float32), str(target)), {**SETTINGS, "nodes_to_exclude": skipped}
    if batches is None:
        quantization.quantize_dynamic(*files, **settings)
    else:
        reader = _Reader(batches, [tensor.name for tensor in graph.input])
        quantization.quantize_static(*files, reader, **STATIC_SETTINGS, **settings)
    made = onnx_format.load(str(target))
    if all(tensor.data_type != onnx_format.TensorProto.INT8 for tensor in made.graph.initializer):
        raise UserError(f"onnxruntime {version('onnxruntime')} found no layer to quantize")
    if batches is None:
        token_scales.rewrite(made)
        onnx_format.save(made, str(target))


class _Reader(quantization.CalibrationDataReader):
    def __init__(self, batches: Sequence[Feeds], inputs: Sequence[str]):
        bar = progress.bar(
            iterable=batches, desc="calibrate", unit=" batches", disable=not progress.watched()
        )
        self._left = ({name: batch[name] for name in inputs} for batch in bar)

    def get_next(self) -> Feeds | None:
        return next(self._left, None)


def compare(
    made: dict[str, Path], sample: Sample, threads: int | None = None
) -> dict[str, bundles.OnnxTried]:
    """The forms in these folders on the sample's texts, in turns."""
    pad_id = sample.model.tokenizer.pad_id
    opened = [
        engine.open_folder(engine.ONNX_INT8, folder, "cpu", threads, pad_id=pad_id)
        for folder in made.values()
    ]
    answers = [sample.logits(*pair) for pair in zip(opened, made)]
    tried = {}
    for form, logits, speeds in zip(made, answers, texts_per_s([(sample, e) for e in opened])):
        speed = statistics.median(speeds)
        drop = sample.float32_accuracy - sample.metric(logits)
        tried[form] = bundles.OnnxTried(drop=drop, texts_per_s=round(speed, 1))
        log.info(f"{form} scales: {speed:.0f} texts/s, drop {drop:.4f} on {sample.name}")
    return tried


def choose(tried: dict[str, bundles.OnnxTried], max_drop: float) -> str:
    """The fastest form that keeps the drop, else the one that loses least."""
    keeping = {form: figures for form, figures in tried.items() if figures.drop <= max_drop}
    if keeping:
        return max(keeping, key=lambda form: keeping[form].texts_per_s)
    return min(tried, key=lambda form: tried[form].drop)

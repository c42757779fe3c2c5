"""The variant `onnx-int8`: whole Linear layers in int8 for ONNX Runtime.

The float32 source, smoothed where the job says so, becomes ONNX (`export.onnx`), and integers in
one of two forms (`onnx_layers`):

dynamic  each token of a layer's input has a scale of its own
static   it is the mean over calibration batches; the layer's output stays float32
"""

from __future__ import annotations

import logging
import statistics
import tempfile
from pathlib import Path

import onnx as onnx_format

from fleetbert import bundle as bundles
from fleetbert.compression import onnx_fused, onnx_layers
from fleetbert.compression.gate import Sample, texts_per_s
from fleetbert.compression.work import Ready, Work
from fleetbert.engines import engine
from fleetbert.export import onnx
from fleetbert.export.program import versions

log = logging.getLogger(__name__)

DYNAMIC, STATIC = "dynamic", "static"
MODEL = "model.onnx"


def prepare(work: Work) -> Ready:
    """Quantize the source in the form that `onnx.activations` names, or in the better one."""
    left = work.source.float32_layers(work.job.skip)
    activations = work.job.onnx.activations
    with tempfile.TemporaryDirectory(prefix="fleetbert-onnx-") as temporary:
        float32 = Path(temporary) / MODEL
        onnx.convert(work.source.folder, float32)
        made = {}
        for form in (DYNAMIC, STATIC) if activations == "auto" else (activations,):
            made[form] = Path(temporary) / form
            made[form].mkdir()
            model = onnx_format.load(str(float32))
            ranges = None
            if form == STATIC:
                ranges = {name: work.observed.range(name) for name in work.source.layers.inputs}
            done = onnx_layers.to_int8(model, left, ranges)
            onnx_fused.fuse(model)
            log.info(f"onnx: {form} scales: {len(done)} layers in int8")
            onnx_format.save(model, str(made[form] / MODEL))
        chosen: str = activations
        tried: dict[str, bundles.OnnxTried] = {}
        tried_on = None
        if activations == "auto":
            tried = compare(made, work.selection, work.gate.threads)
            tried_on, chosen = work.selection.name, choose(tried, work.gate.max_drop)
        content = (made[chosen] / MODEL).read_bytes()

    def write(folder: Path) -> bundles.Variant:
        (folder / MODEL).write_bytes(content)
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

"""OpenVINO, quantized by NNCF after training: the model itself, as OpenVINO converts it."""

from __future__ import annotations

import threading
from pathlib import Path

import openvino
from batches import calibration, inputs_of


def made(job: dict) -> Path:
    """The file of the setting, which is made in `job["files"]` once."""
    target = Path(job["files"]) / f"openvino-{job['preset']}.xml"
    if target.is_file():
        return target
    import nncf
    import torch
    import transformers

    network = transformers.BertForSequenceClassification.from_pretrained(job["folder"]).eval()
    ids = torch.ones(2, 8, dtype=torch.long)
    feeds = {"input_ids": ids, "attention_mask": ids, "token_type_ids": torch.zeros_like(ids)}
    batches = calibration(job)
    quantized = nncf.quantize(
        openvino.convert_model(network, example_input=feeds),
        nncf.Dataset(batches),
        model_type=nncf.ModelType.TRANSFORMER,
        preset=nncf.QuantizationPreset(job["preset"]),
        subset_size=len(batches),
    )
    openvino.save_model(quantized, target.with_name(f"new-{target.name}"))
    for suffix in (".bin", ".xml"):
        new = target.with_name(f"new-{target.name}").with_suffix(suffix)
        new.rename(target.with_suffix(suffix))
    return target


def open_engine(job):
    """callers: how many calls share the threads, as streams, each from a thread of its own."""
    callers = job.get("callers", 1)
    properties = {
        "INFERENCE_NUM_THREADS": job["threads"],
        "NUM_STREAMS": callers,
        "PERFORMANCE_HINT": "LATENCY" if callers == 1 else "THROUGHPUT",
    }
    compiled = openvino.Core().compile_model(str(made(job)), "CPU", properties)
    own = threading.local()  # a request takes one call at a time

    def run(input_ids, token_type_ids):
        if not hasattr(own, "request"):
            own.request = compiled.create_infer_request()
        inputs = inputs_of(input_ids, token_type_ids, job["pad_id"])
        return own.request.infer(inputs)[compiled.output(0)].copy()

    return run, openvino.__version__.partition("-")[0]

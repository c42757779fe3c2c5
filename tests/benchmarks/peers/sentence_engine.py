"""sentence-transformers' ONNX backend with its own int8, as a classifier (`CrossEncoder`)."""

from __future__ import annotations

import shutil
from pathlib import Path

import onnxruntime
import sentence_transformers
import torch
from batches import inputs_of
from sentence_transformers import CrossEncoder, export_dynamic_quantized_onnx_model


def open_engine(job):
    """processor: what the integers are for, as the library names it."""
    folder = Path(job["files"]) / f"sentence-{job['processor']}"
    pattern = f"onnx/*int8_{job['processor']}.onnx"
    if not any(folder.glob(pattern)):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(job["folder"], folder)
        encoder = CrossEncoder(str(folder), backend="onnx", model_kwargs={"export": True})
        encoder.save_pretrained(str(folder))
        export_dynamic_quantized_onnx_model(encoder, job["processor"], str(folder))
    name = next(folder.glob(pattern)).name
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = job["threads"]
    settings = {"file_name": f"onnx/{name}", "session_options": options}
    model = CrossEncoder(str(folder), backend="onnx", model_kwargs=settings).model

    def run(input_ids, token_type_ids):
        inputs = inputs_of(input_ids, token_type_ids, job["pad_id"])
        return model(
            **{key: torch.from_numpy(array) for key, array in inputs.items()}
        ).logits.numpy()

    return run, sentence_transformers.__version__

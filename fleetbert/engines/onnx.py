"""ONNX Runtime.

Variants of older versions have no input attention_mask: they tell padding by the pad id.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from fleetbert.core import extras
from fleetbert.core.errors import UserError
from fleetbert.engines.engine import INPUTS, Options, ProgramEngine
from fleetbert.graph.padding import MASK


def open_variant(folder: Path, options: Options) -> ProgramEngine:
    """Open model.onnx in `folder`."""
    try:
        import onnxruntime  # optional, and most processes open none of its variants
    except ImportError:
        raise UserError(f"ONNX Runtime is not installed: {extras.command('onnx')}") from None
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = options.threads
    settings.log_severity_level = 3
    card = options.device.card
    if options.device.precision != "float32":
        raise UserError(
            f"precision is {options.device.precision}, which ONNX Runtime does not take: leave it "
            "out, or name the variant float32"
        )
    provider = "CPUExecutionProvider" if card is None else "CUDAExecutionProvider"
    if provider not in onnxruntime.get_available_providers():
        raise UserError(
            f"device is {options.device.name}, but the installed ONNX Runtime has no CUDA: install "
            "onnxruntime-gpu or use --device cpu"
        )
    path = folder / "model.onnx"
    # ONNX Runtime opens no file whose name the locale has no letters for (`paddle_inference`).
    is_text = str(path).encode("utf-8", "ignore") == os.fsencode(path)
    model = str(path) if is_text else path.read_bytes()
    providers = [provider] if card is None else [(provider, {"device_id": card})]
    session = onnxruntime.InferenceSession(model, settings, providers=providers)
    names = [entry.name for entry in session.get_inputs()]
    places = [(*INPUTS, MASK).index(name) for name in names]

    def run(*arrays: np.ndarray) -> np.ndarray:
        return session.run(["logits"], {name: arrays[at] for name, at in zip(names, places)})[0]

    return ProgramEngine(run, options.pad_id)

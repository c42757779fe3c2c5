"""ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fleetbert.engines.engine import INPUTS, Engine, Inputs, Options
from fleetbert.errors import UserError

if TYPE_CHECKING:
    from onnxruntime import InferenceSession


class OnnxEngine(Engine):
    """An opened session."""

    def __init__(self, session: InferenceSession):
        super().__init__()
        self._session = session

    def compute(self, inputs: Inputs, speed: float | None = None) -> np.ndarray:
        return self._session.run(["logits"], {name: inputs[name] for name in INPUTS})[0]


def open_variant(folder: Path, options: Options) -> OnnxEngine:
    """Open model.onnx in `folder`."""
    try:
        import onnxruntime  # optional, and most processes open none of its variants
    except ImportError:
        raise UserError("ONNX Runtime is not installed: pip install onnxruntime") from None
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = options.threads
    settings.log_severity_level = 3
    provider = "CUDAExecutionProvider" if options.device == "gpu" else "CPUExecutionProvider"
    if provider not in onnxruntime.get_available_providers():
        raise UserError(
            "device is gpu, but the installed ONNX Runtime has no CUDA: install "
            "onnxruntime-gpu or use --device cpu"
        )
    model = str(folder / "model.onnx")
    return OnnxEngine(onnxruntime.InferenceSession(model, settings, providers=[provider]))

"""Programs that Paddle Inference optimizes and runs itself: float32, and integers on disk only."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fleetbert.compat import paddle_inference
from fleetbert.engines import predictor
from fleetbert.engines.engine import INPUTS, Engine, Inputs, Options


class PaddleEngine(Engine):
    """A whole program, opened."""

    def __init__(self, opened: paddle_inference.Predictor):
        super().__init__()
        self._predict = predictor.bind(opened, INPUTS)

    def compute(self, inputs: Inputs, speed: float | None = None) -> np.ndarray:
        return self._predict(*(inputs[name] for name in INPUTS))[0]


def open_variant(folder: Path, options: Options) -> PaddleEngine:
    """Open model.pdmodel and model.pdiparams in `folder`."""
    inference = paddle_inference.import_inference()
    config = inference.Config(str(folder / "model.pdmodel"), str(folder / "model.pdiparams"))
    config.switch_ir_optim(True)
    config.enable_memory_optim()
    return PaddleEngine(predictor.create(config, options.device, options.threads))


def open_weight_only(folder: Path, options: Options) -> PaddleEngine:
    """Open a program whose weights are integers on disk; they are widened to float32 here."""
    program, parameters = predictor.read_integers(folder)
    return PaddleEngine(
        predictor.create_from_memory(
            program, parameters, options.device, options.threads, optimize=True
        )
    )

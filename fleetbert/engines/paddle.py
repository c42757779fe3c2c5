"""Programs that Paddle Inference optimizes and runs itself: float32, and integers on disk only."""

from __future__ import annotations

from pathlib import Path

from fleetbert.compat import paddle_inference
from fleetbert.engines import predictor
from fleetbert.engines.engine import INPUTS, Options, ProgramEngine


def open_variant(folder: Path, options: Options) -> ProgramEngine:
    """Open model.pdmodel and model.pdiparams in `folder`."""
    program, parameters = folder / "model.pdmodel", folder / "model.pdiparams"
    config = paddle_inference.config_of(program, parameters)
    config.switch_ir_optim(True)
    config.enable_memory_optim()
    return _engine(predictor.create(config, options.device, options.threads))


def open_weight_only(folder: Path, options: Options) -> ProgramEngine:
    """Open a program whose weights are integers on disk; they are widened to float32 here."""
    program, parameters = predictor.read_integers(folder)
    device, threads = options.device, options.threads
    opened = predictor.create_from_memory(program, parameters, device, threads, optimize=True)
    return _engine(opened)


def _engine(opened: paddle_inference.Predictor) -> ProgramEngine:
    predict = predictor.bind(opened, INPUTS)
    return ProgramEngine(lambda *arrays: predict(*arrays)[0])

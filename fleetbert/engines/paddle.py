"""Programs that Paddle Inference optimizes and runs itself: float32, and integers on disk only."""

from __future__ import annotations

from pathlib import Path

from fleetbert.compat import paddle_inference
from fleetbert.engines import predictor
from fleetbert.engines.engine import INPUTS, Options, ProgramEngine
from fleetbert.graph import padding
from fleetbert.graph import program as programs
from fleetbert.graph.program import ProgramDesc


def open_variant(folder: Path, options: Options) -> ProgramEngine:
    """Open model.pdmodel and model.pdiparams in `folder`."""
    program = padding.mask_as_input(programs.read(folder / "model.pdmodel"))
    with predictor.memory_file([program.SerializeToString()]) as text:
        config = paddle_inference.config_of(Path(text), folder / "model.pdiparams")
        config.switch_ir_optim(True)
        config.enable_memory_optim()
        opened = predictor.create(config, options.device, options.threads)
    return _engine(opened, program, options)


def open_weight_only(folder: Path, options: Options) -> ProgramEngine:
    """Open a program whose weights are integers on disk; they are widened to float32 here."""
    program, parameters = predictor.read_integers(folder)
    program = padding.mask_as_input(program)
    device, threads = options.device, options.threads
    opened = predictor.create_from_memory(program, parameters, device, threads, optimize=True)
    return _engine(opened, program, options)


def _engine(
    opened: paddle_inference.Predictor, program: ProgramDesc, options: Options
) -> ProgramEngine:
    inputs = (*INPUTS, padding.MASK)[: len(programs.input_names(program))]
    predict = predictor.bind(opened, inputs)
    return ProgramEngine(lambda *arrays: predict(*arrays)[0], options.pad_id)

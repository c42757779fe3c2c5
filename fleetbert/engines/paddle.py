"""Programs that Paddle Inference optimizes and runs itself: float32, and integers on disk only."""

from __future__ import annotations

from pathlib import Path

from fleetbert.compat import paddle_inference
from fleetbert.core.errors import UserError
from fleetbert.engines import gpu, predictor
from fleetbert.engines.engine import INPUTS, Options, ProgramEngine
from fleetbert.graph import padding
from fleetbert.graph import program as programs
from fleetbert.graph.program import Parameters, ProgramDesc


def open_variant(folder: Path, options: Options) -> ProgramEngine:
    """Open model.pdmodel and model.pdiparams in `folder`."""
    _check_precision(options)
    program = padding.mask_as_input(programs.read(folder / "model.pdmodel"))

    def make() -> paddle_inference.PredictorConfig:
        config = paddle_inference.config_of(Path(text), folder / "model.pdiparams")
        config.switch_ir_optim(True)
        config.enable_memory_optim()
        return config

    with predictor.memory_file([program.SerializeToString()]) as text:
        whole = as_whole(folder, program, options)
        opened = predictor.create(make, options.device, options.threads, whole)
    return _engine(opened, program, options)


def open_weight_only(folder: Path, options: Options) -> ProgramEngine:
    """Open a program whose weights are integers on disk; they are widened to float32 here."""
    _check_precision(options)
    return open_parameters(folder, *predictor.read_integers(folder), options)


def open_parameters(
    folder: Path, program: ProgramDesc, parameters: Parameters, options: Options
) -> ProgramEngine:
    """Open a program of token ids, and let Paddle optimize it. folder: of its files."""
    program = padding.mask_as_input(program)
    opened = predictor.create_from_memory(
        program,
        parameters,
        options.device,
        options.threads,
        optimize=True,
        whole=as_whole(folder, program, options),
    )
    return _engine(opened, program, options)


def as_whole(folder: Path, program: ProgramDesc, options: Options) -> gpu.Whole:
    """A program of token ids, for TensorRT."""

    def run(opened: paddle_inference.Predictor) -> None:
        engine = _engine(opened, program, options)
        engine.warm_up(options.shapes)

    return gpu.Whole(folder, options.shapes, run)


def _check_precision(options: Options) -> None:
    if options.device.precision == "int8":
        raise UserError(
            "precision is int8, for which the variant has no scales: name int8-static "
            "(fleetbert quantize method=static)"
        )


def _engine(
    opened: paddle_inference.Predictor, program: ProgramDesc, options: Options
) -> ProgramEngine:
    inputs = (*INPUTS, padding.MASK)[: len(programs.input_names(program))]
    predict = predictor.bind(opened, inputs, options.device)
    return ProgramEngine(lambda *arrays: predict(*arrays)[0], options.pad_id)

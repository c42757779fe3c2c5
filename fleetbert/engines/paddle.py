"""Programs that Paddle Inference optimizes itself: float32, and integers on disk only."""

from __future__ import annotations

from pathlib import Path

from fleetbert.compat import paddle_inference
from fleetbert.core.errors import UserError
from fleetbert.engines import gpu, predictor
from fleetbert.engines.engine import INPUTS, Options, ProgramEngine
from fleetbert.engines.predictor import Predict
from fleetbert.graph import fuse, padding
from fleetbert.graph import program as programs
from fleetbert.graph.program import Parameters, ProgramDesc


def open_variant(folder: Path, options: Options) -> ProgramEngine:
    """Open model.pdmodel and model.pdiparams in `folder`."""
    _check_precision(options)
    program = programs.read(folder / "model.pdmodel")
    return open_parameters(folder, program, folder / "model.pdiparams", options)


def open_weight_only(folder: Path, options: Options) -> ProgramEngine:
    """Open a program whose weights are integers on disk; they are widened to float32 here."""
    _check_precision(options)
    return open_parameters(folder, *predictor.read_integers(folder), options)


def open_parameters(
    folder: Path, program: ProgramDesc, parameters: Parameters | Path, options: Options
) -> ProgramEngine:
    """Open a program of token ids, over which Paddle's passes run first. folder: of its files.
    parameters: may be those of a .pdiparams file."""
    program = padding.mask_as_input(program)
    device, threads = options.device, options.threads
    if device.card is None and paddle_inference.has_onednn():
        fused = fuse.fuse_alone(program)
        if fused is not None:
            fused = fuse.merge_transposes(fused)
            (predict,) = predictor.open_fused(fused, parameters, _inputs(program), threads)
            return _engine(predict, options)
    whole = as_whole(folder, program, options)
    opened = predictor.create_from_memory(
        program, parameters, device, threads, optimize=True, whole=whole
    )
    return _engine(predictor.bind(opened, _inputs(program), device), options)


def as_whole(folder: Path, program: ProgramDesc, options: Options) -> gpu.Whole:
    """A program of token ids, for TensorRT."""

    def run(opened: paddle_inference.Predictor) -> None:
        predict = predictor.bind(opened, _inputs(program), options.device)
        _engine(predict, options).warm_up(options.shapes)

    return gpu.Whole(folder, options.shapes, run)


def _check_precision(options: Options) -> None:
    if options.device.precision == "int8":
        raise UserError(
            "precision is int8, for which the variant has no scales: name int8-static "
            "(fleetbert quantize method=static)"
        )


def _inputs(program: ProgramDesc) -> tuple[str, ...]:
    return (*INPUTS, padding.MASK)[: len(programs.input_names(program))]


def _engine(predict: Predict, options: Options) -> ProgramEngine:
    return ProgramEngine(lambda *arrays: predict(*arrays)[0], options.pad_id)

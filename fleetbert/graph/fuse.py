"""Paddle's own float32 passes over a program, and what they leave to do. The only file here that
runs Paddle."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fleetbert.compat import paddle_inference
from fleetbert.graph import program as programs
from fleetbert.graph.program import OpDesc, Parameters, ProgramDesc


class Fused(NamedTuple):
    """A program after Paddle's float32 oneDNN passes, and its parameters by name."""

    program: ProgramDesc
    parameters: Parameters


def fuse(folder: Path) -> Fused:
    """Run Paddle's float32 passes over the program in `folder` (model.pdmodel, .pdiparams).

    Afterwards a Linear is one `fc` with its bias and GELU, and attention is two `fused_matmul`.
    """
    with tempfile.TemporaryDirectory() as temporary:
        saved = _run_passes(folder, temporary)
        program = programs.read(saved)
        parameters = programs.read_parameters(program, saved.with_suffix(".pdiparams"))
    _rename_attributes(program)
    return Fused(program, parameters)


def fuse_alone(program: ProgramDesc) -> ProgramDesc | None:
    """The same for a program without its parameters, which only their shapes in it describe. None
    where it would have others afterwards, as with constants that the passes compute."""
    block = program.blocks[0]
    placeholders = {}
    for name in programs.parameter_names(program):
        tensor = programs.tensor(block, name)
        placeholders[name] = np.zeros([1] * len(tensor.dims), programs.DTYPES[tensor.data_type])
    with tempfile.TemporaryDirectory() as temporary:
        folder = programs.write_model(Path(temporary), program, placeholders)
        fused = programs.read(_run_passes(folder, temporary))
    _rename_attributes(fused)
    return fused if programs.parameter_names(fused) == list(placeholders) else None


def _run_passes(folder: Path, target: str) -> Path:
    """The path of the .pdmodel file that Paddle saves in the folder `target`."""
    config = paddle_inference.config_of(folder / "model.pdmodel", folder / "model.pdiparams")
    config.disable_gpu()
    config.disable_glog_info()
    paddle_inference.use_onednn(config)
    config.set_optim_cache_dir(os.fsencode(target))
    config.enable_save_optim_model(True)
    paddle_inference.import_inference().create_predictor(config)
    return Path(target) / "_optimized.pdmodel"


def _rename_attributes(program: ProgramDesc) -> None:
    """See `paddle_inference.ATTRIBUTES`. An operator that has both names is set by either."""
    for op in program.blocks[0].ops:
        for new, old in paddle_inference.ATTRIBUTES.items():
            named = [programs.copy(attr) for attr in op.attrs if attr.name in (new, old)]
            if named:
                others = [programs.copy(attr) for attr in op.attrs if attr.name not in (new, old)]
                chosen = next((attr for attr in named if attr.b or attr.s), named[0])
                chosen.name = old
                del op.attrs[:]
                op.attrs.extend([*others, chosen])


def merge_transposes(program: ProgramDesc) -> ProgramDesc:
    """A fused program whose products do the transpose and the reshape that come after them:
    attention's second one then writes its heads side by side, without a copy."""
    program = programs.copy(program)
    block = program.blocks[0]
    gone: list[OpDesc] = []
    for product in [op for op in block.ops if op.type == "fused_matmul"]:
        readers = programs.consumers(block, programs.argument(product.outputs, "Out"))
        if [reader.type for reader in readers] != ["transpose2"]:
            continue
        transpose = readers[0]
        readers = programs.consumers(block, programs.argument(transpose.outputs, "Out"))
        if [reader.type for reader in readers] != ["reshape2"]:
            continue
        axes = list(programs.attribute(transpose, "axis").ints)
        shape = list(programs.attribute(readers[0], "shape").ints)
        programs.set_attributes(product, fused_transpose_Out=axes, fused_reshape_Out=shape)
        result = programs.argument(readers[0].outputs, "Out")
        programs.set_argument(product.outputs, "Out", result)
        gone += [transpose, readers[0]]
    programs.replace_ops(block, [op for op in block.ops if not any(op is old for old in gone)])
    return program

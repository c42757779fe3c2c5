"""Paddle's own float32 passes over a program. The only file here that runs Paddle."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import NamedTuple

from fleetbert.compat import paddle_inference
from fleetbert.graph import program as programs
from fleetbert.graph.program import Parameters, ProgramDesc


class Fused(NamedTuple):
    """A program after Paddle's float32 oneDNN passes, and its parameters by name."""

    program: ProgramDesc
    parameters: Parameters


def fuse(folder: Path) -> Fused:
    """Run Paddle's float32 passes over the program in `folder` (model.pdmodel, .pdiparams).

    Afterwards a Linear is one `fc` with its bias and GELU, and attention is two `fused_matmul`.
    """
    inference = paddle_inference.import_inference()
    with tempfile.TemporaryDirectory() as temporary:
        config = inference.Config(str(folder / "model.pdmodel"), str(folder / "model.pdiparams"))
        config.disable_gpu()
        config.disable_glog_info()
        paddle_inference.use_onednn(config)
        config.set_optim_cache_dir(temporary)
        config.enable_save_optim_model(True)
        inference.create_predictor(config)
        saved = Path(temporary) / "_optimized.pdmodel"
        program = programs.read(saved)
        parameters = programs.read_parameters(program, saved.with_suffix(".pdiparams"))
    _rename_attributes(program)
    return Fused(program, parameters)


def _rename_attributes(program: ProgramDesc) -> None:
    """See `paddle_inference.ATTRIBUTES`. 3.3.1 writes both names; what was set has the new one."""
    for op in program.blocks[0].ops:
        present = {attribute.name for attribute in op.attrs}
        replaced = {old for new, old in paddle_inference.ATTRIBUTES.items() if new in present}
        kept = [programs.copy(a) for a in op.attrs if a.name not in replaced]
        for attribute in kept:
            attribute.name = paddle_inference.ATTRIBUTES.get(attribute.name, attribute.name)
        del op.attrs[:]
        op.attrs.extend(kept)

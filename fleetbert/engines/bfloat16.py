"""Programs that multiply in bfloat16 through oneDNN, as `graph.bfloat16` marks them."""

from __future__ import annotations

from pathlib import Path

from fleetbert.compat import processor
from fleetbert.engines.engine import Options
from fleetbert.engines.rows import RowsEngine, open_rows
from fleetbert.errors import UserError
from fleetbert.graph import bfloat16, embeddings, weights
from fleetbert.graph import program as programs


def open_variant(folder: Path, options: Options) -> RowsEngine:
    """Open x86.pdmodel and weights.safetensors in `folder`; UserError on processors without
    bfloat16, where oneDNN would emulate it.

    oneDNN wants float32 weights and rounds them: to the very ones that are on disk.
    """
    if options.device != "cpu":
        raise UserError("a bfloat16 variant runs on CPUs (oneDNN); use --device cpu")
    processor.check(processor.BFLOAT16, "a bfloat16 variant")
    program = programs.read(folder / "x86.pdmodel")
    halves, others = weights.load_halves(folder)
    tables = {name: halves.pop(name) for name in embeddings.words(program) if name in halves}
    parameters = {**others, **{name: bfloat16.widened(one) for name, one in halves.items()}}
    return open_rows(program, parameters, options, tables)

"""Programs that compute in int8 through oneDNN, as `graph.int8` wrote them."""

from __future__ import annotations

from pathlib import Path

from fleetbert.engines.engine import Options
from fleetbert.engines.rows import RowsEngine, open_rows
from fleetbert.errors import UserError
from fleetbert.graph import embeddings, weights
from fleetbert.graph import program as programs


def open_variant(folder: Path, options: Options) -> RowsEngine:
    """Open x86.pdmodel and weights.safetensors in `folder`.

    oneDNN wants float32 weights and makes integers of them: the very ones that are on disk.
    """
    if options.device != "cpu":
        raise UserError("an int8 variant of this kind runs on CPUs (oneDNN); use --device cpu")
    program = programs.read(folder / "x86.pdmodel")
    quantized, others = weights.load(folder)
    tables = embeddings.integer_tables(program, quantized)
    parameters = weights.pick(quantized, others, program, tables)
    return open_rows(program, parameters, options, tables)

"""Products in bfloat16: no data needed, half the size on disk, about half the time of float32 on
processors that multiply it.

x86.pdmodel          what Paddle Inference runs, once `graph.bfloat16` has converted it
weights.safetensors  its tensors: what is multiplied, and the tables, in bfloat16
"""

from __future__ import annotations

from pathlib import Path

from fleetbert import bundle as bundles
from fleetbert.compat import processor
from fleetbert.compression.work import Ready, Work
from fleetbert.export.program import versions
from fleetbert.graph import bfloat16, weights
from fleetbert.graph import program as programs
from fleetbert.graph.first_token import first_token_only
from fleetbert.graph.fuse import merge_transposes


def prepare(work: Work) -> Ready:
    """Round the source's weights, but those that `skip` names and the last layer's. UserError on a
    processor where the variant could not be measured."""
    processor.check(processor.BFLOAT16, "method: bfloat16")
    left = work.source.float32_layers(work.job.skip)
    fused = work.source.fused
    program = bfloat16.mark(first_token_only(merge_transposes(fused.program)), left)
    others = {name: fused.parameters[name] for name in programs.parameter_names(program)}
    names = {
        programs.argument(op.inputs, "W") for op in program.blocks[0].ops if bfloat16.is_marked(op)
    }
    names |= set(programs.embedding_tables(program))
    halves = {name: bfloat16.rounded(others.pop(name)) for name in sorted(names)}

    def write(folder: Path) -> bundles.Variant:
        programs.write(folder / "x86.pdmodel", program)
        weights.save_halves(folder, halves, others)
        return bundles.BFloat16Variant(
            name="bfloat16",
            runs_on=["x86"],
            needs=list(processor.BFLOAT16),
            versions=versions(),
            float32_layers=left,
        )

    return Ready(work.source, write)

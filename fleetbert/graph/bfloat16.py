"""A fused float32 program whose Linear layers are computed in bfloat16 through oneDNN.

bfloat16 is a float32 without its last 16 bits: the same range, 8 bits of precision. What one layer
computes is, with `r` for rounding to the nearest bfloat16,

    y = r(x) @ r(w) + bias          sums in float32

and where only such layers read y, it is rounded too. Attention, norms and sums of states are
float32. Attention adds up over a row's places. In bfloat16 the sum of a text's tokens depends on
where in the row they are, and rounding makes that large: of 872 texts 20 had another score in a row
with others than alone, by 0.0034 at most (MiniLM, AMX; with AVX512-BF16 22 texts, by 0.0012). None
has with attention in float32, which answers 5 % fewer short texts in a second, and 12 % fewer of
200 tokens.

Paddle's own pass (`enable_mkldnn_bfloat16`) takes norms and sums into bfloat16 too, and knows no
packed rows: it is no faster for it, and 1.1 to 1.3 times slower in all (MiniLM).
"""

from __future__ import annotations

from typing import Collection

import numpy as np

from fleetbert.graph import program as programs
from fleetbert.graph.program import OpDesc, ProgramDesc, VarType

BFLOAT16 = "@bfloat16"  # after the name of a variable: the same in bfloat16
# What an fc reads as it is stored: oneDNN rounds weights once, and adds the bias in float32.
STORED = ("W", "Bias")


def mark(program: ProgramDesc, left: Collection[str] = ()) -> ProgramDesc:
    """The program with the Linear layers marked that `convert` takes to bfloat16: all but those
    with the weights `left`."""
    program = programs.copy(program)
    for op in program.blocks[0].ops:
        if op.type == "fc" and programs.argument(op.inputs, "W") not in left:
            programs.set_attributes(op, use_mkldnn=True, mkldnn_data_type="bfloat16")
    return program


def is_marked(op: OpDesc) -> bool:
    return op.type == "fc" and programs.data_type(op) == "bfloat16"


def convert(program: ProgramDesc) -> ProgramDesc:
    """The program with what marked layers read rounded to bfloat16; as it is where none are.

    The last of the passes: others may put operators between marked ones, which read float32. Until
    29 November 2026 attention was marked too: it is float32 in those variants as well now.
    """
    program = programs.copy(program)
    block = program.blocks[0]
    ops: list[OpDesc] = []
    rounded: dict[str, str] = {}  # what is there in bfloat16, and under which name
    for op in list(block.ops):
        if is_marked(op):
            for slot in op.inputs:
                if slot.parameter in STORED:
                    continue
                for name in slot.arguments:
                    if name not in rounded:
                        rounded[name] = name + BFLOAT16
                        programs.add_variable(block, name, name + BFLOAT16)
                        programs.tensor(block, name + BFLOAT16).data_type = VarType.BF16
                        ops.append(programs.quantize(name, name + BFLOAT16, 1.0, "float32"))
                programs.rename([slot], rounded)
            target = programs.argument(op.outputs, "Out")
            if all(is_marked(reader) for reader in programs.consumers(block, target)):
                rounded[target] = target
                programs.tensor(block, target).data_type = VarType.BF16
            else:
                programs.set_attributes(op, force_fp32_output=True)
        elif programs.data_type(op) == "bfloat16":
            programs.set_attributes(op, mkldnn_data_type="float32")
        ops.append(op)
    programs.replace_ops(block, ops)
    return program


def rounded(array: np.ndarray) -> np.ndarray:
    """float32 → the nearest bfloat16, of two the even one, as uint16; NaN stays NaN."""
    array = np.ascontiguousarray(array, np.float32)
    bits = array.view(np.uint32)
    nearest = ((bits + (0x7FFF + ((bits >> 16) & 1))) >> 16).astype(np.uint16)
    return np.where(np.isnan(array), np.uint16(0x7FC0), nearest)


def widened(halves: np.ndarray) -> np.ndarray:
    """bfloat16, as uint16 → the same numbers as float32."""
    return (halves.astype(np.uint32) << 16).view(np.float32)

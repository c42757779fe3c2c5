"""What the programs that Paddle writes need before other tools read them."""

from __future__ import annotations

from fleetbert.graph import program as programs
from fleetbert.graph.program import BlockDesc, OpDesc, ProgramDesc


def tidy(program: ProgramDesc) -> ProgramDesc:
    """A program saved by paddle.jit.save → what every reader of bundles takes.

    - `save` ends a program with a no-op scale per output (normalize_program, "will affect the
      inference performance"), named save_infer_model/scale_0.tmp_0: it goes, and the output is
      named logits.
    - Dropout that does nothing at inference goes: Paddle Inference would remove it itself,
      ONNX and Paddle Lite converters do not always.
    - `input_ids == 0` becomes a fill_constant of shape [], which Paddle Lite (2.12 to 2.14rc0)
      and the quantization passes refuse: shape [1] computes the same.
    """
    program = give_shapes(program)
    block = program.blocks[0]
    same_as: dict[str, str] = {}
    kept = []
    for op in block.ops:
        programs.rename(op.inputs, same_as)
        if _is_identity(op):
            same_as[programs.argument(op.outputs, "Out")] = programs.argument(op.inputs, "X")
        else:
            kept.append(op)
    programs.replace_ops(block, kept)
    rename(block, programs.output_names(program)[0], "logits")
    used = {name for op in block.ops for name in programs.arguments(op)}
    stored = {described.name for described in block.vars if described.persistable}
    programs.keep_variables(block, used | stored)
    return program


def give_shapes(program: ProgramDesc) -> ProgramDesc:
    """The program with shape [1] for each fill_constant of shape []."""
    program = programs.copy(program)
    block = program.blocks[0]
    for op in block.ops:
        if op.type != "fill_constant":
            continue
        shape = programs.attribute(op, "shape")
        fed = any(slot.arguments for slot in op.inputs)  # a shape that is computed
        if not shape.longs and not fed:
            shape.longs.append(1)
            programs.tensor(block, programs.argument(op.outputs, "Out")).dims[:] = [1]
    return program


def own_parameters(program: ProgramDesc) -> dict[str, str]:
    """Let no two operators read the same stored tensor, in place, as ALBERT's layers do: what is
    made of one, smoothed or int8, would not fit the other. Returns of what the new ones are copies.
    """
    block = program.blocks[0]
    stored, read = set(programs.parameter_names(program)), set()
    copies: dict[str, str] = {}
    for op in block.ops:
        for name in dict.fromkeys(name for name in programs.read_by(op) if name in stored):
            if name in read:
                copy = f"{name}@{len(copies)}"
                programs.add_variable(block, name, copy)
                programs.rename(op.inputs, {name: copy})
                copies[copy] = name
            read.add(name)
    return copies


def _is_identity(op: OpDesc) -> bool:
    attributes = {attribute.name: attribute for attribute in op.attrs}
    if op.type == "dropout":
        return (
            attributes["dropout_implementation"].s == "upscale_in_train" and attributes["is_test"].b
        )
    if op.type == "scale":
        tensor = any(slot.parameter == "ScaleTensor" and slot.arguments for slot in op.inputs)
        return attributes["scale"].f == 1.0 and attributes["bias"].f == 0.0 and not tensor
    return False


def rename(block: BlockDesc, old: str, new: str) -> None:
    """Let a variable have another name, in place."""
    for op in block.ops:
        programs.rename([*op.inputs, *op.outputs], {old: new})
    for variable in block.vars:
        if variable.name == old:
            variable.name = new

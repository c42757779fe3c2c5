"""What the programs that Paddle 2.6.2 writes need before other tools read them.

Everything here edits a ProgramDesc, the protobuf message inside a .pdmodel file.
"""

from __future__ import annotations

from fleetbert.graph import program as programs
from fleetbert.graph.program import BlockDesc, OpDesc, ProgramDesc


def tidy(program: ProgramDesc, output: str = "logits") -> None:
    """Make a program saved by paddle.jit.save (2.6.2) what every reader of bundles takes.

    - `save` ends a program with a no-op scale per output (normalize_program, "will affect the
      inference performance"), named save_infer_model/scale_0.tmp_0: it goes, and the output gets
      a name.
    - Dropout that does nothing at inference goes: Paddle Inference would remove it itself,
      ONNX and Paddle Lite converters do not always.
    - `input_ids == 0` becomes a fill_constant of shape [], which Paddle Lite (2.12 to 2.14rc0)
      and the quantization passes refuse: shape [1] computes the same.
    """
    block = program.blocks[0]
    _remove_identities(block)
    fetch = next(op for op in block.ops if op.type == "fetch")
    _rename(block, fetch.inputs[0].arguments[0], output)
    give_shapes(block)
    _drop_unused_variables(block)


def give_shapes(block: BlockDesc) -> None:
    """Let each fill_constant of shape [] have shape [1]."""
    for op in block.ops:
        if op.type == "fill_constant":
            _give_shape(block, op)


def _remove_identities(block: BlockDesc) -> None:
    same_as: dict[str, str] = {}
    kept = []
    for op in block.ops:
        for slot in op.inputs:
            slot.arguments[:] = [same_as.get(name, name) for name in slot.arguments]
        if _is_identity(op):
            same_as[programs.argument(op.outputs, "Out")] = programs.argument(op.inputs, "X")
        else:
            kept.append(op)
    programs.replace_ops(block, kept)


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


def _give_shape(block: BlockDesc, op: OpDesc) -> None:
    shape = next(attribute for attribute in op.attrs if attribute.name == "shape")
    fed = any(slot.arguments for slot in op.inputs)  # a shape that is computed
    if shape.longs or fed:
        return
    shape.longs.append(1)
    name = programs.argument(op.outputs, "Out")
    variable = next(variable for variable in block.vars if variable.name == name)
    variable.type.lod_tensor.tensor.dims[:] = [1]


def _rename(block: BlockDesc, old: str, new: str) -> None:
    for op in block.ops:
        for slot in [*op.inputs, *op.outputs]:
            slot.arguments[:] = [new if name == old else name for name in slot.arguments]
    for variable in block.vars:
        if variable.name == old:
            variable.name = new


def _drop_unused_variables(block: BlockDesc) -> None:
    used = {
        name for op in block.ops for slot in [*op.inputs, *op.outputs] for name in slot.arguments
    }
    kept = [
        programs.copy(variable)
        for variable in block.vars
        if variable.name in used or variable.persistable
    ]
    del block.vars[:]
    block.vars.extend(kept)

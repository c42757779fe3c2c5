"""Paddle programs as data: the ProgramDesc in a .pdmodel file, the tensors in a .pdiparams file.

Passes over programs are functions in the files beside this one. A pass returns a program of its own
and leaves what it was given as it was; parameters are shared, and their arrays are never changed.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Iterable, Iterator, List, Mapping, NamedTuple, Sequence, TypeVar, Union

import numpy as np

from fleetbert.core.errors import UserError
from fleetbert.graph import framework_pb2
from fleetbert.graph.framework_pb2 import BlockDesc, OpDesc, ProgramDesc, VarDesc, VarType

# Stored tensors by name.
Parameters = Mapping[str, np.ndarray]
# Of an attribute; a list is of floats or of ints, as its first entry is.
Value = Union[bool, int, float, str, List[int], List[float]]
Message = TypeVar("Message", ProgramDesc, BlockDesc, OpDesc, OpDesc.Var, VarDesc)

DTYPES: dict[VarType.Type, np.dtype] = {
    VarType.FP32: np.dtype("float32"),
    VarType.INT8: np.dtype("int8"),
    VarType.INT16: np.dtype("int16"),
    VarType.INT32: np.dtype("int32"),
    VarType.INT64: np.dtype("int64"),
    VarType.BOOL: np.dtype("bool"),
}
# What NumPy has no type for, by its bytes.
ITEM_BYTES = {VarType.BF16: 2, **{code: dtype.itemsize for code, dtype in DTYPES.items()}}
_CODES = {dtype: code for code, dtype in DTYPES.items()}


def read(path: Path) -> ProgramDesc:
    """The ProgramDesc in a .pdmodel file, without the Python lines that called each operator.

    Paddle writes them: paths of the machine that trained, and half of a small file.
    """
    program = ProgramDesc.FromString(path.read_bytes())
    for block in program.blocks:
        for op in block.ops:
            drop_attribute(op, "op_callstack")
    return program


def write(path: Path, program: ProgramDesc) -> None:
    path.write_bytes(program.SerializeToString())


def read_model(folder: Path) -> tuple[ProgramDesc, Parameters]:
    """The program and the tensors of model.pdmodel and model.pdiparams."""
    program = read(folder / "model.pdmodel")
    return program, read_parameters(program, folder / "model.pdiparams")


def write_model(folder: Path, program: ProgramDesc, arrays: Parameters) -> Path:
    """What `read_model` reads; makes the folder, and returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / "model.pdmodel", program)
    (folder / "model.pdiparams").write_bytes(parameter_bytes(arrays))
    return folder


def copy(message: Message) -> Message:
    """A copy of a protobuf message that no longer depends on where it was."""
    return type(message).FromString(message.SerializeToString())


def replace_ops(block: BlockDesc, ops: Iterable[OpDesc]) -> None:
    """Give the block these operators, which may be its own in another order."""
    copies = [copy(op) for op in ops]
    del block.ops[:]
    block.ops.extend(copies)


def argument(slots: Iterable[OpDesc.Var], parameter: str) -> str:
    """The first variable of a slot of an operator: argument(op.inputs, "X")."""
    return next(slot.arguments[0] for slot in slots if slot.parameter == parameter)


def read_by(op: OpDesc) -> list[str]:
    """The variables that an operator reads."""
    return [name for slot in op.inputs for name in slot.arguments]


def written_by(op: OpDesc) -> list[str]:
    """The variables that an operator writes."""
    return [name for slot in op.outputs for name in slot.arguments]


def arguments(op: OpDesc) -> set[str]:
    """All variables that an operator reads or writes."""
    return {*read_by(op), *written_by(op)}


def rename(slots: Iterable[OpDesc.Var], names: Mapping[str, str]) -> None:
    """Let slots have others in place of the variables that are keys of `names`."""
    for slot in slots:
        slot.arguments[:] = [names.get(name, name) for name in slot.arguments]


def set_argument(slots: Iterable[OpDesc.Var], parameter: str, name: str) -> None:
    """Let a slot have another variable: set_argument(op.inputs, "X", name)."""
    next(slot for slot in slots if slot.parameter == parameter).arguments[0] = name


def operator(
    kind: str, inputs: dict[str, str], outputs: dict[str, str], **attributes: Value
) -> OpDesc:
    """A new operator with a variable for each of these slots."""
    op = OpDesc(type=kind)
    for slot, name in inputs.items():
        op.inputs.add(parameter=slot).arguments.append(name)
    for slot, name in outputs.items():
        op.outputs.add(parameter=slot).arguments.append(name)
    set_attributes(op, **attributes)
    return op


def product(x: str, y: str, out: str) -> OpDesc:
    """The operator that multiplies entry by entry; y may have the last axis of x alone."""
    return operator("elementwise_mul", {"X": x, "Y": y}, {"Out": out}, axis=-1)


def quantize(source: str, target: str, scale: float, data_type: str) -> OpDesc:
    """oneDNN's operator that makes int8 of float32, or, where the type that it is told is float32,
    bfloat16."""
    return operator(
        "quantize",
        {"Input": source},
        {"Output": target},
        Scale=scale,
        Shift=0.0,
        is_negative_input=data_type == "int8",
        bfloat16=data_type == "float32",
        output_format="NCHW",
        use_mkldnn=True,
        mkldnn_data_type=data_type,
    )


def input_names(program: ProgramDesc) -> list[str]:
    """The variables that a program is given, in their order."""
    feeds = [op for op in program.blocks[0].ops if op.type == "feed"]
    feeds.sort(key=lambda op: attribute(op, "col").i)
    return [argument(op.outputs, "Out") for op in feeds]


def output_names(program: ProgramDesc) -> list[str]:
    """The variables that a program answers with."""
    return [argument(op.inputs, "X") for op in program.blocks[0].ops if op.type == "fetch"]


def variable(block: BlockDesc, name: str) -> VarDesc:
    """The VarDesc of that name."""
    return next(described for described in block.vars if described.name == name)


def tensor(block: BlockDesc, name: str) -> VarType.TensorDesc:
    """Type and dims of the variable."""
    return variable(block, name).type.lod_tensor.tensor


def new_variable(block: BlockDesc, name: str, data_type: VarType.Type, dims: Sequence[int]) -> None:
    """Add a tensor to the block; -1 in dims: of any size."""
    described = block.vars.add(name=name)
    described.type.type = VarType.LOD_TENSOR
    described.type.lod_tensor.tensor.data_type = data_type
    described.type.lod_tensor.tensor.dims.extend(dims)


def keep_variables(block: BlockDesc, names: Iterable[str]) -> None:
    """Leave these variables in the block and no other."""
    chosen = set(names)
    kept = [copy(described) for described in block.vars if described.name in chosen]
    del block.vars[:]
    block.vars.extend(kept)


def add_variable(block: BlockDesc, like: str, name: str) -> VarDesc:
    """A new variable that is like another but for its name: its VarDesc."""
    new = block.vars.add()
    new.CopyFrom(variable(block, like))
    new.name = name
    return new


def producer(block: BlockDesc, name: str) -> OpDesc:
    """The operator that writes the variable."""
    return next(op for op in block.ops if name in written_by(op))


def consumers(block: BlockDesc, name: str) -> list[OpDesc]:
    """The operators that read the variable."""
    return [op for op in block.ops if name in read_by(op)]


def attribute(op: OpDesc, name: str) -> OpDesc.Attr:
    """The attribute of that name."""
    return next(entry for entry in op.attrs if entry.name == name)


def has_attribute(op: OpDesc, name: str) -> bool:
    return any(entry.name == name for entry in op.attrs)


def data_type(op: OpDesc) -> str:
    """What oneDNN multiplies in: int8, bfloat16, or float32, which need not be said."""
    name = "mkldnn_data_type"
    return (has_attribute(op, name) and attribute(op, name).s) or "float32"


class Attention(NamedTuple):
    """The operators of one layer's attention: `scores` multiplies what `query` and `key` give,
    `mixed` the softmax of it and what `value` gives.

    one_query: only [CLS] asks, as in the last layer after `first_token_only`.
    """

    query: OpDesc
    key: OpDesc
    value: OpDesc
    scores: OpDesc
    softmax: OpDesc
    mixed: OpDesc
    one_query: bool


def attentions(block: BlockDesc) -> list[Attention]:
    """The attention of all layers, where it is two products and a softmax, in their order.

    UserError where a projection has no bias, as imported programs may have it.
    """
    layers = []
    for softmax in [op for op in block.ops if op.type == "softmax"]:
        scores = producer(block, argument(softmax.inputs, "X"))
        (mixed,) = consumers(block, argument(softmax.outputs, "Out"))
        sides = ((scores, "X"), (scores, "Y"), (mixed, "Y"))
        query, key, value = three = [
            producer(block, argument(op.inputs, side)) for op, side in sides
        ]
        for op in three:
            if op.type != "fc":
                raise UserError(
                    f"attention reads what {op.type} makes, {written_by(op)[0]}, where a linear "
                    "layer with a bias is needed; methods onnx and dynamic need none"
                )
        read = [argument(op.inputs, "Input") for op in three]
        one_query = len({_before_quantize(block, name) for name in read}) > 1
        layers.append(Attention(query, key, value, scores, softmax, mixed, one_query))
    return layers


def _before_quantize(block: BlockDesc, name: str) -> str:
    """The variable in float32, where `name` is the same in int8."""
    made = [op for op in block.ops if op.type == "quantize" and name in written_by(op)]
    return argument(made[0].inputs, "Input") if made else name


class Mean(NamedTuple):
    """The operators of a mean over a text's tokens: `mask` reads the mask, `product` multiplies
    what comes of it and the tokens' states."""

    mask: OpDesc
    product: OpDesc


def means(block: BlockDesc, mask: str) -> list[Mean]:
    """The means that read the variable `mask` (`models.task_heads.Embedder`)."""
    averages = []
    for reader in consumers(block, mask):
        if reader.type == "exp":
            op = reader
            while op.type not in ("matmul", "matmul_v2"):
                (op,) = consumers(block, argument(op.outputs, "Out"))
            averages.append(Mean(reader, op))
    return averages


def drop_attribute(op: OpDesc, name: str) -> None:
    """Take an attribute from an operator, where it has it."""
    for former in [entry for entry in op.attrs if entry.name == name]:
        op.attrs.remove(former)


def set_attributes(op: OpDesc, **values: Value) -> None:
    """Give an operator attributes, in place of those of the same names."""
    for name, value in values.items():
        drop_attribute(op, name)
        new = op.attrs.add(name=name)
        if isinstance(value, bool):
            new.type, new.b = framework_pb2.BOOLEAN, value
        elif isinstance(value, int):
            new.type, new.i = framework_pb2.INT, value
        elif isinstance(value, float):
            new.type, new.f = framework_pb2.FLOAT, value
        elif isinstance(value, str):
            new.type, new.s = framework_pb2.STRING, value
        elif isinstance(value[0], float):
            new.type = framework_pb2.FLOATS
            new.floats.extend(value)
        else:
            new.type = framework_pb2.INTS
            new.ints.extend(value)


def cut(program: ProgramDesc, inputs: Sequence[str], outputs: Sequence[str]) -> ProgramDesc:
    """The part of a program that computes the variables `outputs` from the variables `inputs`."""
    block = program.blocks[0]
    required = set(outputs)
    ops: list[OpDesc] = []
    for op in reversed(block.ops):
        needed = required.intersection(written_by(op)) - set(inputs)
        if needed and op.type not in ("feed", "fetch"):
            ops.append(op)
            required.update(read_by(op))
    part = copy(program)
    feeds = [port("feed", "feed", name, number) for number, name in enumerate(inputs)]
    fetches = [port("fetch", name, "fetch", number) for number, name in enumerate(outputs)]
    replace_ops(part.blocks[0], [*feeds, *reversed(ops), *fetches])
    used = {name for op in part.blocks[0].ops for name in arguments(op)}
    keep_variables(part.blocks[0], used | {"feed", "fetch"})
    return part


def port(kind: str, source: str, target: str, number: int) -> OpDesc:
    """The operator through which input or output `number` of a program goes."""
    return operator(kind, {"X": source}, {"Out": target}, col=number)


def embedding_tables(program: ProgramDesc) -> list[str]:
    """The tables that a program looks up, most rows first."""
    block = program.blocks[0]
    tables = {argument(op.inputs, "W") for op in block.ops if op.type == "lookup_table_v2"}
    return sorted(tables, key=lambda name: (-tensor(block, name).dims[0], name))


def parameter_names(program: ProgramDesc) -> list[str]:
    """The names of the stored tensors, in the order of a .pdiparams file."""
    return sorted(
        described.name
        for described in program.blocks[0].vars
        if described.persistable and described.name not in ("feed", "fetch")
    )


def read_parameters(program: ProgramDesc, path: Path) -> dict[str, np.ndarray]:
    """The tensors of a .pdiparams file (Paddle's save_combine format) by name."""
    data = memoryview(path.read_bytes())
    arrays = {}
    at = 0
    for name in parameter_names(program):
        # uint32 version, uint64 levels of detail, uint32 version, int32 size of the description
        _, levels, _, size = struct.unpack_from("<IQIi", data, at)
        if levels:
            raise ValueError(f"{path}: {name} has levels of detail, which nothing here writes")
        at += 20
        described = VarType.TensorDesc.FromString(bytes(data[at : at + size]))
        at += size
        dtype, shape = DTYPES[described.data_type], tuple(described.dims)
        count = int(np.prod(shape, dtype=np.int64))
        arrays[name] = np.frombuffer(data, dtype, count, at).reshape(shape)
        at += count * dtype.itemsize
    if at != len(data):
        raise ValueError(f"{path}: {len(data) - at} bytes are left after the last tensor")
    return arrays


def parameter_bytes(arrays: Parameters) -> bytes:
    """What a .pdiparams file with these tensors holds."""
    return b"".join(parameter_parts(arrays))


def parameter_parts(arrays: Parameters) -> Iterator[bytes | memoryview]:
    """The same one tensor after the other, whose bytes are not copied."""
    for name in sorted(arrays):
        array = arrays[name]
        array = np.ascontiguousarray(array).reshape(np.shape(array))
        described = VarType.TensorDesc(data_type=_CODES[array.dtype], dims=array.shape)
        text = described.SerializeToString()
        yield struct.pack("<IQIi", 0, 0, 0, len(text)) + text
        yield array.reshape(-1).view(np.uint8).data

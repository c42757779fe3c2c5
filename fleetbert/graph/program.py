"""Paddle programs as data: the ProgramDesc in a .pdmodel file, the tensors in a .pdiparams file.

What the rooms that rewrite programs share. Nothing here runs a program.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any, Iterable, Iterator, NamedTuple, Sequence

import numpy as np
from paddle.base.proto import framework_pb2
from paddle.base.proto.framework_pb2 import BlockDesc, OpDesc, ProgramDesc, VarType

DTYPES: dict[Any, np.dtype[Any]] = {
    VarType.FP32: np.dtype("float32"),
    VarType.INT8: np.dtype("int8"),
    VarType.INT16: np.dtype("int16"),
    VarType.INT32: np.dtype("int32"),
    VarType.INT64: np.dtype("int64"),
    VarType.BOOL: np.dtype("bool"),
}
_CODES = {dtype: code for code, dtype in DTYPES.items()}


def read(path: Path) -> ProgramDesc:
    """The ProgramDesc in a .pdmodel file."""
    return ProgramDesc.FromString(path.read_bytes())


def write(path: Path, program: ProgramDesc) -> None:
    path.write_bytes(program.SerializeToString())


def copy(message: Any) -> Any:
    """A copy of a protobuf message that no longer depends on where it was."""
    return type(message).FromString(message.SerializeToString())


def replace_ops(block: BlockDesc, ops: Iterable[OpDesc]) -> None:
    """Give the block these operators, which may be its own in another order."""
    copies = [copy(op) for op in ops]
    del block.ops[:]
    block.ops.extend(copies)


def argument(slots: Iterable[Any], parameter: str) -> str:
    """The first variable of a slot of an operator: argument(op.inputs, "X")."""
    return next(slot.arguments[0] for slot in slots if slot.parameter == parameter)


def variable(block: BlockDesc, name: str) -> Any:
    """The VarDesc of that name."""
    return next(found for found in block.vars if found.name == name)


def add_variable(block: BlockDesc, like: str, name: str) -> Any:
    """A new variable that is like another but for its name: its VarDesc."""
    new = block.vars.add()
    new.CopyFrom(variable(block, like))
    new.name = name
    return new


def producer(block: BlockDesc, name: str) -> OpDesc:
    """The operator that writes the variable."""
    return next(op for op in block.ops if any(name in slot.arguments for slot in op.outputs))


def consumers(block: BlockDesc, name: str) -> list[OpDesc]:
    """The operators that read the variable."""
    return [op for op in block.ops if any(name in slot.arguments for slot in op.inputs)]


def attribute(op: OpDesc, name: str) -> Any:
    """The AttrDesc of that name."""
    return next(found for found in op.attrs if found.name == name)


class Attention(NamedTuple):
    """The operators of one layer's attention: `scores` multiplies what `query` and `key` give,
    `mixed` the softmax of it and what `value` gives."""

    query: OpDesc
    key: OpDesc
    value: OpDesc
    scores: OpDesc
    softmax: OpDesc
    mixed: OpDesc

    @property
    def one_query(self) -> bool:
        """Whether only [CLS] asks, as in the last layer after `onednn.first_token_only`."""
        three = (self.query, self.key, self.value)
        return len({argument(op.inputs, "Input") for op in three}) > 1


def attentions(block: BlockDesc) -> list[Attention]:
    """The attention of all layers, where it is two products and a softmax, in their order."""
    found = []
    for softmax in [op for op in block.ops if op.type == "softmax"]:
        scores = producer(block, argument(softmax.inputs, "X"))
        (mixed,) = consumers(block, argument(softmax.outputs, "Out"))
        sides = ((scores, "X"), (scores, "Y"), (mixed, "Y"))
        query, key, value = (producer(block, argument(op.inputs, side)) for op, side in sides)
        found.append(Attention(query, key, value, scores, softmax, mixed))
    return found


def set_attribute(op: OpDesc, name: str, value: bool | int | float | str | list) -> None:
    """Give an operator an attribute; a list is of floats or of ints, as its first entry is."""
    for index, found in enumerate(op.attrs):
        if found.name == name:
            del op.attrs[index]
            break
    new = op.attrs.add()
    new.name = name
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


def count_layers(program: ProgramDesc) -> int:
    """Encoder layers of a BERT: each has one softmax, over attention."""
    return sum(op.type == "softmax" for op in program.blocks[0].ops)


def layer_outputs(program: ProgramDesc) -> list[str]:
    """The variables [texts, length, width] that a BERT's encoder layers give, in their order."""
    norms = [argument(op.outputs, "Y") for op in program.blocks[0].ops if op.type == "layer_norm"]
    return norms[2::2]  # the first is the embeddings', then there are two a layer


def cut_groups(program: ProgramDesc, ends: Sequence[int]) -> Iterator[tuple[int, ProgramDesc]]:
    """A BERT in groups of layers, each with the number of its last layer, which `ends` are.

    The first takes input_ids and token_type_ids, the others hidden states and input_ids; the last
    gives logits, the others hidden states.
    """
    layers = layer_outputs(program)
    fetch = next(op for op in program.blocks[0].ops if op.type == "fetch")
    start = None
    for end in ends:
        inputs = ("input_ids", "token_type_ids") if start is None else (start, "input_ids")
        start = layers[end - 1]
        output = argument(fetch.inputs, "X") if end == len(layers) else start
        yield end, cut(program, inputs, [output])


def cut(program: ProgramDesc, inputs: Sequence[str], outputs: Sequence[str]) -> ProgramDesc:
    """The part of a program that computes the variables `outputs` from the variables `inputs`."""
    block = program.blocks[0]
    wanted = set(outputs)
    ops: list[OpDesc] = []
    for op in reversed(block.ops):
        written = {name for slot in op.outputs for name in slot.arguments}
        if op.type in ("feed", "fetch") or not written & wanted - set(inputs):
            continue
        ops.append(op)
        wanted |= {name for slot in op.inputs for name in slot.arguments}
    part = copy(program)
    feeds = [port("feed", "feed", name, number) for number, name in enumerate(inputs)]
    fetches = [port("fetch", name, "fetch", number) for number, name in enumerate(outputs)]
    replace_ops(part.blocks[0], [*feeds, *reversed(ops), *fetches])
    used = {"feed", "fetch"}
    for op in part.blocks[0].ops:
        used |= {name for slot in (*op.inputs, *op.outputs) for name in slot.arguments}
    kept = [copy(found) for found in block.vars if found.name in used]
    del part.blocks[0].vars[:]
    part.blocks[0].vars.extend(kept)
    return part


def add_in_place(program: ProgramDesc) -> None:
    """Let the sum of two activations take the memory of one that nothing else reads afterwards.

    It is the first term then, which oneDNN's addition may overwrite.
    """
    block = program.blocks[0]
    ops = list(block.ops)
    described, last, fixed = _lives(block)
    places: dict[str, str] = {}  # of sums
    for number, op in enumerate(ops):
        if op.type == "elementwise_add":
            terms = [argument(op.inputs, "X"), argument(op.inputs, "Y")]
            target = argument(op.outputs, "Out")
            shapes = [described[n].type.lod_tensor.tensor.dims for n in (*terms, target)]
            free = [name for name in terms if last[name] == number and name not in fixed]
            if free and target not in fixed and shapes[0] == shapes[1] == shapes[2]:
                terms.sort(key=lambda name: name != free[-1])
                for slot in op.inputs:
                    slot.arguments[:] = terms[:1] if slot.parameter == "X" else terms[1:]
                places[target] = places.get(free[-1], free[-1])
                block.vars.remove(described[target])
        for slot in [*op.inputs, *op.outputs]:
            slot.arguments[:] = [places.get(name, name) for name in slot.arguments]


# oneDNN's operators that say in which layout an output is, whatever was in its variable before.
LAID_OUT = {
    "elementwise_add": "Out",
    "fc": "Out",
    "fused_matmul": "Out",
    "layer_norm": "Y",
    "quantize": "Output",
    "softmax": "Out",
}
OVERWRITES = ("softmax",)  # operators that may write what they read


def share_variables(program: ProgramDesc) -> None:
    """Let a variable that nothing reads any more be written anew by a later operator: the one that
    was read last, of which most is in the processor's caches still.

    A variable of Paddle remembers in which layout its memory is. LAID_OUT set that, and share what
    has as many bytes for each token; others share only what the same kind of operator wrote before,
    with the same attributes set. Feeds, fetches and parameters stay as they are. (Paddle's own pass
    for this, `memory_optimize`, does nothing to programs that are opened without the other passes.)
    """
    block = program.blocks[0]
    ops = list(block.ops)
    described, last, fixed = _lives(block)
    free: dict[Any, list[str]] = {}
    shared: dict[str, tuple[Any, str]] = {}

    def give_back(slots: Iterable[Any], number: int) -> None:
        """Of these slots, what operator `number` is the last to use."""
        for name in dict.fromkeys(name for slot in slots for name in slot.arguments):
            if name in shared and last[name] == number:
                kind, place = shared[name]
                if place not in free[kind]:
                    free[kind].append(place)

    for number, op in enumerate(ops):
        before, after = op.inputs, op.outputs
        if op.type not in OVERWRITES:
            before, after = [], [*op.inputs, *op.outputs]
        give_back(before, number)
        for slot in op.outputs:
            for name in slot.arguments:
                if name not in fixed and name not in shared:
                    kind = _kind(op, slot.parameter, described[name].type.lod_tensor.tensor)
                    there = free.setdefault(kind, [])
                    shared[name] = (kind, there.pop() if there else name)
        give_back(after, number)
    for op in ops:
        for slot in [*op.inputs, *op.outputs]:
            slot.arguments[:] = [shared[n][1] if n in shared else n for n in slot.arguments]
    kept = {place for _, place in shared.values()}
    for name in shared.keys() - kept:
        block.vars.remove(described[name])


def _kind(op: OpDesc, parameter: str, tensor: Any) -> tuple[Any, ...]:
    """What an output has in common with those whose variable it may take."""
    if LAID_OUT.get(op.type) != parameter or tensor.data_type not in DTYPES:
        return (tensor.data_type, *tensor.dims, *_signature(op), parameter)
    known = [size for size in tensor.dims if size > 0]
    return len(tensor.dims) - len(known), math.prod(known) * DTYPES[tensor.data_type].itemsize


def _lives(block: BlockDesc) -> tuple[dict[str, Any], dict[str, int], set[str]]:
    """The VarDesc of each variable, the number of the last operator that uses it, and those whose
    memory is not free to use: feeds, fetches and parameters."""
    described = {found.name: found for found in block.vars}
    last = {name: number for number, op in enumerate(block.ops) for name in _arguments(op)}
    fixed = {name for op in block.ops if op.type in ("feed", "fetch") for name in _arguments(op)}
    return described, last, fixed | {n for n, found in described.items() if found.persistable}


def _arguments(op: OpDesc) -> set[str]:
    return {name for slot in [*op.inputs, *op.outputs] for name in slot.arguments}


def _signature(op: OpDesc) -> tuple[str, ...]:
    given = (slot.parameter for slot in op.inputs if slot.arguments)
    return (op.type, *given, *sorted(found.name for found in op.attrs))


def port(kind: str, source: str, target: str, number: int) -> OpDesc:
    """The operator through which input or output `number` of a program goes."""
    op = OpDesc(type=kind)
    op.inputs.add(parameter="X").arguments.append(source)
    op.outputs.add(parameter="Out").arguments.append(target)
    set_attribute(op, "col", number)
    return op


def parameter_names(program: ProgramDesc) -> list[str]:
    """The names of the stored tensors, in the order of a .pdiparams file."""
    return sorted(
        found.name
        for found in program.blocks[0].vars
        if found.persistable and found.name not in ("feed", "fetch")
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


def parameter_bytes(arrays: dict[str, np.ndarray]) -> bytes:
    """What a .pdiparams file with these tensors holds."""
    return b"".join(parameter_parts(arrays))


def parameter_parts(arrays: dict[str, np.ndarray]) -> Iterator[bytes | memoryview]:
    """The same one tensor after the other, whose bytes are not copied."""
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name]).reshape(np.shape(arrays[name]))
        described = VarType.TensorDesc(data_type=_CODES[array.dtype], dims=array.shape)
        text = described.SerializeToString()
        yield struct.pack("<IQIi", 0, 0, 0, len(text)) + text
        yield array.reshape(-1).view(np.uint8).data

"""Variables that share memory: what each operator reads stays the same."""

from __future__ import annotations

from fleetbert.graph import program as programs
from fleetbert.graph import reuse
from fleetbert.graph.fuse import fuse


def test_shared_variables_are_read_as_before(tiny_bundle):
    program = fuse(tiny_bundle / "float32").program
    before = program.SerializeToString()
    shared = reuse.share_variables(program)
    assert program.SerializeToString() == before
    assert reads(shared) == reads(program)
    count = [
        len({n for op in p.blocks[0].ops for n in programs.arguments(op)})
        for p in (program, shared)
    ]
    assert count[1] < 0.9 * count[0]
    named = {found.name for found in shared.blocks[0].vars}
    assert all(programs.arguments(op) - {"feed", "fetch"} <= named for op in shared.blocks[0].ops)


def test_what_is_laid_out_anew_takes_the_variable_that_was_read_last():
    program = programs.ProgramDesc()
    block = program.blocks.add(idx=0, parent_idx=0)
    float32, int8 = programs.VarType.FP32, programs.VarType.INT8
    tensors = {name: (float32, [-1, 8]) for name in "abcde"}
    tensors.update(s=(float32, [-1, 4, -1]), p=(float32, [-1, 4, -1]))
    tensors["wide"] = (int8, [-1, 32])  # as many bytes a token
    for name, (kind, dims) in tensors.items():
        programs.new_variable(block, name, kind, dims)
    steps = [
        ("fc", ["in"], "a"),
        ("fc", ["in"], "b"),
        ("fused_matmul", ["a", "b"], "s"),
        ("softmax", ["s"], "p"),
        ("fc", ["in"], "c"),
        ("fused_matmul", ["p", "c"], "d"),
        ("fc", ["d"], "wide"),
        ("gather_nd", ["wide"], "e"),
    ]
    for kind, inputs, target in steps:
        op = block.ops.add(type=kind)
        op.inputs.add(parameter="X").arguments.extend(inputs)
        op.outputs.add(parameter="Out").arguments.append(target)
    shared = reuse.share_variables(program)
    assert reads(shared) == reads(program)
    written = [op.outputs[0].arguments[0] for op in shared.blocks[0].ops]
    # softmax writes what it reads; a product never what it reads; gather_nd sets no layout
    assert written == ["a", "b", "s", "s", "b", "a", "b", "e"]
    assert {found.name for found in shared.blocks[0].vars} == set("abse")


def test_a_sum_takes_the_place_of_a_term_that_nothing_reads_any_more(tiny_bundle):
    program = fuse(tiny_bundle / "float32").program
    before = program.SerializeToString()
    changed = reuse.add_in_place(program)
    assert program.SerializeToString() == before
    found = []
    for one in (program, changed):
        sums = [op for op in one.blocks[0].ops if op.type == "elementwise_add"]
        found.append([programs.arguments(op) for op in sums])
    assert [len(names) for names in found[0]] == [3] * len(found[0])
    # two a layer; not those of the embeddings, whose tables are looked up in other shapes
    assert [len(names) for names in found[1]].count(2) >= 4
    for before, after in zip(reads(program), reads(changed)):
        assert sorted(before, key=str) == sorted(after, key=str)
    assert len(changed.blocks[0].vars) < len(program.blocks[0].vars)


def test_what_is_read_again_keeps_its_place():
    program = programs.ProgramDesc()
    block = program.blocks.add(idx=0, parent_idx=0)
    for name in "abcd":
        programs.new_variable(block, name, programs.VarType.FP32, [-1, 4])
    for first, second, target in (("a", "b", "c"), ("c", "b", "d")):
        op = block.ops.add(type="elementwise_add")
        op.inputs.add(parameter="X").arguments.append(first)
        op.inputs.add(parameter="Y").arguments.append(second)
        op.outputs.add(parameter="Out").arguments.append(target)
    ops = reuse.add_in_place(program).blocks[0].ops
    found = [[slot.arguments[0] for slot in (*op.inputs, *op.outputs)] for op in ops]
    assert found == [["a", "b", "a"], ["b", "a", "b"]]


def reads(program):
    """For each operator, which operators' outputs it reads: (number, slot, place), or a name that
    none of them writes."""
    writer, found = {}, []
    for number, op in enumerate(program.blocks[0].ops):
        found.append([[writer.get(name, name) for name in slot.arguments] for slot in op.inputs])
        for slot in op.outputs:
            for place, name in enumerate(slot.arguments):
                writer[name] = (number, slot.parameter, place)
    return found

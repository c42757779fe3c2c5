"""Variables that share memory: what each operator reads stays the same."""

from __future__ import annotations

import pytest

from fleetbert.graph import program as programs
from fleetbert.graph import reuse
from fleetbert.graph.program import VarType


def reads(program):
    """For each operator, which operators' outputs it reads: (number, slot, place), or a name that
    none of them writes."""
    writer, actual = {}, []
    for number, op in enumerate(program.blocks[0].ops):
        actual.append([[writer.get(name, name) for name in slot.arguments] for slot in op.inputs])
        for slot in op.outputs:
            for place, name in enumerate(slot.arguments):
                writer[name] = (number, slot.parameter, place)
    return actual


def program_of(tensors, *ops):
    """tensors: (type, dimensions) by name; ops: a type, what is read by slot, what is written."""
    program = programs.ProgramDesc()
    block = program.blocks.add(idx=0, parent_idx=0)
    for name, (kind, dims) in tensors.items():
        programs.new_variable(block, name, kind, dims)
    for kind, inputs, target in ops:
        op = block.ops.add(type=kind)
        for slot, names in inputs.items():
            op.inputs.add(parameter=slot).arguments.extend(names)
        op.outputs.add(parameter="Out").arguments.append(target)
    return program


@pytest.mark.parametrize(
    ("rewrite", "part"), [(reuse.share_variables, 0.9), (reuse.add_in_place, 1.0)]
)
def test_variables_are_read_as_before(fused, rewrite, part):
    """part: of so many variables fewer are left."""
    before = fused.program.SerializeToString()
    changed = rewrite(fused.program)
    assert fused.program.SerializeToString() == before
    for former, now in zip(reads(fused.program), reads(changed)):
        if rewrite is reuse.add_in_place:  # a sum's terms may change places
            former, now = sorted(former, key=str), sorted(now, key=str)
        assert former == now
    count = [
        len({name for op in one.blocks[0].ops for name in programs.arguments(op)})
        for one in (fused.program, changed)
    ]
    assert count[1] < part * count[0]
    named = {actual.name for actual in changed.blocks[0].vars}
    assert all(programs.arguments(op) - {"feed", "fetch"} <= named for op in changed.blocks[0].ops)


def test_what_is_laid_out_anew_takes_the_variable_that_was_read_last():
    tensors = {name: (VarType.FP32, [-1, 8]) for name in "abcde"}
    tensors.update(s=(VarType.FP32, [-1, 4, -1]), p=(VarType.FP32, [-1, 4, -1]))
    tensors["wide"] = (VarType.INT8, [-1, 32])  # as many bytes a token
    program = program_of(
        tensors,
        ("fc", {"X": ["in"]}, "a"),
        ("fc", {"X": ["in"]}, "b"),
        ("fused_matmul", {"X": ["a", "b"]}, "s"),
        ("softmax", {"X": ["s"]}, "p"),
        ("fc", {"X": ["in"]}, "c"),
        ("fused_matmul", {"X": ["p", "c"]}, "d"),
        ("fc", {"X": ["d"]}, "wide"),
        ("gather_nd", {"X": ["wide"]}, "e"),
    )
    shared = reuse.share_variables(program)
    assert reads(shared) == reads(program)
    written = [op.outputs[0].arguments[0] for op in shared.blocks[0].ops]
    # softmax writes what it reads; a product never what it reads; gather_nd sets no layout
    assert written == ["a", "b", "s", "s", "b", "a", "b", "e"]
    assert {actual.name for actual in shared.blocks[0].vars} == set("abse")


def test_a_sum_takes_the_place_of_a_term_that_nothing_reads_any_more(fused):
    sums = [
        [programs.arguments(op) for op in one.blocks[0].ops if op.type == "elementwise_add"]
        for one in (fused.program, reuse.add_in_place(fused.program))
    ]
    assert {len(names) for names in sums[0]} == {3}
    # two a layer; not those of the embeddings, whose tables are looked up in other shapes
    assert [len(names) for names in sums[1]].count(2) >= 4
    # What is read again keeps its place, and so does what an operator wrote that sets no layout.
    program = program_of(
        {name: (VarType.FP32, [-1, 4]) for name in "abcdefg"},
        ("fc", {"X": ["in"]}, "a"),
        ("fc", {"X": ["in"]}, "b"),
        ("lookup_table_v2", {"Ids": ["in"]}, "e"),
        ("lookup_table_v2", {"Ids": ["in"]}, "f"),
        ("elementwise_add", {"X": ["a"], "Y": ["b"]}, "c"),
        ("elementwise_add", {"X": ["c"], "Y": ["b"]}, "d"),
        ("elementwise_add", {"X": ["e"], "Y": ["f"]}, "g"),
    )
    ops = reuse.add_in_place(program).blocks[0].ops[4:]
    actual = [[slot.arguments[0] for slot in (*op.inputs, *op.outputs)] for op in ops]
    assert actual == [["a", "b", "a"], ["b", "a", "b"], ["e", "f", "g"]]

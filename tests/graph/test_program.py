"""Programs and their tensors as data."""

from __future__ import annotations

import numpy as np
import pytest

from fleetbert import bundle as bundles
from fleetbert.graph import onednn
from fleetbert.graph import program as programs


def test_parameters_round_trip_byte_for_byte(tiny_bundle):
    """The file that Paddle wrote, read and written again."""
    folder = bundles.read(tiny_bundle).folder("float32")
    program = programs.read(folder / "model.pdmodel")
    arrays = programs.read_parameters(program, folder / "model.pdiparams")
    assert any(array.ndim == 2 for array in arrays.values())
    assert programs.parameter_bytes(arrays) == (folder / "model.pdiparams").read_bytes()


@pytest.mark.parametrize("dtype", ["float32", "int8", "int16", "int64"])
@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0, 2)])
def test_any_tensor_round_trips(tmp_path, dtype, shape):
    program = programs.ProgramDesc()
    block = program.blocks.add(idx=0, parent_idx=-1)
    arrays = {}
    for name in ("b", "a"):
        block.vars.add(name=name, persistable=True).type.type = programs.VarType.LOD_TENSOR
        arrays[name] = np.random.default_rng(0).integers(-9, 9, shape).astype(dtype)
    (tmp_path / "file").write_bytes(programs.parameter_bytes(arrays))
    found = programs.read_parameters(program, tmp_path / "file")
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


def test_what_is_left_over_is_an_error(tmp_path):
    program = programs.ProgramDesc()
    program.blocks.add(idx=0, parent_idx=-1)
    (tmp_path / "file").write_bytes(b"more")
    with pytest.raises(ValueError, match="4 bytes are left"):
        programs.read_parameters(program, tmp_path / "file")


def test_attributes_are_set_in_place():
    op = programs.OpDesc(type="fc")
    for value in (True, 3, 2.5, "int8", [1, 2], [1.0, 2.0]):
        programs.set_attribute(op, "given", value)
        assert len(op.attrs) == 1
    assert list(programs.attribute(op, "given").floats) == [1.0, 2.0]


def test_shared_variables_are_read_as_before(tiny_bundle):
    program = onednn.fused(tiny_bundle / "float32").program
    shared = programs.copy(program)
    programs.share_variables(shared)
    assert reads(shared) == reads(program)
    count = [
        len({n for op in p.blocks[0].ops for n in programs._arguments(op)})
        for p in (program, shared)
    ]
    assert count[1] < 0.9 * count[0]
    named = {found.name for found in shared.blocks[0].vars}
    assert all(programs._arguments(op) - {"feed", "fetch"} <= named for op in shared.blocks[0].ops)


def test_what_is_laid_out_anew_takes_the_variable_that_was_read_last():
    program = programs.ProgramDesc()
    block = program.blocks.add(idx=0, parent_idx=0)
    float32, int8 = programs.VarType.FP32, programs.VarType.INT8
    tensors = {name: (float32, [-1, 8]) for name in "abcde"}
    tensors.update(s=(float32, [-1, 4, -1]), p=(float32, [-1, 4, -1]))
    tensors["wide"] = (int8, [-1, 32])  # as many bytes a token
    for name, (kind, dims) in tensors.items():
        described = block.vars.add(name=name)
        described.type.type = programs.VarType.LOD_TENSOR
        described.type.lod_tensor.tensor.data_type = kind
        described.type.lod_tensor.tensor.dims.extend(dims)
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
    before = reads(program)
    programs.share_variables(program)
    assert reads(program) == before
    written = [op.outputs[0].arguments[0] for op in block.ops]
    # softmax writes what it reads; a product never what it reads; gather_nd sets no layout
    assert written == ["a", "b", "s", "s", "b", "a", "b", "e"]
    assert {found.name for found in block.vars} == set("abse")


def test_a_sum_takes_the_place_of_a_term_that_nothing_reads_any_more(tiny_bundle):
    program = onednn.fused(tiny_bundle / "float32").program
    changed = programs.copy(program)
    programs.add_in_place(changed)
    found = []
    for one in (program, changed):
        sums = [op for op in one.blocks[0].ops if op.type == "elementwise_add"]
        found.append([programs._arguments(op) for op in sums])
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
        described = block.vars.add(name=name)
        described.type.type = programs.VarType.LOD_TENSOR
        described.type.lod_tensor.tensor.dims.extend([-1, 4])
    for first, second, target in (("a", "b", "c"), ("c", "b", "d")):
        op = block.ops.add(type="elementwise_add")
        op.inputs.add(parameter="X").arguments.append(first)
        op.inputs.add(parameter="Y").arguments.append(second)
        op.outputs.add(parameter="Out").arguments.append(target)
    programs.add_in_place(program)
    found = [[slot.arguments[0] for slot in (*op.inputs, *op.outputs)] for op in block.ops]
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

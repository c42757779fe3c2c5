"""Programs and their tensors as data."""

from __future__ import annotations

import numpy as np
import pytest

from fleetbert import bundle as bundles
from fleetbert.graph import fuse
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
    actual = programs.read_parameters(program, tmp_path / "file")
    for name, array in arrays.items():
        assert actual[name].dtype == array.dtype
        np.testing.assert_array_equal(actual[name], array)


def test_what_is_left_over_is_an_error(tmp_path):
    program = programs.ProgramDesc()
    program.blocks.add(idx=0, parent_idx=-1)
    (tmp_path / "file").write_bytes(b"more")
    with pytest.raises(ValueError, match="4 bytes are left"):
        programs.read_parameters(program, tmp_path / "file")


def test_attributes_are_set_in_place():
    op = programs.OpDesc(type="fc")
    for value in (True, 3, 2.5, "int8", [1, 2], [1.0, 2.0]):
        programs.set_attributes(op, given=value)
        assert len(op.attrs) == 1
    assert list(programs.attribute(op, "given").floats) == [1.0, 2.0]


def test_either_name_of_an_attribute_sets_it():
    """As Paddle 3.3.1 writes them: fc has the new name only, fused_matmul both, one of them set."""
    program = programs.ProgramDesc()
    block = program.blocks.add(idx=0, parent_idx=-1)
    for named in ({"use_onednn": True}, {"use_mkldnn": True, "use_onednn": False}, {"axis": True}):
        op = block.ops.add(type="fc")
        for name, value in named.items():
            programs.set_attributes(op, **{name: value})
    fuse._rename_attributes(program)
    assert [[(one.name, one.b) for one in op.attrs] for op in block.ops] == [
        [("use_mkldnn", True)],
        [("use_mkldnn", True)],
        [("axis", True)],
    ]

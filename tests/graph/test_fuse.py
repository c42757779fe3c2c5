"""What Paddle 3 writes differently, read as 2.6.2 does."""

from __future__ import annotations

from fleetbert.graph import fuse
from fleetbert.graph import program as programs


def test_either_name_of_an_attribute_sets_it():
    """As 3.3.1 writes them: fc has the new name only, fused_matmul both, one of them set."""
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

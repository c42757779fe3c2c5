"""What tests of several forms of a program start from."""

from __future__ import annotations

import pytest
from tiny_bert import make_network


@pytest.fixture(scope="session")
def fused(tmp_path_factory):
    """A tiny random classifier after Paddle's float32 passes, whose attention is two products and a
    softmax. Do not change it."""
    from fleetbert.compress import onednn
    from fleetbert.export import program as export

    folder = tmp_path_factory.mktemp("float32")
    export.save_program(make_network(), folder)
    found = onednn.fused(folder)
    onednn.merge_transposes(found.program)
    return found

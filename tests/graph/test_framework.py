"""The vendored framework.proto: what was made from it, and Paddle's own beside it.

Made anew, from the repository's root, with

    python -m grpc_tools.protoc -I . --python_out=. --pyi_out=. fleetbert/graph/framework.proto
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from google.protobuf import descriptor_pb2

from fleetbert import bundle as bundles
from fleetbert.graph import framework_pb2
from fleetbert.graph import program as programs

ROOT = Path(__file__).parents[2]
PROTO = "fleetbert/graph/framework.proto"
# What 3.3.1 calls by another name than 2.6.2, at the same number and of the same type,
RENAMED = {
    "legacy_lod_level": "lod_level", "dense_tensor": "lod_tensor", "DENSE_TENSOR": "LOD_TENSOR",
    "DenseTensor": "LoDTensor",
}  # fmt: skip
# and types of data that it has besides.
ADDED = r' *value {\n *name: "(FP8_E4M3FN|FP8_E5M2|UINT16|UINT32|UINT64)"\n *number: \d+\n *}\n'


def test_generated_files_are_those_of_the_proto(tmp_path):
    out = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi")]
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", ".", *out, PROTO]
    subprocess.run(command, cwd=ROOT, check=True, timeout=480)
    for made in ("framework_pb2.py", "framework_pb2.pyi"):
        path = (ROOT / PROTO).parent / made
        assert (tmp_path / PROTO).with_name(made).read_text() == path.read_text(), made


def test_it_is_paddles_own_but_for_the_package():
    from paddle.base.proto import framework_pb2 as paddles

    own, theirs = descriptor_pb2.FileDescriptorProto(), descriptor_pb2.FileDescriptorProto()
    framework_pb2.DESCRIPTOR.CopyToProto(own)
    paddles.DESCRIPTOR.CopyToProto(theirs)
    text = str(theirs).replace("paddle.framework.proto", "fleetbert.framework.proto")
    for new, old in RENAMED.items():
        text = text.replace(new, old)
    text = re.sub(ADDED, "", text)
    assert str(own) == text.replace("paddle/fluid/framework/", "fleetbert/graph/")


def test_a_program_is_read_and_written_as_paddle_does(tiny_bundle):
    from paddle.base.proto import framework_pb2 as paddles

    path = bundles.read(tiny_bundle).folder("float32") / "model.pdmodel"
    theirs = paddles.ProgramDesc.FromString(path.read_bytes())
    assert programs.read(path).SerializeToString() == theirs.SerializeToString()

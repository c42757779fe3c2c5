"""The Python beside inference.proto is what the proto says.

Made anew, from the repository's root, with

    python -m grpc_tools.protoc -I fleetbert/deploy=deploy --python_out=build --pyi_out=build \\
        --grpc_python_out=build fleetbert/deploy/inference/inference.proto
    cp build/fleetbert/deploy/inference/* deploy/inference/
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
PROTO = "fleetbert/deploy/inference/inference.proto"


def test_generated_files_are_those_of_the_proto(tmp_path):
    out = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    include = ["-I", "fleetbert/deploy=deploy"]  # the name that it is installed under
    command = [sys.executable, "-m", "grpc_tools.protoc", *include, *out, PROTO]
    subprocess.run(command, cwd=ROOT, check=True, timeout=480)
    for made in ("inference_pb2.py", "inference_pb2.pyi", "inference_pb2_grpc.py"):
        path = ROOT / "deploy" / "inference" / made
        assert (tmp_path / PROTO).with_name(made).read_text() == path.read_text(), made


def test_importing_the_service_imports_no_paddle():
    code = (
        "import sys, fleetbert.deploy.inference.rest, fleetbert.deploy.inference.grpc_service\n"
        "assert 'paddle' not in sys.modules and 'tokenizers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=480)

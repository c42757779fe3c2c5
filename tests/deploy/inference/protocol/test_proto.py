"""The Python beside inference.proto is what the proto says.

Made anew, from the repository's root, with

    python -m grpc_tools.protoc \\
        -I fleetbert/deploy/inference/protocol=deploy/inference/protocol \\
        --python_out=OUT --pyi_out=OUT fleetbert/deploy/inference/protocol/inference.proto
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]
FOLDER = ROOT / "deploy/inference/protocol"
PACKAGE = "fleetbert/deploy/inference/protocol"


def test_generated_files_are_those_of_the_proto(tmp_path):
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", f"{PACKAGE}={FOLDER}"]
    command += [f"--python_out={tmp_path}", f"--pyi_out={tmp_path}", f"{PACKAGE}/inference.proto"]
    subprocess.run(command, check=True, timeout=480)
    for made in ("inference_pb2.py", "inference_pb2.pyi"):
        assert (tmp_path / PACKAGE / made).read_text() == (FOLDER / made).read_text(), made

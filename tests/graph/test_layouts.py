"""Parameters in oneDNN's layout: Paddle's own log says which it has to transform."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import shapes

from fleetbert.graph import program as programs

RUNS = """
import sys
from pathlib import Path

import numpy as np

import fleetbert
from fleetbert.compat import paddle_inference
from fleetbert.engines import engine

inference = paddle_inference.import_inference()
inference.Config.disable_glog_info = lambda config: None
run = engine.open_folder(engine.INT8, Path(sys.argv[1]), "cpu", 1)
ids = np.ones((2, 16), np.int64)
for number in range(3):
    print(f"RUN {number}", file=sys.stderr, flush=True)
    run(ids, ids * 0)
"""


def test_layouts_are_looked_at_and_parameters_transformed_in_the_first_runs_only(
    tiny_bundle, tmp_path
):
    bundle = shapes.add_int8_and_early_exit(tiny_bundle, tmp_path)
    folder = bundle.folder("int8-static")
    environ = {**os.environ, "GLOG_v": "6", "GLOG_minloglevel": "0"}
    command = [sys.executable, "-c", RUNS, str(folder)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    log = done.stderr.split("RUN ")[1:]
    names = {*programs.parameter_names(programs.read(folder / "x86.pdmodel"))}
    actual = [names & {*re.findall(r"Transform Variable (\S+) from", part)} for part in log]
    assert len(actual) == 3
    assert actual[0]
    assert not actual[1] and not actual[2]
    # Additions ask this where Paddle looks at their inputs: in the end only the last layer's of
    # what a gather gives, which has to be transformed in every run.
    asked = [part.count("GetKernelTypeForVar") for part in log]
    assert asked[0]
    assert asked[2] == asked[0] / 4  # two layers have four additions

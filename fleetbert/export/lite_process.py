"""Runs Paddle Lite's converter and its engine; started by `export.lite_opt`.

It may run in another Python than fleetbert does, so it imports nothing of fleetbert. Its argument
is a JSON object: model, params, out (without .nb), target (places, as "arm"), float16, integers (""
or what opt calls them), and for x86 perhaps batches (an .npz) and answers (the .npz to write).
`out`.json says what was converted, and with which versions.
"""

from __future__ import annotations

import json
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from paddlelite import lite


def main(job: dict[str, Any]) -> None:
    opt = lite.Opt()
    opt.set_model_file(job["model"])
    opt.set_param_file(job["params"])
    opt.set_optimize_out(job["out"])
    opt.set_model_type("naive_buffer")
    if job["float16"]:
        opt.enable_fp16()
    opt.set_valid_places(job["target"])
    if job["integers"]:
        opt.set_quant_model(True)
        opt.set_quant_type(job["integers"])
    opt.record_model_info(True)
    opt.run()
    if job.get("batches"):
        answer(f"{job['out']}.nb", job["batches"], job["answers"])
    kernels = (Path(job["out"]) / ".tailored_kernels_list").read_text().split()
    about = {
        "opt": opt.version(),
        "paddlelite": version("paddlelite"),
        "python": platform.python_version(),
        "kernels": sorted(set(kernels)),
    }
    Path(f"{job['out']}.json").write_text(json.dumps(about))


def answer(model: str, batches: str, answers: str) -> None:
    """Save the logits of the batches a0, b0, a1, b1, ... as a0, a1, ..."""
    config = lite.MobileConfig()
    config.set_model_from_file(model)
    predictor = lite.create_paddle_predictor(config)
    logits = {}
    with np.load(batches) as arrays:
        for number in range(len(arrays.files) // 2):
            predictor.get_input(0).from_numpy(arrays[f"a{number}"])
            predictor.get_input(1).from_numpy(arrays[f"b{number}"])
            predictor.run()
            logits[f"a{number}"] = np.array(predictor.get_output(0).numpy())
    np.savez(answers, **logits)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

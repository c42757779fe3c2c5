"""Answers with one engine on a GPU: `python -m fleetbert.doctor.card FOLDER VARIANT PRECISION
TENSORRT`. Prints a line of JSON, a `Finding`. FOLDER is the one that `smoke` has left.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

import fleetbert
from fleetbert.core.errors import UserError
from fleetbert.doctor.findings import Finding, broken, not_here, ok
from fleetbert.doctor.smoke import REPORT, agreement, dev_texts

# Variant, precision, TensorRT.
ENGINES = (
    ("float32", "float32", "off"),
    ("float32", "float16", "off"),
    ("float32", "bfloat16", "off"),
    ("float32", "float32", "auto"),
    ("float32", "float16", "auto"),
    ("float32", "bfloat16", "auto"),
    ("int8-static", "int8", "auto"),
    ("early-exit-float32", "float32", "off"),
    ("early-exit-float32", "float16", "off"),
)


def name(variant: str, precision: str, tensorrt: str) -> str:
    """Of the check."""
    words = {"float32": precision, "int8-static": "int8"}
    what = words.get(variant, f"early exit {precision}")
    return f"GPU {what}" + (" TensorRT" if tensorrt == "auto" else "")


def run(folder: Path, variant: str, precision: str, tensorrt: str) -> Finding:
    """Open it, have it answer, time it, and compare its answers with the CPU's."""
    check = name(variant, precision, tensorrt)
    texts, bundle = dev_texts(folder), folder / "run" / "bundle"
    expected = fleetbert.load(bundle, task="classification")(texts)
    try:
        from fleetbert.engines import gpu  # loads Paddle

        lacks = gpu.tensorrt_lacks(precision) if tensorrt == "auto" else ""
        if lacks:
            return not_here(check, lacks)
        model = fleetbert.load(
            bundle,
            variant,
            task="classification",
            device="gpu",
            precision=precision,
            tensorrt=tensorrt,
        )
        answers = model(texts)
        began = time.perf_counter()
        model(texts)
        speed = len(texts) / (time.perf_counter() - began)
        apart = max(float(np.abs(a.logits - b.logits).max()) for a, b in zip(answers, expected))
        same = agreement(answers, expected)
        return ok(check, f"{same}, logits within {apart:.1e}, {speed:.0f} texts/s")
    except UserError as error:  # the card or the bundle has it not
        return not_here(check, str(error))
    except Exception as error:  # whatever it is, it is to be told
        return broken(check, f"{type(error).__name__}: {error}".splitlines()[0], REPORT)


if __name__ == "__main__":
    print(json.dumps(run(Path(sys.argv[1]), *sys.argv[2:])._asdict()), flush=True)

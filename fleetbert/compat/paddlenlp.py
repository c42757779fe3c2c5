"""What networks take of PaddleNLP 2.8.1. Look here when PaddleNLP changes."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import sys
from typing import TYPE_CHECKING, Any, Iterator

import fleetbert.compat.prepared  # noqa: F401  isort: skip
import paddle

from fleetbert.compat import environment

if TYPE_CHECKING:
    from types import ModuleType


@contextlib.contextmanager
def _empty(*names: str) -> Iterator[None]:
    """Let empty packages stand for these of PaddleNLP, which import all of its parts, and with
    them pandas, scikit-learn, datasets, a web server and every family of models: 3.5 of 4 s.

    Their parts import each other as they are needed. Whoever imports one of the packages
    afterwards gets the whole, with the same classes.
    """
    packages: dict[str, ModuleType] = {}
    for name in names:
        if name in sys.modules:
            continue
        spec = importlib.util.find_spec(name)
        assert spec is not None  # setup.py requires it
        packages[name] = sys.modules[name] = importlib.util.module_from_spec(spec)
        packages[name].__dict__["__version__"] = importlib.metadata.version("paddlenlp")
    try:
        yield
    finally:
        for name in packages:
            del sys.modules[name]
    paddle.disable_signal_handler()  # as PaddleNLP does
    environment.restore_sigterm()


def auto_classes() -> tuple[Any, Any]:
    with _empty("paddlenlp"):
        importlib.import_module("paddlenlp.data")  # before transformers: they need each other
        transformers = importlib.import_module("paddlenlp.transformers")
    return transformers.AutoTokenizer, transformers.AutoModel


with _empty("paddlenlp", "paddlenlp.data", "paddlenlp.transformers"):
    from paddlenlp.transformers.bert.configuration import BertConfig
    from paddlenlp.transformers.bert.modeling import (
        BertForMaskedLM,
        BertForSequenceClassification,
        BertModel,
    )
    from paddlenlp.transformers.model_utils import no_init_weights

__all__ = [
    "BertConfig",
    "BertForMaskedLM",
    "BertForSequenceClassification",
    "BertModel",
    "auto_classes",
    "no_init_weights",
]

"""What is taken of PaddleNLP 2.8.1: models by their names. Look here when PaddleNLP changes."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import importlib.util
import sys
from typing import TYPE_CHECKING, Any, Iterator

import fleetbert.compat.prepared  # noqa: F401  isort: skip
import paddle

from fleetbert.compat import signals

if TYPE_CHECKING:
    from types import ModuleType


@contextlib.contextmanager
def _empty(name: str) -> Iterator[None]:
    """Let an empty package stand for PaddleNLP, which imports all of its parts, and with them
    pandas, scikit-learn, datasets and a web server: 2 of 4 s.

    Its parts import each other as they are needed. Whoever imports the package afterwards gets the
    whole, with the same classes.
    """
    if name in sys.modules:
        yield
        return
    spec = importlib.util.find_spec(name)
    assert spec is not None  # setup.py requires it
    package: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules[name] = package
    package.__dict__["__version__"] = importlib.metadata.version("paddlenlp")
    try:
        yield
    finally:
        del sys.modules[name]
    paddle.disable_signal_handler()  # as PaddleNLP does
    signals.restore_sigterm()


def auto_classes() -> tuple[Any, Any]:
    """(AutoTokenizer, AutoModel)."""
    with _empty("paddlenlp"):
        importlib.import_module("paddlenlp.data")  # before transformers: they need each other
        transformers = importlib.import_module("paddlenlp.transformers")
    return transformers.AutoTokenizer, transformers.AutoModel

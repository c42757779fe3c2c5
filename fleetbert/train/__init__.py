"""The training loop and what can be chosen for it: strategy, precision, callbacks.

`fleetbert.train(...)` is a function for callers, `fleetbert.api.train`. Importing any module of
this package puts the package in the function's place, so a call of it is passed on.
"""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Callable

from fleetbert.compat import prepared  # noqa: F401  before any `import paddle` in here

if TYPE_CHECKING:
    from fleetbert.results import Run


class _Package(ModuleType):
    def __call__(self, *arguments: object, **keys: object) -> Run:
        return _function()(*arguments, **keys)

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(_function())


def _function() -> Callable[..., Run]:
    from fleetbert import api  # which is above this package, and light

    return api.train


sys.modules[__name__].__class__ = _Package

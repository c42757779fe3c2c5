"""Importing Paddle in less time: what it imports for downloads and for compiling operators waits
until somebody uses it, and Python's garbage collector waits for the end.

Together a quarter of the processor time of `import paddle` (2.6.2: 0.95 s; 0.7 s with this).
"""

from __future__ import annotations

import contextlib
import gc
import importlib.abc
import importlib.machinery
import sys
import threading
from types import ModuleType
from typing import Iterator, Sequence

# The second imports setuptools. The first, where they are installed, also click and rich.
DEFERRED = frozenset({"httpx", "paddle.utils.cpp_extension"})


@contextlib.contextmanager
def quick_import() -> Iterator[None]:
    """For the import of Paddle. The objects that it makes stay, and are hundreds of thousands,
    through which the collector would go again and again."""
    collects = gc.isenabled()
    finder = _Finder()
    sys.meta_path.insert(0, finder)
    gc.disable()
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        if not gc.get_freeze_count():  # those that the user froze would thaw
            gc.freeze()
            gc.unfreeze()  # into the oldest generation, which is looked through least
        if collects:
            gc.enable()


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,  # noqa: ARG002  Python gives it
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in DEFERRED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader = _Deferred(spec.loader)
        return spec


class _Deferred(importlib.abc.Loader):
    """Runs a module when a name is first looked up in it. `importlib.util.LazyLoader` does so even
    when the module is only imported a second time, as Paddle does."""

    def __init__(self, loader: importlib.abc.Loader):
        self.loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__loader__ = module.__spec__.loader = self.loader
        names, lock, is_run = vars(module), threading.RLock(), False

        def look_up(name: str) -> object:
            nonlocal is_run
            with lock:
                if not is_run:
                    is_run = True
                    try:
                        self.loader.exec_module(module)
                    except BaseException:
                        is_run = False
                        raise
                    names.pop("__getattr__", None)
            if name not in names:
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
            return names[name]

        names["__getattr__"] = look_up

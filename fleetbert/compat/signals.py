"""SIGTERM and Ctrl-C around the import of Paddle, whose libraries have ideas of their own."""

from __future__ import annotations

import contextlib
import importlib.abc
import importlib.machinery
import signal
import sys
import threading
from types import FrameType, ModuleType
from typing import Iterator, Sequence


def restore_sigterm() -> None:
    """Give SIGTERM back to whom Python knows as its handler: `init_glog` puts one in its place that
    shows a stack, and `paddle.disable_signal_handler()` takes every one away."""
    former = signal.getsignal(signal.SIGTERM)
    if former is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, former)


@contextlib.contextmanager
def wait_for_import() -> Iterator[None]:
    """For the import of Paddle: signals with a handler in Python reach it at the end. An exception
    that it raises before may become `ImportError: initialization failed` of libpaddle."""
    received: list[int] = []

    def receive(number: int, _: FrameType | None) -> None:
        received.append(number)

    handlers = {}
    if threading.current_thread() is threading.main_thread():
        of_process = {each: signal.getsignal(each) for each in (signal.SIGTERM, signal.SIGINT)}
        handlers = {number: each for number, each in of_process.items() if callable(each)}
    finder = _Libpaddle()
    sys.meta_path.insert(0, finder)
    for number in handlers:
        signal.signal(number, receive)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        restore_sigterm()
        if received:
            signal.raise_signal(received[0])


class _Libpaddle(importlib.abc.MetaPathFinder):
    """Has SIGTERM restored where Paddle takes it, in the middle of its import."""

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,  # noqa: ARG002  Python gives it
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "paddle.base.libpaddle":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_wrap(module: ModuleType) -> None:
            execute(module)
            init_glog = module.init_glog

            def init_and_restore(program: str) -> None:
                init_glog(program)
                restore_sigterm()

            vars(module)["init_glog"] = init_and_restore

        spec.loader.exec_module = execute_and_wrap  # type: ignore[method-assign]
        return spec

"""Paddle's static mode, for what builds and runs programs."""

from __future__ import annotations

import contextlib
from typing import Iterator

import fleetbert.compat.prepared  # noqa: F401  isort: skip
import paddle


@contextlib.contextmanager
def static_graph() -> Iterator[None]:
    """Static mode, and the former mode afterwards."""
    dynamic = paddle.in_dynamic_mode()
    paddle.enable_static()
    try:
        yield
    finally:
        if dynamic:
            paddle.disable_static()

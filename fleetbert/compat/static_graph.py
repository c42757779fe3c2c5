"""What Paddle 2.6.2's quantization needs around it."""

from __future__ import annotations

import contextlib
from typing import Iterator

import fleetbert.compat.prepared  # noqa: F401  isort: skip
import paddle


@contextlib.contextmanager
def static_graph() -> Iterator[None]:
    """Paddle's static mode, which its quantization of programs needs, and the former afterwards."""
    dynamic = paddle.in_dynamic_mode()
    paddle.enable_static()
    try:
        yield
    finally:
        if dynamic:
            paddle.disable_static()

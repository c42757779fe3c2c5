"""A machine with NVIDIA cards, as far as Paddle Inference is asked: every call on a config is
recorded and goes on to Paddle's own, which checks the arguments and computes on the CPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import paddle

from fleetbert.compat import cards, paddle_inference

# What the CPU's build refuses after it has read the arguments.
OF_CARDS_ONLY = ("enable_tensorrt_engine",)
Call = tuple  # a method's name, and its arguments by place and by name


class RecordedConfig:
    """A config of Paddle Inference; calls: in their order."""

    def __init__(self, *files: bytes):
        self.real = paddle.inference.Config(*files)
        self.calls: list[Call] = []

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.real, name)

        def call(*words: object, **named: object) -> object:
            self.calls.append((name, words, named))
            try:
                return method(*words, **named)
            except TypeError:
                raise
            except Exception:
                if name not in OF_CARDS_ONLY:
                    raise
                return None

        return call

    def called(self, name: str) -> list[Call]:
        return [call for call in self.calls if call[0] == name]


def put_in(
    monkeypatch,
    count: int = 2,
    capability: tuple[int, int] = (8, 6),
    built_for: tuple[int, int, int] = (8, 5, 1),
    installed: tuple[int, int, int] = (8, 5, 1),
) -> list[RecordedConfig]:
    """Have Paddle find such cards, and TensorRT of these versions; the configs of predictors that
    are created from now on, in their order."""
    created: list[RecordedConfig] = []

    def create(config: RecordedConfig) -> object:
        created.append(config)
        return paddle.inference.create_predictor(config.real)

    inference = SimpleNamespace(
        Config=RecordedConfig,
        PrecisionType=paddle.inference.PrecisionType,
        create_predictor=create,
        get_trt_compile_version=lambda: built_for,
        get_trt_runtime_version=lambda: installed,
    )
    monkeypatch.setattr(paddle_inference, "import_inference", lambda: inference)
    monkeypatch.setattr(paddle, "is_compiled_with_cuda", lambda: True)
    monkeypatch.setattr(cards, "gpu_version", lambda: "2.6.2")
    cuda = paddle.device.cuda
    monkeypatch.setattr(cuda, "device_count", lambda: count)
    monkeypatch.setattr(cuda, "get_device_capability", lambda *_: capability)
    monkeypatch.setattr(cuda, "get_device_name", lambda *_: "NVIDIA Some Card")
    return created

"""Paddle Inference on an NVIDIA card, also through TensorRT.

Nothing here was ever run on a card. What Paddle is asked for follows its sources
(analysis_config.cc, and parts of analysis_predictor.cc); tests hold each call.

TensorRT compiles a program for ranges of shapes. Batches of the shapes that will come run once
without it, Paddle writes down the ranges of all tensors, and the engine is compiled for them. It
stays in the user's cache (~/.cache/fleetbert), which the next start opens. A batch outside the
ranges has the engine compiled again.
"""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path
from typing import Any, Callable, NamedTuple, Sequence

from fleetbert.compat import cards, environment, paddle_inference
from fleetbert.compat.paddle_inference import Predictor, PredictorConfig
from fleetbert.core import files
from fleetbert.core.device import Device
from fleetbert.core.errors import UserError

log = logging.getLogger(__name__)

MEMORY_MB = 256  # of the card, to begin with; Paddle takes more as it needs it
WORKSPACE = 1 << 30  # bytes that TensorRT may use for choosing its kernels
LEAST_OPERATORS = 3  # of a part of the program that TensorRT takes: Paddle's own default
RANGES = "shape_range_info.pbtxt"
CPU = "use --device cpu"


class Whole(NamedTuple):
    """A program that TensorRT may take. folder: of its files. shapes: batches (texts, length) that
    will come; run: has a predictor answer one of each."""

    folder: Path
    shapes: Sequence[tuple[int, int]]
    run: Callable[[Predictor], object]


def create(
    make: Callable[[], PredictorConfig], device: Device, whole: Whole | None = None
) -> Predictor:
    """The predictor of the config that `make` makes. whole: of programs that TensorRT may take."""
    card = check(device)
    inference = paddle_inference.import_inference()
    types = inference.PrecisionType

    def on_card(precision: Any) -> PredictorConfig:
        config = make()
        config.disable_glog_info()
        config.enable_use_gpu(MEMORY_MB, card, precision)
        return config

    halves = {"float16": types.Half, "bfloat16": types.Bfloat16}
    if whole is None or not uses_tensorrt(device):
        return inference.create_predictor(on_card(halves.get(device.precision, types.Float32)))

    def collect(folder: Path) -> None:
        config = on_card(types.Float32)
        config.collect_shape_range_info(str(folder / RANGES))
        whole.run(inference.create_predictor(config))  # its end writes the file

    cache = files.cached(f"tensorrt-{_key(whole, device)}", collect)
    config = on_card(types.Float32)  # of what TensorRT does not take
    config.enable_tensorrt_engine(
        workspace_size=WORKSPACE,
        max_batch_size=1,  # without meaning where shapes have ranges
        min_subgraph_size=LEAST_OPERATORS,
        precision_mode={**halves, "int8": types.Int8}.get(device.precision, types.Float32),
        use_static=True,  # keeps the engine on disk
        use_calib_mode=False,  # the program has its scales
    )
    config.enable_tuned_tensorrt_dynamic_shape(str(cache / RANGES), True)
    config.set_optim_cache_dir(str(cache))
    log.info("TensorRT compiles the program, or opens %s: the first time takes minutes", cache)
    return inference.create_predictor(config)


def uses_tensorrt(device: Device) -> bool:
    """Whether TensorRT computes; UserError for int8 without it."""
    if device.tensorrt == "off":
        return False
    lacks = tensorrt_lacks(device.precision)
    if lacks and device.precision == "int8":
        raise UserError(f"precision is int8, which needs TensorRT, but {lacks}; or {CPU}")
    if lacks:
        log.warning("tensorrt is auto, and it is not used: %s", lacks)
    return not lacks


def tensorrt_lacks(precision: str) -> str:
    """What keeps TensorRT from computing in a precision; "" if nothing does."""
    inference = paddle_inference.import_inference()
    needed, installed = inference.get_trt_compile_version(), inference.get_trt_runtime_version()
    if not any(needed):
        return "the installed PaddlePaddle was built without TensorRT: install another wheel"
    version = ".".join(map(str, needed))
    if not any(installed):
        return (
            f"Paddle finds no libnvinfer.so: install TensorRT {version} and name its folder in "
            "LD_LIBRARY_PATH"
        )
    if installed[0] != needed[0]:
        return (
            f"TensorRT {'.'.join(map(str, installed))} is installed and Paddle was built for "
            f"{version}: install that"
        )
    if precision == "bfloat16" and needed < (9,):
        return f"TensorRT {version} has no bfloat16"
    return ""


def check(device: Device) -> int:
    """The number of the device's card; UserError where Paddle cannot use it."""
    assert device.card is not None
    paddle = environment.import_paddle()
    if not paddle.is_compiled_with_cuda():
        raise UserError(
            f"device is {device.name}, but the installed PaddlePaddle is the CPU build: install "
            f"paddlepaddle-gpu (docs/paddle3.md says which) or {CPU}"
        )
    cuda = paddle.device.cuda
    count = cuda.device_count()
    if not count:
        raise UserError(f"device is {device.name}, but Paddle finds no GPU: {CPU}")
    if device.card >= count:
        raise UserError(f"device is {device.name}, but Paddle finds gpu:0 to gpu:{count - 1} only")
    capability, name = cuda.get_device_capability(device.card), cuda.get_device_name(device.card)
    cards.check(capability, name, CPU)
    if device.precision == "bfloat16" and capability < (8, 0):
        raise UserError(f"{name} has no bfloat16: set precision to float16 or float32")
    return device.card


def _key(whole: Whole, device: Device) -> str:
    """Of all that decides a compiled engine."""
    paddle = environment.import_paddle()
    installed = paddle_inference.import_inference().get_trt_runtime_version()
    card = paddle.device.cuda.get_device_name(device.card)
    about = (paddle.__version__, installed, card, device.precision, whole.shapes)
    digest = hashlib.sha256(repr(about).encode())
    for path in sorted(whole.folder.iterdir()):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]

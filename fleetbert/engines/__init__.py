"""From a bundle to answers. Never imports train, model, PaddleNLP or PaddleSlim."""

from fleetbert.compat import prepared  # noqa: F401  before any `import paddle` in here
from fleetbert.engines import early_exit, lite, onnx, paddle, rows
from fleetbert.engines.engine import (
    BFLOAT16,
    EARLY_EXIT,
    FLOAT32,
    INT8,
    LITE,
    LITE_EARLY_EXIT,
    ONNX,
    ONNX_INT8,
    WEIGHT_ONLY,
    Engine,
    Options,
    Result,
    open,  # noqa: A004
    open_folder,
    register,
)

__all__ = ["Engine", "Options", "Result", "open", "open_folder", "register"]

register(FLOAT32, paddle.open_variant)
register(WEIGHT_ONLY, paddle.open_weight_only)
register(INT8, rows.open_int8)
register(BFLOAT16, rows.open_bfloat16)
register(EARLY_EXIT, early_exit.open_variant)
register(ONNX, onnx.open_variant)
register(ONNX_INT8, onnx.open_variant)
register(LITE, lite.open_variant)
register(LITE_EARLY_EXIT, lite.open_early_exit)

"""From a bundle to answers. Never imports train, model, PaddleNLP or PaddleSlim."""

from fleetbert.compat import prepared  # noqa: F401  before any `import paddle` in here
from fleetbert.engines import early_exit, engine, lite, onnx, paddle, rows, table
from fleetbert.engines.engine import Engine, Options, Result, open, open_folder, register  # noqa: A004

__all__ = ["Engine", "Options", "Result", "open", "open_folder", "register"]

register(engine.FLOAT32, paddle.open_variant)
register(engine.WEIGHT_ONLY, paddle.open_weight_only)
register(engine.INT8, rows.open_int8)
register(engine.BFLOAT16, rows.open_bfloat16)
register(engine.EARLY_EXIT, early_exit.open_variant)
register(engine.ONNX, onnx.open_variant)
register(engine.ONNX_INT8, onnx.open_variant)
register(engine.TABLE, table.open_variant)
register(engine.LITE, lite.open_variant)
register(engine.LITE_EARLY_EXIT, lite.open_early_exit)

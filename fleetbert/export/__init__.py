"""Fills bundles: Paddle Inference programs, ONNX."""

from fleetbert.compat import prepared  # noqa: F401  before any `import paddle` in here

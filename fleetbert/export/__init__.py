"""A trained network → a program → a bundle, and from there to ONNX and Paddle Lite."""

from fleetbert.compat import prepared  # noqa: F401  before any `import paddle` in here

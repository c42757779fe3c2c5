"""Fills bundles: Paddle Inference programs, ONNX."""

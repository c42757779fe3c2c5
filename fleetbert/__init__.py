"""fleetbert: train BERT with PaddlePaddle Fleet, compress it, serve it."""

__version__ = "0.1.0"

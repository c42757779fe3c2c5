"""fleetbert: train BERT with PaddlePaddle Fleet, compress it, serve it."""

from fleetbert.compat import environment

__version__ = "0.1.0"

# Has to happen before the first `import paddle` anywhere; see the module for the reasons.
environment.prepare()

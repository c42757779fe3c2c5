"""The training loop and what can be chosen for it: strategy, precision, callbacks."""

import sys

import fleetbert
from fleetbert.compat import prepared  # noqa: F401  before any `import paddle` in here

sys.modules[__name__].__class__ = fleetbert.TrainPackage  # `fleetbert.train(...)` stays a call

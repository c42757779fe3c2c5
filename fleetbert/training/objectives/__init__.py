"""What is minimized: the loss of each kind of task, and what an evaluation takes of the network.

A task from outside the package gives its own to `register`, under its name.
"""

from fleetbert.training.objectives.losses import CrossEntropy, Objective, get, register
from fleetbert.training.objectives.regularized import regularize

__all__ = ["CrossEntropy", "Objective", "get", "register", "regularize"]

"""What is minimized: the loss of each kind of task, and what an evaluation takes of the network.

A task from outside the package gives its own to `register`, under its name.
"""

from __future__ import annotations

from fleetbert.registry import Registry
from fleetbert.train.objectives.losses import (
    BinaryCrossEntropy,
    CrossEntropy,
    MaskedWords,
    Objective,
    Relevance,
    Similarity,
    SquaredError,
    TokenCrossEntropy,
)
from fleetbert.train.objectives.regularized import regularize

__all__ = ["CrossEntropy", "Objective", "get", "register", "regularize"]

_objectives: Registry[Objective] = Registry(
    "task.name",
    {
        "classification": CrossEntropy(),
        "pair_classification": CrossEntropy(),
        "regression": SquaredError(),
        "pair_regression": SquaredError(),
        "ranking": Relevance(),
        "multi_label_classification": BinaryCrossEntropy(),
        "token_classification": TokenCrossEntropy(),
        "embedding": Similarity(),
        "mlm": MaskedWords(),
    },
)
register = _objectives.__setitem__
get = _objectives.__getitem__

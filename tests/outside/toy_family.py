"""A family of encoders from outside the package: BERT's, under other names, whose position table
begins with two rows that no token has."""

from __future__ import annotations

import numpy as np

from fleetbert.models import encoders
from fleetbert.models.encoders import BERT, Loaded

POSITIONS = "bert.embeddings.position_embeddings.weight"
UNUSED = 2


def fold(loaded: Loaded) -> Loaded:
    tensors, shape = loaded
    positions = tensors[POSITIONS][UNUSED:]
    return Loaded(
        {**tensors, POSITIONS: positions}, {**shape, "max_position_embeddings": len(positions)}
    )


def unfold(loaded: Loaded) -> Loaded:
    tensors, shape = loaded
    positions = np.pad(tensors[POSITIONS], ((UNUSED, 0), (0, 0)))
    return Loaded(
        {**tensors, POSITIONS: positions}, {**shape, "max_position_embeddings": len(positions)}
    )


TOY = BERT._replace(
    model_type="toy",
    title="Toy",
    prefix="trunk.",
    pieces=(("blocks.", "encoder.layers."), (".normal_", ".norm"), ("answer.", "classifier.")),
    former=(),
    keys={"hidden_size": "width", "num_hidden_layers": "depth"},
    architectures={"classifier": "ToyForStars"},
    fold=fold,
    unfold=unfold,
)
encoders.register(TOY)

"""A family of encoders from outside the package: BERT's, under other names."""

from __future__ import annotations

from fleetbert.models import encoders
from fleetbert.models.encoders import BERT

TOY = BERT._replace(
    model_type="toy",
    title="Toy",
    prefix="trunk.",
    pieces=(("blocks.", "encoder.layers."), (".normal_", ".norm"), ("answer.", "classifier.")),
    former=(),
    keys={"hidden_size": "width", "num_hidden_layers": "depth"},
    architectures={"classifier": "ToyForStars"},
)
encoders.register(TOY)

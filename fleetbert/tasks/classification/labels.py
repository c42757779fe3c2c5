"""A label for each text, or for each pair of texts."""

from __future__ import annotations

from typing import Sequence

from fleetbert.core.errors import UserError
from fleetbert.tasks.labels import Labels


class ClassLabels(Labels):
    """At least two, of which each text has one."""

    def check_labels(self, labels: Sequence[str]) -> None:
        if len(labels) < 2:
            raise UserError(
                f"data.train: has the label {labels[0]!r} only; at least two are needed"
            )

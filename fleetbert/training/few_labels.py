"""Learning from a few texts of each label (`task.few_shot`).

The classifier reads vectors, and its weights begin as the labels' centres: the means of the vectors
of their texts and of their names. A step moves each of its texts towards the centre of its label
and away from all others (NormFace, Wang et al. 2017), so that the cost grows with the texts and not
with their pairs. After the last step the weights are computed anew, from the vectors learned.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle

from fleetbert.core.errors import UserError
from fleetbert.models import vectors
from fleetbert.models.task_heads import VectorClassifier
from fleetbert.tasks import Metrics, vector_heads
from fleetbert.training.texts import TextTask

LEAST_TEXTS = 2  # of a label


class FewLabels(TextTask):
    """Classification whose network begins with the labels' centres. UserError for a label with too
    few texts."""

    network: VectorClassifier

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        counts = self.task.labels.counts(self.train.labels, self.labels)
        if counts.min() < LEAST_TEXTS:
            number = int(counts.argmin())
            raise UserError(
                f"{self.train.name}: has {counts[number]} text of the label "
                f"{self.labels[number]!r}, and task.few_shot needs {LEAST_TEXTS} of each; add one, "
                "or leave the label out"
            )
        self.network.eval()
        examples = self._examples(self.network)
        temperature = self.job.task.temperature
        self.network.set_head(vector_heads.centres(*examples, temperature))

    def finish(self, network: VectorClassifier) -> Metrics:
        network.set_head(vector_heads.of_texts(*self._examples(network)))
        if self.dev is None:
            return {}
        with paddle.no_grad():
            batches = self.dev_batches()
            return self.evaluate([self.predict(network, self.dev_arrays(part)) for part in batches])

    def _examples(self, network: VectorClassifier) -> tuple[np.ndarray, np.ndarray, int]:
        """Vectors float32 [examples, hidden] of the training texts and of the labels' names that
        are words; their labels, int64 [examples]; the number of labels."""
        names = [name.replace("_", " ") for name in self.labels]
        words = [number for number, name in enumerate(names) if any(map(str.isalpha, name))]
        max_length, pad_id = self.job.data.max_length, self.tokenizer.pad_id
        named = self.tokenizer.encode([names[number] for number in words], None, max_length)
        parts = [
            vectors.of(network, some, max_length, pad_id) for some in (self.train.encodings, named)
        ]
        labels = np.concatenate([self.train.labels, np.array(words, np.int64)])
        return np.concatenate(parts), labels, len(names)

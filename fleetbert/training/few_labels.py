"""Learning from a few texts of each label (`task.few_shot`).

The classifier reads vectors, and its weights begin as the labels' centres: the means of the vectors
of their texts and of their names. A step moves each of its texts towards the centre of its label
and away from all others (NormFace, Wang et al. 2017), so that the cost grows with the texts and not
with their pairs. After the last step the weights are computed anew, from the vectors learned, and
from those of the texts of `data.unlabelled`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import paddle

from fleetbert.core.errors import UserError
from fleetbert.data.tokenizers import Encodings
from fleetbert.models import vectors
from fleetbert.models.task_heads import VectorClassifier
from fleetbert.tasks import Metrics, unlabelled, vector_heads
from fleetbert.training.texts import TextTask

LEAST_TEXTS = 2  # of a label
LEAST_UNLABELLED = 20  # for each label; fewer made answers worse


class FewLabels(TextTask):
    """Classification whose network begins with the labels' centres. UserError for a label with too
    few texts."""

    network: VectorClassifier
    others: Encodings | None  # texts without labels

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
        self.others = None if self.job.data.unlabelled is None else self._read_others()
        self.network.eval()
        examples = self._examples(self.network)
        temperature = self.job.task.temperature
        self.network.set_head(vector_heads.centres(*examples, temperature))

    def warnings(self) -> list[str]:
        warnings, least = super().warnings(), LEAST_UNLABELLED * len(self.labels)
        if self.others is not None and len(self.others.ids) < least:
            warnings.append(
                f"data.unlabelled: {len(self.others.ids)} texts may do harm; give {least} or more "
                f"for {len(self.labels)} labels, or leave the key out"
            )
        return warnings

    def finish(self, network: VectorClassifier) -> Metrics:
        examples = self._examples(network)
        if self.others is None:
            head = vector_heads.of_texts(*examples)
        else:
            head = vector_heads.of_some_texts(*examples, self._vectors(network, self.others))
        network.set_head(head)
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
        named = self.tokenizer.encode(
            [names[number] for number in words], None, self.job.data.max_length
        )
        parts = [self._vectors(network, some) for some in (self.train.encodings, named)]
        labels = np.concatenate([self.train.labels, np.array(words, np.int64)])
        return np.concatenate(parts), labels, len(names)

    def _vectors(self, network: VectorClassifier, encodings: Encodings) -> np.ndarray:
        return vectors.of(network, encodings, self.job.data.max_length, self.tokenizer.pad_id)

    def _read_others(self) -> Encodings:
        """UserError for texts with labels."""
        path, task = str(self.job.data.unlabelled), self.task
        examples = unlabelled.read_unlabelled(path, task, "data.unlabelled", self.job.data)
        labelled = [example for example in examples if example.label]
        if labelled:
            raise UserError(
                f"data.unlabelled: {path}:{labelled[0].line}: has the label "
                f"{labelled[0].label!r}, and labels are not read here; move such rows to "
                "data.train, or empty their column of labels"
            )
        texts = [example.text_a for example in examples]
        return self.tokenizer.encode(texts, None, self.job.data.max_length)

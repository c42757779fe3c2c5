"""A task on texts: its declared shape, and one object for each protocol."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Mapping, Sequence

import numpy as np

from fleetbert.core.errors import UserError
from fleetbert.core.task_names import Shape
from fleetbert.tasks.answer import Answers
from fleetbert.tasks.evaluator import Evaluator
from fleetbert.tasks.labels import Labels

if TYPE_CHECKING:
    from fleetbert.tasks.loss import Loss


class Task:
    """One kind of answer. `tasks.of` gives one that knows of a bundle's vectors and thresholds
    besides.

    labels: how a table is read and becomes targets; metrics: how answers are measured; answer: what
    users and servers are told. loss: what is minimized, or the module that has it, as `LOSS`: it
    loads Paddle; of rows (`shape.of_texts` is False) the module has `build`, the network of a job,
    and `loss`, and `training.rows` trains it. width: of its vectors, where `shape.pooled`.
    """

    width: int | None = None

    def __init__(
        self,
        shape: Shape,
        metrics: type[Evaluator],
        answer: type[Answers] = Answers,
        labels: type[Labels] = Labels,
        *,
        loss: str | Loss,
    ):
        self.shape, self.loss = shape, loss
        self.labels, self.metrics, self.answer = labels(shape), metrics(shape), answer(shape)

    @property
    def name(self) -> str:
        return self.shape.name

    def outputs(self, labels: Sequence[str]) -> int:
        """How many numbers the network gives for a text; of `per_token` for a token."""
        if self.shape.pooled:
            assert self.width is not None
            return self.width
        return len(labels) if self.shape.outputs is None else self.shape.outputs

    def room(self, texts: int, labels: Sequence[str]) -> np.ndarray:
        """For the outputs of so many texts."""
        if self.shape.per_token:
            return np.zeros(texts, object)
        return np.zeros((texts, self.outputs(labels)), np.float32)

    def of_width(self, width: int | None) -> Task:
        """The task of a network whose vectors have `width` numbers, for tasks that answer these."""
        if not self.shape.pooled:
            return self
        if width is None:
            raise UserError(f"the manifest has no width, which {self.name} needs: export it again")
        known = copy.copy(self)
        known.width = width
        return known

    def with_thresholds(self, thresholds: Mapping[str, float]) -> Task:
        """This task with the thresholds of a bundle's labels, by name."""
        known = copy.copy(self)
        known.metrics, known.answer = copy.copy(self.metrics), copy.copy(self.answer)
        known.metrics.thresholds = known.answer.thresholds = thresholds
        return known

    def head_fields(self) -> dict[str, object]:
        """Fields of a model's config.json by which transformers knows what its head is for."""
        if not self.shape.problem_type:
            return {}
        unnamed = {} if self.shape.least_labels else {"id2label": {"0": "LABEL_0"}}
        return {"problem_type": self.shape.problem_type, **unnamed}

    def check_of_texts(self, where: str, command: str) -> None:
        """UserError if a bundle of it, at `where`, has no encoder, which `command` needs."""
        if not self.shape.of_texts:
            raise UserError(
                f"bundle {where} answers rows of fields (task {self.name}), and {command} takes "
                "models of texts; evaluate, predict, ask and serve take both"
            )

    def check_answers(self, where: str) -> None:
        """UserError unless a bundle of it, at `where`, can be asked."""
        if not self.shape.answers:
            raise UserError(
                f"bundle {where} is a pretrained encoder (task {self.name}) without labels: it "
                "answers nothing yet; train a classifier from it, with the run's folder `model` as "
                "model.init"
            )

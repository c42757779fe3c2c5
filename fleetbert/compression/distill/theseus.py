"""BERT-of-Theseus (Xu et al. 2020): a student's layers take the places of a teacher's.

In each step and for each of the student's layers it is drawn whether it or the group of the
teacher's layers that it stands for computes. Only the student's layers learn; the teacher's, the
embeddings and the head, which both share, stay as they are.
"""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import paddle
from paddle import nn

from fleetbert.compression.distill import teacher as teachers
from fleetbert.training.strategies.single import Single
from fleetbert.training.texts import Arrays


class Theseus(teachers.Taught):
    """The first training, of replacing; in evaluation the student's layers are alone."""

    float32 = "distill.kind: theseus"

    def __init__(self, teacher: teachers.Teacher, strategy: Single, *arguments: Any):
        super().__init__(teacher, strategy, *arguments)
        bert = self.network.network.bert
        for parameter in self.network.parameters():
            parameter.stop_gradient = True
        for parameter in bert.encoder.parameters():
            parameter.stop_gradient = False
        known = list(teachers.build(teacher, self.task, self.labels).network.bert.encoder.layers)
        bounds = [0, *teachers.evenly(len(bert.encoder.layers), len(known))]
        self.drawn = [True] * len(bert.encoder.layers)
        for number, layer in enumerate(bert.encoder.layers):
            group = known[bounds[number] : bounds[number + 1]]
            _put_in_place(layer, group, self.drawn, number)
        settings = self.job.trainer
        steps = sum(len(self.plan(epoch)) for epoch in range(settings.epochs))
        self.steps = min(steps, settings.max_steps or steps)

    def loss(self, model: nn.Layer, arrays: Arrays) -> paddle.Tensor:
        if self.network.training:
            # Seeded with seed, rank and step (train/random.py). The schedule's count of steps is in
            # every checkpoint.
            chance = self.chance(self.strategy.schedule.last_epoch)
            self.drawn[:] = (np.random.random(len(self.drawn)) < chance).tolist()
        return super().loss(model, arrays)

    def chance(self, step: int) -> float:
        """The chance that a layer of the student computes, after so many steps of replacing."""
        settings = self.job.distill  # type: ignore[attr-defined]
        rise = settings.replacing_rise * self.steps
        if step >= rise:
            return 1.0
        return settings.replacing_rate + (1 - settings.replacing_rate) * step / rise


def _put_in_place(layer: nn.Layer, group: list[nn.Layer], drawn: list[bool], number: int) -> None:
    """Have `layer` decide by `drawn`, in training, whether it or the teacher's `group` computes."""
    student = layer.forward

    def forward(self, hidden, mask=None):
        if not self.training or drawn[number]:
            return student(hidden, mask)
        for known in group:
            hidden = known(hidden, mask)
        # Data parallel waits for a gradient of every weight: here they are zeros.
        return hidden + 0.0 * sum(parameter.sum() for parameter in self.parameters())

    layer.forward = types.MethodType(forward, layer)

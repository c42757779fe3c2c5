"""A student that learns the labels, the teacher's outputs (Hinton et al. 2015) and the outputs of
its layers (Sun et al. 2019; with a projection where widths differ, Jiao et al. 2020)."""

from __future__ import annotations

import types
from typing import Any, Iterable

import numpy as np
import paddle
from paddle import nn

from fleetbert.compression.distill import teacher as teachers
from fleetbert.models.layers import Linear
from fleetbert.tasks.evaluator import Part
from fleetbert.training.strategies.single import Single
from fleetbert.training.texts import Arrays


class Student(teachers.Taught):
    """A task with a loss that asks a teacher as well."""

    def __init__(self, teacher: teachers.Teacher, strategy: Single, *arguments: Any):
        super().__init__(teacher, strategy, *arguments)
        self.settings = self.job.distill  # type: ignore[attr-defined]
        self.teacher: nn.Layer | None = None
        if teacher.source is None:
            self.logits = teachers.bundle_logits(
                teacher, self.train, self.tokenizer, strategy, self.labels
            )
            return
        self.teacher = teachers.build(teacher, self.task, self.labels)
        if self.settings.hidden_weight:
            self._map_layers(self.teacher)

    def _map_layers(self, teacher: nn.Layer) -> None:
        """Have the student's network give its layers' outputs too, and note the teacher's."""
        network = self.network
        layers = network.network.bert.encoder.layers
        known = teacher.network.bert.encoder.layers
        outputs = outputs_of(layers)
        self.known = outputs_of([known[n - 1] for n in teachers.evenly(len(layers), len(known))])
        widths = (network.network.config.hidden_size, teacher.network.config.hidden_size)
        if widths[0] != widths[1]:
            network.projections = nn.LayerList([Linear(*widths) for _ in layers])
        logits = network.forward

        def forward(self, *arguments, **inputs):
            answer = logits(*arguments, **inputs)
            if widths[0] == widths[1]:
                return answer, list(outputs)
            # In here, because data parallel looks for its weights behind what a forward gives.
            return answer, [project(value) for project, value in zip(self.projections, outputs)]

        network.forward = types.MethodType(forward, network)

    def predict(self, network: nn.Layer, arrays: Arrays) -> Part:
        def alone(**inputs: paddle.Tensor) -> paddle.Tensor:
            return _apart(network(**inputs))[0]

        return self.objective.predict(alone, arrays)

    def loss(self, model: nn.Layer, arrays: Arrays) -> paddle.Tensor:
        """Sum of all that `distill` gives a weight, a float32 scalar."""
        settings = self.settings
        outputs, hidden = _apart(model(**arrays["inputs"]))
        outputs = outputs.astype("float32")
        known = self._teach(arrays)
        loss = paddle.zeros([])
        if settings.labels_weight:
            loss = loss + settings.labels_weight * self.objective.of_outputs(outputs, arrays)
        if settings.logits_weight:
            soft = self.objective.of_teacher(outputs, known, arrays, settings.temperature)
            loss = loss + settings.logits_weight * soft
        if settings.hidden_weight:
            tokens = paddle.to_tensor(token_weights(arrays, self.tokenizer.pad_id))
            errors = [
                (squared_error(student, teacher) * tokens).sum()
                for student, teacher in zip(hidden, self.known)
            ]
            loss = loss + settings.hidden_weight * sum(errors) / len(errors)
        return loss

    def _teach(self, arrays: Arrays) -> paddle.Tensor:
        if self.teacher is None:
            return paddle.to_tensor(self.logits[arrays["texts"]])
        with paddle.no_grad():
            return self.teacher(**arrays["inputs"]).astype("float32")


def outputs_of(layers: Iterable[nn.Layer]) -> list[paddle.Tensor]:
    """What some layers gave when they were called last: filled in at each call."""
    values: list[paddle.Tensor] = []
    for number, layer in enumerate(layers):
        values.append(None)
        layer.register_forward_post_hook(
            lambda _, __, output, number=number: values.__setitem__(number, output)
        )
    return values


def _apart(answer: Any) -> tuple[paddle.Tensor, list[paddle.Tensor]]:
    """A network's outputs, and those of its layers where it gives them."""
    return answer if isinstance(answer, tuple) else (answer, [])


def squared_error(student: paddle.Tensor, teacher: paddle.Tensor) -> paddle.Tensor:
    """Mean over the width; [rows, length] from two [rows, length, width]."""
    return (student.astype("float32") - teacher.astype("float32")).square().mean(-1)


def token_weights(arrays: Arrays, pad_id: int) -> np.ndarray:
    """Each token's part of the step's mean over texts, of which each is a mean over its tokens;
    float32 [rows, length], 0 for padding."""
    inputs = arrays["inputs"]
    if "segments" in inputs:
        segments = inputs["segments"].numpy()
    else:
        segments = (inputs["input_ids"].numpy() != pad_id).astype(np.int64)
    last = np.cumsum(segments.max(1))  # texts come row by row
    text = segments + np.concatenate([[0], last[:-1]])[:, None] - 1
    real = segments > 0
    lengths = np.bincount(text[real], minlength=last[-1])
    weight = arrays["weight"].numpy()
    if weight.shape != lengths.shape:  # of examples of several texts, or of tokens
        weight = np.full(len(lengths), weight.sum() / len(lengths), np.float32)
    each = weight / lengths
    return np.where(real, each[np.where(real, text, 0)], 0).astype(np.float32)

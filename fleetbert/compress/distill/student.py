"""A student that learns the labels, the teacher's logits (Hinton et al. 2015) and the outputs of
its layers (Sun et al. 2019; with a projection where widths differ, Jiao et al. 2020)."""

from __future__ import annotations

import types
from typing import Any, Iterable

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import nn

from fleetbert.compress.distill import teacher as teachers
from fleetbert.training.strategies.single import Single
from fleetbert.training.texts import Arrays


class Student(teachers.Taught):
    """Classification with a loss that asks a teacher as well."""

    def __init__(self, teacher: teachers.Teacher, strategy: Single, *arguments: Any):
        super().__init__(teacher, strategy, *arguments)
        self.settings = self.job.distill  # type: ignore[attr-defined]
        self.teacher: nn.Layer | None = None
        if teacher.source is None:
            self.logits = teachers.bundle_logits(
                teacher, self.train, self.tokenizer, strategy, self.labels
            )
            return
        self.teacher = teachers.build(teacher, self.labels)
        self.teachers = [self.teacher]
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
            network.projections = nn.LayerList([nn.Linear(*widths) for _ in layers])
        logits = network.forward

        def forward(self, *arguments, **inputs):
            answer = logits(*arguments, **inputs)
            if widths[0] == widths[1]:
                return answer, list(outputs)
            # In here, because data parallel looks for its weights behind what a forward gives.
            return answer, [project(value) for project, value in zip(self.projections, outputs)]

        network.forward = types.MethodType(forward, network)

    def _answer(self, model: nn.Layer, arrays: Arrays) -> tuple[paddle.Tensor, list[paddle.Tensor]]:
        """The student's float32 logits, and its layers' outputs as wide as the teacher's."""
        answer = model(**arrays["inputs"])
        logits, outputs = answer if isinstance(answer, tuple) else (answer, [])
        return logits.astype("float32"), outputs

    def predict(self, network: nn.Layer, arrays: Arrays) -> dict[str, np.ndarray]:
        logits, _ = self._answer(network, arrays)
        return {"texts": arrays["texts"], "logits": logits.numpy()}

    def loss(self, model: nn.Layer, arrays: Arrays) -> paddle.Tensor:
        """Weighted sum over the texts of all that `distill` gives a weight."""
        settings, weight = self.settings, arrays["weight"]
        logits, outputs = self._answer(model, arrays)
        teacher_logits = self._teach(arrays)
        loss = paddle.zeros([])
        if settings.labels_weight:
            losses = F.cross_entropy(logits, arrays["labels"], reduction="none").flatten()
            loss = loss + settings.labels_weight * (losses * weight).sum()
        if settings.logits_weight:
            losses = soft_cross_entropy(logits, teacher_logits, settings.temperature)
            loss = loss + settings.logits_weight * (losses * weight).sum()
        if settings.hidden_weight:
            tokens = paddle.to_tensor(token_weights(arrays, self.tokenizer.pad_id))
            errors = [
                (squared_error(student, teacher) * tokens).sum()
                for student, teacher in zip(outputs, self.known)
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


def soft_cross_entropy(
    logits: paddle.Tensor, teacher_logits: paddle.Tensor, temperature: float
) -> paddle.Tensor:
    """Cross entropy of each text's logits on a teacher's softened answers (Hinton et al. 2015).

    Both [texts, labels] are divided by the temperature, and the result [texts] is multiplied by
    its square, so that gradients keep their size.
    """
    soft = F.softmax(teacher_logits / temperature)
    return -(soft * F.log_softmax(logits / temperature)).sum(-1) * temperature**2


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
    each = arrays["weight"].numpy() / lengths
    return np.where(real, each[np.where(real, text, 0)], 0).astype(np.float32)

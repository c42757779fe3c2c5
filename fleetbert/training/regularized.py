"""The section `loss` of a job: class weights, label smoothing, R-Drop and adversarial training.

They work around any objective, with ranks, accumulation and mixed precision. Evaluation uses the
plain loss.
"""

from __future__ import annotations

from typing import Sequence

import numpy as np
import paddle
from paddle import nn

from fleetbert import config as schema
from fleetbert.core.errors import UserError
from fleetbert.models.task_heads import Headed
from fleetbert.tasks import Arrays, Part
from fleetbert.tasks.loss import Loss


def regularize(
    objective: Loss,
    settings: schema.Loss,
    task: str,
    labels: Sequence[str],
    counts: np.ndarray | None,
    texts: int,
) -> Loss:
    """Return `objective` with the loss of `settings`; itself for the default settings.

    counts: training texts of each label, int64 [labels]; None: the task has no labels. texts: all.
    UserError if the task does not support a setting.
    """
    if settings == schema.Loss():
        return objective
    of_labels = frozenset({"class_weights", "positive_weights"})
    taken = objective.regularizers - (of_labels if counts is None else frozenset())
    for name in ("label_smoothing", "r_drop", *sorted(of_labels)):
        unset = getattr(schema.Loss(), name)
        if getattr(settings, name) != unset and name not in taken:
            raise UserError(
                f"loss.{name}: task.name: {task} does not take it; docs/tasks.md lists which tasks "
                f"do; set it to {unset or 0}"
            )
    if settings.positive_weights != "none":
        assert counts is not None
        weights = positive_weights(settings.positive_weights, labels, counts, texts)
        objective = objective.with_positive_weights(weights)
        settings = settings.model_copy(update={"positive_weights": "none"})
        if settings == schema.Loss():
            return objective
    of_classes = None
    if settings.class_weights != "none":
        assert counts is not None
        of_classes = class_weights(settings.class_weights, labels, counts)
    return Regularized(objective, settings, of_classes)


def class_weights(
    setting: str | dict[str, float], labels: Sequence[str], counts: np.ndarray
) -> np.ndarray:
    """Return the weight of each class in the loss, float32 [labels].

    balanced: texts / (labels x texts of the label), as scikit-learn's (King and Zeng 2001), so that
    all labels count alike. A table: its weights, and 1 for labels that it leaves out.
    """
    if isinstance(setting, dict):
        return _by_label("loss.class_weights", setting, labels)
    return (counts.sum() / (len(labels) * np.maximum(counts, 1))).astype(np.float32)


def positive_weights(
    setting: str | float | dict[str, float], labels: Sequence[str], counts: np.ndarray, texts: int
) -> np.ndarray:
    """Return the weight of texts with a label, relative to those without, float32 [labels].

    balanced: texts without the label / texts with it, as PyTorch's BCEWithLogitsLoss advises; 1 for
    a label that none or all have.
    """
    if isinstance(setting, dict):
        return _by_label("loss.positive_weights", setting, labels)
    if isinstance(setting, str):
        able = (counts > 0) & (counts < texts)
        return np.where(able, (texts - counts) / np.maximum(counts, 1), 1.0).astype(np.float32)
    return np.full(len(labels), setting, np.float32)


def _by_label(key: str, setting: dict[str, float], labels: Sequence[str]) -> np.ndarray:
    unknown = sorted(set(setting) - set(labels))
    if unknown:
        raise UserError(
            f"{key}: {unknown[0]} is no label of data.train, which has "
            f"{', '.join(list(labels)[:20])}"
        )
    return np.array([setting.get(label, 1.0) for label in labels], np.float32)


class Regularized(Loss):
    """`objective` with `settings`. weights: of the classes, float32 [classes], or None."""

    def __init__(self, objective: Loss, settings: schema.Loss, weights: np.ndarray | None = None):
        self.objective, self.settings = objective, settings
        self.weights = None if weights is None else paddle.to_tensor(weights)
        self.passes = 2 if settings.adversarial else 1
        # Of the words' embeddings, (rows, length, hidden): of each forward of `loss`.
        self.gradients: list[paddle.Tensor] = []
        self.moved: paddle.Tensor | None = None

    def prepare(self, network: Headed) -> None:
        self.objective.prepare(network)
        if self.settings.adversarial:
            words = network.network.bert.embeddings.word_embeddings
            words.register_forward_post_hook(self._at_words)

    def _at_words(self, layer: nn.Layer, inputs: object, words: paddle.Tensor) -> paddle.Tensor:
        if self.moved is not None:
            return words + self.moved.astype(words.dtype)
        if not words.stop_gradient:
            words.register_hook(self.gradients.append)
        return words

    def predict(self, network: nn.Layer, arrays: Arrays) -> Part:
        return self.objective.predict(network, arrays)

    def of_outputs(self, outputs: paddle.Tensor, arrays: Arrays) -> paddle.Tensor:
        return self.objective.of_outputs(outputs, arrays)

    def loss(self, model: nn.Layer, arrays: Arrays) -> paddle.Tensor:
        if not paddle.is_grad_enabled():
            return self.objective.loss(model, arrays)
        arrays = self._weighted(arrays)
        self.gradients = []
        loss, logits = self._once(model, arrays)
        if self.settings.r_drop:
            again, others = self._once(model, arrays)
            apart = self.objective.divergence(logits, others, arrays)
            loss = (loss + again) / 2 + self.settings.r_drop * apart
        return loss / self.passes

    def again(self, model: nn.Layer, arrays: Arrays) -> paddle.Tensor:
        """Return half the loss of perturbed word embeddings (Miyato et al. 2017, section 3.2). The
        perturbation of a text has the norm `adversarial`. `loss` was the other half."""
        gradient = sum(gradient.astype("float32") for gradient in self.gradients)
        away = direction(gradient, arrays["inputs"].get("segments"))
        try:
            self.moved = self.settings.adversarial * away
            return self._once(model, self._weighted(arrays))[0] / 2
        finally:
            self.moved, self.gradients = None, []

    def _weighted(self, arrays: Arrays) -> Arrays:
        if self.weights is None:
            return arrays
        labels, weight = (paddle.to_tensor(arrays[name]) for name in ("labels", "weight"))
        return {**arrays, "weight": weight * self.weights[labels.flatten()].reshape(weight.shape)}

    def _once(self, model: nn.Layer, arrays: Arrays) -> tuple[paddle.Tensor, paddle.Tensor]:
        """Return the loss with label smoothing (Szegedy et al. 2016, section 7) and the outputs."""
        outputs = model(**arrays["inputs"]).astype("float32")
        loss, smoothing = self.of_outputs(outputs, arrays), self.settings.label_smoothing
        if smoothing:
            loss = (1 - smoothing) * loss + smoothing * self.objective.of_uniform(outputs, arrays)
        return loss, outputs


def direction(gradient: paddle.Tensor, segments: paddle.Tensor | None) -> paddle.Tensor:
    """Return `gradient` (rows, length, hidden) with norm 1 over each text; 0 where it is 0.

    A text is a row, or the tokens of a row with the same number in `segments` (rows, length).
    """
    squares = gradient.square().sum(-1)  # (rows, length)
    rows, length = squares.shape
    texts = paddle.arange(rows).unsqueeze(1).expand([rows, length])
    if segments is not None:
        texts = texts * (length + 1) + segments.astype(texts.dtype)
    sums = paddle.zeros([rows * (length + 1)]).scatter(
        texts.flatten(), squares.flatten(), overwrite=False
    )
    norms = sums[texts.flatten()].reshape([rows, length, 1]).sqrt()
    known = paddle.isfinite(norms) & (norms > 0)
    return paddle.where(known, gradient / norms, paddle.zeros_like(gradient))

"""A loss that spares rare classes, doubts its labels, or holds against other dropout and words.

What `loss` of a job asks for, around any objective. Ranks, accumulation and mixed precision go on
as they were. Evaluation has the plain loss.
"""

from __future__ import annotations

from typing import Sequence

import numpy as np
import paddle
import paddle.nn.functional as F
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
    """`objective` with what `settings` ask for; itself where they ask for nothing.

    counts: training texts of each label, int64 [labels]; None: the task has no labels. texts: all.
    UserError where the task has not what is asked for.
    """
    if settings == schema.Loss():
        return objective
    for name in ("label_smoothing", "r_drop"):
        if getattr(settings, name) and not objective.has_classes:
            raise UserError(f"loss.{name}: task.name: {task} has no classes; set it to 0")
    if settings.positive_weights != "none":
        if counts is None or not objective.has_several_labels:
            raise UserError(
                f"loss.positive_weights: task.name: {task} has not several labels; set it to none"
            )
        wanted = settings.positive_weights
        objective = objective.with_positive_weights(positive_weights(wanted, labels, counts, texts))
        settings = settings.model_copy(update={"positive_weights": "none"})
        if settings == schema.Loss():
            return objective
    weights = None
    if settings.class_weights != "none":
        if counts is None or not objective.has_classes:
            raise UserError(f"loss.class_weights: task.name: {task} has no labels; set it to none")
        weights = class_weights(settings.class_weights, labels, counts)
    return Regularized(objective, settings, weights)


def class_weights(
    wanted: str | dict[str, float], labels: Sequence[str], counts: np.ndarray
) -> np.ndarray:
    """What a text of each label counts in the loss, float32 [labels].

    balanced: texts / (labels x texts of the label), as scikit-learn's (King and Zeng 2001), so that
    all labels count alike. A table: as it says, 1 for labels that it leaves out.
    """
    if isinstance(wanted, dict):
        return _by_label("loss.class_weights", wanted, labels)
    return (counts.sum() / (len(labels) * np.maximum(counts, 1))).astype(np.float32)


def positive_weights(
    wanted: str | float | dict[str, float], labels: Sequence[str], counts: np.ndarray, texts: int
) -> np.ndarray:
    """What a text that has a label counts beside one that has it not, float32 [labels].

    balanced: texts without the label / texts with it, as PyTorch's BCEWithLogitsLoss advises; 1 for
    a label that none or all have.
    """
    if isinstance(wanted, dict):
        return _by_label("loss.positive_weights", wanted, labels)
    if isinstance(wanted, str):
        able = (counts > 0) & (counts < texts)
        return np.where(able, (texts - counts) / np.maximum(counts, 1), 1.0).astype(np.float32)
    return np.full(len(labels), wanted, np.float32)


def _by_label(key: str, wanted: dict[str, float], labels: Sequence[str]) -> np.ndarray:
    unknown = sorted(set(wanted) - set(labels))
    if unknown:
        raise UserError(
            f"{key}: {unknown[0]} is no label of data.train, which has "
            f"{', '.join(list(labels)[:20])}"
        )
    return np.array([wanted.get(label, 1.0) for label in labels], np.float32)


class Regularized(Loss):
    """`objective`, with `settings`; weights: of the classes, float32 [classes], or None."""

    def __init__(self, objective: Loss, settings: schema.Loss, weights: np.ndarray | None = None):
        self.objective, self.settings = objective, settings
        self.weights = None if weights is None else paddle.to_tensor(weights)
        self.has_classes = objective.has_classes
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

    def loss(self, model: nn.Layer, arrays: Arrays) -> paddle.Tensor:
        if not paddle.is_grad_enabled():
            return self.objective.loss(model, arrays)
        arrays = self._weighted(arrays)
        self.gradients = []
        loss, logits = self._once(model, arrays)
        if self.settings.r_drop:
            again, others = self._once(model, arrays)
            apart = divergence(logits, others) * arrays["weight"]
            loss = (loss + again) / 2 + self.settings.r_drop * apart.sum()
        return loss / self.passes

    def again(self, model: nn.Layer, arrays: Arrays) -> paddle.Tensor:
        """Half the loss where words are moved to where it rises most (Miyato et al. 2017, section
        3.2), by `adversarial` in the norm over a text's words; `loss` was the other half."""
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
        of_texts = self.weights[arrays["labels"].flatten()]
        return {**arrays, "weight": arrays["weight"] * of_texts}

    def _once(self, model: nn.Layer, arrays: Arrays) -> tuple[paddle.Tensor, paddle.Tensor]:
        """The loss with smoothed labels (Szegedy et al. 2016, section 7), and the outputs."""
        kept: list[paddle.Tensor] = []

        def watched(**inputs: paddle.Tensor) -> paddle.Tensor:
            kept.append(model(**inputs))
            return kept[-1]

        loss, smoothing = self.objective.loss(watched, arrays), self.settings.label_smoothing
        if smoothing:
            of_all = -F.log_softmax(kept[-1].astype("float32")).mean(-1)
            loss = (1 - smoothing) * loss + smoothing * (of_all * arrays["weight"]).sum()
        return loss, kept[-1]


def divergence(one: paddle.Tensor, other: paddle.Tensor) -> paddle.Tensor:
    """Mean of both Kullback-Leibler divergences of two logits [texts, classes]: R-Drop (Liang et
    al. 2021, equation 3), float32 [texts]."""
    p, q = (F.log_softmax(logits.astype("float32")) for logits in (one, other))
    return ((p.exp() - q.exp()) * (p - q)).sum(-1) / 2


def direction(gradient: paddle.Tensor, segments: paddle.Tensor | None) -> paddle.Tensor:
    """`gradient` (rows, length, hidden) with norm 1 over each text, which is a row, or the tokens
    of a row that have one number in `segments` (rows, length). 0 where there is none."""
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

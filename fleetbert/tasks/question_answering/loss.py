"""Cross entropy of where an answer begins and of where it ends."""

from __future__ import annotations

import fleetbert.compat.prepared  # noqa: F401  isort: skip
import numpy as np
import paddle
import paddle.nn.functional as F
from paddle import nn

from fleetbert.core.task_names import SHAPES
from fleetbert.tasks.classification.loss import soft_cross_entropy
from fleetbert.tasks.collect import Arrays
from fleetbert.tasks.evaluator import Part
from fleetbert.tasks.loss import Loss
from fleetbert.tasks.question_answering.answer import ContextAnswers

MASKED = -1e4
ANSWERS = ContextAnswers(SHAPES["question_answering"])


class AnswerCrossEntropy(Loss):
    """Of all tokens of a window (Devlin et al. 2019, section 4.2): the first one stands for no
    answer in it."""

    pooled = False

    def of_outputs(self, outputs: paddle.Tensor, arrays: Arrays) -> paddle.Tensor:
        losses = F.cross_entropy(
            _by_window(outputs, arrays), arrays["labels"].flatten(), reduction="none"
        )
        return (losses.reshape([-1, 2]).mean(1) * arrays["weight"]).sum()

    def of_teacher(
        self, outputs: paddle.Tensor, known: paddle.Tensor, arrays: Arrays, temperature: float
    ) -> paddle.Tensor:
        logits, teachers = (_by_window(values, arrays) for values in (outputs, known))
        losses = soft_cross_entropy(logits, teachers, temperature)
        return (losses.reshape([-1, 2]).mean(1) * arrays["weight"]).sum()

    def predict(self, network: nn.Layer, arrays: Arrays) -> Part:
        logits = network(**arrays["inputs"]).astype("float32").numpy().reshape(-1, 2)
        rows = np.empty(len(arrays["places"]), object)
        for number, (places, masked) in enumerate(zip(arrays["places"], arrays["masked"])):
            rows[number] = logits[places[~masked]]
        outputs, words = ANSWERS.pool(rows, arrays["layout"]), arrays["words"]
        return {
            "texts": arrays["texts"],
            "logits": ANSWERS.of_texts(outputs, words, [""] * len(words)),
        }


def _by_window(outputs: paddle.Tensor, arrays: Arrays) -> paddle.Tensor:
    """Outputs (rows, length, 2) as logits (windows * 2, longest): of begin and of end, over the
    tokens of each window."""
    places = paddle.to_tensor(arrays["places"])  # (windows, longest)
    flat = paddle.gather(outputs.reshape([-1, 2]), places.flatten())
    logits = flat.reshape([*places.shape, 2]).transpose([0, 2, 1])
    masked = paddle.to_tensor(arrays["masked"]).unsqueeze(1)  # (windows, 1, longest)
    return (logits + masked.astype(logits.dtype) * MASKED).flatten(0, 1)


LOSS = AnswerCrossEntropy()

"""Whether answers depend on the texts beside them: of every task's scores, and of every engine
where its own tests are (tests/compression/test_onnx_int8.py, the gate's `alone_difference`)."""

from __future__ import annotations

import numpy as np
import pytest

from fleetbert import tasks
from fleetbert.data.ragged import Texts
from fleetbert.engines import alike
from fleetbert.engines.engine import Engine, OneByOne
from fleetbert.tasks.answer import by_text


class Depending(Engine):
    """Answers [texts, 2], or [tokens, 2] of each text, of which batches change the scale."""

    def __init__(self, per_token: bool, by_batch: float):
        super().__init__()
        self.per_token, self.by_batch = per_token, by_batch

    def compute(self, texts, speed=None):
        scale = 1 + self.by_batch * (len(texts.lengths) > 1)
        tokens = np.stack([np.sin(texts.ids), np.cos(texts.ids)], 1) * scale
        rows = by_text(tokens.astype(np.float32), texts.lengths)
        return rows if self.per_token else np.stack([row.mean(0) for row in rows])


@pytest.mark.parametrize(
    "task", ["classification", "multi_label_classification", "regression", "token_classification"]
)
def test_the_scores_of_texts_alone_are_compared(task):
    lengths = np.random.default_rng(0).integers(1, 9, 70)
    texts = Texts(np.arange(lengths.sum()), lengths, lengths)
    scores = tasks.get(task).answer.scores
    per_token = task == "token_classification"
    same, other = Depending(per_token, 0.0), Depending(per_token, 0.01)
    assert alike.alone_difference(same, texts, scores) == 0
    assert 1e-3 < alike.alone_difference(other, texts, scores) <= 0.01
    assert alike.alone_difference(OneByOne(other), texts, scores) == 0
    assert np.isnan(alike.alone_difference(Depending(per_token, np.nan), texts, scores))

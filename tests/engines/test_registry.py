"""An engine from outside the package is opened, run and answered with as those inside are."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fleetbert import bundle as bundles
from fleetbert import engines
from fleetbert.core.errors import UserError
from fleetbert.engines import answer, engine


class Toy(engines.Engine):
    """Answers with numbers in a file: the weight of each label times the tokens of a text."""

    def __init__(self, folder, options):
        super().__init__()
        self.weights = np.array(json.loads((folder / "toy.json").read_text()), np.float32)
        self.threads = options.threads

    def compute(self, texts, speed=None):
        return texts.lengths[:, None] * self.weights


@pytest.fixture
def toy_bundle(copied_bundle, monkeypatch):
    monkeypatch.setattr(engine, "OPENERS", dict(engine.OPENERS))
    engines.register("toy", Toy)

    def fill(folder):
        (folder / "toy.json").write_text("[0.5, -1, 0.25]")
        return bundles.OtherVariant(name="toy", kind="toy", runs_on=["x86", "armv8"])

    return bundles.add_variant(copied_bundle, "toy", fill)


def test_it_is_opened_and_answers(toy_bundle):
    opened = engines.open(toy_bundle, "toy", threads=3)
    assert isinstance(opened, Toy) and opened.threads == 3
    model = answer.load(toy_bundle.root, "toy")
    texts = ["word1 word2 word3", "word4", "word5 word6"] * 7
    logits = answer.compute_logits(model, texts, None).values
    tokens = [len(text.split()) + 2 for text in texts]
    np.testing.assert_allclose(logits, np.outer(tokens, [0.5, -1, 0.25]))
    assert answer.answer(model, texts)[0].label == model.labels[0]
    with pytest.raises(UserError, match="no text leaves the variant toy"):
        answer.load(toy_bundle.root, "toy", speed=0.5)

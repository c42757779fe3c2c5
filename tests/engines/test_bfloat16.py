"""bfloat16 variants, opened."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import shapes
from halves import WITHOUT, needs_bfloat16

from fleetbert import bundle as bundles
from fleetbert.compat import environment
from fleetbert.core.errors import UserError
from fleetbert.data.ragged import Texts
from fleetbert.engines import engine, rows
from fleetbert.engines.alike import random_batch


@pytest.fixture(scope="module")
def bundle(tiny_bundle, tmp_path_factory) -> bundles.Bundle:
    return shapes.add_bfloat16(tiny_bundle, tmp_path_factory.mktemp("bfloat16"))


@needs_bfloat16
def test_any_sequence_of_shapes_is_answered_as_by_a_fresh_engine(bundle):
    """oneDNN's cache confuses shapes in bfloat16 as in float32; see compat.paddle_inference."""
    order = [*shapes.random_shapes(8, 2048, 0), (16, 64), (1, 64), (11, 96), (1, 96)]
    shapes.check(bundle, "bfloat16", order)


@needs_bfloat16
def test_answers_are_float32s_within_its_bound(bundle):
    found = {name: engine.open(bundle, name, threads=1) for name in ("float32", "bfloat16")}
    for shape in ((1, 16), (5, 64), (9, 32)):
        batch = random_batch(np.random.default_rng(shape), shape, shapes.VOCAB_SIZE)
        exact, half = (opened(*batch) for opened in found.values())
        assert 0 < np.abs(half - exact).max() < 0.1 * np.abs(exact).max()


@needs_bfloat16
def test_a_text_has_the_same_answer_alone_as_in_rows_with_others(bundle):
    opened = engine.open(bundle, "bfloat16", threads=1)
    random = np.random.default_rng(0)
    lengths = random.integers(3, 64, 300)
    texts = Texts(random.integers(1, shapes.VOCAB_SIZE, lengths.sum()), lengths, lengths)
    alone = [opened.compute(text) for _, text in texts.parts(np.arange(300)[:, None])]
    np.testing.assert_array_equal(np.concatenate(alone), opened.compute(texts))


@needs_bfloat16
def test_words_stay_in_bfloat16_and_in_the_file(bundle, monkeypatch):
    seen = []
    monkeypatch.setattr(rows, "_open", lambda *arguments: seen.append(arguments))
    rows.open_bfloat16(bundle.folder("bfloat16"), engine.Options())
    _, parameters, _, tables = seen[-1]
    ((name, table),) = tables.items()
    assert table.dtype == np.uint16 and not table.flags.owndata
    assert name not in parameters


@needs_bfloat16
def test_processors_without_it_refuse_the_variant(bundle, monkeypatch):
    """oneDNN would emulate it, more slowly than float32."""
    monkeypatch.setattr(environment, "cpuinfo", lambda: WITHOUT)
    with pytest.raises(UserError, match=r"variant bfloat16 needs .* choose another variant"):
        engine.open(bundle, "bfloat16")
    engine.open(bundle, "float32")
    with pytest.raises(UserError, match="a bfloat16 variant needs a processor with"):
        engine.open_folder(engine.BFLOAT16, bundle.folder("bfloat16"))


def test_it_is_for_processors(tmp_path: Path):
    with pytest.raises(UserError, match="a bfloat16 variant is for CPUs"):
        engine.open_folder(engine.BFLOAT16, tmp_path, device="gpu")

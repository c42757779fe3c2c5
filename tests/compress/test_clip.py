"""Inputs of layers cut below their calibrated threshold: where it helps, only there, and served."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from fleetbert import bundle as bundles
from fleetbert import config
from fleetbert.compress import calibrate, clip, static
from fleetbert.compress.texts import read_batches
from fleetbert.compress.work import Source
from fleetbert.engines import answer, engine, evaluate
from fleetbert.graph import weights


def chosen(x, threshold):
    """What is chosen for one layer with the inputs x, one row of tokens."""
    weight = np.random.default_rng(1).normal(size=(x.shape[1], 5)).astype(np.float32)
    found = SimpleNamespace(weights={"w": weights.quantize(weight, 1)})
    layers = SimpleNamespace(
        inputs={"w": "x"}, parameters={"w": weight}, run=lambda batches: [{"w": x} for _ in batches]
    )
    return clip.choose(found, layers, [{}], {"w": threshold})


def values(seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, (60, 16)).astype(np.float32)


def test_one_outlier_is_cut_for_the_sake_of_all_others():
    x = values()
    assert chosen(x, 1.0) == {}
    x[7, 3] = 40.0
    found = chosen(x, 40.0)["w"]
    assert (found.former, found.threshold) == (40.0, 14.0)
    assert found.error < 0.6 * found.former_error


def test_what_all_tokens_have_is_not_cut():
    x = values()
    x[:, 3] = 40.0
    assert chosen(x, 40.0) == {}


def test_a_token_of_large_values_counts_as_one_token():
    """Its own error is 50 times as large, and still a part of its outputs."""
    x = values()
    x[0] *= 40.0
    assert chosen(x, 40.0)["w"].threshold < 40.0


@pytest.fixture(scope="module")
def planted(trained, tiny_data):
    """The tiny classifier, calibrated as if one value in each layer were 8 times the largest."""
    bundle = bundles.read(trained)
    source = Source(bundle.folder("float32"))
    settings = config.Calibration(data=str(tiny_data / "train.tsv"), texts=64)
    prepared = static.of_texts(source, read_batches(settings, bundle), "abs_max")
    thresholds = static.input_thresholds(prepared)
    wide = {name: 8 * threshold for name, threshold in thresholds.items()}
    return (
        bundle,
        prepared._replace(
            calibration=calibrate.with_thresholds(prepared.calibration, source.program, wide)
        ),
        wide,
    )


def test_clipping_takes_planted_outliers_back(planted, tiny_data, tmp_path, caplog):
    bundle, prepared, wide = planted
    texts = config.Calibration(data=str(tiny_data / "dev.tsv"), texts=clip.TEXTS)
    caplog.set_level("INFO", "fleetbert")
    clipped = static.clipped(
        prepared, Source(bundle.folder("float32")), read_batches(texts, bundle)
    )
    for name, threshold in static.input_thresholds(clipped).items():
        assert threshold < 0.5 * wide[name]
        assert any(f"clip: {name}: inputs cut at" in line for line in caplog.messages)
    model = answer.load(bundle.root, "float32")
    table = evaluate.read_known(model, tiny_data / "dev.tsv")
    texts = model.task.texts(table.examples)
    exact = answer.compute_logits(model, *texts).values
    changes = {}
    for case, mix in (("outliers", prepared), ("clipped", clipped)):
        folder = tmp_path / case
        folder.mkdir()
        static.write_mix(mix, folder)
        served = model._replace(engine=engine.open_folder(engine.INT8, folder, "cpu", 2))
        found = answer.compute_logits(served, *texts).values
        changes[case] = np.square(found - exact).mean()
    assert changes["clipped"] < 0.5 * changes["outliers"]

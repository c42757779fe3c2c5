"""The report of a quantization: what it shows, and that nothing in it is fetched or run."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest

from fleetbert import bundle as bundles
from fleetbert.compression import report

DRAWN = True  # see conftest.py


def variant(name, accuracy, speed, size, sha="0", cls=bundles.Int8Variant, **fields):
    return cls(
        name=name,
        files=[bundles.File(path=f"{name}/x86.pdmodel", sha256="0", size=1000)],
        accuracy=[
            bundles.Accuracy(
                data="dev.tsv", data_sha256=sha, n=100, accuracy=accuracy, float32_accuracy=0.9
            )
        ],
        versions={"paddlepaddle": "2.6.2"},
        comparison=bundles.Comparison(
            speed_ratio=speed,
            size_ratio=size,
            texts_per_s=100 * speed,
            float32_texts_per_s=100.0,
            max_logit_difference=0.1,
        ),
        **fields,
    )


@pytest.fixture
def bundle(tiny_bundle):
    bundle = bundles.read(tiny_bundle)
    others = [variant("int8-one", 0.89, 3.0, 0.3), variant("elsewhere", 0.5, 9.0, 0.1, sha="1")]
    variants = [*bundle.manifest.variants, *others]
    return bundles.Bundle(bundle.root, bundle.manifest.model_copy(update={"variants": variants}))


def test_points_are_of_one_table(bundle):
    made = variant("int8-two", 0.8, 4.0, 0.25)
    found = report.points(bundle, made, "0")
    assert [point.name for point in found] == ["float32", "int8-one", "int8-two"]
    assert [point.accuracy.accuracy for point in found] == [0.9, 0.89, 0.8]
    assert [point.added for point in found] == [True, True, False]
    size = sum(file.size for file in bundle.variant("float32").files) / 1e6
    assert [point.megabytes for point in found] == pytest.approx([size, 0.3 * size, 0.25 * size])


def test_the_page_shows_it_all(bundle, tmp_path, monkeypatch):
    made = variant(
        "int8-two",
        0.8,
        4.0,
        0.25,
        output_errors={"linear_1.w_0": 0.125, "linear_2.w_0": 0.5},
        weight_errors={"linear_1.w_0": 0.01},
        thresholds={"linear_2.w_0": 3.25},
        smoothed={"linear_2.w_0": {"exponent": 0.7, "former_error": 0.9, "error": 0.3}},
    )
    random = np.random.default_rng(0)
    drop = bundles.Drop(value=0.1, low=-0.01, high=0.2, test="mcnemar")
    accuracy = made.accuracy[0].model_copy(update={"drop": drop})
    made = made.model_copy(update={"accuracy": [accuracy]})
    inputs = [{"linear_2.w_0": random.normal(size=(20, 8))} for _ in range(2)]
    weights = {"linear_2.w_0": random.normal(size=(8, 4))}
    groups = {"layer 0 attention": ["linear_1.w_0"], "head": ["linear_2.w_0"]}
    monkeypatch.setattr(report.sensitivity, "groups", lambda program: groups)
    monkeypatch.setattr(report.environment, "machine", lambda threads: {"processor": "a processor"})
    monkeypatch.setattr(report, "MOST_DRAWN", 1)
    path = tmp_path / "report.html"
    layers = SimpleNamespace(parameters=weights, run=lambda texts: texts)
    work = SimpleNamespace(
        job=SimpleNamespace(report=str(path), model_dump=lambda: {"method": "static"}),
        gate=SimpleNamespace(max_drop=0.01, data="<script>alert(1)</script>", threads=1),
        source=SimpleNamespace(layers=layers, program=None),
    )
    assert report.write(work, bundle, made, inputs, "int8-two: accuracy falls") == path
    text = path.read_text(encoding="utf-8")
    assert "<script" not in text and "http" not in text.replace("http-equiv", "")
    for shown in (
        "int8-two (not added)", "int8-two: accuracy falls", "50.00 %", "12.50 %", "1.00 %", "3.25",
        "a processor", "paddlepaddle 2.6.2", "100 texts are too few", "(-0.0100 to 0.2000)",
        "<td>0.7</td><td>90.00 %</td><td>30.00 %</td>", "method: static",
    ):  # fmt: skip
        assert shown in text, shown
    assert text.index("50.00 %") < text.index("12.50 %")  # the worst first
    titles = re.findall("<figcaption>([^<]*)", text)
    assert titles == [
        "Accuracy and speed",
        "Accuracy and size",
        "head · linear_2.w_0",
    ]
    assert text.count("<svg") == len(titles)

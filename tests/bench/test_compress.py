"""Real runs of `bench compress`; the peer is ONNX Runtime in this environment."""

from __future__ import annotations

import json
import sys

import pytest

from fleetbert import bundle as bundles
from fleetbert import cli
from fleetbert.bench import compress, models
from fleetbert.engines.alike import LARGEST_DIFFERENCE
from fleetbert.errors import UserError


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "texts.tsv"
    rows = [
        f"{('bad', '好')[n % 2]}\t{' '.join(f'word{n + k}' for k in range(n))}"
        for n in range(1, 40)
    ]
    path.write_text("\n".join(["label\ttext_a", *rows]) + "\n", encoding="utf-8")
    return path


def test_all_variants_answer_beside_onnx_runtime(tiny_bundle, texts, tmp_path, capsys):
    before = sorted((path, path.stat().st_mtime_ns) for path in tiny_bundle.rglob("*"))
    words = ["--bundle", tiny_bundle, "--data", texts, "--rounds", 2, "--threads", 1]
    words += ["--peer-python", sys.executable, "--json", tmp_path / "report.json"]
    words += ["--student", tiny_bundle, "--plot", tmp_path / "plot.png"]
    with pytest.raises(SystemExit) as caught:
        cli.main(["bench", "compress", *map(str, words)])
    out, err = capsys.readouterr()
    assert caught.value.code == 0, err
    assert sorted((path, path.stat().st_mtime_ns) for path in tiny_bundle.rglob("*")) == before
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    engines = report["engines"]
    assert list(engines) == [
        "float32",
        "int8-dynamic",
        "int8-static",
        "student int8-static",
        "ONNX Runtime float32",
        "ONNX Runtime dynamic int8",
    ]
    assert len(report["segments"]) == 2 * 6
    for name, found in engines.items():
        assert name in out
        assert len(found["speed"]["rounds"]) == 2
        assert found["drop"] == pytest.approx(engines["float32"]["accuracy"] - found["accuracy"])
        # Each answers as its own arithmetic does: float32 alike, int8 nearly.
        exact = name in ("float32", "ONNX Runtime float32")
        assert (found["difference"] < LARGEST_DIFFERENCE) == exact, (name, found)
    assert engines["student int8-static"]["difference"] == engines["int8-static"]["difference"]
    files = bundles.read(tiny_bundle).variant("float32").files
    assert engines["float32"]["bytes"] == sum(file.size for file in files)
    assert engines["int8-static"]["size"] < 0.9  # a tiny one is mostly program
    assert {bar["name"] for bar in engines["int8-static"]["bars"]} == {
        "times float32's texts/s",
        "of float32's bytes",
        "accuracy lost",
        "times ONNX Runtime's dynamic int8's texts/s",
        "more accuracy lost than by ONNX Runtime",
    }
    assert not engines["float32"]["bars"]
    assert (tmp_path / "plot.png").stat().st_size > 1000


def test_of_random_weights_only_the_speed_is_shown(tiny_vocab, texts, tmp_path, monkeypatch):
    monkeypatch.setitem(models.SHAPES, "bert-base", (1, 32, 2, 64))
    job = tmp_path / "mine.yaml"
    job.write_text(f"method: static\nname: mine\ncalibration: {{data: {texts}}}\n")
    report = compress.bench(
        None,
        str(texts),
        methods=[str(job)],
        calibration=None,
        texts=20,
        rounds=1,
        threads=1,
        peer_python=sys.executable,
        shape="bert-base",
        vocab=str(tiny_vocab),
        max_length=32,
    )
    assert [found["accuracy"] for found in report["engines"].values()] == [None] * 4
    (bar,) = report["engines"]["mine"]["bars"]
    assert (bar["name"], bar["at_least"]) == ("times float32's texts/s", 3.0)
    text = compress.format_report(report)
    assert "The weights are random" in text and "mine" in text


def test_bars_are_met_at_their_value_and_missed_below():
    found = {
        "method": "static",
        "made_from": "float32",
        "speed": {"median": 2.8},
        "beside_ort": {"median": 1.39},
        "size": 0.28,
        "drop": 0.005,
    }
    met = [bar["met"] for bar in compress._bars(found, 0.001, None)]
    assert met == [True, True, True, False, False]
    assert compress._bars({**found, "made_from": "pruned-float32"}, 0.001, None) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rounds": 0}, "--rounds is 0"),
        ({"methods": ["statik"]}, "statik is none of dynamic, static"),
        ({"overrides": ["trainer.epochs=1"]}, "need --config"),
    ],
)
def test_wrong_options_are_refused(tiny_bundle, texts, changes, message):
    options = {"methods": ["static"], "calibration": None, "texts": 5, "rounds": 1, "threads": 1}
    options["peer_python"] = sys.executable
    with pytest.raises(UserError, match=message):
        compress.bench(str(tiny_bundle), str(texts), **{**options, **changes})

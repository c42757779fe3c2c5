"""Real runs of `bench infer`; the peer is ONNX Runtime in this environment."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
from scipy import special
from tiny_bert import LABELS

from fleetbert import bundle as bundles
from fleetbert import cli
from fleetbert.bench import infer, measure, models
from fleetbert.data.batching import SAFE_LENGTHS
from fleetbert.data.tokenizers import Encodings
from fleetbert.engines import engine
from fleetbert.engines.alike import LARGEST_DIFFERENCE
from fleetbert.errors import UserError


@pytest.fixture
def texts(tmp_path):
    """A table of 70 texts of 1 to 40 words."""
    rng = np.random.default_rng(0)
    rows = ["label\ttext_a"]
    for number in range(70):
        words = " ".join(f"word{word}" for word in rng.integers(0, 150, rng.integers(1, 41)))
        rows.append(f"{LABELS[number % 3]}\t{words}")
    path = tmp_path / "texts.tsv"
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def run(*words):
    with pytest.raises(SystemExit) as caught:
        cli.main(["bench", "infer", "--peer-python", sys.executable, *map(str, words)])
    return caught.value.code


def test_all_engines_answer_alike(tiny_bundle, texts, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(measure, "PAUSE", 0.0)
    monkeypatch.setattr(infer, "BATCHES", (1, 3))
    monkeypatch.setattr(infer, "LENGTHS", (16, 1024))
    before = sorted((path, path.stat().st_mtime_ns) for path in tiny_bundle.rglob("*"))
    words = ["--bundle", tiny_bundle, "--data", texts, "--rounds", 2, "--threads", 1, "--full"]
    words += ["--json", tmp_path / "report.json", "--html", tmp_path / "page.html", "--markdown"]
    code = run(*words, "--engines", "float32,ort,ort-int8,torch")
    out, err = capsys.readouterr()
    assert code == 0, err
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    names = ("float32", "ONNX Runtime float32", "ONNX Runtime dynamic int8")
    orders = ("single", "arrival", "sorted")
    assert list(report["engines"]) == [f"{name}, {order}" for name in names for order in orders]
    assert len(report["segments"]) == 18
    assert "PyTorch eager" in report["missing"][0] and "has no torch" in report["missing"][0]
    exact = {f["accuracy"] for f in report["engines"].values() if f["exact"]}
    assert len(exact) == 1 and None not in exact
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    for name, found in report["engines"].items():
        assert f"| {name} | " in out and f"<td>{name}</td>" in page
        assert not found["exact"] or found["difference"] < LARGEST_DIFFERENCE
        assert found["texts"] == 140 and found["peak_mb"] > 0 and found["cpu_seconds"] > 0
        assert 0 <= found["padding"] < 1
        assert (found["p50_ms"] is not None) == (found["order"] == "single")
    # 1,024 tokens are more than this network has positions for.
    cells = [(c["engine"], c["length"], c["batch"]) for c in report["shapes"]]
    assert cells == [(name, 16, batch) for name in names for batch in (1, 3)]
    assert all(cell["ms"] > 0 for cell in report["shapes"])
    assert page.count("<svg") == 4
    assert sorted((path, path.stat().st_mtime_ns) for path in tiny_bundle.rglob("*")) == before


def test_without_a_bundle_one_with_random_weights_is_made(tiny_vocab, texts, monkeypatch):
    monkeypatch.setitem(models.SHAPES, "bert-base", (2, 32, 2, 64))
    report = infer.bench(
        None,
        str(texts),
        texts=20,
        rounds=1,
        threads=1,
        peer_python=sys.executable,
        shape="bert-base",
        vocab=str(tiny_vocab),
        max_length=32,
        engines=["float32", "int8-static", "ort-int8"],
        orders=["arrival", "sorted"],
    )
    assert report["data"]["texts"] == 20
    assert all(found["accuracy"] is None for found in report["engines"].values())
    expected = [("int8-static, sorted", "float32, arrival", 9.0)]
    expected.append(("int8-static, sorted", "ONNX Runtime dynamic int8, sorted", 1.4))
    assert [(r["engine"], r["reference"], r["at_least"]) for r in report["ratios"]] == expected
    for ratio in report["ratios"]:
        speeds = [report["engines"][ratio[who]]["texts_per_s"] for who in ("engine", "reference")]
        assert ratio["median"] == pytest.approx(speeds[0] / speeds[1])
        assert ratio["met"] == (ratio["median"] >= ratio["at_least"])
    text = infer.format_report(report)
    assert "The weights are random" in text and "WARNING" not in text


def test_plans_cover_all_texts_once():
    lengths = np.random.default_rng(1).integers(3, 129, 100)
    ids = [np.zeros(length, np.int32) for length in lengths]
    plans = infer.plan(Encodings(ids, lengths.astype(np.int32), 0))
    assert list(plans) == list(infer.ORDERS)
    for batches in plans.values():
        found = [index for indices, _ in batches for index in indices]
        assert sorted(found) == list(range(100))
        for indices, length in batches:
            assert length >= lengths[indices].max()
    assert [len(indices) for indices, _ in plans["arrival"]] == [32, 32, 32, 4]
    assert all(length == lengths[indices].max() for indices, length in plans["arrival"])
    assert plans["single"] == [([number], length) for number, length in enumerate(lengths)]
    assert all(length in SAFE_LENGTHS for _, length in plans["sorted"])


def test_the_sooner_speed_is_the_largest_that_loses_no_more(tiny_bundle):
    curve = [(0.1, 0.88), (0.3, 0.87), (0.5, 0.866), (0.8, 0.85)]
    points = [bundles.SpeedPoint(speed=s, accuracy=a, mean_layers=2) for s, a in curve]
    measured = bundles.Accuracy(data="dev.tsv", n=9, accuracy=0.88, float32_accuracy=0.88)
    variant = bundles.EarlyExitVariant(
        name="early", ends=[1, 2], speed=0.1, accuracy=[measured], by_speed=points
    )
    assert infer.sooner(variant, 0.015) == 0.5
    assert infer.sooner(variant.model_copy(update={"speed": 0.5}), 0.015) is None
    assert infer.sooner(bundles.read(tiny_bundle).variant("float32"), 0.015) is None


def test_models_that_differ_are_warned_of():
    report = {
        "engines": {"a, sorted": {"difference": 0.02, "exact": True}},
        "versions": {},
        "missing": [],
        "random_weights": None,
        "segments": [],
        "busy": None,
    }
    assert any("WARNING" in note for note in infer.notes(report))
    report["engines"]["a, sorted"]["exact"] = False
    assert not any("WARNING" in note for note in infer.notes(report))


def test_weights_for_pytorch_are_those_of_the_network(tiny_bundle):
    """The forward in NumPy from the tensors under transformers' names gives the bundle's logits."""
    bundle = bundles.read(tiny_bundle)
    config, tensors = models.torch_weights(bundle.folder("float32"))
    ids = np.array([[5, 9, 7, 11, 3, 2, 2, 8] * 2])
    expected = engine.open(bundle, threads=1)._run(ids, np.zeros_like(ids))
    heads = config["num_attention_heads"]

    def linear(x, name):
        return x @ tensors[f"{name}.weight"].T + tensors[f"{name}.bias"]

    def norm(x, name):
        x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
        return x * tensors[f"{name}.weight"] + tensors[f"{name}.bias"]

    def split(x):
        return x.reshape(*x.shape[:2], heads, -1).transpose(0, 2, 1, 3)

    tables = [tensors[f"bert.embeddings.{name}.weight"] for name in models.EMBEDDINGS]
    x = tables[0][ids] + tables[1][: ids.shape[1]] + tables[2][0]
    x = norm(x, "bert.embeddings.LayerNorm")
    for number in range(config["num_hidden_layers"]):
        layer = f"bert.encoder.layer.{number}"
        own = f"{layer}.attention.self"
        q, k, v = (split(linear(x, f"{own}.{name}")) for name in ("query", "key", "value"))
        scores = q @ k.transpose(0, 1, 3, 2) / np.sqrt(q.shape[-1])
        mixed = (special.softmax(scores, -1) @ v).transpose(0, 2, 1, 3).reshape(x.shape)
        x = norm(
            x + linear(mixed, f"{layer}.attention.output.dense"),
            f"{layer}.attention.output.LayerNorm",
        )
        inner = linear(x, f"{layer}.intermediate.dense")
        inner = inner * special.ndtr(inner)
        x = norm(x + linear(inner, f"{layer}.output.dense"), f"{layer}.output.LayerNorm")
    found = linear(np.tanh(linear(x[:, 0], "bert.pooler.dense")), "classifier")
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--engines", "float31"], "float31 is none of float32"),
        (["--orders", "upwards"], "upwards is none of single"),
        (["--texts", "0"], "--texts is 0; it has to be at least 1"),
        (["--engines", "torch"], "there is no engine to measure"),
    ],
)
def test_words_that_mean_nothing_are_refused(words, said, tiny_bundle, texts, capsys):
    assert run("--bundle", tiny_bundle, "--data", texts, *words) == 2
    assert said in capsys.readouterr().err


def test_numbers_below_one_are_refused(tiny_bundle):
    with pytest.raises(UserError, match="--rounds is 0"):
        infer.bench(
            str(tiny_bundle), None, texts=1, rounds=0, threads=1, peer_python=sys.executable
        )

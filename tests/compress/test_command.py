"""`launch/quantize.py` as users start it: what is added, what the gate stops, what is refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from paddle.static.quantization import post_training_quantization
from paddle.static.quantization.cal_kl_threshold import cal_kl_threshold
from tiny_bert import telling_places

from fleetbert import bundle as bundles
from fleetbert import config
from fleetbert.compress import gate, pipeline, static
from fleetbert.compress.texts import feeds
from fleetbert.compress.work import Source
from fleetbert.data import tokenizers
from fleetbert.engines import answer, golden
from fleetbert.errors import GateFailed, UserError

ROOT = Path(__file__).parent.parent.parent


def job(bundle, data, method, **changes):
    values = {
        "bundle": str(bundle),
        "method": method,
        "gate": {"data": str(data / "dev.tsv"), "max_accuracy_drop": 0.05},
    }
    if method in ("static", "search"):
        values["calibration"] = {"data": str(data / "train.tsv"), "texts": 64}
    for name, value in changes.items():
        section, _, last = name.rpartition("__")
        (values.setdefault(section, {}) if section else values)[last] = value
    return config.Quantize.model_validate(values)


def content(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize(
    ("method", "name", "changes"),
    [
        ("dynamic", "int8-dynamic", {}),
        ("dynamic", "int16-dynamic", {"bits": 16}),
        ("static", "int8-static", {}),
        ("static", "mine", {"name": "mine", "skip": ["linear_1*"]}),
        ("search", "int8-search", {}),
        ("static", "abs-max", {"name": "abs-max", "calibration__algorithm": "abs_max"}),
        ("static", "kl", {"name": "kl", "calibration__algorithm": "KL"}),
    ],
)
def test_a_variant_is_added_with_its_evidence(
    bundle, tiny_data, monkeypatch, method, name, changes
):
    # Paddle looks for KL's thresholds in Python, 8 s a layer in 2,048 bins: here in 256.
    monkeypatch.setattr(
        post_training_quantization,
        "cal_kl_threshold",
        lambda bins, width, bits: cal_kl_threshold(bins.reshape(256, -1).sum(1), 8 * width, bits),
    )
    before = content(bundle / "float32")
    result = pipeline.quantize(job(bundle, tiny_data, method, **changes))
    variant = bundles.read(bundle).variant(name)
    assert (result.variant, result.bundle.names[-1]) == (name, name)
    assert result.report == bundle / "quantize-report.html"
    page = (bundle / "quantize-report.html").read_text(encoding="utf-8")
    assert f"{name}</th>" in page
    assert "not added" not in page
    bundles.verify(bundles.read(bundle), name)
    assert content(bundle / "float32") == before
    assert not telling_places(bundle / name)
    # What computes in int8 needs oneDNN.
    assert ("armv8" in variant.runs_on) == (method == "dynamic")
    measured = variant.accuracy[0]
    assert measured.n == 60
    assert measured.float32_accuracy > 0.8  # else a drop would mean nothing
    # The same figures again, by the engine that serves.
    models = [answer.load(bundle, which) for which in ("float32", name)]
    rows = [line.split("\t") for line in (tiny_data / "dev.tsv").read_text().splitlines()[1:]]
    found = [
        answer.compute_logits(model, [row[1] for row in rows], None).values for model in models
    ]
    truth = [models[0].labels.index(row[0]) for row in rows]
    assert measured.float32_accuracy == pytest.approx((found[0].argmax(1) == truth).mean())
    right = [values.argmax(1) == truth for values in found]
    assert measured.accuracy == pytest.approx(right[1].mean())
    drop = measured.drop
    assert drop.lost - drop.gained == right[0].sum() - right[1].sum()
    assert drop.lost + drop.gained == (right[0] != right[1]).sum()
    assert drop.low <= drop.value <= drop.high
    assert f"({drop.low:.4f} to {drop.high:.4f})" in page
    # 60 texts whose answers hardly change: half of the interval is wider than a twentieth.
    assert "60 texts are too few to tell a drop of 0.05" in page
    difference = float(np.abs(found[0] - found[1]).max())
    assert variant.comparison.max_logit_difference == pytest.approx(difference, rel=1e-3)
    assert 0 < difference < 0.5
    sizes = {
        n: sum(f.size for f in bundles.read(bundle).variant(n).files) for n in ("float32", name)
    }
    assert variant.comparison.size_ratio == pytest.approx(sizes[name] / sizes["float32"], abs=1e-3)
    # What a server will ask it before it lets it answer: like float32, but not the same numbers.
    kept = [golden.read(bundles.read(bundle), which).logits for which in ("float32", name)]
    assert 0 < np.abs(kept[0] - kept[1]).max() < 0.5


def test_other_algorithms_find_other_thresholds(trained, tiny_data):
    """Below the largest value that each input had, and not far below."""
    read = bundles.read(trained)
    source = Source(read.folder("float32"))
    tokenizer = tokenizers.open(read)
    rows = [line.split("\t")[1] for line in (tiny_data / "train.tsv").read_text().splitlines()]
    encodings = tokenizer.encode(rows[1:33], None, read.max_length)
    batches = feeds(encodings, range(32), 1024, tokenizer.pad_id)
    found = {
        name: static.input_thresholds(static.of_texts(source, batches, name))
        for name in ("abs_max", "hist", "mse", "emd")
    }
    largest = found.pop("abs_max")
    for thresholds in found.values():
        assert set(thresholds) == set(largest)
        assert thresholds != largest
        assert all(0.2 < value / largest[n] < 1.01 for n, value in thresholds.items())
    assert len({tuple(thresholds.values()) for thresholds in found.values()}) == 3


def test_the_gate_stops_what_loses_too_much(bundle, tiny_data):
    """An impossible gate: the variant would have to be better than float32 by half."""
    before = content(bundle)
    with pytest.raises(
        GateFailed, match=r"bundle stays as it was; .*the layers with the largest token error"
    ):
        pipeline.quantize(job(bundle, tiny_data, "static", gate__max_accuracy_drop=-0.5))
    after = content(bundle)
    page = after.pop("quantize-report.html").decode()
    assert after == before
    assert "int8-static (not added)" in page and "the layers with the largest token error" in page


def test_a_confident_gate_asks_it_of_the_interval(bundle, tiny_data):
    """60 texts of which no answer changes leave a drop of 6 points possible."""
    with pytest.raises(
        GateFailed, match=r"confident asks it of the upper end.*too few to tell a drop of 0.05"
    ):
        pipeline.quantize(job(bundle, tiny_data, "static", gate__decide="confident"))


def test_the_command_exits_with_3_at_the_gate_and_with_2_for_a_wrong_key(bundle, tiny_data):
    def run(*words):
        return subprocess.run(
            [sys.executable, ROOT / "launch" / "quantize.py", "--config",
             ROOT / "configs" / "quantize" / "dynamic.yaml", f"bundle={bundle}",
             f"gate.data={tiny_data / 'dev.tsv'}", *words],
            capture_output=True, text=True, timeout=480,
        )  # fmt: skip

    failed = run("gate.max_accuracy_drop=-0.5")
    assert failed.returncode == GateFailed.code == 3, failed.stderr
    assert "Traceback" not in failed.stderr
    assert "gate.max_accuracy_drop allows -0.5" in failed.stderr
    wrong = run("gate.max_acuracy_drop=1")
    assert wrong.returncode == 2
    assert "did you mean gate.max_accuracy_drop?" in wrong.stderr


BAD = [
    ("no such file", "static", {"calibration__data": "missing.tsv"}, "missing.tsv"),
    ("wrong column", "static", {"calibration__data": "wrong.tsv"}, "no column 'text_a'"),
    ("empty", "static", {"calibration__data": "empty.txt"}, "empty.txt"),
    ("unknown label", "dynamic", {"gate__data": "labels.tsv"}, "does not know the label"),
    ("skips all", "static", {"skip": ["*"]}, "no layer is left"),
    ("skips nothing", "dynamic", {"skip": ["layer9*"]}, "'layer9*' matches no weight"),
]


@pytest.mark.parametrize(
    ("method", "changes", "message"), [b[1:] for b in BAD], ids=[b[0] for b in BAD]
)
def test_bad_input_leaves_the_bundle_as_it_was(
    bundle, tiny_data, tmp_path, monkeypatch, method, changes, message
):
    monkeypatch.chdir(tmp_path)
    Path("wrong.tsv").write_text("label\ttext\ngood\tword1\n")
    Path("empty.txt").write_text("")
    Path("labels.tsv").write_text("label\ttext_a\nother\tword1\n")
    before = content(bundle)
    with pytest.raises(UserError) as error:
        pipeline.quantize(job(bundle, tiny_data, method, **changes))
    assert message in str(error.value)
    assert "--on-bad-line" not in str(error.value)  # quantize has no such option
    assert content(bundle) == before


def test_a_broken_bundle_is_refused(bundle, tiny_data):
    path = bundle / "float32" / "model.pdiparams"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(UserError, match=r"model\.pdiparams is not the file that was exported"):
        pipeline.quantize(job(bundle, tiny_data, "dynamic"))


def test_keys_that_do_not_go_together(tmp_path):
    path = tmp_path / "job.yaml"
    for text, message in [
        ("method: static\ngate: {data: a.tsv}", "calibration.data: method: static needs texts"),
        ("method: dynamic", "gate.data: name a labelled table"),
        ("method: static\nbits: 16\ncalibration: {data: a}\ngate: {data: b}", "line 2: bits"),
    ]:
        path.write_text(text)
        with pytest.raises(UserError, match=message):
            config.load_as(config.Quantize, str(path), [])


def test_shipped_configs_are_whole():
    for path in sorted((ROOT / "configs" / "quantize").glob("*.yaml")):
        assert config.load_as(config.Quantize, str(path), []).method == path.stem


def test_gate_counts_exactly():
    accuracy = bundles.Accuracy(data="d", n=200, accuracy=0.895, float32_accuracy=0.9)
    assert gate.keeps(accuracy, 0.005)
    assert not gate.keeps(accuracy, 0.004)
    drop = bundles.Drop(value=0.005, low=-0.01, high=0.02, test="mcnemar")
    accuracy = accuracy.model_copy(update={"drop": drop})
    assert gate.keeps(accuracy, 0.005, "point")
    assert not gate.keeps(accuracy, 0.0199, "confident")
    assert gate.keeps(accuracy, 0.02, "confident")

"""Variants through the gate: what is added, what the gate stops, what is refused, and
`launch/quantize.py` as users start it."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path
from typing import NamedTuple

import fresh
import numpy as np
import processes
import pytest
import tiny_job
from compressing import content, job
from tiny_bert import telling_places

from fleetbert import bundle as bundles
from fleetbert import config
from fleetbert.cli import quantize as command
from fleetbert.compression import gate, pipeline
from fleetbert.core.errors import GateFailed, UserError
from fleetbert.engines import answer, golden

SCRIPT = processes.ROOT / "launch" / "quantize.py"
RECIPES = processes.ROOT / "configs" / "quantize"

ALL = {"calibration.texts": 160}
VARIANTS = {
    "int8-dynamic": ("dynamic", {}),
    "int16-dynamic": ("dynamic", {"bits": 16}),
    "int8-static": ("static", ALL),
    "plain": ("static", {**ALL, "calibration.smooth": "none", "calibration.correct_bias": False}),
}


class Added(NamedTuple):
    """A bundle, a variant that was added to it, and the report of that."""

    bundle: Path
    variant: bundles.Variant
    page: str


@pytest.fixture(scope="module")
def added(trained, tiny_data, tmp_path_factory):
    """added(name) → that variant of VARIANTS, made once, in a bundle that all share."""
    bundle = Path(shutil.copytree(trained, tmp_path_factory.mktemp("added") / "bundle"))

    @functools.lru_cache(maxsize=None)
    def add(name: str) -> Added:
        method, changes = VARIANTS[name]
        before = content(bundle / "float32")
        named = {} if name.endswith(method) else {"name": name}
        result = pipeline.quantize(job(bundle, tiny_data, method, {**changes, **named}))
        assert (result.variant, result.bundle.names[-1]) == (name, name)
        assert result.report == bundle / "quantize-report.html"
        assert content(bundle / "float32") == before
        page = result.report.read_text(encoding="utf-8")
        return Added(bundle, bundles.read(bundle).variant(name), page)

    return add


@pytest.mark.parametrize(
    "name",
    ["int8-dynamic", "int8-static", pytest.param("int16-dynamic", marks=pytest.mark.slow)],
)
def test_a_variant_is_added_with_its_evidence(added, tiny_data, name):
    bundle, variant, page = added(name)
    assert f"{name}</th>" in page
    assert "not added" not in page
    bundles.verify(bundles.read(bundle), name)
    assert not telling_places(bundle / name)
    # What computes in int8 needs oneDNN.
    assert ("armv8" in variant.runs_on) == name.endswith("dynamic")
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
    kept, made = [golden.read(bundles.read(bundle), which) for which in ("float32", name)]
    assert 0 < np.abs(kept.logits - made.logits).max() < 0.5
    # It may answer there by a tenth of its largest logit otherwise than here.
    assert made.bound == pytest.approx(0.1 * max(1, np.abs(made.logits).max()))


@pytest.mark.slow
def test_smoothing_and_corrected_biases_are_told(added):
    """What they gain: test_smooth.py, on a network that needs them, which this one does not."""
    plain, both = added("plain"), added("int8-static")
    assert not plain.variant.smoothed and not plain.variant.bias_corrected
    assert both.variant.smoothed and both.variant.bias_corrected
    assert b"@smooth" not in (plain.bundle / "plain" / "x86.pdmodel").read_bytes()
    assert "whose channels are divided" in both.page


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        # It would have to be better than float32 by half.
        ({"max_accuracy_drop": -0.5}, "bundle stays as it was; .*with the largest token error"),
        # 60 texts of which no answer changes leave a drop of 6 points possible.
        ({"decide": "confident"}, "asks it of the upper end.*too few to tell a drop of 0.05"),
    ],
)
def test_what_the_gate_stops_leaves_a_report_alone(bundle, tiny_data, changes, message):
    before = content(bundle)
    changes = {f"gate.{name}": value for name, value in changes.items()}
    with pytest.raises(GateFailed, match=message):
        pipeline.quantize(job(bundle, tiny_data, "static", changes))
    after = content(bundle)
    page = after.pop("quantize-report.html").decode()
    assert after == before
    assert "int8-static (not added)" in page and "the layers with the largest token error" in page


def test_the_command_exits_with_3_at_the_gate_and_adds_what_passes_it(bundle, tiny_data):
    def run(drop):
        words = [f"bundle={bundle}", f"gate.data={tiny_data / 'dev.tsv'}"]
        words.append(f"gate.max_accuracy_drop={drop}")
        return fresh.run(SCRIPT, "--config", RECIPES / "dynamic.yaml", *words)

    failed = run(-0.5)
    assert failed.returncode == GateFailed.code == 3, failed.stderr
    assert "Traceback" not in failed.stderr
    assert "gate.max_accuracy_drop allows -0.5" in failed.stderr
    done = run(0.1)
    assert done.returncode == 0, done.stderr
    assert f"added int8-dynamic to {bundle}" in done.stderr


MISSING = "missing.tsv"
BAD = [
    ("static", {"calibration.data": MISSING}, MISSING),
    ("static", {"calibration.data": "wrong.tsv"}, r"wrong\.tsv.*text_column=comment"),
    ("static", {"calibration.data": "empty.txt"}, "empty.txt"),
    ("static", {"skip": ["*"]}, "no layer is left"),
    ("dynamic", {"gate.data": "labels.tsv"}, "does not know the label"),
    ("dynamic", {"skip": ["layer9*"]}, r"'layer9\*' matches no weight"),
    ("qat", {"data.train": "labels.tsv"}, r"labels\.tsv:2: label 'other' is not among"),
    ("qat", {"data.train": MISSING}, MISSING),
    ("qat", {"data.max_length": 32}, "data.max_length: 32 is more than the 16 tokens"),
    ("qat", {"skip": ["*"]}, "no layer is left"),
    ("qat", {"gate.data": MISSING}, MISSING),
    ("prune", {"source": "int8"}, "variant int8 of .* is of kind paddle-inference-int8"),
    ("prune", {"source": "other"}, "has no variant 'other'; it has: float32"),
    ("prune", {"prune": {"heads": 0.1, "feed_forward": 0.02}}, "remove nothing; raise one of"),
    ("prune", {"data.train": "one.tsv", "data.dev": None}, "one.tsv: 2 texts are too few to"),
]


@pytest.mark.parametrize(("method", "changes", "message"), BAD)
def test_bad_input_leaves_the_bundle_as_it_was(
    bundle, tiny_data, tmp_path, monkeypatch, method, changes, message
):
    monkeypatch.chdir(tmp_path)
    Path("wrong.tsv").write_text("label\tcomment\ngood\tword1\n")
    Path("empty.txt").write_text("")
    Path("labels.tsv").write_text("label\ttext_a\nother\tword1\ngood\tword2\n")
    Path("one.tsv").write_text("label\ttext_a\nbad\tword1\ngood\tword2\n")

    def fill(folder: Path) -> bundles.Variant:
        (folder / "x86.pdmodel").write_bytes(b"0")
        return bundles.Int8Variant(name="int8")

    bundles.add_variant(bundle, "int8", fill)
    before = content(bundle)
    with pytest.raises(UserError, match=message) as error:
        pipeline.quantize(job(bundle, tiny_data, method, changes))
    assert "--on-bad-line" not in str(error.value)  # quantize has no such option
    assert content(bundle) == before


def test_a_broken_bundle_is_refused(bundle, tiny_data):
    tiny_job.flip(bundle / "float32" / "model.pdiparams")
    with pytest.raises(UserError, match=r"model\.pdiparams is not the file that was exported"):
        pipeline.quantize(job(bundle, tiny_data, "dynamic"))


GATE = "gate: {data: a.tsv}\n"
TRAIN = "data: {train: a}\n"


@pytest.mark.parametrize(
    ("method", "text", "message"),
    [
        ("static", GATE, "calibration.data: method: static needs texts"),
        ("dynamic", "", "gate.data: name a labelled table"),
        ("static", GATE + "calibration: {data: a}\nbits: 16", "line 4: bits"),
        ("qat", GATE, "data.train: give either data.train or data.builtin"),
        ("qat", GATE + TRAIN + "bits: 16", "line 4: bits: method: qat computes in int8"),
        ("qat", GATE + TRAIN + "trainer: {compile: true}", "line 4: trainer.compile: does not go"),
        ("bfloat16", GATE + "bits: 16", "method: bfloat16 computes in bfloat16; 16 is for"),
        ("prune", GATE + TRAIN + "bits: 16", "line 4: bits: method: prune computes in float32"),
        ("prune", GATE + TRAIN + "skip: [a]", "line 4: skip: method: prune takes as much from"),
        ("prune", GATE + TRAIN + "prune: {heads: 0, feed_forward: 0}", "prune.heads: is 0, and so"),
        ("prune", GATE + TRAIN + "prune: {heads: 1}", "prune.heads: "),
        ("prune", GATE + TRAIN + "prune: {head: 0.5}", "did you mean prune.heads"),
        ("prune", GATE + TRAIN + "name: float32", "line 4: name: float32 is the variant that"),
        ("prune", GATE + TRAIN + "name: My Own", "name: "),
    ],
)
def test_keys_that_do_not_go_together(tmp_path, method, text, message):
    path = tmp_path / "job.yaml"
    path.write_text(f"method: {method}\n{text}")
    with pytest.raises(UserError, match=message):
        config.load_as(config.Quantize, str(path), [])


def test_shipped_configs_are_whole():
    for path in sorted(RECIPES.glob("*.yaml")):
        assert config.load_as(config.Quantize, str(path), []).method == path.stem


@pytest.mark.parametrize("method", config.TRAINED)
def test_what_is_left_out_is_as_in_the_recipe(method):
    recipe = config.load_as(config.Quantize, str(RECIPES / f"{method}.yaml"), [])
    least = {
        "method": method,
        "bundle": recipe.bundle,
        "data": {"train": recipe.data.train},
        "gate": recipe.gate.model_dump(),
        "output_dir": recipe.output_dir,
    }
    bare = config.Quantize.model_validate(least)
    assert config.SOFT[method] == recipe.distill.weight
    assert bare.model_copy(update={"distill": recipe.distill}) == recipe
    given = {**least, "optimizer": {"name": "sgd"}, "dropout": 0.2}
    changed = config.Quantize.model_validate(given)
    rate = recipe.optimizer.learning_rate
    assert (changed.optimizer.name, changed.optimizer.learning_rate) == ("sgd", rate)
    assert changed.dropout == 0.2


def test_other_methods_have_the_usual_settings():
    least = {"calibration": {"data": "a"}, "gate": {"data": "b"}}
    job = config.Quantize.model_validate({"method": "static", **least})
    assert job.optimizer == config.Optimizer()


def test_methods_that_do_not_train_refuse_ranks(monkeypatch):
    monkeypatch.setenv("PADDLE_TRAINERS_NUM", "2")
    with pytest.raises(UserError, match="method: dynamic is for one process"):
        command.main(["--config", str(RECIPES / "dynamic.yaml")])


def test_gate_counts_exactly():
    accuracy = bundles.Accuracy(data="d", n=200, accuracy=0.895, float32_accuracy=0.9)
    assert gate.keeps(accuracy, 0.005, "point")
    assert not gate.keeps(accuracy, 0.004, "point")
    drop = bundles.Drop(value=0.005, low=-0.01, high=0.02, test="mcnemar")
    accuracy = accuracy.model_copy(update={"drop": drop})
    assert gate.keeps(accuracy, 0.005, "point")
    assert not gate.keeps(accuracy, 0.0199, "confident")
    assert gate.keeps(accuracy, 0.02, "confident")

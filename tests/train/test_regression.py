"""Numbers as answers, the whole way: trained, packed, resumed, exported, compressed, told."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tiny_job

import fleetbert
from fleetbert import bundle as bundles
from fleetbert import cli, config
from fleetbert.errors import UserError
from fleetbert.train import job as training

WORDS = 12


def write_numbers(path: Path, texts: int, seed: int, pair: bool = False) -> None:
    """Texts of `word0` and `word1`; the number is the share of `word1`, of pairs in both texts."""
    rng = np.random.default_rng(seed)
    rows = ["text_a\t" + "text_b\t" * pair + "label"]
    for _ in range(texts):
        sides = [rng.random(WORDS) < rng.random() for _ in range(1 + pair)]
        words = [" ".join(f"word{int(one)}" for one in side) for side in sides]
        rows.append("\t".join([*words, f"{np.mean(sides):.3f}"]))
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("numbers")
    tiny_job.write_data(folder)
    for name, texts, seed, pair in [
        ("train", 240, 1, False), ("dev", 60, 2, False),
        ("pairs", 64, 3, True), ("pairs-dev", 24, 4, True),
    ]:  # fmt: skip
        write_numbers(folder / f"{name}.tsv", texts, seed, pair)
    return folder


def job(data: Path, output: Path, **changes: object) -> config.Config:
    usual = {
        "task.name": "regression", "trainer.epochs": 4, "data.max_length": 32,
        "model.num_hidden_layers": 3,
    }  # fmt: skip
    values = tiny_job.values(data, output, {**usual, **changes})
    return config.Config.model_validate(values)


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    output = tmp_path_factory.mktemp("run")
    return training.train(job(data, output, **{"callbacks.report": True}))


def test_numbers_are_learned(run, data):
    assert run.metrics["spearman"] > 0.8
    assert run.summary["dev"]["metric"] == "spearman"
    assert {"n", "pearson", "mse", "loss", "scatter"} < set(run.metrics)
    page = run.report.read_text(encoding="utf-8")
    assert "Dev Spearman" in page and "60 of 60 dev texts" in page
    fields = json.loads((run.output_dir / "model" / "config.json").read_text())
    assert fields["problem_type"] == "regression" and fields["id2label"] == {"0": "LABEL_0"}
    kept = json.loads((run.bundle / "manifest.json").read_text())
    assert kept["task"] == {"name": "regression", "labels": []}
    measured = kept["variants"][0]["accuracy"][0]
    assert (measured["metric"], measured["accuracy"]) == ("spearman", run.metrics["spearman"])


def test_a_bundle_answers_with_numbers(run, data):
    model = fleetbert.load(run.bundle)
    rows = [line.split("\t") for line in (data / "dev.tsv").read_text().splitlines()[1:]]
    answers = model([text for text, _ in rows])
    truth = np.array([float(number) for _, number in rows])
    values = np.array([answer.value for answer in answers])
    assert np.mean((values - truth) ** 2) == pytest.approx(run.metrics["mse"], rel=1e-3)
    assert answers[0].as_json() == {"value": round(answers[0].value, 6)}
    found = model.evaluate(data / "dev.tsv")
    assert found["spearman"] == pytest.approx(run.metrics["spearman"], abs=1e-3)
    assert "scatter" not in found
    assert model.evaluate([(text, float(n)) for text, n in rows])["mse"] == found["mse"]


@pytest.mark.usefixtures("no_results")
@pytest.mark.parametrize("batching", ["pad", "pack"])
def test_every_way_of_batching_learns_the_same(data, tmp_path, batching):
    """Without dropout one step of all texts is the same in rows of their own and in shared ones."""
    first = []
    for name in ("bucket", batching):
        changes = {"data.batching": name, "data.batch_size": 240, "trainer.epochs": 1,
                   "model.dropout": 0.0}  # fmt: skip
        training.train(job(data, tmp_path / name, **changes))
        first.append(tiny_job.rows(tmp_path / name)[0]["loss"])
    assert first[0] == pytest.approx(first[1], rel=1e-5)


@pytest.mark.usefixtures("no_results")
def test_a_run_goes_on_bit_for_bit(data, tmp_path):
    changes = {"trainer.epochs": 1}
    tiny_job.check_resume(lambda name, **more: job(data, tmp_path / name, **changes, **more))


def test_pairs_have_numbers_too(data, tmp_path):
    changes = {
        "task.name": "pair_regression",
        "trainer.epochs": 1,
        "data.train": str(data / "pairs.tsv"),
        "data.dev": str(data / "pairs-dev.tsv"),
    }
    found = training.train(job(data, tmp_path, **changes))
    assert np.isfinite(found.metrics["mse"])
    (answer,) = fleetbert.load(found.bundle)(["word1 word0"], ["word0 word1"])
    assert np.isfinite(answer.value)


@pytest.mark.usefixtures("no_results")
def test_cached_texts_are_learned_alike(data, tmp_path):
    one = {"trainer.epochs": 1}
    plain = training.train(job(data, tmp_path / "plain", **one))
    cached = training.train(job(data, tmp_path / "cached", **one, **{"data.cache": str(tmp_path)}))
    assert tiny_job.losses(tmp_path / "plain") == tiny_job.losses(tmp_path / "cached")
    assert plain.metrics == cached.metrics


@pytest.mark.usefixtures("no_results")
def test_other_numbers_are_other_data(data, tmp_path):
    """A run does not go on with the same texts of which other numbers are to be learned."""
    training.train(job(data, tmp_path, **{"trainer.epochs": 1}))
    text = (data / "train.tsv").read_text()
    other = tmp_path / "other.tsv"
    other.write_text(text.replace("\t0.", "\t1."), encoding="utf-8")
    with pytest.raises(UserError, match=r"data\.train"):
        training.train(job(data, tmp_path, **{"data.train": str(other), "trainer.epochs": 2}))


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ("much", r"train\.tsv:2: 'label' is 'much', which is no number; write it like 3\.8"),
        ("3,8", r"train\.tsv:2: 'label' is '3,8', which is no number; write it like 3\.8"),
        ("nan", r"train\.tsv:2: 'label' is nan; it has to be a number from -1e30 to 1e30"),
        ("", r"train\.tsv:2: has no 'label'"),
    ],
)
def test_what_is_no_number_is_told_with_its_line(data, tmp_path, label, message):
    table = tmp_path / "train.tsv"
    table.write_text(f"text_a\tlabel\nword1\t{label}\n", encoding="utf-8")
    with pytest.raises(UserError, match=message):
        training.train(job(data, tmp_path / "run", **{"data.train": str(table)}))


def test_labels_of_ones_own_are_refused(data, tmp_path):
    with pytest.raises(UserError, match=r"labels: task\.name: regression has none"):
        training.train(job(data, tmp_path), labels=["a", "b"])


def test_quantized_and_exported(run, data, tmp_path):
    """int8 static and dynamic pass a gate that reads Spearman's correlation; ONNX answers alike."""
    from fleetbert.compress.onnx import export_onnx

    bundle = run.bundle
    expected = [a.value for a in fleetbert.load(bundle)(["word1 word0", "word1 word1"])]
    for method, calibration in (("static", data / "train.tsv"), ("dynamic", None)):
        made = fleetbert.quantize(
            bundle, method=method, calibration=calibration, gate=data / "dev.tsv", max_drop=0.1
        )
        assert made.metric == "spearman"
        assert made.float32_accuracy == pytest.approx(run.metrics["spearman"], abs=1e-3)
        assert "spearman on" in made.report.read_text(encoding="utf-8").lower()
        answers = fleetbert.load(bundle, made.name)(["word1 word0", "word1 word1"])
        assert [a.value for a in answers] == pytest.approx(expected, abs=0.1)
    export_onnx(bundle)
    answers = fleetbert.load(bundle, "onnx")(["word1 word0", "word1 word1"])
    assert [a.value for a in answers] == pytest.approx(expected, abs=1e-4)


def test_a_gate_refuses_by_the_tasks_own_figure(run, data):
    with pytest.raises(fleetbert.GateFailed, match=r"spearman on .*falls from .* to "):
        fleetbert.quantize(run.bundle, method="dynamic", gate=data / "dev.tsv", max_drop=-1,
                           name="never")  # fmt: skip


def test_methods_of_labels_are_refused(run, data, tmp_path):
    refused = "answers the task regression, and .*; the methods static, dynamic, search, qat"
    with pytest.raises(UserError, match=f"method: prune: .* {refused}"):
        fleetbert.quantize(run.bundle, method="prune", gate=data / "dev.tsv",
                           train=data / "train.tsv")  # fmt: skip
    with pytest.raises(UserError, match="only classifiers of texts and pairs can be distilled"):
        fleetbert.distill(run.output_dir / "model", data / "train.tsv", layers=1,
                          **{"task.name": "regression"})  # fmt: skip


def test_numbers_leave_early_where_they_change_no_more(run, data):
    """Three groups, so that the second head has one before it; at speed 0 none leaves."""
    (made,) = fleetbert.early_exit(
        run.bundle, data / "train.tsv", gate=data / "dev.tsv", max_drop=1.0, threads=1,
        sources=["float32"],
        **{"distill.layers": [1, 2, 3], "distill.speed": 0.7, "distill.epochs": 12},
    )  # fmt: skip
    assert made.metric == "spearman"
    variant = bundles.read(run.bundle).variant(made.name)
    assert variant.doubt == "change" and len(variant.accuracy_by_layer) == 3
    texts = [line.split("\t")[0] for line in (data / "dev.tsv").read_text().splitlines()[1:]]
    whole = np.array([one.value for one in fleetbert.load(run.bundle)(texts)])
    assert variant.spread == pytest.approx(whole.std(), rel=0.3)
    for speed, layers in ((0.0, {3}), (0.7, {2, 3}), (None, {2, 3})):
        answers = fleetbert.load(run.bundle, made.name)(texts, speed=speed)
        assert {one.exit_layer for one in answers} <= layers
        found = np.array([one.value for one in answers])
        assert np.abs(found - whole).max() < (1e-4 if speed == 0 else 1.0 * whole.std() + 0.3)
    assert 2 in {one.exit_layer for one in answers} and "exit_layer" in answers[0].as_json()
    table = data / "dev.tsv"
    found = tiny_job.check_early_exit(run.bundle, made.name, table, "spearman", 0.7)
    assert found["spearman"] == pytest.approx(made.accuracy, abs=1e-3)
    assert 2 <= found["mean_layers"] < 3


def test_the_commands_tell_numbers(run, data, tmp_path, capsys):
    def command(*words: str) -> str:
        with pytest.raises(SystemExit) as ended:
            cli.main(list(words))
        assert not ended.value.code
        return capsys.readouterr().out

    bundle, texts = ("--bundle", str(run.bundle)), tmp_path / "texts.txt"
    texts.write_text("word1 word1\n")
    told = json.loads(command("predict", *bundle, "--input", str(texts)))
    assert list(told) == ["value"]
    assert f"→ {told['value']:.4f}" in command("ask", *bundle, "word1 word1")
    report = command("evaluate", *bundle, "--data", str(data / "dev.tsv"))
    assert report.startswith(f"spearman {run.metrics['spearman']:.3f}"[:-1])

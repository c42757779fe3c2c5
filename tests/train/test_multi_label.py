"""Several labels as answers, the whole way: trained, packed, exported, compressed, told."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tiny_job

import fleetbert
from fleetbert import bundle as bundles
from fleetbert import config
from fleetbert.errors import UserError
from fleetbert.train import job as training

LABELS = ("even", "odd", "三")  # of texts that have word0, word1, word2


def write_labels(path: Path, texts: int, seed: int, wrong: float = 0.0) -> None:
    """Texts of ten words; each of word0 to word2 in it is a label of it, but for a share."""
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(texts):
        own = rng.choice(3, rng.integers(1, 3), replace=False).tolist()
        words = [f"word{n}" for n in (*own, *own, *rng.integers(40, 150, 6))]
        rng.shuffle(words)
        if wrong and rng.random() < wrong:
            own = [int(rng.integers(3))]
        row = {"text": " ".join(words), "label": [LABELS[n] for n in own]}
        lines.append(json.dumps(row, ensure_ascii=False) + "\n")
    path.write_text("".join(lines), encoding="utf-8")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("labels")
    tiny_job.write_data(folder)
    write_labels(folder / "train.jsonl", 240, 1)
    write_labels(folder / "dev.jsonl", 60, 2)
    return folder


def job(data: Path, output: Path, **changes: object) -> config.Config:
    usual = {
        "task.name": "multi_label_classification",
        "trainer.epochs": 5,
        "data.train": str(data / "train.jsonl"),
        "data.dev": str(data / "dev.jsonl"),
    }
    values = tiny_job.values(data, output, {**usual, **changes})
    return config.Config.model_validate(values)


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    output = tmp_path_factory.mktemp("run")
    return training.train(job(data, output, **{"callbacks.report": True}))


def test_several_labels_are_learned(run, data):
    assert run.metrics["macro_f1"] > 0.8
    assert run.summary["dev"]["metric"] == "macro_f1"
    page = run.report.read_text(encoding="utf-8")
    assert "Dev macro F1" in page and "Dev micro F1" in page
    assert page.count("average precision") == len(LABELS)
    fields = json.loads((run.output_dir / "model" / "config.json").read_text(encoding="utf-8"))
    assert fields["problem_type"] == "multi_label_classification"
    assert fields["id2label"] == {str(n): name for n, name in enumerate(LABELS)}


def test_a_bundle_answers_with_several_labels(run, data):
    model = fleetbert.load(run.bundle)
    rows = [json.loads(line) for line in (data / "dev.jsonl").read_text("utf-8").splitlines()]
    answers = model([row["text"] for row in rows])
    right = [set(answer.labels) == set(row["label"]) for answer, row in zip(answers, rows)]
    assert np.mean(right) == pytest.approx(run.metrics["subset_accuracy"])
    assert list(answers[0].as_json()) == ["labels", "scores"]
    found = model.evaluate(rows)
    assert found["macro_f1"] == pytest.approx(run.metrics["macro_f1"])


def test_probabilities_are_fitted_to_texts_held_out(tmp_path):
    """Of labels that are wrong now and then: the bundle has the temperature in its weights, and
    answers by the thresholds."""
    tiny_job.write_data(tmp_path)
    write_labels(tmp_path / "train.jsonl", 300, 1, wrong=0.3)
    write_labels(tmp_path / "dev.jsonl", 300, 2, wrong=0.3)
    changes = {"trainer.calibrate": 0.4, "trainer.best_metric": "macro_f1"}
    run = training.train(job(tmp_path, tmp_path / "run", **{**changes, "callbacks.report": True}))
    assert run.summary["data"]["train"]["texts"] == 180
    assert run.summary["data"]["held"]["texts"] == 120
    said = run.summary["calibration"]
    assert said["after"]["loss"] < 0.9 * said["before"]["loss"]
    assert said["after"]["macro_f1"] != said["before"]["macro_f1"]
    assert run.metrics["ece"] == said["after"]["ece"] < 0.5 * said["before"]["ece"]
    assert "Dev calibration error" in run.report.read_text(encoding="utf-8")
    manifest = json.loads((run.bundle / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["task"]["thresholds"] == said["thresholds"]
    assert list(said["thresholds"]) == list(LABELS)
    found = fleetbert.load(run.bundle).evaluate(tmp_path / "dev.jsonl")
    for name in ("macro_f1", "loss", "ece"):
        assert found[name] == pytest.approx(run.metrics[name], abs=1e-4)
    made = fleetbert.quantize(
        run.bundle, method="dynamic", gate=tmp_path / "dev.jsonl", max_drop=0.1
    )
    assert made.float32_accuracy == pytest.approx(run.metrics["macro_f1"])


@pytest.mark.usefixtures("no_results")
def test_packed_rows_learn_the_same(data, tmp_path):
    """Without dropout one step of all texts is the same in rows of their own and in shared ones."""
    first = []
    for name in ("bucket", "pack"):
        changes = {"data.batching": name, "data.batch_size": 240, "trainer.epochs": 1,
                   "model.dropout": 0.0, "data.cache": str(tmp_path)}  # fmt: skip
        training.train(job(data, tmp_path / name, **changes))
        first.append(tiny_job.rows(tmp_path / name)[0]["loss"])
    assert first[0] == pytest.approx(first[1], rel=1e-5)


def test_a_finished_model_is_imported(run, data, tmp_path):
    bundle = fleetbert.import_model(run.output_dir / "model", tmp_path / "bundle", max_length=16)
    texts = ["word0 word1", "word2"]
    expected = [answer.logits for answer in fleetbert.load(run.bundle)(texts)]
    found = [answer.logits for answer in fleetbert.load(bundle)(texts)]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_quantized_by_macro_f1(run, data):
    made = fleetbert.quantize(
        run.bundle, method="static", calibration=data / "train.jsonl", gate=data / "dev.jsonl",
        max_drop=0.1,
    )  # fmt: skip
    assert made.metric == "macro_f1"
    assert made.float32_accuracy == pytest.approx(run.metrics["macro_f1"])
    (answer,) = fleetbert.load(run.bundle, made.name)(["word0 word0 word0"])
    assert list(answer.scores) == list(LABELS)


def test_several_labels_leave_early_where_none_is_doubtful(run, data):
    (made,) = fleetbert.early_exit(
        run.bundle, data / "train.jsonl", gate=data / "dev.jsonl", max_drop=1.0, threads=1,
        sources=["float32"],
        **{"distill.layers": [1, 2], "distill.speed": 0.95, "distill.epochs": 40},
    )  # fmt: skip
    assert made.metric == "macro_f1"
    variant = bundles.read(run.bundle).variant(made.name)
    assert variant.doubt == "labels"
    assert variant.accuracy_by_layer[1] == pytest.approx(run.metrics["macro_f1"], abs=1e-3)
    assert variant.accuracy_by_layer[0] > 0.5  # the head learned something
    texts = [json.loads(line)["text"] for line in (data / "dev.jsonl").open(encoding="utf-8")]
    answers = fleetbert.load(run.bundle, made.name)(texts)
    assert {one.exit_layer for one in answers} == {1, 2}
    for one in answers:  # who left early was sure of every label
        if one.exit_layer == 1:
            chances = np.array(list(one.scores.values()))
            entropy = -(chances * np.log2(chances) + (1 - chances) * np.log2(1 - chances))
            assert entropy.max() < 0.95 + 1e-4
    tiny_job.check_early_exit(run.bundle, made.name, data / "dev.jsonl", "macro_f1", 0.95)
    with pytest.raises(UserError, match=r"distill\.labels_weight: .* set it to 0"):
        fleetbert.early_exit(run.bundle, data / "train.jsonl", gate=data / "dev.jsonl",
                             **{"distill.labels_weight": 0.5})  # fmt: skip


def test_methods_of_one_label_are_refused(run, data):
    with pytest.raises(UserError, match="only classifiers of texts and pairs can be distilled"):
        fleetbert.distill(
            run.bundle, data / "train.jsonl", task={"name": "multi_label_classification"}
        )


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ('""', r"train\.jsonl:2: has no 'label'"),
        ("[]", r"train\.jsonl:2: 'label' is an empty list; name the text's labels"),
        ('"even,,odd"', r"train\.jsonl:2: 'label' has an empty name; put one comma"),
        ("[1.5]", r"train\.jsonl:2: 'label' is not a text or an integer but float"),
    ],
)
def test_what_is_no_list_of_labels_is_told_with_its_line(data, tmp_path, label, message):
    table = tmp_path / "train.jsonl"
    rows = [f'{{"text": "word1", "label": {one}}}\n' for one in ('"odd,even"', label)]
    table.write_text("".join(rows), encoding="utf-8")
    with pytest.raises(UserError, match=message):
        training.train(job(data, tmp_path / "run", **{"data.train": str(table)}))


def test_a_label_that_training_had_not_is_told_with_its_line(data, tmp_path):
    table = tmp_path / "dev.tsv"
    table.write_text("text_a\tlabel\nword1\todd\nword0\teven,new\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"dev\.tsv:3: label 'new' is not among the training"):
        training.train(job(data, tmp_path / "run", **{"data.dev": str(table)}))

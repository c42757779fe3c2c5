"""Tags as answers, the whole way: CoNLL read, trained, packed, exported, compressed, asked."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tiny_job
from halves import needs_bfloat16

import fleetbert
from fleetbert import cli, config
from fleetbert.data import read
from fleetbert.errors import UserError
from fleetbert.train import job as training


def rows_of(path: Path) -> list[dict]:
    """The same table as rows with spans by character."""
    form = read.table_format(path, pair=False, labelled=True, label="spans")
    return [
        {
            "text": example.text_a,
            "spans": [{"start": b, "end": e, "kind": k} for b, e, k in json.loads(example.label)],
        }
        for example in read.read_as(path, form).examples
    ]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tags")
    tiny_job.write_data(folder)
    tiny_job.write_tags(folder / "train.conll", 300, 1)
    tiny_job.write_tags(folder / "dev.conll", 80, 2)
    return folder


def job(data: Path, output: Path, **changes: object) -> config.Config:
    usual = {
        "task.name": "token_classification",
        "trainer.epochs": 6,
        "data.train": str(data / "train.conll"),
        "data.dev": str(data / "dev.conll"),
    }
    return config.Config.model_validate(tiny_job.values(data, output, {**usual, **changes}))


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    output = tmp_path_factory.mktemp("run")
    return training.train(job(data, output, **{"callbacks.report": True}))


def test_spans_are_learned(run, data):
    assert run.metrics["entity_f1"] > 0.9
    assert run.summary["dev"]["metric"] == "entity_f1"
    assert list(run.summary["dev"]["classes"]) == ["loc", "per"]
    fields = json.loads((run.output_dir / "model" / "config.json").read_text(encoding="utf-8"))
    assert fields["architectures"] == ["BertForTokenClassification"]
    assert list(fields["id2label"].values()) == ["O", "B-loc", "I-loc", "B-per", "I-per"]
    page = run.report.read_text(encoding="utf-8")
    assert "Dev entity F1" in page and page.count('title="per"') == 3


def test_a_bundle_answers_with_spans(run, data):
    model = fleetbert.load(run.bundle)
    rows = rows_of(data / "dev.conll")
    answers = model([row["text"] for row in rows])
    right = found = there = 0
    for answer, row in zip(answers, rows):
        told = {(span.start, span.end, span.kind) for span in answer.spans}
        true = {(one["start"], one["end"], one["kind"]) for one in row["spans"]}
        right, found, there = right + len(told & true), found + len(told), there + len(true)
        assert all(
            row["text"][s.start : s.end] == s.text and 0 < s.score <= 1 for s in answer.spans
        )
    assert 2 * right / (found + there) == pytest.approx(run.metrics["entity_f1"])
    # Of rows with spans, and of the table.
    for table in (rows, data / "dev.conll"):
        assert model.evaluate(table)["entity_f1"] == pytest.approx(run.metrics["entity_f1"])


@pytest.mark.usefixtures("no_results")
@pytest.mark.parametrize("pieces", ["first", "all"])
def test_every_way_of_batching_learns_the_same(data, tmp_path, pieces):
    """Without dropout one step of all texts is the same in rows of their own and in shared ones,
    in this process and, from the cache, in others."""
    first = []
    ways = {"pad": {}, "bucket": {"data.cache": str(tmp_path), "data.num_workers": 1}, "pack": {}}
    for name, more in ways.items():
        changes = {"data.batching": name, "data.batch_size": 300, "trainer.epochs": 1,
                   "model.dropout": 0.0, "task.pieces": pieces, **more}  # fmt: skip
        training.train(job(data, tmp_path / name, **changes))
        step, dev = tiny_job.rows(tmp_path / name)
        first.append((step["loss"], dev["dev.loss"]))
    for one in first[1:]:
        assert one == pytest.approx(first[0], rel=1e-5)


def test_labels_in_another_order_are_refused(data, tmp_path):
    for labels in (["B-per", "I-per", "O"], ["O", "B-per"], ["O", "X-per"]):
        with pytest.raises(UserError, match="labels: of spans they are O, then B- and I-"):
            training.train(job(data, tmp_path), labels=labels)


def test_what_gives_no_spans_is_refused(run, data, tmp_path):
    with pytest.raises(UserError, match="tags tokens, and only training makes bundles of spans"):
        fleetbert.import_model(run.output_dir / "model", tmp_path / "bundle")
    with pytest.raises(UserError, match="token_classification takes none besides its own"):
        training.train(job(data, tmp_path), metrics={"mine": lambda truth, outputs: 0.0})


def test_the_commands_answer_with_spans(run, data, tmp_path, capsys):
    def said(*words: object) -> str:
        with pytest.raises(SystemExit) as ended:
            cli.main([*map(str, words), "--bundle", str(run.bundle)])
        assert not ended.value.code
        return capsys.readouterr().out

    text = "word1 word20s word44s"
    (answer,) = fleetbert.load(run.bundle)([text])
    assert answer.spans and answer.spans[0].text in said("ask", text)
    path = tmp_path / "texts.conll"
    path.write_text("word1\nword20s\nword44s\n", encoding="utf-8")
    told = json.loads(said("predict", "--input", path))
    assert [one["text"] for one in told["spans"]] == [span.text for span in answer.spans]
    found = json.loads(said("evaluate", "--data", data / "dev.conll", "--json"))
    assert found["entity_f1"] == pytest.approx(run.metrics["entity_f1"])


@pytest.mark.parametrize(
    "method",
    [
        "static",
        pytest.param("dynamic", marks=pytest.mark.endurance),
        "search",
        pytest.param("bfloat16", marks=needs_bfloat16),
    ],
)
def test_quantized_by_entity_f1(run, data, method):
    made = fleetbert.quantize(
        run.bundle, method=method, calibration=data / "train.conll", gate=data / "dev.conll",
        max_drop=0.1, **({"search.whole_curve": False} if method == "search" else {}),
    )  # fmt: skip
    assert made.metric == "entity_f1"
    assert made.float32_accuracy == pytest.approx(run.metrics["entity_f1"])
    texts = [row["text"] for row in rows_of(data / "dev.conll")]
    answers = [fleetbert.load(run.bundle, name)(texts) for name in ("float32", made.name)]
    kinds = [[[span[:3] for span in answer.spans] for answer in every] for every in answers]
    assert np.mean([one == other for one, other in zip(*kinds)]) > 0.9


@pytest.mark.usefixtures("no_results")
def test_a_run_goes_on_bit_for_bit(data, tmp_path):
    """In shared rows, read by another process."""
    changes = {"trainer.epochs": 1, "data.batching": "pack", "data.batch_size": 24}
    tiny_job.check_resume(
        lambda name, **more: job(data, tmp_path / name, **changes, **more), {"data.num_workers": 1}
    )

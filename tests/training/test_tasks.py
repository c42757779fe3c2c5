"""Every kind of task that does not give a text one label, the whole way: trained, resumed, packed,
answered, compressed, told."""

from __future__ import annotations

import json
from collections import Counter
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Callable, Mapping, NamedTuple, Sequence

import commands
import numpy as np
import pytest
import tiny_job
from halves import needs_bfloat16
from scipy.stats import spearmanr
from sklearn.metrics import average_precision_score

import fleetbert
from fleetbert import bundle as bundles
from fleetbert import config, tasks
from fleetbert.core.errors import UserError
from fleetbert.data import read
from fleetbert.training import job as training
from fleetbert.training.job import Result

LABELS = tiny_job.THREE_LABELS
TRAIN, DEV = 1, 2  # seeds of tables
SPANS = ("O", "B-loc", "I-loc", "B-per", "I-per")


def numbered(labels: Sequence[str]) -> dict[str, str]:
    return {str(number): label for number, label in enumerate(labels)}


def mean_error(model: Any, rows: list[dict]) -> float:
    values = [answer.value for answer in model([row["text_a"] for row in rows])]
    return np.mean([(value - row["label"]) ** 2 for value, row in zip(values, rows)])


def all_labels_right(model: Any, rows: list[dict]) -> float:
    answers = model([row["text_a"] for row in rows])
    return np.mean([set(one.labels) == set(row["label"]) for one, row in zip(answers, rows)])


def f1_of_spans(model: Any, rows: list[dict]) -> float:
    right = answered = true = 0
    for answer, row in zip(model([row["text"] for row in rows]), rows):
        own = {(span.start, span.end, span.kind) for span in answer.spans}
        there = {(one["start"], one["end"], one["kind"]) for one in row["spans"]}
        right, answered, true = right + len(own & there), answered + len(own), true + len(there)
        for span in answer.spans:
            assert row["text"][span.start : span.end] == span.text and 0 < span.score <= 1
    return 2 * right / (answered + true)


def mean_precision(model: Any, rows: list[dict]) -> float:
    answers = model([row["text_a"] for row in rows], [row["text_b"] for row in rows])
    query, truth = (np.array([row[key] for row in rows]) for key in ("text_a", "label"))
    values = np.array([answer.value for answer in answers], np.float32)
    own = [query == one for one in np.unique(query)]
    return np.mean([average_precision_score(truth[one], values[one]) for one in own])


def order_of_cosines(model: Any, rows: list[dict]) -> float:
    first, second = (
        np.stack([answer.vector for answer in model([row[key] for row in rows])])
        for key in ("text_a", "text_b")
    )
    return spearmanr((first * second).sum(1), [row["label"] for row in rows])[0]


def f1_of_answers(model: Any, rows: list[dict]) -> float:
    """Of words, as in SQuAD 2.0."""
    scores = []
    for answer, row in zip(model(*map(list, zip(*map(words_of, rows)))), rows):
        if answer.text is not None:
            assert row["context"][answer.start : answer.end] == answer.text
        given = (answer.text or "").split()
        expected = row["answers"][0]["text"].split() if row["answers"] else []
        both = sum((Counter(given) & Counter(expected)).values())
        scores.append(2 * both / (len(given) + len(expected)) if given or expected else 1)
    return np.mean(scores)


class Kind(NamedTuple):
    """title: of its main metric on pages; least: of it, when the rows are learned. by_hand: the
    name of a metric, and how it comes from a model's answers. drawn: what only a page is of; shown:
    words there."""

    metric: str
    title: str
    least: float
    by_hand: tuple[str, Callable[[Any, list[dict]], float]]
    drawn: str
    shown: list[str]
    answer: list[str]  # its keys in JSON
    rows: Callable[[int, int], list[dict]]  # of how many, and a seed
    sizes: tuple[int, int]
    changes: Mapping[str, object]
    labels: Sequence[str] = ()
    head: Mapping[str, object] = MappingProxyType({})  # in the model's config.json


KINDS = {
    "regression": Kind(
        "spearman", "Spearman", 0.8, ("mse", mean_error),
        "scatter", ["60 of 60 dev texts"], ["value"],
        tiny_job.number_rows, (240, 60), {"trainer.epochs": 4, "model.num_hidden_layers": 3},
        head={"problem_type": "regression", "id2label": {"0": "LABEL_0"}},
    ),
    "token_classification": Kind(
        "entity_f1", "entity F1", 0.9, ("entity_f1", f1_of_spans),
        "confusion", ['title="per"'], ["spans"],
        lambda *_: [], (300, 80), {"trainer.epochs": 6}, SPANS,
        {"architectures": ["BertForTokenClassification"], "id2label": numbered(SPANS)},
    ),
    "multi_label_classification": Kind(
        "macro_f1", "macro F1", 0.8, ("subset_accuracy", all_labels_right),
        "precision_recall", ["Dev micro F1", "average precision"], ["labels", "scores"],
        tiny_job.label_rows, (240, 60), {"trainer.epochs": 5}, LABELS,
        {"problem_type": "multi_label_classification", "id2label": numbered(LABELS)},
    ),
    "ranking": Kind(
        "map", "mean average precision", 0.85, ("map", mean_precision),
        "first_places", ["First relevant documents", "relevant and"], ["value"],
        tiny_job.ranked_rows, (60, 20), {"trainer.epochs": 8},
    ),
    "question_answering": Kind(
        "f1", "F1", 0.8, ("f1", f1_of_answers),
        "", [], ["text", "start", "end", "score", "n_best"],
        tiny_job.question_rows, (400, 60), {"trainer.epochs": 12}, ["no_answer"],
        {"architectures": ["BertForQuestionAnswering"]},
    ),
    "embedding": Kind(
        "spearman", "Spearman", 0.6, ("spearman", order_of_cosines),
        "scatter", ["60 of 60 dev texts"], ["vector"],
        lambda count, seed: tiny_job.vector_rows(count, seed, numbers=seed == DEV), (192, 60),
        {"trainer.epochs": 3, "model.num_hidden_layers": 3},  # from pairs without numbers
    ),
}  # fmt: skip


def slow(*case: object) -> Any:
    return pytest.param(*case, marks=pytest.mark.slow)


# Two of which `make test` tries everything.
ALL = [name if name in ("regression", "token_classification") else slow(name) for name in KINDS]


def write_table(path: Path, name: str, count: int, seed: int) -> Path:
    if name == "token_classification":
        path = path.with_suffix(".conll")
        tiny_job.write_tags(path, count, seed)
        return path
    return tiny_job.write_rows(path, KINDS[name].rows(count, seed))


def rows_of(path: Path) -> list[dict]:
    """A table's rows; of tags with spans by character."""
    if path.suffix != ".conll":
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    form = read.table_format(path, pair=False, labelled=True, label="spans")
    return [
        {
            "text": example.text_a,
            "spans": [{"start": b, "end": e, "kind": k} for b, e, k in json.loads(example.label)],
        }
        for example in read.read_as(path, form).examples
    ]


class Data(NamedTuple):
    folder: Path
    train: Path
    dev: Path

    @property
    def rows(self) -> list[dict]:
        return rows_of(self.dev)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """data(name): a task's tables."""
    folder = tiny_job.write_data(tmp_path_factory.mktemp("data"))

    @lru_cache(maxsize=None)
    def call(name: str) -> Data:
        tables = [
            write_table(folder / f"{name}-{part}.jsonl", name, count, seed)
            for part, count, seed in zip(("train", "dev"), KINDS[name].sizes, (TRAIN, DEV))
        ]
        return Data(folder, *tables)

    return call


def job(name: str, data: Data, output: Path, **changes: object) -> config.Config:
    usual = {
        "task.name": name, "data.train": str(data.train), "data.dev": str(data.dev),
        "data.max_length": 32, **KINDS[name].changes,
    }  # fmt: skip
    return tiny_job.job(data.folder, output, {**usual, **changes})


class Trained(NamedTuple):
    data: Data
    result: Result


@pytest.fixture(scope="module")
def runs(data, tmp_path_factory):
    """runs(name): what a whole run left, one of each task. Do not change it but by adding variants
    to its bundle."""

    @lru_cache(maxsize=None)
    def call(name: str) -> Trained:
        output = tmp_path_factory.mktemp(name)
        whole = job(name, data(name), output, **{"callbacks.report": True})
        return Trained(data(name), training.train(whole))

    return call


@pytest.mark.parametrize("name", ALL)
def test_it_is_learned(runs, name):
    (_, result), kind = runs(name), KINDS[name]
    assert result.metrics[kind.metric] > kind.least
    assert result.summary["dev"]["metric"] == kind.metric
    assert not kind.drawn or kind.drawn in result.metrics
    page = result.report.read_text(encoding="utf-8")
    assert [words for words in (f"Dev {kind.title}", *kind.shown) if words not in page] == []
    fields = json.loads((result.output_dir / "model" / "config.json").read_text(encoding="utf-8"))
    assert {key: fields[key] for key in kind.head} == kind.head
    manifest = json.loads((result.bundle / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["task"]["name"] == name
    assert manifest["task"]["labels"] == list(kind.labels)
    measured = manifest["variants"][0]["accuracy"][0]
    assert measured["metric"] == kind.metric
    assert measured["accuracy"] == result.metrics[kind.metric]


@pytest.mark.parametrize("name", ALL)
def test_its_bundle_answers_and_is_evaluated(runs, name):
    (data, result), kind = runs(name), KINDS[name]
    model = fleetbert.load(result.bundle)
    metric, by_hand = kind.by_hand
    expected = by_hand(model, data.rows)
    most = 0.02 if name == "ranking" else 1e-3  # near ties
    assert result.metrics[metric] == pytest.approx(expected, abs=most)
    for table in (data.rows, data.dev):
        found = model.evaluate(table)
        assert found[metric] == pytest.approx(expected, rel=1e-4)
        assert name == "token_classification" or kind.drawn not in found


@pytest.mark.slow
def test_triplets_are_evaluated_too_and_first_places_counted(runs, tmp_path):
    data, result = runs("ranking")
    assert result.metrics["queries"] == sum(result.metrics["first_places"]) == 20
    table = tiny_job.write_rows(tmp_path / "dev.jsonl", tiny_job.triplets_of(data.rows))
    assert 0 < fleetbert.load(result.bundle).evaluate(table)["mrr"] <= 1


def words_of(row: dict) -> list[str]:
    """What a user asks: a text, or both of a pair."""
    names = ("text", "text_a", "text_b", "question", "context")
    return [row[key] for key in names if key in row]


@pytest.mark.parametrize(
    "name", ["regression", "token_classification", slow("ranking"), slow("question_answering")]
)
def test_the_commands_tell_what_the_bundle_answers(runs, name, tmp_path, capsys):
    (data, result), kind = runs(name), KINDS[name]

    def told(*words: object) -> str:
        assert commands.call(*words, "--bundle", result.bundle) == 0
        return capsys.readouterr().out

    row = next(row for row in data.rows if [] not in (row.get("spans"), row.get("answers")))
    model = fleetbert.load(result.bundle)
    (answer,) = model(*([one] for one in words_of(row)))
    names = ("text_a", "text_b", "question", "context")
    texts = {key: row[key] for key in names if key in row}
    table = tiny_job.write_rows(tmp_path / "rows.jsonl", [texts])
    if name == "token_classification":
        table = tmp_path / "rows.conll"
        table.write_text(row["text"].replace(" ", "\n") + "\n", encoding="utf-8")
    assert json.loads(told("predict", "--input", table)) == answer.as_json()
    if name == "question_answering":
        asked = {"context": row["context"], "qas": [{"id": "q7", "question": row["question"]}]}
        table = tmp_path / "squad.json"
        table.write_text(json.dumps({"data": [{"paragraphs": [asked]}]}, indent=1))
        assert json.loads(told("predict", "--input", table)) == {"id": "q7", **answer.as_json()}
    assert list(answer.as_json()) == kind.answer
    assert tasks.get(name).answer.in_words(answer.as_json()) in told(
        "ask", "\t".join(words_of(row)).replace("\r\n", " ")
    )
    found = json.loads(told("evaluate", "--data", data.dev, "--json"))
    assert found[kind.metric] == pytest.approx(result.metrics[kind.metric], abs=0.02)
    line = f"{kind.metric} {found[kind.metric]:.4f}"
    assert told("evaluate", "--data", data.dev).startswith(line)


def numbers(answers: list) -> np.ndarray:
    found = [
        next(getattr(one, key) for key in ("value", "logits", "vector") if hasattr(one, key))
        for one in answers
    ]
    return np.array(found, np.float64)


def apart(result: Result, rows: list[dict], other: Path, variant: str = "float32") -> float:
    """How far answers of another variant or bundle are: the largest difference by the spread of the
    numbers; of spans the share of texts with others."""
    asked = [list(texts) for texts in zip(*map(words_of, rows))]
    one, two = (fleetbert.load(*of)(*asked) for of in ((result.bundle,), (other, variant)))
    if hasattr(one[0], "spans"):
        spans = [[[span[:3] for span in answer.spans] for answer in side] for side in (one, two)]
        return np.mean([first != second for first, second in zip(*spans)])
    if hasattr(one[0], "n_best"):
        return np.mean([first[:3] != second[:3] for first, second in zip(one, two)])
    return np.abs(numbers(one) - numbers(two)).max() / numbers(one).std()


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("regression", "static"),
        slow("regression", "dynamic"),
        slow("multi_label_classification", "static"),
        slow("ranking", "static"),
        slow("ranking", "dynamic"),
        slow("token_classification", "static"),
        slow("question_answering", "static"),
        pytest.param("token_classification", "bfloat16", marks=[pytest.mark.slow, needs_bfloat16]),
    ],
)
def test_quantized_by_its_own_metric(runs, name, method):
    (data, result), kind = runs(name), KINDS[name]
    made = fleetbert.quantize(
        result.bundle,
        method=method,
        calibration=data.train,
        gate=data.dev,
        max_drop=0.1,
    )
    assert made.metric == kind.metric
    assert made.float32_accuracy == pytest.approx(result.metrics[kind.metric], abs=0.02)
    assert made.interval[0] <= made.drop <= made.interval[1]
    assert f"{kind.title} on".lower() in made.report.read_text(encoding="utf-8").lower()
    most = 0.1 if name in ("token_classification", "question_answering") else 0.5
    assert apart(result, data.rows, result.bundle, made.name) < most


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "multi_label_classification",
        "ranking",
        "embedding",
        "token_classification",
        "question_answering",
    ],
)
def test_its_model_is_imported_again(runs, name, tmp_path):
    data, result = runs(name)
    more = {"ranking": {"task": name}, "question_answering": {"labels": ["no_answer"]}}
    again = fleetbert.import_model(
        result.output_dir / "model", tmp_path / "bundle", max_length=32, **more.get(name, {})
    )
    assert bundles.read(again).task.name == name
    rows = [{"text": row["text_a"]} for row in data.rows] if name == "embedding" else data.rows
    assert apart(result, rows, again) < 1e-4


def test_exits_of_numbers_take_no_weight_of_labels(runs):
    data, result = runs("regression")
    with pytest.raises(UserError, match=r"distill\.labels_weight: .* set it to 0"):
        fleetbert.early_exit(result.bundle, data.train, gate=data.dev,
                             **{"distill.labels_weight": 0.5})  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "doubt", "layers", "speed", "epochs", "left"),
    [
        # The second head has one before it.
        ("regression", "change", [1, 2, 3], 0.7, 12, [{2}, {2, 3}]),
        ("embedding", "change", [1, 2, 3], 0.6, 100, [{2}, {2, 3}]),
        ("multi_label_classification", "labels", [1, 2], 0.95, 40, [{1, 2}]),
        ("token_classification", "tokens", [1, 2], 0.65, 100, [{1, 2}]),
    ],
)
def test_texts_leave_early_by_the_tasks_own_doubt(
    runs, name, doubt, layers, speed, epochs, left, tmp_path
):
    (data, result), kind = runs(name), KINDS[name]
    keys = {"distill.layers": layers, "distill.speed": speed, "distill.epochs": epochs}
    if name == "embedding":  # whose training texts have no labels
        chosen_on = tiny_job.write_rows(tmp_path / "others.jsonl", kind.rows(60, DEV)[::-1])
        keys["selection.data"] = str(chosen_on)
    (made,) = fleetbert.early_exit(
        result.bundle, data.train, gate=data.dev, max_drop=1.0, threads=1, sources=["float32"],
        **keys,
    )  # fmt: skip
    assert made.metric == kind.metric
    variant = bundles.read(result.bundle).variant(made.name)
    assert (variant.doubt, len(variant.accuracy_by_layer)) == (doubt, len(layers))
    assert variant.accuracy_by_layer[-1] == pytest.approx(result.metrics[kind.metric], abs=1e-3)
    texts = [words_of(row)[0] for row in data.rows]
    whole = fleetbert.load(result.bundle)(texts)
    if name == "regression":
        assert variant.spread == pytest.approx(numbers(whole).std(), rel=0.3)
    model = fleetbert.load(result.bundle, made.name)
    answers = model(texts, speed=0.0)
    assert {one.exit_layer for one in answers} == {layers[-1]}
    if name == "token_classification":
        assert [one.spans for one in answers] == [one.spans for one in whole]
    else:
        np.testing.assert_allclose(numbers(answers), numbers(whole), atol=1e-4)
    answers = model(texts)
    alone = [model([text])[0] for text in texts[:20]]
    assert [one.exit_layer for one in alone] == [one.exit_layer for one in answers[:20]]
    assert {one.exit_layer for one in answers} in left
    assert "exit_layer" in answers[0].as_json()
    found = tiny_job.check_early_exit(result.bundle, made.name, data.dev, kind.metric, speed)
    assert found[kind.metric] == pytest.approx(made.accuracy, abs=1e-3)
    assert layers[-2] <= found["mean_layers"] < layers[-1]


@pytest.mark.slow
def test_probabilities_are_fitted_to_texts_held_out(data, tmp_path):
    """Of labels that are wrong now and then: the bundle has the temperature in its weights, and
    answers by the thresholds."""
    tables = [
        tiny_job.write_rows(tmp_path / f"{seed}.jsonl", tiny_job.label_rows(300, seed, wrong=0.3))
        for seed in (1, 2)
    ]
    name = "multi_label_classification"
    wrong = Data(data(name).folder, *tables)
    changes = {"trainer.calibrate": 0.4, "trainer.best_metric": "macro_f1"}
    run = training.train(
        job(name, wrong, tmp_path / "run", **{**changes, "callbacks.report": True})
    )
    assert run.summary["data"]["train"]["texts"] == 180
    assert run.summary["data"]["held"]["texts"] == 120
    said = run.summary["calibration"]
    assert said["after"]["loss"] < 0.9 * said["before"]["loss"]
    assert said["after"]["macro_f1"] != said["before"]["macro_f1"]
    assert run.metrics["ece"] == said["after"]["ece"] < 0.5 * said["before"]["ece"]
    page = run.report.read_text(encoding="utf-8")
    assert "Dev calibration error" in page and page.count("average precision") == len(LABELS)
    manifest = json.loads((run.bundle / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["task"]["thresholds"] == said["thresholds"]
    assert list(said["thresholds"]) == list(LABELS)
    found = fleetbert.load(run.bundle).evaluate(wrong.dev)
    for metric in ("macro_f1", "loss", "ece"):
        assert found[metric] == pytest.approx(run.metrics[metric], abs=1e-4)
    made = fleetbert.quantize(run.bundle, method="dynamic", gate=wrong.dev, max_drop=0.1)
    assert made.float32_accuracy == pytest.approx(run.metrics["macro_f1"])


@pytest.mark.slow
def test_probabilities_of_words_are_fitted_too(data, tmp_path):
    changes = {"trainer.calibrate": 0.3, "trainer.epochs": 3, "loss.class_weights": "balanced"}
    run = training.train(
        job("token_classification", data("token_classification"), tmp_path / "run", **changes)
    )
    said = run.summary["calibration"]
    before, after = said["before"], said["after"]
    assert said["temperature"] != 1 and after["loss"] < before["loss"]
    assert after["entity_f1"] == before["entity_f1"]
    found = fleetbert.load(run.bundle).evaluate(data("token_classification").dev)
    assert found["ece"] == pytest.approx(after["ece"], abs=1e-4)


PAIRS = tiny_job.number_rows(240, 3, pair=True)
TRIPLETS = tiny_job.triplets_of(tiny_job.ranked_rows(60, 1))


@pytest.mark.usefixtures("no_results")
@pytest.mark.parametrize(
    ("name", "more", "rows"),
    [
        ("regression", {}, None),
        slow("regression", {"task.name": "pair_regression"}, PAIRS),
        slow("multi_label_classification", {}, None),
        slow("token_classification", {"data.batching": "pack", "data.batch_size": 24}, None),
        slow("ranking", {"task.negatives": 2}, TRIPLETS),
        slow("embedding", {}, tiny_job.vector_rows(192, 1, fields=3)),
    ],
)
def test_a_run_goes_on_bit_for_bit(data, tmp_path, name, more, rows):
    """From a cache that another process reads, with the losses of one that held all in memory."""
    changes = {**more, "trainer.epochs": 1, "data.dev": None}
    if rows:
        changes["data.train"] = str(tiny_job.write_rows(tmp_path / "rows.jsonl", rows))
    tiny_job.check_resume(
        lambda name_of, **also: job(name, data(name), tmp_path / name_of, **changes, **also),
        {"data.num_workers": 1, "data.cache": str(tmp_path / "cache")},
    )


@pytest.mark.slow
def test_pairs_without_numbers_are_evaluated_by_rank(data, tmp_path):
    rows = tiny_job.vector_rows(40, 3)
    own = data("embedding")._replace(dev=tiny_job.write_rows(tmp_path / "dev.jsonl", rows))
    changes = {"task.pooling": "cls", "trainer.epochs": 1, "callbacks.report": True}
    run = training.train(job("embedding", own, tmp_path / "run", **changes))
    assert run.summary["dev"]["metric"] == "mrr_10"
    model = fleetbert.load(run.bundle)
    sides = [numbers(model([row[key] for row in rows])) for key in ("text_a", "text_b")]
    scores = sides[0] @ sides[1].T
    places = (scores >= np.diag(scores)[:, None]).sum(1)
    expected = np.where(places <= 10, 1 / places, 0).mean()
    assert run.metrics["mrr_10"] == pytest.approx(expected, abs=0.02)  # near ties
    drawn = run.metrics["similarities"]
    assert sum(drawn["own"]) == sum(drawn["others"]) == len(rows)
    page = run.report.read_text(encoding="utf-8")
    assert "Similarities" in page and "40 own and 40 others" in page


ONE = {"text_a": "a", "text_b": "b", "label": 1}
TWO = {"text_a": "a", "text_b": "c"}


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        ("regression", [{"text": "a", "label": "much"}],
         r"1: 'label' is 'much', which is no number; write it like 3\.8"),
        ("regression", [{"text": "a", "label": "3,8"}],
         r"1: 'label' is '3,8', which is no number; write it like 3\.8"),
        ("regression", [{"text": "a", "label": "nan"}],
         r"1: 'label' is nan; it has to be a number from -1e30 to 1e30"),
        ("regression", [{"text": "a", "label": ""}], r"1: has no 'label'"),
        ("multi_label_classification", [{"text": "a", "label": ""}], r"1: has no 'label'"),
        ("multi_label_classification", [{"text": "a", "label": "joy,,love"}],
         r"1: 'label' has an empty name; put one comma between two labels \(a text without"),
        ("multi_label_classification", [{"text": "a", "label": [1.5]}],
         r"1: 'label' is not a text or an integer but float"),
        ("ranking", [ONE, {**TWO, "label": 2}],
         r"2: 'label' is '2'; write 1 for a document that answers"),
        ("ranking", [ONE, {**TWO, "label": "yes"}], r"2: 'label' is 'yes'; write 1"),
        ("ranking", [ONE, TWO], r"2: has no 'label' and no 'text_c'"),
        ("ranking", [ONE, {**TWO, "label": 1, "text_c": "c"}], r"2: has a 'label' and a 'text_c'"),
        ("ranking", [ONE, {**TWO, "text_c": " "}], r"2: 'text_c' is empty"),
        ("ranking", [ONE, {**TWO, "label": 1}], " no query has both a document that answers it"),
        ("embedding", [{"text": "a"}], r"1: has no text_b"),
        ("embedding", [{**TWO, "label": 5}], r"1: has the number 5, and a cos"),
        ("embedding", [TWO, {**TWO, "text_c": "c"}], r"2: has 3 texts, and the first line 2"),
        ("embedding", [ONE, TWO], r"2: has no label, where others have"),
    ],
)  # fmt: skip
def test_a_row_that_does_not_fit_is_told_with_its_line(data, tmp_path, name, rows, message):
    table = tiny_job.write_rows(tmp_path / "train.jsonl", rows)
    with pytest.raises(UserError, match=rf"train\.jsonl:{message}"):
        training.train(job(name, data(name)._replace(train=table), tmp_path / "run"))


def test_a_label_that_training_had_not_is_told_with_its_line(data, tmp_path):
    table = tmp_path / "dev.tsv"
    table.write_text("text_a\tlabel\nword1\tlove\nword0\tjoy,new\n", encoding="utf-8")
    own = data("multi_label_classification")._replace(dev=table)
    with pytest.raises(UserError, match=r"dev\.tsv:3: label 'new' is not among the training"):
        training.train(job("multi_label_classification", own, tmp_path / "run"))


def no_metric(truth, outputs):
    return 0.0


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("regression", {"labels": ["a", "b"]}, r"labels: task\.name: regression has none"),
        *(
            ("token_classification", {"labels": labels}, "labels: of spans they are O, then B- and")
            for labels in (["B-per", "I-per", "O"], ["O", "B-per"], ["O", "X-per"])
        ),
        (
            "token_classification",
            {"metrics": {"mine": no_metric}},
            "takes no metrics besides",
        ),
    ],
)
def test_what_a_task_does_not_take(data, tmp_path, name, arguments, message):
    with pytest.raises(UserError, match=message):
        training.train(job(name, data(name), tmp_path), **arguments)

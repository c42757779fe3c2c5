"""What `fleetbert.load` returns: its answers, what it shows, and where it goes."""

from __future__ import annotations

import copy
import inspect
import os
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path

import fresh
import numpy as np
import pytest
import shapes
from tiny_bert import LABELS, make_bundle

import fleetbert
from fleetbert.core.arguments import kinds_of

TEXTS = ["word1 word2", "字3", "word4 word5 word6"]


@pytest.fixture(scope="module")
def bundle(tiny_bundle, tmp_path_factory) -> Path:
    """The tiny bundle with int8-static and early-exit-int8."""
    return shapes.add_int8_and_early_exit(tiny_bundle, tmp_path_factory.mktemp("int8")).root


@pytest.fixture(scope="module")
def model(bundle) -> fleetbert.Model:
    return fleetbert.load(bundle)


@pytest.mark.parametrize(
    ("variant", "how"),
    [
        ("int8-static", "preload"),
        ("int8-static", "spawn"),
        *(
            pytest.param(variant, how, marks=pytest.mark.slow)
            for variant in ("float32", "early-exit-int8")
            for how in ("preload", "fork", "spawn")
        ),
    ],
)
def test_a_model_answers_in_other_processes(bundle, variant, how):
    program = Path(__file__).parent / "model_in_processes.py"
    command = [sys.executable, program, bundle, variant, how]
    environ = {**os.environ, "KMP_INIT_AT_FORK": "FALSE"}  # as scikit-learn's import sets it
    ended = subprocess.run(command, env=environ, stderr=subprocess.PIPE, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr


def test_a_model_is_copied_and_pickled_with_its_folder(bundle, tmp_path, monkeypatch):
    shutil.copytree(bundle, tmp_path / "bundle")
    monkeypatch.chdir(tmp_path)
    model = fleetbert.load("bundle", "int8-static", threads=1, batch_tokens=64)
    monkeypatch.chdir("/")
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other is not model
        assert repr(other) == repr(model)
        np.testing.assert_array_equal(other.predict_proba(TEXTS), model.predict_proba(TEXTS))
    pickled = pickle.dumps(model)
    shutil.rmtree(tmp_path / "bundle")
    with pytest.raises(fleetbert.UserError, match=str(tmp_path / "bundle")):
        pickle.loads(pickled)


def test_a_model_says_what_it_is(bundle, model):
    named = f"task='classification', variant='float32', labels={LABELS}, max_length=64"
    assert repr(model) == f"Model({str(bundle)!r}, {named})"
    assert (model.task, model.variant, model.labels) == ("classification", "float32", LABELS)


def test_answers_are_a_list_that_a_notebook_shows(model):
    answers = model(["<b> & good", *TEXTS * 10])
    assert pickle.loads(pickle.dumps(answers))[0].label == answers[0].label
    page = answers._repr_html_()
    assert "<td>&lt;b&gt; &amp; good</td>" in page
    assert f"{answers[0].label} ({max(answers[0].scores.values()):.1%})" in page
    assert page.count("<tr>") == 20
    assert "and 11 more" in page
    answers.reverse()
    page = answers._repr_html_()
    assert page.startswith(f"<table><tr><td>{TEXTS[-1]}</td>")
    assert "good" not in page  # it went beyond the answers that are shown


PUBLIC = [
    *(fleetbert.train, fleetbert.import_model, fleetbert.quantize, fleetbert.distill),
    *(fleetbert.early_exit, fleetbert.load, fleetbert.Model.__init__, fleetbert.Model.predict),
    *(fleetbert.Model.predict_proba, fleetbert.Model.encode, fleetbert.Model.similarity),
    *(fleetbert.Model.evaluate, fleetbert.Client.__init__, fleetbert.Client.infer),
    fleetbert.Client.metadata,
]


@pytest.mark.parametrize("function", PUBLIC, ids=lambda function: function.__qualname__)
def test_all_arguments_are_checked(function):
    assert hasattr(function, "__wrapped__")
    parameters = dict(inspect.signature(function).parameters)
    for name in ("self", "keys"):  # the keys of a config have their own types
        parameters.pop(name, None)
    assert [name for name, one in parameters.items() if not kinds_of(one.annotation)] == []


@pytest.mark.parametrize(
    ("function", "given", "sentence"),
    [
        ("load", {"bundle": None}, "bundle: has to be a path, not None"),
        ("load", {"bundle": ""}, "bundle: has to be a path, not ''"),
        ("load", {"bundle": b"x"}, "bundle: has to be a path, not b'x'"),
        ("load", {"threads": "2"}, "threads: has to be an integer or None, not '2'"),
        ("load", {"threads": True}, "threads: has to be an integer or None, not True"),
        ("load", {"batch_tokens": 1.5}, "batch_tokens: has to be an integer or None, not 1.5"),
        ("predict", {"texts": 3}, "texts: has to be a list of texts, not 3"),
        ("predict", {"speed": "x"}, "speed: has to be a number or None, not 'x'"),
        ("evaluate", {"data": None}, "data: has to be a path, a list of rows, a DataFrame or a"),
        ("evaluate", {"quoting": "all"}, "quoting: has to be 'auto' or 'none' or 'minimal', not"),
        ("evaluate", {"text_column": 0}, "text_column: has to be a string or None, not 0"),
        ("evaluate", {"text_column": "a\0"}, "text_column: input should hold no NUL"),
        ("evaluate", {"on_bad_line": "warn"}, "on_bad_line: has to be 'stop' or 'skip', not 'war"),
        ("train", {"output_dir": 3}, "output_dir: has to be a path or None, not 3"),
        ("train", {"callbacks": [3]}, "callbacks: has to be a list of instances of fleetbert.Cal"),
        ("train", {"callbacks": fleetbert.Callback}, "callbacks: has to be a list of instances"),
        ("train", {"metrics": {"a": 3}}, "metrics: has to be a dict of functions or a list of"),
        ("import_model", {"max_length": "x"}, "max_length: has to be an integer or None, not 'x'"),
        ("import_model", {"max_length": 0}, "max_length: is 0; it has to be at least 4"),
        ("import_model", {"lowercase": "x"}, "lowercase: has to be True or False or None, not"),
        ("Client", {"url": 3}, "url: has to be a string, not 3"),
        ("Client", {"url": "ftp://x"}, "url: is 'ftp://x'; give host:port"),
        ("Client", {"url": ""}, "url: is ''; give host:port"),
        ("Client", {"url": "x", "timeout": 0}, "timeout: is 0; it has to be above 0 seconds"),
    ],
)
def test_a_wrong_argument_is_named(model, function, given, sentence):
    usual = {
        "load": {"bundle": "x"},
        "import_model": {"source": "x"},
        "predict": {"texts": TEXTS},
        "evaluate": {"data": [("word1", LABELS[0])]},
    }
    of = model if hasattr(model, function) else fleetbert
    with pytest.raises(fleetbert.UserError, match=sentence):
        getattr(of, function)(**{**usual.get(function, {}), **given})


def test_numbers_of_numpy_and_unknown_names(model):
    fleetbert.load(model._named[0], threads=np.int64(1))
    with pytest.raises(TypeError, match=r"load\(\) got an unexpected keyword argument 'thread'"):
        fleetbert.load("x", thread=1)


@pytest.mark.parametrize(
    ("task", "function", "sentence"),
    [
        ("classification", "predict_proba", None),
        ("multi_label_classification", "predict_proba", None),
        ("classification", "encode", "answers the task classification, which has no embedding"),
        ("ranking", "predict_proba", "answers the task ranking, which has no scores; use predict"),
        ("token_classification", "predict_proba", "which has no scores"),
        ("embedding", "predict_proba", "which has no scores"),
        ("regression", "similarity", 'make a bundle of vectors with import_model.* task="emb'),
        ("embedding", "encode", None),
        ("embedding", "similarity", None),
    ],
)
def test_matrices(tmp_path, tiny_vocab, task, function, sentence):
    model = fleetbert.load(make_bundle(tmp_path, task, tiny_vocab), task=task)
    given = [TEXTS, TEXTS[:2]] if function == "similarity" else [TEXTS]
    if sentence is not None:
        with pytest.raises(fleetbert.UserError, match=f"^{function}: the bundle .*{sentence}"):
            getattr(model, function)(*given)
        return
    matrix, empty = getattr(model, function)(*given), getattr(model, function)([], *given[1:])
    answers = model(TEXTS)
    if function == "predict_proba":
        expected = [[answer.scores[label] for label in model.labels] for answer in answers]
    else:
        expected = np.stack([answer.vector for answer in answers])
    if function == "similarity":
        expected = expected @ expected[:2].T
    np.testing.assert_allclose(matrix, expected, atol=1e-5)
    assert matrix.dtype == empty.dtype == np.float32
    assert empty.shape == (0, matrix.shape[1])
    with pytest.raises(fleetbert.UserError, match=r"texts\[1\] is empty"):
        getattr(model, function)(["word1", ""], *given[1:])


def test_a_bundle_of_another_task_is_refused(bundle):
    with pytest.raises(fleetbert.UserError, match="answers the task classification, not ranking"):
        fleetbert.load(bundle, task="ranking")


@pytest.mark.slow
def test_type_checkers_know_the_answers(tmp_path):
    """In the installation, from a folder that is not the checkout."""
    (tmp_path / "program.py").write_text(
        """\
import fleetbert
from fleetbert.core.arguments import kinds_of
answer = fleetbert.load("b")(["a"])[0]
print(answer.label, answer.vector)
print(answer.labell)  # refused
vectors = fleetbert.load("b", task="embedding", threads=1)
print(vectors(["a"])[0].vector, vectors.encode(["a"]).shape)
print(vectors(["a"])[0].label)  # refused
fleetbert.load("b", task="ranking", thread=1)  # refused
print(fleetbert.load("b", task="of mine")(["a"])[0].anything)
def labels(model: "fleetbert.Model[fleetbert.LabelAnswer]") -> "list[fleetbert.LabelAnswer]":
    return model(["a"])
labels(fleetbert.load("b", task="classification"))
labels(fleetbert.load("b", task="regression"))  # refused
"""
    )
    command = [sys.executable, "-m", "mypy", "program.py"]
    found = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    refused = set(map(int, re.findall(r"^program\.py:(\d+): error", found.stdout, re.M)))
    lines = (tmp_path / "program.py").read_text().splitlines()
    expected = {number for number, line in enumerate(lines, 1) if "refused" in line}
    assert refused == expected, found.stdout + found.stderr


def test_an_answer_does_not_wait_for_what_it_does_not_need(bundle):
    """Schemas of jobs and asyncio take as long as a tenth of Paddle's import."""
    ended = fresh.python(
        "import sys, fleetbert; fleetbert.load(sys.argv[1])(['word1']); print(*sys.modules)",
        str(bundle),
    )
    loaded = {
        "fleetbert.config.training", "fleetbert.config.loading", "fleetbert.training",
        "fleetbert.api.functions", "tqdm.auto",
    } & set(ended.stdout.split())  # fmt: skip
    assert "fleetbert.api.model" in ended.stdout, ended.stderr
    assert not loaded

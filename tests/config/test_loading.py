"""YAML and key=value words → a job, or a UserError that names key, place and what is valid."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pydantic
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fleetbert import config
from fleetbert.api import arguments
from fleetbert.config import loading
from fleetbert.config.keys import fields
from fleetbert.core.errors import UserError

CONFIGS = Path(__file__).parents[2] / "configs"
LEAST = "data: {train: train.tsv}\nmodel: {vocab: vocab.txt}\n"


@pytest.fixture
def load(tmp_path):
    """load(text, *overrides) → the job of a file job.yaml with that text."""

    def call(text: str | bytes, *overrides: str) -> config.Config:
        path = tmp_path / "job.yaml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
        return config.load_as(config.Config, str(path), list(overrides))

    return call


@pytest.fixture
def refused(load):
    """refused(text, *overrides) → the message of its UserError."""

    def call(text: str | bytes, *overrides: str) -> str:
        with pytest.raises(UserError) as caught:
            load(text, *overrides)
        return str(caught.value)

    return call


def at(job: config.Config, name: str):
    value = job
    for part in name.split("."):
        value = getattr(value, part)
    return value


def test_what_is_not_given_has_its_default_and_every_key_a_meaning(load):
    job = load(LEAST)
    for name, field in fields(config.Config):
        assert field.description, name
        if name not in ("data.train", "model.vocab"):
            assert at(job, name) == field.default, name
    assert load(yaml.safe_dump(job.model_dump(mode="json"))) == job


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.name)
def test_every_shipped_config_loads_and_has_no_default_left_over(path):
    job = config.load_as(config.Config, str(path), [])
    assert job.output_dir.startswith("output/")


class TestErrors:
    @pytest.mark.parametrize(
        ("text", "sentence"),
        [
            (
                "trainer:\n  epochs: 1\n  max_step: 5\n",
                "job.yaml, line 5: unknown key trainer.max_step; did you mean trainer.max_steps?",
            ),
            (
                "optimizer: {batch_size: 8}\n",
                "line 3: unknown key optimizer.batch_size; did you mean data.batch_size?",
            ),
            (
                "callbacks:\n  profiler:\n    timeronly: true\n",
                "line 5: unknown key callbacks.profiler.timeronly; "
                "did you mean callbacks.profiler.timer_only?",
            ),
            ("optimiser: {}\n", "line 3: unknown key optimiser; did you mean optimizer?"),
            ("training: {lr: 1}\n", "unknown key training; did you mean optimizer.learning_rate?"),
            ("trainer:\n  seed: 1\n  epochs: x\n", "job.yaml, line 5: trainer.epochs: "),
            ("trainer: {epochs: 0, sed: 1}\n", "trainer.epochs"),
            ("trainer: {epochs: 0, sed: 1}\n", "did you mean trainer.seed?"),  # both at once
            (
                "trainer:\n  seed: 1\n  seed: 2\n",
                "job.yaml, line 5: key trainer.seed stands here a second time",
            ),
            ("data: {dev: d.tsv}\n", "job.yaml, line 3: key data stands"),
            ("trainer: [1, 2\n  x: }\n", "job.yaml, line 4: not valid YAML"),
            ("trainer: 3\n", "job.yaml, line 3: trainer is a section and must hold keys"),
        ],
    )
    def test_key_place_and_what_is_valid_are_named(self, refused, text, sentence):
        assert sentence in refused(LEAST + text)

    @pytest.mark.parametrize(
        ("name", "value", "shown"),
        [
            ("trainer.epochs", "many", "many"),
            ("trainer.epochs", "0", "0"),
            ("trainer.epochs", "1.5", "1.5"),
            ("trainer.epochs", "null", "null"),
            ("trainer.epochs", "true", "true"),
            ("optimizer.learning_rate", "-1", "-1"),
            ("optimizer.learning_rate", ".inf", ".inf"),
            ("optimizer.learning_rate", ".nan", ".nan"),
            ("optimizer.learning_rate", "false", "false"),
            ("optimizer.beta1", "1", "1"),
            ("data.batching", "sorted", "sorted"),
            ("data.train", "[a]", "a"),
            ("data.max_length", "3", "3"),
            ("callbacks.report", "7", "7"),
            ("model.dropout", "1", "1"),
            ("precision.level", "O3", "O3"),
            ("precision.custom_black_list", "[[1]]", "1"),
            ("task.name", "2024-01-01", "2024-01-01"),
        ],
    )
    def test_wrong_type_or_value(self, refused, name, value, shown):
        section, key = name.split(".")
        text = yaml.safe_dump({"data": {"train": "t.tsv"}, "model": {"vocab": "v.txt"}})
        tree = yaml.safe_load(text)
        tree.setdefault(section, {})[key] = yaml.safe_load(value)
        message = refused(yaml.safe_dump(tree))
        assert "job.yaml, line " in message
        assert f"{name}: " in message
        assert shown in message
        assert "\n" not in message

    @pytest.mark.parametrize("text", ["- 1\n", "text\n", "3\n"])
    def test_file_without_keys(self, refused, text):
        assert "must hold keys" in refused(text)

    def test_not_utf8(self, refused):
        assert "not UTF-8" in refused(b"output_dir: \xff\xfe\n")

    @pytest.mark.parametrize(
        ("name", "sentence"),
        [
            ("none.yaml", "No such file or directory$"),
            (".", "Is a directory"),
            ("a\0b", ""),
            ("configs/distill/self.yaml", ".*; `fleetbert recipes distill/self > self.yaml`"),
        ],
    )
    def test_no_file(self, tmp_path, name, sentence):
        with pytest.raises(UserError, match=f"cannot be read: {sentence}"):
            config.load_as(config.Config, f"{tmp_path}/{name}", [])

    @pytest.mark.parametrize(
        ("text", "name"),
        [
            ("model: {vocab: v}\n", "data.train"),
            (LEAST.replace("train:", "builtin: api_docs, train:"), "data.train"),
            ("model: {vocab: v}\ndata: {builtin: api_docs, dev: d.tsv}\n", "data.dev"),
            (
                "model: {vocab: v}\ndata: {builtin: api_docs}\ntask: {name: pair_regression}\n",
                "data.builtin",
            ),
            ("model: {vocab: v}\ndata: {train: t, batch_size: null}\n", "data.batch_size"),
            ("data: {train: t}\n", "job.yaml: model.init"),
            (LEAST.replace("vocab:", "hidden_size: 10, vocab:"), "model.hidden_size"),
            (
                LEAST + "callbacks: {profiler: {start_step: 4, wait_steps: 4}}\n",
                "callbacks.profiler.start_step",
            ),
        ],
    )
    def test_keys_that_do_not_agree(self, refused, text, name):
        message = refused(text)
        assert f"{name}: " in message
        assert "job.yaml" in message

    @pytest.mark.parametrize(
        "text",
        [
            "1: 2\n",
            "null: {}\n",
            "trainer: {1: 2}\n",
            "? [a, b]\n: c\n",
            "output_dir: 2024-99-99\n",
            "trainer: {seed: " + "9" * 5000 + "}\n",
            "&a {trainer: *a}\n",
            "trainer: &a [*a]\n",
            "[" * 800,
            "a: " * 800,
            "{" * 800 + "}" * 800,
            "output_dir: !!binary 'x'\n",
            "output_dir: !!python/object:os.system x\n",
            "<<: 3\n",
            "--- 1\n--- 2\n",
            'output_dir: "\\ud800"\n',
            'output_dir: "a\\0b"\n',
            "= : 1\n",
        ],
        ids=range(18),
    )
    def test_odd_yaml_is_a_user_error(self, refused, text):
        refused(LEAST + text if text.startswith(("output_dir", "trainer")) else text)


class TestOverrides:
    @pytest.mark.parametrize(
        ("text", "words", "seed"),
        [
            ("trainer: {seed: 1, epochs: 5}\n", ["trainer.seed=7"], 7),
            ("trainer: {epochs: 5}\n", ["trainer.seed=1", "trainer.seed=2"], 2),
            ("trainer:\n", ["trainer.seed=3", "trainer.epochs=5"], 3),  # stands empty
        ],
    )
    def test_the_last_word_changes_a_key(self, load, text, words, seed):
        job = load(LEAST + text, *words)
        assert (job.trainer.seed, job.trainer.epochs) == (seed, 5)

    @pytest.mark.parametrize(
        ("word", "value"),
        [
            ("output_dir=run #3", "run #3"),
            ("output_dir=2024-11-05", "2024-11-05"),
            ("output_dir=0755", "0755"),
            ("output_dir=a: b", "a: b"),
            ("output_dir=[1", "[1"),
            ("output_dir=null", "null"),
            ("output_dir='run #3'", "run #3"),
            ('output_dir="3"', "3"),
            ("data.dev=1e3", "1e3"),
            ("data.dev=null", None),
            ("data.dev=~", None),
            ("data.dev=", None),
            ("data.dev=a=b", "a=b"),
            ("trainer.patience_metric=yes", "yes"),
            ("loss.class_weights=none", "none"),
            ("loss.class_weights={a: 2}", {"a": 2}),
        ],
    )
    def test_a_word_for_a_text_is_that_text(self, load, word, value):
        assert at(load(LEAST, word), word.partition("=")[0]) == value

    def test_what_yaml_takes_for_no_text_needs_quotes(self, refused):
        assert refused(f"output_dir: 2024-11-05\n{LEAST}").endswith(
            "output_dir: input should be a valid string, not 2024-11-05; put quotes around it"
        )

    @pytest.mark.parametrize("path", ["~/runs", "~"])
    def test_the_home_of_the_user(self, load, refused, tmp_path, monkeypatch, path):
        monkeypatch.setenv("HOME", "/some/home")
        wanted = path.replace("~", "/some/home")
        assert load(f"output_dir: '{path}'\n{LEAST}").output_dir == wanted
        assert load(LEAST, f"output_dir={path}").output_dir == wanted
        assert load(LEAST, "data.dev=~/dev.tsv").data.dev == "/some/home/dev.tsv"
        assert load(LEAST, "output_dir=a/~/b").output_dir == "a/~/b"
        keys = {"bundle": path, "data.train": "t.txt", "gate.data": "g.tsv"}
        assert config.from_keys(config.SelfDistill, keys).bundle == wanted
        assert loading.output_dir(str(tmp_path / "job.yaml"), [f"output_dir={path}"]) == wanted
        monkeypatch.setattr(os.path, "expanduser", lambda text: text)
        assert "output_dir: input should name the whole path: ~ has no home here" in refused(
            LEAST, f"output_dir={path}"
        )

    def test_words_make_sections(self, load):
        job = load(
            "", "data.train=t.tsv", "model.vocab=v", "callbacks.profiler.timer_only=false",
            "precision.custom_white_list=[relu, tanh]", "data.batch_size=null",
            "data.batch_tokens=64", "precision.custom_black_list=exp", "output_dir=a=b",
            "optimizer.learning_rate=1e-4",
        )  # fmt: skip
        assert job.callbacks.profiler.timer_only is False
        assert job.precision.custom_white_list == ["relu", "tanh"]
        assert job.precision.custom_black_list == ["exp"]
        assert job.data.batch_size is None
        assert job.optimizer.learning_rate == 1e-4
        assert job.output_dir == "a=b"

    @pytest.mark.parametrize(
        ("word", "part"),
        [
            ("trainer.seed", "is not of the form key=value"),
            ("trainer.seed=[", "is not valid YAML"),
            ("trainer.seed=x", "command line: trainer.seed: "),
            (
                "loss.class_weights={a: x}",
                "loss.class_weights: input should be none | balanced | {str: float}, not {a: x}",
            ),
            (
                "trainer.sed=1",
                "command line: unknown key trainer.sed; did you mean trainer.seed=1?",
            ),
            ("lr=1e-5", "unknown key lr; did you mean optimizer.learning_rate=1e-5?"),
            ("trainers.seed=1", "unknown key trainers; did you mean trainer.seed=1?"),
            ("output_dir.x=1", "output_dir is a single value, not a section"),
            ("trainer=3", "command line: trainer is a section and must hold keys"),
            ("=3", "command line: unknown key"),
            ("trainer.=3", "command line: unknown key trainer."),
            ("..=3", "command line: unknown key"),
            ("trainer.seed=2024-99-99", "is not valid YAML"),
        ],
    )
    def test_bad_words(self, refused, word, part):
        assert part in refused(LEAST + "output_dir: o\n", word)


KEYS = [name for name, _ in fields(config.Config)]
scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.dates(),
    st.binary(max_size=4), st.sampled_from(["1e-4", "api_docs", "mlm", "pack", "O1", "random"]),
)  # fmt: skip
names = st.one_of(
    st.sampled_from(sorted({part for key in KEYS for part in key.split(".")})),
    st.text(max_size=5), st.integers(), st.none(),
)  # fmt: skip
trees = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=4)),
    max_leaves=12,
)
documents = st.one_of(
    st.binary(max_size=60),
    st.text("{}[]:,-&*!|>'\"%@`?# \n\tab1.~<=", max_size=40).map(str.encode),
    trees.map(lambda tree: yaml.safe_dump(tree).encode("utf-8", "surrogatepass")),
    st.dictionaries(names, trees, max_size=4).map(
        lambda tree: (LEAST + yaml.safe_dump(tree)).encode("utf-8", "surrogatepass")
    ),
)


@settings(max_examples=150)
@given(documents, st.lists(st.text(max_size=20), max_size=2))
@example(b"\xef\xbb\xbfoutput_dir: o\n", [])
@example(b"", ["trainer={1: 2}"])
@example(b"", ["data.train=!!python/name:os.system"])
def test_any_bytes_load_or_are_a_user_error(tmp_path, document, words):
    path = tmp_path / "fuzz.yaml"
    path.write_bytes(document)
    try:
        job = config.load_as(config.Config, str(path), words)
    except UserError as error:
        assert str(error)
    else:
        assert isinstance(job, config.Config)


def test_a_job_cannot_be_changed(load):
    with pytest.raises(pydantic.ValidationError):
        load(LEAST).trainer.seed = 3


WEIGHTS = {"comp.graphics": 2.0, "comp": 1.0, ".net": 3.0, "U.S.": 4.0, "0": 5.0}


@pytest.mark.parametrize("key", ["class_weights", "positive_weights"])
def test_weights_are_by_the_labels_as_tables_write_them(load, key):
    """A dot in a label makes no section; a number is its text."""
    written = dict(WEIGHTS)
    for keys in ({"loss": {key: written}}, {f"loss.{key}": written}):
        named = {"data.train": "x", "model.vocab": "v"}
        job = config.from_keys(config.Config, arguments.keys_of({**named, **keys}))
        assert getattr(job.loss, key) == WEIGHTS
    named["loss"] = {key: {np.int64(0): 2.0, True: 3.0}}
    of_python = config.from_keys(config.Config, {**named, f"loss.{key}.a..b.": 5.0})
    assert getattr(of_python.loss, key) == {"0": 2.0, "true": 3.0, "a..b.": 5.0}
    by_yaml = f"{LEAST}loss:\n  {key}:\n    0: 5.0\n    comp.graphics: 2.0\n    'yes': 1.0\n"
    found = {"0": 5.0, "comp.graphics": 2.0, "yes": 1.0}
    assert getattr(load(by_yaml).loss, key) == found
    for label in ("a.b", ".net", "U.S.", "..."):
        assert getattr(load(by_yaml, f"loss.{key}.{label}=2").loss, key) == {**found, label: 2.0}
    assert getattr(load(LEAST, f"loss.{key}={{1: 2, a.b: 3}}").loss, key) == {"1": 2.0, "a.b": 3.0}


@pytest.mark.parametrize("label", ["yes", "no", "on", "true", "null", "2024-01-01"])
def test_labels_that_yaml_takes_for_something_else_need_quotes(refused, label):
    told = refused(f"{LEAST}loss:\n  class_weights:\n    {label}: 2\n")
    assert "job.yaml, line 4: loss.class_weights: input should have those labels in quotes" in told
    assert "in quotes" in refused(LEAST, f"loss.class_weights={{{label}: 2}}")

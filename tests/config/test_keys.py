"""What the schemas say of their keys: help, names that are meant, what a resumed run keeps."""

from __future__ import annotations

import re

import pytest

from fleetbert import config
from fleetbert.config import names
from fleetbert.config.command_line import Parser, add_keys
from fleetbert.config.help import common_text, help_text
from fleetbert.config.keys import fields
from fleetbert.core.errors import UserError
from fleetbert.deploy.inference import settings

SCHEMAS = {
    "train": config.Config,
    "quantize": config.Quantize,
    "distill": config.Distill,
    "distill self": config.SelfDistill,
    "serve": settings.Serve,
}


def keys_of(command: str) -> set[str]:
    return {name for name, _ in fields(SCHEMAS[command])}


def test_all_keys_are_listed_with_type_and_default():
    lines = {line.split()[0]: line for line in help_text(config.Config).splitlines()}
    assert list(lines) == [name for name, _ in fields(config.Config)]
    assert {"trainer.seed", "callbacks.profiler.timer_only"} <= set(lines)
    for name, default in {
        "data.batching": '"?bucket"?',
        "data.max_length": "128",
        "data.train": "null",
        "optimizer.learning_rate": "5.0e-05",
        "callbacks.visualdl": "true",
        "precision.custom_white_list": r"\[\]",
    }.items():
        assert re.search(f"default {default}\\)", lines[name]), lines[name]
    assert "pad | bucket | pack" in lines["data.batching"]
    assert "int | null" in lines["data.batch_tokens"]
    assert "(none | balanced | float | {str: float};" in lines["loss.positive_weights"]
    exits = help_text(config.SelfDistill)
    assert "(auto | list of int;" in exits
    assert "typing." not in exits + help_text(config.Config)


@pytest.mark.parametrize("command", list(SCHEMAS))
def test_help_shows_some_fifteen_keys_and_where_the_rest_is(command, capsys):
    parser = Parser("x")
    add_keys(parser, {command: SCHEMAS[command]})
    with pytest.raises(SystemExit):
        parser.parse_args(["--help"])
    short = capsys.readouterr().out
    assert "--help-all lists all" in short
    shown = re.findall(r"^  ([a-z][\w.]*)  ", common_text(SCHEMAS[command], command), re.MULTILINE)
    assert set(shown) < keys_of(command)
    assert len(shown) <= 18 and len(shown) >= (9 if "distill" in command else 14)
    with pytest.raises(SystemExit):
        parser.parse_args(["--help-all"])
    listed = capsys.readouterr().out
    assert all(f"  {name} " in listed for name in keys_of(command))
    assert ",)" not in short + listed  # long defaults are whole


# Names of Hugging Face transformers' TrainingArguments and scripts, PaddleNLP, SetFit,
# sentence-transformers, Lightning.
@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("epochs", "trainer.epochs"),
        ("num_train_epochs", "trainer.epochs"),
        ("max_epochs", "trainer.epochs"),
        ("trainer.num_epochs", "trainer.epochs"),
        ("num-train-epoch", "trainer.epochs"),
        ("per_device_train_batch_size", "data.batch_size"),
        ("lr", "optimizer.learning_rate"),
        ("learning-rate", "optimizer.learning_rate"),
        ("body_learning_rate", "optimizer.learning_rate"),
        ("weight_decay", "optimizer.weight_decay"),
        ("warmup_ratio", "optimizer.warmup_ratio"),
        ("warmup_steps", "optimizer.warmup_ratio=0.1"),
        ("max_seq_length", "data.max_length"),
        ("max_seq_len", "data.max_length"),
        ("fp16", "precision.level=O1"),
        ("bf16", "precision.level=O1 precision.dtype=bfloat16"),
        ("text_column_name", "data.text_column"),
        ("label_column", "data.label_column"),
        ("sentence2_key", "data.text_pair_column"),
        ("gradient_accumulation_steps", "optimizer.accumulate_steps"),
        ("save_steps", "trainer.checkpoint_every"),
        ("logging_steps", "trainer.log_every"),
        ("eval_steps", "trainer.eval_every"),
        ("metric_for_best_model", "trainer.best_metric"),
        ("early_stopping_patience", "trainer.patience"),
        ("model_name_or_path", "model.init"),
        ("seed", "trainer.seed"),
        ("sede", "trainer.seed"),
        ("optimiser", "optimizer"),
        ("Optimizer.LR", "optimizer.learning_rate"),
        ("distill.layers", "model.num_hidden_layers"),
    ],
)
def test_a_name_of_another_framework_means_a_key(name, key):
    assert names.hint(name, [config.Config]) == f"; did you mean {key}?"


@pytest.mark.parametrize("name", ["foo", "text", "quantity", "x", "", "temporary", "colour", "..."])
def test_nothing_is_suggested_where_nothing_is_near(name):
    assert names.hint(name, [config.Config]) == ""


@pytest.mark.parametrize(
    "name", ["text_columns", "column_mapping", "num_labels", "load_best_model_at_end"]
)
def test_what_has_no_key_is_said(name):
    said = names.hint(name, [config.Config])
    assert said and "did you mean" not in said


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("ner", "token_classification"),
        ("text-classification", "classification"),
        ("multilabel", "multi_label_classification"),
        ("clasification", "classification"),
        ("zzz", None),
    ],
)
def test_a_task_of_another_framework_is_answered_with_its_name(name, task):
    with pytest.raises(UserError) as caught:
        config.from_keys(config.Config, {"task.name": name})
    hint = f" (did you mean {task}?)" if task else "'ctr'"
    assert f"{hint}, not {name}" in str(caught.value)


def test_zero_shot_is_not_trained():
    with pytest.raises(
        UserError, match=r"task\.name: zero-shot is not trained; .*`fleetbert label`"
    ):
        config.from_keys(config.Config, {"task.name": "zero-shot"})


def test_the_same_name_means_another_key_elsewhere():
    for schema, key in [(config.Quantize, "bundle"), (config.Config, "model.init")]:
        assert names.hint("model_name_or_path", [schema]) == f"; did you mean {key}?"
    assert names.hint("num_epochs", [config.SelfDistill]) == "; did you mean distill.epochs?"
    assert names.hint("port", [settings.Serve], "80") == "; did you mean listen.http_port=80?"


def test_every_row_of_the_table_is_of_keys_and_their_values():
    known = {command: keys_of(command) for command in SCHEMAS}
    for row in [*names.ELSEWHERE, *names.ARGUMENTS.values()]:
        for word in row.split():
            assert any(word.partition("=")[0] in keys for keys in known.values()), word


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--epochs", "2"], "--epochs: is no option, .*; did you mean trainer.epochs=2\\?$"),
        (["--epochs=2"], "trainer.epochs=2\\?$"),
        (["trainer.seed=1", "--lr", "1e-5", "--x"], "optimizer.learning_rate=1e-5\\?$"),
        (["--bf16", "--lr", "2"], "precision.level=O1 precision.dtype=bfloat16\\?$"),
        (["--batch-size", "trainer.seed=1"], "did you mean data.batch_size\\?$"),
        (["--zzz"], "--zzz: is no option, .*; --help-all lists them$"),
    ],
)
def test_an_option_that_is_a_key_is_answered_with_it(words, sentence):
    parser = Parser("x")
    parser.add_argument("--config", required=True)
    add_keys(parser, {"train": config.Config})
    for parse in (parser.parse_args, parser.parse_intermixed_args):
        with pytest.raises(UserError, match=sentence):
            parse(words)


def test_arguments_of_python_are_answered_with_arguments():
    for given, meant in [
        ({"num_train_epochs": 2}, "trainer.epochs (as an argument: epochs)"),
        ({"lr": 1e-5}, "optimizer.learning_rate (as an argument: learning_rate)"),
        ({"train_file": "a.tsv"}, "data.train (as an argument: train)"),
        ({"r_dorp": 1}, 'loss.r_drop (as an argument: **{"loss.r_drop": ...})'),
    ]:
        with pytest.raises(UserError) as caught:
            config.from_keys(config.Config, given)
        assert str(caught.value).endswith(f"unknown key {next(iter(given))}; did you mean {meant}?")


def test_a_resumed_run_may_differ_where_the_key_or_its_section_says_so():
    free = {
        name for name, _ in fields(config.Tuning) if config.on_resume(config.Tuning, name) == "free"
    }
    sections = ("precision.", "strategy.", "trainer.", "callbacks.")
    assert {name for name in free if not name.startswith(sections)} == {
        "data.cache", "data.num_workers", "output_dir", "held_out",
        "data.integer_labels", "data.unlabelled", *names.COLUMNS.values(),
    } - {"data.quoting"}  # fmt: skip
    kept = {name for name, _ in fields(config.Tuning)} - free
    assert {name for name in kept if name.startswith(sections)} == {"trainer.seed"}
    # Keys of an older checkpoint, or of a job of another kind.
    gone = {"trainer.gone": "free", "data.gone": "same", "distill.kind": "same"}
    assert {name: config.on_resume(config.Config, name) for name in gone} == gone

"""A family of encoders, a kind of tokenizer and a task are added from outside the package, a file
each: they train, and what they leave is opened again and answers."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from fleetbert import config, tasks
from fleetbert.core.errors import UserError
from fleetbert.data import tokenizers
from fleetbert.engines import answer, evaluate
from fleetbert.models import sources
from fleetbert.training import job as training

WORDS = [f"word{number}" for number in range(40)]
DEPTH, WIDTH, POSITIONS = 2, 32, 64
LABELS = ["1", "2", "3"]


@pytest.fixture(scope="module", autouse=True)
def added():
    """The toy members, as a user's own module would add them."""
    for name in ("toy_family", "toy_tokenizer", "toy_task"):
        importlib.import_module(f"outside.{name}")


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """A folder of the toy family, as its own software would write it."""
    folder = tmp_path_factory.mktemp("source")
    rng = np.random.default_rng(0)

    def drawn(*shape):
        return rng.normal(0, 0.1, shape).astype(np.float32)

    tensors = {
        "trunk.embeddings.word_embeddings.weight": drawn(len(WORDS) + 5, WIDTH),
        "trunk.embeddings.position_embeddings.weight": drawn(POSITIONS, WIDTH),
        "trunk.embeddings.token_type_embeddings.weight": drawn(2, WIDTH),
        "trunk.embeddings.layer_norm.weight": np.ones(WIDTH, np.float32),
        "trunk.embeddings.layer_norm.bias": np.zeros(WIDTH, np.float32),
    }
    for layer in range(DEPTH):
        at = f"trunk.blocks.{layer}."
        linear = [(f"self_attn.{name}_proj", WIDTH, WIDTH) for name in ("q", "k", "v", "out")]
        linear += [("linear1", WIDTH, 2 * WIDTH), ("linear2", 2 * WIDTH, WIDTH)]
        for name, before, after in linear:
            tensors[f"{at}{name}.weight"] = drawn(after, before)
            tensors[f"{at}{name}.bias"] = drawn(after)
        for name in ("normal_1", "normal_2"):
            tensors[f"{at}{name}.weight"] = np.ones(WIDTH, np.float32)
            tensors[f"{at}{name}.bias"] = np.zeros(WIDTH, np.float32)
    save_file(tensors, folder / "model.safetensors")
    shape = {
        "width": WIDTH, "depth": DEPTH, "num_attention_heads": 2, "intermediate_size": 2 * WIDTH,
        "max_position_embeddings": POSITIONS, "type_vocab_size": 2, "pad_token_id": 0,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps({**shape, "model_type": "toy"}))
    (folder / "words.txt").write_text("\n".join(WORDS))
    return folder


def write_table(path: Path, texts: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = ["label\ttext_a"]
    for _ in range(texts):
        stars = rng.integers(1, 4)
        words = [f"word{stars * 10 + n}" for n in rng.integers(0, 10, 5)]
        rows.append(f"{stars}\t{' '.join(words)}")
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")


@pytest.fixture(scope="module")
def trained(source, tmp_path_factory) -> training.Result:
    folder = tmp_path_factory.mktemp("trained")
    for name, texts, seed in (("train.tsv", 32, 1), ("dev.tsv", 12, 2)):
        write_table(folder / name, texts, seed)
    job = config.Config.model_validate(
        {
            "task": {"name": "stars"},
            "data": {
                "train": str(folder / "train.tsv"), "dev": str(folder / "dev.tsv"),
                "max_length": 16, "batch_size": 16,
            },
            "model": {"init": str(source)},
            "trainer": {"device": "cpu", "max_steps": 2},
            "callbacks": {"visualdl": False, "progress": False},
            "output_dir": str(folder / "output"),
        }
    )  # fmt: skip
    return training.train(job, metrics={"mean": lambda truth, _: truth.mean()})


def test_two_steps_are_trained(trained):
    assert trained.summary["steps"] == 2
    assert trained.summary["dev"]["step"] == 2
    assert trained.summary["dev"]["metric"] == "within_one"
    assert 0 <= trained.metrics["within_one"] <= 1
    assert 0 <= trained.metrics["mean"] <= 2  # the user's own
    assert trained.summary["fresh_weights"] == [
        "bert.pooler.dense.bias", "bert.pooler.dense.weight", "classifier.bias", "classifier.weight"
    ]  # fmt: skip


def test_the_model_is_written_as_the_family_has_it(source, trained):
    folders = source, trained.output_dir / "model"
    before, after = (load_file(folder / "model.safetensors") for folder in folders)
    added = {"trunk.pooler.dense.weight", "trunk.pooler.dense.bias", "answer.weight", "answer.bias"}
    assert set(after) == set(before) | added
    assert {n: a.shape for n, a in after.items() if n in before} == {
        n: a.shape for n, a in before.items()
    }
    fields = json.loads((trained.output_dir / "model" / "config.json").read_text())
    assert (fields["model_type"], fields["width"], fields["depth"]) == ("toy", WIDTH, DEPTH)
    again = sources.open_source(config.Model(init=str(trained.output_dir / "model")))
    assert tokenizers.open(again.tokenizer).kind == "spaces"
    assert again.shape["max_position_embeddings"] == POSITIONS


def test_the_bundle_answers(trained):
    model = answer.load(trained.bundle)
    assert model.tokenizer.kind == "spaces"
    texts = ["word11 word12 word13", "WORD11 word12 word13", "word31 word32"]
    answers = answer.answer(model, texts)
    assert all(1 <= one.stars <= 3 for one in answers)
    assert answers[0] == answers[1]  # its setting: case counts for nothing
    (line,), _ = next(answer.answer_lines(model, iter([b"word11 word12 word13\n"])))
    assert line == {"stars": round(answers[0].stars, 4)}


def test_the_bundle_is_evaluated_as_training_did(trained):
    found = evaluate.evaluate(answer.load(trained.bundle), trained.output_dir.parent / "dev.tsv")
    assert found["loss"] == pytest.approx(trained.metrics["loss"], abs=1e-4)
    assert "within_one" in evaluate.format_report(found)


def test_a_server_is_told_its_tensors():
    assert tasks.get("stars").answer.tensors(LABELS, 3)[0] == ("stars", "FP32", (-1,))


def test_a_task_that_nobody_added_is_refused():
    with pytest.raises(UserError, match=r"task\.name: 'star' is not one of .*did you mean stars"):
        tasks.get("star")

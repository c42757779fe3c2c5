"""Vectors that are learned: losses as NumPy computes them, the same packed; trained, resumed,
exported; tables that do not fit."""

from __future__ import annotations

import json

import numpy as np
import paddle
import pytest
import tiny_bert
import tiny_job

import fleetbert
from fleetbert import config, tasks
from fleetbert.data import read, tokenizers
from fleetbert.data.split import tokenize
from fleetbert.errors import UserError
from fleetbert.tasks.metrics import mrr
from fleetbert.train import job as training
from fleetbert.train import objectives

TASK = tasks.get("embedding")


def write_rows(path, rows: int, seed: int, fields: int = 2, numbers: bool = False):
    """Texts of one line have two words of one subject among others."""
    rng = np.random.default_rng(seed)

    def text(subject: int) -> str:
        words = [f"word{10 * subject + n}" for n in rng.integers(0, 10, 3)]
        words += [f"word{n}" for n in rng.integers(120, 150, rng.integers(1, 4))]
        return " ".join(rng.permutation(words))

    lines = []
    for _ in range(rows):
        subjects = rng.permutation(12)[:3]
        same = rng.random() < 0.5
        own = [subjects[0], subjects[0] if same or not numbers else subjects[1], subjects[2]]
        row = {f"text_{name}": text(one) for name, one in zip("abc"[:fields], own)}
        lines.append(json.dumps({**row, **({"label": float(same)} if numbers else {})}))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    tiny_job.write_data(folder)
    for name, fields, numbers in (("pairs", 2, False), ("three", 3, False), ("scored", 2, True)):
        write_rows(folder / f"{name}.jsonl", 192, 1, fields, numbers)
    write_rows(folder / "dev.jsonl", 60, 2, 2, True)
    write_rows(folder / "devpairs.jsonl", 40, 3)
    return folder


def job(data, output, **changes):
    usual = {
        "task.name": "embedding",
        "trainer.epochs": 3,
        "data.train": str(data / "pairs.jsonl"),
        "data.dev": str(data / "dev.jsonl"),
    }
    return config.Config.model_validate(tiny_job.values(data, output, {**usual, **changes}))


def numpy_loss(vectors, numbers, temperature, firsts):
    """vectors [examples, texts of one, width]; firsts: the first text of each."""
    first = vectors[:, 0]
    if numbers is not None:
        return np.mean(((first * vectors[:, 1]).sum(1) - numbers) ** 2)
    candidates = np.concatenate([vectors[:, n] for n in range(1, vectors.shape[1])])
    scores = first @ candidates.T / temperature
    chosen = scores[np.arange(len(first)), np.arange(len(first))]
    same = np.array([[one == other for other in firsts] for one in firsts])
    np.fill_diagonal(same, False)
    counts = np.ones_like(scores)
    counts[:, : len(first)] -= same  # the answer of another example to the same text is not wrong
    return np.mean(np.log((counts * np.exp(scores)).sum(1)) - chosen)


@pytest.mark.parametrize("name", ["pairs", "three", "scored", "repeated"])
def test_losses_are_numpys_in_rows_of_their_own_and_in_shared_ones(data, tmp_path, name):
    network = tiny_bert.make_embedder()
    network.eval()
    tokenizer = tokenizers.open(tokenizers.of_vocab(data / "vocab.txt", True))
    path = data / f"{name}.jsonl"
    if name == "repeated":  # triplets of twelve first texts
        rows = [json.loads(line) for line in (data / "three.jsonl").read_text().splitlines()]
        path = tmp_path / "repeated.jsonl"
        lines = [
            json.dumps({**row, "text_a": rows[n % 12]["text_a"]}) for n, row in enumerate(rows)
        ]
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    table = read.read_as(path, TASK.table_format(path))
    split, own = tokenize(str(path), table, tokenizer, False, True, 24)
    split = TASK.with_targets(split, own, [])
    texts = 3 if name in ("three", "repeated") else 2
    assert TASK.describe(split.labels, []).startswith(
        {"pairs": "192 pairs without", "scored": "192 pairs, numbers"}.get(name, "192 triplets")
    )
    vectors = np.concatenate(
        [
            network(paddle.to_tensor([ids], "int64"), paddle.zeros([1, len(ids)], "int64")).numpy()
            for ids in split.encodings.ids
        ]
    ).reshape(192, texts, -1)
    numbers = split.labels[::texts, 0] if name == "scored" else None
    for batching in ("pad", "pack"):
        made = job(data, tmp_path, **{"data.batching": batching, "task.temperature": 0.1})
        collector = TASK.collector(split, made, tokenizer)
        step = collector.plan(0)[0].astype(np.int64)
        (arrays,) = collector.micro_batches(step, 0, 1, slice(None))
        inputs = {key: paddle.to_tensor(one) for key, one in arrays["inputs"].items()}
        sent = {key: paddle.to_tensor(arrays[key]) for key in ("labels", "weight")}
        loss = objectives.get("embedding").loss(network, {**arrays, **sent, "inputs": inputs})
        some = None if numbers is None else numbers[step]
        firsts = [table.examples[number * texts].text_a for number in step.tolist()]
        assert name != "repeated" or len(set(firsts)) < len(firsts)
        expected = numpy_loss(vectors[step], some, 0.1, firsts)
        assert float(loss) == pytest.approx(expected, rel=1e-4)
        assert arrays["n_texts"] == texts * len(step)


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    output = tmp_path_factory.mktemp("run")
    return training.train(job(data, output, **{"callbacks.report": True}))


def test_vectors_are_learned_and_answered(run, data, tmp_path):
    assert run.metrics["spearman"] > 0.6
    assert run.summary["dev"]["metric"] == "spearman"
    assert "Spearman" in run.report.read_text(encoding="utf-8")
    found = fleetbert.load(run.bundle).evaluate(data / "dev.jsonl")
    assert found["spearman"] == pytest.approx(run.metrics["spearman"], abs=1e-4)
    again = fleetbert.import_model(run.output_dir / "model", tmp_path / "bundle", max_length=24)
    texts = ["word1 word2", "word3"]
    one, other = (fleetbert.load(bundle)(texts)[1].vector for bundle in (run.bundle, again))
    np.testing.assert_allclose(one, other, atol=1e-5)


def test_pairs_without_numbers_are_evaluated_by_rank(data, tmp_path):
    changes = {
        "data.dev": str(data / "devpairs.jsonl"), "task.pooling": "cls", "trainer.epochs": 1,
        "callbacks.report": True,
    }  # fmt: skip
    found = training.train(job(data, tmp_path / "run", **changes))
    assert found.summary["dev"]["metric"] == "mrr_10"
    rows = [json.loads(line) for line in (data / "devpairs.jsonl").read_text().splitlines()]
    model = fleetbert.load(found.bundle)
    sides = [np.stack([a.vector for a in model([row[f"text_{n}"] for row in rows])]) for n in "ab"]
    scores = sides[0] @ sides[1].T
    places = [(row >= row[n]).sum() for n, row in enumerate(scores)]
    expected = np.mean([1 / place if place <= 10 else 0 for place in places])
    assert found.metrics["mrr_10"] == pytest.approx(expected, abs=0.02)  # near ties
    assert mrr(*sides) == pytest.approx(expected, abs=1e-6)
    drawn = found.metrics["similarities"]
    assert sum(drawn["own"]) == sum(drawn["others"]) == len(rows)
    page = found.report.read_text(encoding="utf-8")
    assert "Similarities" in page and "40 own and 40 others" in page


@pytest.mark.usefixtures("no_results")
def test_a_run_goes_on_bit_for_bit(data, tmp_path):
    changes = {
        "data.train": str(data / "three.jsonl"),
        "trainer.epochs": 1,
        "data.cache": str(tmp_path / "cache"),
    }
    tiny_job.check_resume(lambda name, **more: job(data, tmp_path / name, **changes, **more))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (['{"text": "word1"}'], r"train\.jsonl:1: has no text_b"),
        (['{"text": "word1", "text_b": "word2", "label": 5}'], r"1: has the number 5, and a cos"),
        (
            ['{"text": "a", "text_b": "b"}', '{"text": "a", "text_b": "b", "text_c": "c"}'],
            r"train\.jsonl:2: has 3 texts, and the first line 2",
        ),
        (
            ['{"text": "a", "text_b": "b", "label": 1}', '{"text": "a", "text_b": "b"}'],
            r"train\.jsonl:2: has no label, where others have",
        ),
    ],
)
def test_what_does_not_fit_is_told_with_its_line(data, tmp_path, rows, message):
    table = tmp_path / "train.jsonl"
    table.write_text("\n".join(rows) + "\n", encoding="utf-8")
    with pytest.raises(UserError, match=message):
        training.train(job(data, tmp_path / "run", **{"data.train": str(table)}))

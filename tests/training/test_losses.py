"""Losses of rankings and of vectors: what they are computed of, and as NumPy computes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Iterator, NamedTuple

import numpy as np
import paddle
import pytest
import tiny_bert
import tiny_job

from fleetbert import tasks
from fleetbert.core.reading import Reading
from fleetbert.data import read, tokenizers
from fleetbert.data.split import Split, tokenize
from fleetbert.tasks import loss as losses
from fleetbert.tasks.ranking.labels import draw

PAIRS = tiny_job.vector_rows(48, 1)
SCORED = tiny_job.vector_rows(48, 1, numbers=True)
TRIPLETS = tiny_job.vector_rows(48, 1, fields=3)
# Of twelve first texts.
REPEATED = [{**row, "text_a": TRIPLETS[n % 12]["text_a"]} for n, row in enumerate(TRIPLETS)]
DOCUMENTS = tiny_job.ranked_rows(20, 2)


class Opened(NamedTuple):
    name: str
    folder: Path
    examples: list[read.Example]
    split: Split

    @property
    def task(self) -> tasks.Task:
        return tasks.get(self.name)

    def steps(self, network, epochs: int = 1, **changes) -> Iterator[tuple]:
        """Of each epoch's first step: its examples, its arrays, the loss, and the collector."""
        changes = {"task.name": self.name, **changes}
        job = tiny_job.job(self.folder, self.folder / "output", changes)
        collector = self.task.labels.collector(self.split, job, tokenizer(self.folder))
        for epoch in range(epochs):
            step = collector.plan(epoch)[0].astype(np.int64)
            (arrays,) = collector.micro_batches(step, epoch, 1, slice(None))
            inputs = {key: paddle.to_tensor(one) for key, one in arrays["inputs"].items()}
            sent = {key: paddle.to_tensor(arrays[key]) for key in ("labels", "weight")}
            loss = losses.of(self.task).loss(network, {**arrays, **sent, "inputs": inputs})
            yield step, arrays, float(loss), collector


def tokenizer(folder: Path):
    return tokenizers.open(tokenizers.of_vocab(folder / "vocab.txt", True))


@pytest.fixture
def opened(tiny_vocab, tmp_path):
    """opened(task's name, rows): their table, as training reads it."""
    (tmp_path / "vocab.txt").write_bytes(tiny_vocab.read_bytes())

    def call(name: str, rows: list[dict]) -> Opened:
        task, path = tasks.get(name), tiny_job.write_rows(tmp_path / "rows.jsonl", rows)
        table = read.read_as(path, task.labels.table_format(path))
        split, own = tokenize(
            "rows",
            table,
            tokenizer(tmp_path),
            task.shape.pair,
            True,
            Reading(24),
            task.answer.encode,
        )
        return Opened(name, tmp_path, table.examples, task.labels.with_targets(split, own, []))

    return call


def network_of(name: str, **fields: object):
    network = tiny_bert.make_embedder(task=name, **fields)
    network.eval()
    return network


def loss_of_vectors(vectors, numbers, temperature, firsts):
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


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (PAIRS, "48 pairs without"),
        (TRIPLETS, "48 triplets"),
        (SCORED, "48 pairs, numbers"),
        (REPEATED, "48 triplets"),
    ],
    ids=["pairs", "triplets", "scored", "repeated"],
)
def test_of_vectors(opened, rows, sentence):
    network, table = network_of("embedding"), opened("embedding", rows)
    assert table.task.labels.describe(table.split.labels, []).startswith(sentence)
    texts = len(table.examples) // len(rows)
    ids = table.split.encodings.ids
    for batching in ("pad", "pack"):
        changes = {"data.batching": batching, "task.temperature": 0.1}
        ((step, arrays, loss, _),) = table.steps(network, **changes)
        vectors = [
            network(paddle.to_tensor([one], "int64"), paddle.zeros([1, len(one)], "int64")).numpy()
            for number in step
            for one in ids[number * texts : (number + 1) * texts]
        ]
        numbers = None if rows is not SCORED else np.array([rows[n]["label"] for n in step])
        firsts = [rows[number]["text_a"] for number in step]
        assert rows is not REPEATED or len(set(firsts)) < len(firsts)
        vectors = np.reshape(vectors, (len(step), texts, -1))
        expected = loss_of_vectors(vectors, numbers, 0.1, firsts)
        assert loss == pytest.approx(expected, rel=1e-4)
        assert arrays["n_texts"] == texts * len(step)


def test_triplets_are_two_pairs_each(opened):
    split = opened("ranking", DOCUMENTS).split
    of = {(row["text_a"], row["text_b"]): row["label"] for row in DOCUMENTS}
    triplets = opened("ranking", tiny_job.triplets_of(DOCUMENTS))
    assert len(triplets.examples) == len(triplets.split.labels) > 40
    for example in triplets.examples:
        assert json.loads(example.label) == [of[example.text_a, example.text_b], example.text_a]
    queries = [row["text_a"] for row in DOCUMENTS]
    numbers = dict(zip(queries, split.labels[:, 1]))
    assert [numbers[query] for query in queries] == split.labels[:, 1].tolist()
    assert len(set(numbers.values())) == len(numbers) == 20
    assert tasks.get("ranking").labels.describe(split.labels, []) == (
        f"120 documents of 20 queries, {sum(of.values())} relevant"
    )


@pytest.mark.parametrize("negatives", [0, 1, 3])
@pytest.mark.parametrize("batching", ["pad", "pack"])
def test_of_rankings(opened, negatives, batching):
    """Of what is drawn for an epoch: another document of the same query that does not answer it,
    all different where there are as many, others in another epoch."""
    network, table = network_of("ranking", num_labels=1), opened("ranking", DOCUMENTS)
    split = table.split
    sides = zip(split.encodings.ids, split.encodings.first_lengths.tolist())
    values = np.array([
        float(network(paddle.to_tensor([ids], "int64"),
                      paddle.to_tensor([[int(n >= first) for n in range(len(ids))]], "int64")))
        for ids, first in sides
    ])  # fmt: skip
    changes = {"data.batching": batching, "task.negatives": negatives}
    seen = []
    for step, arrays, loss, collector in table.steps(network, epochs=2, **changes):
        seen.append(collector.examples)
        some = collector.examples[step]
        if negatives:
            losses = np.log(np.exp(values[some] - values[some[:, :1]]).sum(1))
        else:
            true = split.labels[some[:, 0], 0]
            losses = np.logaddexp(0, np.where(true > 0, -values[some[:, 0]], values[some[:, 0]]))
        assert loss == pytest.approx(losses.mean(), rel=1e-4)
        assert arrays["n_texts"] == some.size
        assert collector.lines[step[0]] == table.examples[some[0, 0]].line
    if not negatives:
        return
    for pairs in seen:
        relevant, query = split.labels[pairs][..., 0], split.labels[pairs][..., 1]
        assert (relevant[:, 0] == 1).all() and (relevant[:, 1:] == 0).all()
        assert (query == query[:, :1]).all()
        assert len(pairs) == int(split.labels[:, 0].sum())
        for one in pairs:
            there = np.count_nonzero((split.labels == [0, split.labels[one[0], 1]]).all(1))
            assert len(set(one[1:].tolist())) == min(negatives, there)
    assert (seen[0] != seen[1]).any()
    assert (draw(split.labels, negatives, [0, 0]) == draw(split.labels, negatives, [0, 0])).all()

"""Documents ranked for a query, the whole way: tables, losses, resumed, compressed, told."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import paddle
import pytest
import tiny_bert
import tiny_job

import fleetbert
from fleetbert import cli, config, tasks
from fleetbert.data import read, tokenizers
from fleetbert.data.split import tokenize
from fleetbert.errors import UserError
from fleetbert.tasks.ranking import draw
from fleetbert.train import job as training
from fleetbert.train import objectives

TASK = tasks.get("ranking")


def write_triplets(path: Path, rows: list[tuple[str, str, int]]) -> None:
    lines = ["text_a\ttext_b\ttext_c"]
    for query in dict.fromkeys(row[0] for row in rows):
        sides = [[d for q, d, r in rows if q == query and r == one] for one in (1, 0)]
        lines += [f"{query}\t{a}\t{b}" for a, b in zip(*sides)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranking")
    tiny_job.write_data(folder)
    for name, queries, seed in (("train", 60, 1), ("dev", 20, 2)):
        tiny_job.write_ranking(folder / f"{name}.tsv", queries, seed)
        write_triplets(folder / f"{name}3.tsv", tiny_job.ranked_rows(queries, seed))
    return folder


def job(data: Path, output: Path, **changes: object) -> config.Config:
    usual = {"task.name": "ranking", "trainer.epochs": 8, "data.batch_size": 16}
    return config.Config.model_validate(tiny_job.values(data, output, {**usual, **changes}))


def split_of(path: Path):
    tokenizer = tokenizers.open(tokenizers.of_vocab(path.parent / "vocab.txt", True))
    table = read.read_as(path, TASK.table_format(path))
    split, own = tokenize(str(path), table, tokenizer, True, True, 24, TASK.label)
    return table, TASK.with_targets(split, own, []), tokenizer


def test_triplets_are_two_pairs_each(data):
    table, split, _ = split_of(data / "dev3.tsv")
    whole, pairs, _ = split_of(data / "dev.tsv")
    of = {(one.text_a, one.text_b): json.loads(one.label)[0] for one in whole.examples}
    assert len(table.examples) == len(split.labels) > 40
    for example in table.examples:
        assert json.loads(example.label) == [of[example.text_a, example.text_b], example.text_a]
    queries = [example.text_a for example in whole.examples]
    numbers = dict(zip(queries, pairs.labels[:, 1]))
    assert [numbers[query] for query in queries] == pairs.labels[:, 1].tolist()
    assert len(set(numbers.values())) == len(numbers) == 20
    assert TASK.describe(pairs.labels, []) == (
        f"120 documents of 20 queries, {sum(of.values())} relevant"
    )


@pytest.mark.parametrize("negatives", [0, 1, 3])
@pytest.mark.parametrize("batching", ["pad", "pack"])
def test_losses_are_numpys(data, tmp_path, negatives, batching):
    """Of what is drawn for an epoch: another document of the same query that does not answer it,
    all different where there are as many, others in another epoch."""
    network = tiny_bert.make_embedder(task="ranking", num_labels=1)
    network.eval()
    table, split, tokenizer = split_of(data / "train.tsv")
    made = job(data, tmp_path, **{"data.batching": batching, "task.negatives": negatives})
    sides = zip(split.encodings.ids, split.encodings.first_lengths.tolist())
    values = np.array([
        float(network(paddle.to_tensor([ids], "int64"),
                      paddle.to_tensor([[int(n >= first) for n in range(len(ids))]], "int64")))
        for ids, first in sides
    ])  # fmt: skip
    collector = TASK.collector(split, made, tokenizer)
    seen = []
    for epoch in (0, 1):
        plan = collector.plan(epoch)
        seen.append(collector.examples)
        step = plan[0].astype(np.int64)
        (arrays,) = collector.micro_batches(step, epoch, 1, slice(None))
        inputs = {key: paddle.to_tensor(one) for key, one in arrays["inputs"].items()}
        sent = {key: paddle.to_tensor(arrays[key]) for key in ("labels", "weight")}
        loss = objectives.get("ranking").loss(network, {**arrays, **sent, "inputs": inputs})
        some = collector.examples[step]
        if negatives:
            losses = np.log(np.exp(values[some] - values[some[:, :1]]).sum(1))
        else:
            true = split.labels[some[:, 0], 0]
            losses = np.logaddexp(0, np.where(true > 0, -values[some[:, 0]], values[some[:, 0]]))
        assert float(loss) == pytest.approx(losses.mean(), rel=1e-4)
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


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    output = tmp_path_factory.mktemp("run")
    return training.train(job(data, output, **{"callbacks.report": True}))


def test_documents_are_ranked(run, data):
    assert run.metrics["map"] > 0.85
    assert run.summary["dev"]["metric"] == "map"
    assert run.metrics["queries"] == 20 and sum(run.metrics["first_places"]) == 20
    page = run.report.read_text(encoding="utf-8")
    for words in ("Dev mean average precision", "First relevant documents", "relevant and"):
        assert words in page, words
    model = fleetbert.load(run.bundle)
    rows = tiny_job.ranked_rows(20, 2)
    values = [answer.value for answer in model([q for q, _, _ in rows], [d for _, d, _ in rows])]
    truth = TASK.targets([json.dumps([int(r), q]) for q, _, r in rows], [])
    expected = TASK.evaluate(truth, np.array(values, np.float32)[:, None], [])["map"]
    assert run.metrics["map"] == pytest.approx(expected, abs=0.02)  # near ties
    found = model.evaluate(data / "dev.tsv")
    assert found["map"] == pytest.approx(expected, abs=1e-6) and "first_places" not in found
    assert model.evaluate([(q, d, int(r)) for q, d, r in rows])["map"] == found["map"]
    assert 0 < model.evaluate(data / "dev3.tsv")["mrr"] <= 1


def test_compressed_and_told(run, data, capsys):
    """int8 and ONNX pass a gate that reads the mean average precision; the commands tell numbers;
    the run's model comes back as the same task."""
    from fleetbert.compress.onnx import export_onnx

    queries, documents, _ = zip(*tiny_job.ranked_rows(20, 2))

    def answers(bundle: Path, variant: str = "float32") -> np.ndarray:
        found = fleetbert.load(bundle, variant)(list(queries), list(documents))
        return np.array([one.value for one in found])

    expected = answers(run.bundle)
    spread = expected.std()
    for method, calibration in (("static", data / "train.tsv"), ("dynamic", None)):
        made = fleetbert.quantize(
            run.bundle, method=method, calibration=calibration, gate=data / "dev.tsv", max_drop=0.1
        )
        assert made.metric == "map"
        assert made.float32_accuracy == pytest.approx(run.metrics["map"], abs=0.02)
        assert made.interval[0] <= made.drop <= made.interval[1]
        np.testing.assert_allclose(answers(run.bundle, made.name), expected, atol=0.5 * spread)
    capsys.readouterr()
    export_onnx(run.bundle)
    np.testing.assert_allclose(answers(run.bundle, "onnx"), expected, atol=0.01 * spread)

    def told(*words: str) -> str:
        with pytest.raises(SystemExit) as ended:
            cli.main([*words, "--bundle", str(run.bundle)])
        assert ended.value.code in (0, None)
        return capsys.readouterr().out

    assert told("evaluate", "--data", str(data / "dev.tsv")).startswith("map ")
    assert f"→ {expected[0]:.4f}"[:-1] in told("ask", f"{queries[0]}\t{documents[0]}")
    model = run.output_dir / "model"
    again = fleetbert.import_model(model, run.output_dir / "again", task="ranking", max_length=24)
    assert json.loads((again / "manifest.json").read_text())["task"]["name"] == "ranking"
    np.testing.assert_allclose(answers(again), expected, atol=0.01 * spread)


@pytest.mark.usefixtures("no_results")
def test_a_run_goes_on_bit_for_bit(data, tmp_path):
    """From triplets in a cache, read by another process, with several negatives."""
    changes = {
        "data.train": str(data / "train3.tsv"), "trainer.epochs": 1, "task.negatives": 2,
        "data.cache": str(tmp_path / "cache"),
    }  # fmt: skip
    tiny_job.check_resume(
        lambda name, **more: job(data, tmp_path / name, **changes, **more), {"data.num_workers": 1}
    )


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"label": 2}, r"train\.jsonl:2: 'label' is '2'; write 1 for a document that answers"),
        ({"label": "yes"}, r"train\.jsonl:2: 'label' is 'yes'; write 1"),
        ({}, r"train\.jsonl:2: has no 'label' and no 'text_c'"),
        ({"label": 1, "text_c": "c"}, r"train\.jsonl:2: has a label and a 'text_c'"),
        ({"text_c": " "}, r"train\.jsonl:2: 'text_c' is empty"),
        ({"label": 1}, r"train\.jsonl: no query has both a document that answers it"),
    ],
)
def test_what_does_not_fit_is_told_with_its_line(data, tmp_path, row, message):
    table = tmp_path / "train.jsonl"
    rows = [{"text_a": "a", "text_b": "b", "label": 1}, {"text_a": "a", "text_b": "c", **row}]
    table.write_text("".join(json.dumps(one) + "\n" for one in rows), encoding="utf-8")
    with pytest.raises(UserError, match=message):
        training.train(job(data, tmp_path / "run", **{"data.train": str(table)}))

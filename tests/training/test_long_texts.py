"""Long texts, in windows: training, and what the bundle answers, beside each window by itself."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tiny_job

import fleetbert
from fleetbert import bundle as bundles
from fleetbert import config, tasks
from fleetbert.data import tokenizers, windows
from fleetbert.data.split import Split
from fleetbert.training import job as training

LONGEST, STRIDE = 16, 3


def write(path: Path, name: str, count: int, seed: int) -> Path:
    """Texts of 3 to 59 words, in which word0 or word1 stands anywhere: the label."""
    random = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        words = [f"word{n}" for n in random.integers(2, 150, random.integers(3, 60))]
        label = int(random.integers(0, 2))
        words[int(random.integers(0, len(words)))] = f"word{label}"
        text, kind = " ".join(words), "ab"[label]
        if name == "token_classification":
            begin = text.split().index(f"word{label}")
            begin = len(" ".join([*words[:begin], ""]))
            spans = [{"start": begin, "end": begin + len("word0"), "kind": kind}]
            rows.append({"text": text, "spans": spans})
        elif name == "pair_classification":
            rows.append({"text_a": "word5 word6", "text_b": text, "label": kind})
        elif name == "embedding":
            rows.append({"text_a": text, "text_b": f"{text} word1", "label": number % 2})
        else:
            told = {"multi_label_classification": [kind], "regression": float(label)}
            rows.append({"text": text, "label": told.get(name, kind)})
    return tiny_job.write_rows(path, rows)


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny_vocab):
    """run(task's name, keys) → the result, and its dev table."""
    made = {}

    def call(name: str, **data: object):
        key = name, json.dumps(data)
        if key not in made:
            folder = tmp_path_factory.mktemp(name)
            (folder / "vocab.txt").write_text("\n".join(tiny_job.VOCAB) + "\n", encoding="utf-8")
            train = write(folder / "train.jsonl", name, 48, 0)
            dev = write(folder / "dev.jsonl", name, 24, 1)
            tables = {"train": str(train), "dev": str(dev), "max_length": LONGEST}
            job = config.Config(
                task={"name": name},
                data={**tables, "long_texts": "windows", "stride": STRIDE, **data},
                model={"vocab": str(folder / "vocab.txt"), **tiny_job.SHAPE},
                trainer={"epochs": 1, "device": "cpu"},
                callbacks={"visualdl": False, "report": False, "progress": False},
                output_dir=str(folder / "run"),
            )
            made[key] = training.train(job), dev
        return made[key]

    return call


NAMES = (
    "classification",
    "pair_classification",
    "multi_label_classification",
    "regression",
    "embedding",
    "token_classification",
)


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in NAMES[1:]]


@pytest.mark.parametrize("name", [NAMES[0], *SLOW])
def test_training_measures_what_the_bundle_answers(run, name, tmp_path):
    """Rows and packed rows in training, and the engine, pool alike."""
    for batching, cache in (("bucket", "none"), ("pack", str(tmp_path / "cache"))):
        result, dev = run(name, batching=batching, cache=cache)
        measured = fleetbert.load(result.bundle).evaluate(dev)
        assert measured["truncated"] == 0
        figures = {"loss", "spearman", "pearson", "entity_f1"} & set(result.metrics)
        assert figures
        for figure in figures:
            assert measured[figure] == pytest.approx(result.metrics[figure], abs=2e-5)


def words_of(count: int, seed: int) -> list[str]:
    return [f"word{n}" for n in np.random.default_rng(seed).integers(0, 150, count)]


def outputs(model, texts: list[str]) -> np.ndarray:
    answers = model(texts)
    names = ("logits", "value", "vector")
    rows = [next(getattr(a, n) for n in names if hasattr(a, n)) for a in answers]
    return np.array(rows, np.float64).reshape(len(texts), -1)


@pytest.mark.parametrize("name", ["classification", "multi_label_classification", "embedding"])
def test_a_text_is_told_what_its_windows_are(run, name):
    """Each of whose words is a token: a window is a text of some of them."""
    model = fleetbert.load(run(name)[0].bundle)
    words = words_of(61, 3)
    plan = windows.windows(len(words), LONGEST - 2, STRIDE)
    parts = outputs(model, [" ".join(words[begin:end]) for begin, end in plan])
    if name == "multi_label_classification":
        expected = parts.max(0)
    else:
        sizes = [end - begin for begin, end in plan]
        expected = np.average(parts, axis=0, weights=sizes if name == "embedding" else None)
    if name == "embedding":
        expected /= np.linalg.norm(expected)
    told = outputs(model, ["word1 word2", " ".join(words), "word3"])
    np.testing.assert_allclose(told[1], expected, atol=1e-5)
    np.testing.assert_allclose(told[[0, 2]], outputs(model, ["word1 word2", "word3"]), atol=1e-5)


def test_spans_name_the_characters_of_the_whole_text(run):
    model = fleetbert.load(run("token_classification")[0].bundle)
    marks = ["e\u0301te", "\r\n", "上", "\u200b", "word7\u0308"]
    words = [word for pair in zip(words_of(200, 5), marks * 40) for word in pair]
    text = "\r\n".join([" ".join(words), " ".join(words_of(30, 6))])
    (answer,) = model([text])
    assert len(answer.spans) > 20
    assert all(span.text == text[span.start : span.end] for span in answer.spans)
    assert max(span.end for span in answer.spans) > len(text) // 2


@pytest.mark.parametrize("name", ["classification", "mlm"])
def test_a_step_draws_windows(run, name):
    result, _ = run("classification")
    bundle = bundles.read(result.bundle)
    tokenizer = tokenizers.open(bundle)
    texts = [" ".join(words_of(200, 1)), "word1"]
    encodings = windows.encode(tokenizer, texts, None, bundle.reading)
    job = config.Config(
        task={"name": name},
        data={"train": "none", "max_length": LONGEST, "train_windows": 2},
        model={"vocab": str(bundle.vocab_path)},
    )
    some = Split("some", encodings, np.array([0, 1]), 0, np.array([1, 2]))
    collector = tasks.get(name).labels.collector(some, job, tokenizer)
    both, weights = np.arange(2), np.ones(2, np.float32)
    steps = [collector.arrays(both, weights, both, epoch, False) for epoch in (0, 0, 1)]
    ids = [step["inputs"]["input_ids"] for step in steps]
    assert ids[0].shape == (3, LONGEST)
    assert (ids[0] == ids[1]).all() and not (ids[0] == ids[2]).all()
    if name == "mlm":
        hidden = steps[0]["inputs"]["positions"]
        assert (ids[0].flatten()[hidden] == tokenizer.mask_id).any()
    else:
        assert steps[0]["inputs"]["windows"].tolist() == [[0, 1], [2, 2]]
        assert steps[0]["inputs"]["shares"].tolist() == [[0.5, 0.5], [1.0, 0.0]]
    whole = collector.whole(both)
    assert len(whole["inputs"]["input_ids"]) > 10


@pytest.mark.parametrize(
    ("task", "sentence"),
    [
        ("pair_classification", "texts have more than data.max_length: 16 tokens and lose their "),
        ("question_answering", "texts that stand in each window have more than half of data.max_"),
    ],
)
def test_the_log_says_which_texts_lose_their_end(trainer, tmp_path, caplog, task, sentence):
    long, short = " ".join(words_of(40, 1)), "word1 word2"
    rows = [{"text_a": long if n < 2 else short, "text_b": short, "label": "ab"[n % 2]}
            for n in range(4)]  # fmt: skip
    if task == "question_answering":
        rows = [{"question": row["text_a"], "context": short, "answers": "word2"} for row in rows]
    table = str(tiny_job.write_rows(tmp_path / "train.jsonl", rows))
    changes = {"task.name": task, "data.train": table, "data.dev": None, "data.max_length": 16}
    trainer(tmp_path / "run", {**changes, "trainer.max_steps": 1})
    assert f"train.jsonl: 50% of the {sentence}" in caplog.text
    assert ("data.long_texts=windows" in caplog.text) == (task == "pair_classification")


@pytest.mark.parametrize(
    ("task", "stride"),
    [("classification", 8), ("token_classification", 8), ("question_answering", 42)],
)
def test_how_much_windows_share_where_nobody_says_it(task, stride):
    job = config.Config(
        task={"name": task},
        data={"train": "t", "max_length": 128, "long_texts": "windows"},
        model={"vocab": "v"},
    )
    assert job.reading.stride == stride


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            {
                "data": {"train": "t", "long_texts": "head_tail"},
                "task": {"name": "question_answering"},
            },
            r"data\.long_texts: question_answering reads all",
        ),
        (
            {"data": {"train": "t", "max_length": 16, "long_texts": "windows", "stride": 9}},
            r"data\.stride.*half",
        ),
        *(
            ({"data": {"train": "t", "long_texts": how, "stride": 0}}, r"data\.stride: is for data")
            for how in ("cut", "head_tail")
        ),
        ({"data": {"train": "t"}, "task": {"windows": "max"}}, r"task\.windows"),
    ],
)
def test_keys_that_do_not_agree(keys, message):
    with pytest.raises(ValueError, match=message):
        config.Config(**keys)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["classification", "token_classification"])
def test_variants_read_windows_as_float32_does(run, name):
    """int8, ONNX and early exit, each measured by the gate on texts."""
    result, dev = run(name)
    train, common = dev.with_name("train.jsonl"), {"gate": dev, "max_drop": 1.0}
    made = [
        fleetbert.quantize(result.bundle, method=method, calibration=train, **common)
        for method in ("static", "onnx")
    ]
    exits = {"distill.speed": 0.5, "distill.layers": [1, 2]}
    (early, *_) = fleetbert.early_exit(result.bundle, train, **common, **exits)
    whole = fleetbert.load(result.bundle)
    texts = [" ".join(words_of(61, 3)), "word1"]
    for variant in (*made, early):
        assert bundles.read(result.bundle).variant(variant.name).accuracy[0].n == 24
        model = fleetbert.load(result.bundle, variant.name)
        assert model.evaluate(dev)["n"] == 24
        if name == "classification":
            told = outputs(model, texts)
            assert np.abs(told - outputs(whole, texts)).max() < 0.5

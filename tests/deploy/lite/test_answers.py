"""What the C++ programs tell of each task, beside the same outputs told by fleetbert."""

from __future__ import annotations

import json
import unicodedata

import numpy as np
import pytest
import requests
from boards import READINGS, WORDS, add_early_exit, expected, open_early_exit
from lite_build import answers_of, refused
from lite_serving import post, serving
from lite_tokens import random_texts, write_vocabulary
from oip_cases import IDS, body_of
from same_answers import nearly

from fleetbert import bundle as bundles
from fleetbert import tasks
from fleetbert.data import ragged
from fleetbert.data.tokenizers.wordpiece import WordPiece, of_vocab

TAGS = ["O", "B-loc", "I-loc", "B-人", "I-人"]
# What the manifest says of each task.
TOLD = {
    "classification": {"labels": ["7", "-2", "30"], "integer_labels": True},
    "multi_label_classification": {
        "labels": ["1", "2", "-30"],
        "thresholds": {"2": 0.995},
        "integer_labels": True,
    },
    "regression": {"labels": []},
    "pair_regression": {"labels": []},
    "ranking": {"labels": []},
    "embedding": {"labels": [], "width": 7, "pooling": "mean"},
    "token_classification": {"labels": TAGS},
    "question_answering": {"labels": ["no_answer"], "thresholds": {"no_answer": 0.3}},
}
LONG = " ".join(WORDS[:45])
TEXTS = [
    "word1 word2",
    "word3, word4 word5",
    "字字 word6",
    " ".join(WORDS[:45]),
    "wörd8 e\u0301 5€",
]


@pytest.mark.parametrize(
    ("name", "reading"),
    [
        *((name, "cut") for name in TOLD),
        *((name, "windows") for name in TOLD),
        *((name, "head_tail") for name in ("classification", "ranking", "token_classification")),
        ("multi_label_classification", "max"),
    ],
)
def test_predict_and_the_server_tell_what_fleetbert_tells(
    lite, predict, programs, make, name, reading
):
    read = READINGS[reading]
    if read is not None and name == "embedding":
        read = read._replace(pool="vectors")
    bundle = make(task=name, reading=read, **TOLD[name])
    task, labels, outputs = expected(bundle, name, TEXTS)
    pairs = zip(TEXTS, TEXTS[::-1])
    lines = ("\t".join(pair) if task.shape.pair else pair[0] for pair in pairs)
    done = predict(bundle, text="\n".join(lines))
    assert done.returncode == 0, done.stderr
    wanted = [answer.as_json() for answer in task.answer.to_answers(labels, outputs, None)]
    nearly(answers_of(done), wanted, 2e-6)
    assert name.encode() in lite("info", "--bundle", bundle).stdout

    *tensors, _ = task.answer.tensors(labels, task.outputs(labels))
    text = {"name": "text", "datatype": "BYTES", "shape": [len(TEXTS)], "data": TEXTS}
    inputs = (
        [text, {**text, "name": "text_pair", "data": TEXTS[::-1]}] if task.shape.pair else [text]
    )
    with serving(programs, bundle) as (url, _):
        described = requests.get(f"{url}/v2/models/model").json()
        found = post(url, body_of(*inputs)).json()["outputs"]
        ids = post(url, body_of(IDS))
    assert described["parameters"]["task"] == name
    assert described["parameters"]["labels"] == labels
    assert [
        (one["name"], one["datatype"], tuple(one["shape"])) for one in described["outputs"]
    ] == [tuple(one) for one in tensors]
    assert ids.status_code == (400 if task.shape.per_token else 200)
    for one, tensor, values in zip(found, tensors, task.answer.tell(labels, outputs)):
        assert one["shape"] == [len(TEXTS), *tensor.shape[1:]]
        if tensor.datatype == "BYTES":
            nearly(list(map(json.loads, one["data"])), list(map(json.loads, values)), 2e-6)
        else:
            np.testing.assert_allclose(one["data"], np.ravel(values), atol=1e-6)


def test_words_are_those_of_fleetbert(predict, make, tmp_path):
    """Of random texts: each token's characters and each word's, told by the spans."""
    known = [
        "".join(one for one in text if unicodedata.category(one) not in ("Cn", "Cc", "Co"))
        for text in random_texts(1500, seed=11)
    ]
    texts = [text for text in known if text.strip()]
    assert len(texts) > 1000
    vocab = write_vocabulary(tmp_path / "vocab.txt", texts)
    name, told = "token_classification", TOLD["token_classification"]
    bundle = make(task=name, vocab=vocab, max_length=32, **told)
    task, labels, outputs = expected(bundle, name, texts, vocab)
    found = answers_of(predict(bundle, text="\n".join(texts)))
    wanted = [answer.as_json() for answer in task.answer.to_answers(labels, outputs, None)]
    wrong = [(ascii(text), a, b) for text, a, b in zip(texts, found, wanted)
             if [list(one.values())[:3] for one in a.get("spans", [])]
             != [list(one.values())[:3] for one in b["spans"]]]  # fmt: skip
    assert len(found) == len(wanted) and wrong[:2] == []
    assert sum(len(one["spans"]) for one in wanted) > 1000


@pytest.mark.parametrize("name", TOLD)
def test_the_bundle_says_the_shape_and_older_ones_the_task(predict, make, name):
    bundle = make(task=name, **TOLD[name])
    text = "word1\tword2" if tasks.get(name).shape.pair else "word1"
    answered = answers_of(predict(bundle, text=text))
    path = bundle / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    shape = manifest["task"].pop("shape")
    named = [manifest["task"]] if name != "question_answering" else []  # which is no older one
    for task in (*named, {**manifest["task"], "name": "of_others", "shape": shape}):
        path.write_text(json.dumps({**manifest, "task": task}), encoding="utf-8")
        assert answers_of(predict(bundle, text=text)) == answered
    path.write_text(
        json.dumps({**manifest, "task": {**task, "shape": {**shape, "answer": "song"}}})
    )
    refused(predict(bundle, text=text), "of_others, which has no answers to give here")


@pytest.mark.parametrize("name", [name for name in TOLD if tasks.get(name).answer.doubt])
def test_texts_leave_early_by_the_doubt_of_their_task(predict, here, make, name):
    bundle = make(task=name, **TOLD[name])
    variant = add_early_exit(bundle, here)
    random = np.random.default_rng(3)
    texts = [" ".join(random.choice(WORDS, random.integers(1, 12))) for _ in range(200)]
    read = bundles.read(bundle)
    task, labels = tasks.of(read.task), read.task.answered_labels
    pairs = texts[::-1] if task.shape.pair else None
    tokenizer = WordPiece(of_vocab(bundle / "vocab.txt", True))
    encoded = task.answer.encode(tokenizer, texts, pairs, read.reading)
    opened = open_early_exit(read.folder(variant), task.outputs(labels))
    lines = "\n".join(map("\t".join, zip(texts, pairs)) if pairs else texts)
    left: set[int] = set()
    for speed in (0.8, 0.97):
        outputs, layers = task.room(len(texts), labels), np.zeros(len(texts), np.int64)
        for part in opened.run_all(ragged.of(encoded), speed, 4096):
            outputs[part.numbers], layers[part.numbers] = part.outputs, part.layer
        outputs = task.answer.of_texts(outputs, encoded.words, texts)
        wanted = [one.as_json() for one in task.answer.to_answers(labels, outputs, layers)]
        done = predict(bundle, "--variant", variant, "--speed", speed, text=lines)
        nearly(answers_of(done), wanted, 2e-5)
        left.update(layers.tolist())
    assert len(left) > 1


def test_what_boards_do_not_tell_is_refused(predict, make):
    task = "multi_label_classification"
    bundle = make(task=task, **TOLD[task])
    path = bundle / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    for field, value, named in (
        ("thresholds", {"2": 1.5}, "task.thresholds.2"),
        ("labels", [], "task.labels"),
        ("labels", ["1", "2x", "3"], "task.labels.1 is no integer"),
        ("labels", ["1", "2", "9223372036854775808"], "task.labels.2 is no integer"),
    ):
        changed = {**manifest, "task": {**manifest["task"], field: value}}
        path.write_text(json.dumps(changed), encoding="utf-8")
        refused(predict(bundle, text="word1"), named)

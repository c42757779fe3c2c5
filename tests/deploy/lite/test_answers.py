"""What the C++ programs tell of each task, beside the same outputs told by fleetbert."""

from __future__ import annotations

import json
import unicodedata

import numpy as np
import pytest
import requests
from boards import add_early_exit, fake_logits, fake_tokens, write_bundle
from lite_serving import INFER, serving
from lite_tokens import random_texts, write_vocabulary
from oip_cases import IDS, body_of

from fleetbert import bundle as bundles
from fleetbert import tasks
from fleetbert.data.tokenizers.wordpiece import WordPiece, of_vocab

TAGS = ["O", "B-loc", "I-loc", "B-人", "I-人"]
# What the manifest says of each task.
TOLD = {
    "multi_label_classification": {"labels": ["joy", "love", "怒"], "thresholds": {"love": 0.995}},
    "regression": {"labels": []},
    "pair_regression": {"labels": []},
    "ranking": {"labels": []},
    "embedding": {"labels": [], "width": 7, "pooling": "mean"},
    "token_classification": {"labels": TAGS},
}
TEXTS = ["word1 word2", "word3, word4 word5", "字字 word6", "word7 " * 30, "wörd8 e\u0301 5€"]


def expected(bundle, name: str, texts, vocab=None, max_length=16):
    """The task, its labels and the outputs that the fake engine gives."""
    labels = TOLD[name]["labels"]
    task = tasks.of(bundles.read(bundle).task)
    tokenizer = WordPiece(of_vocab(vocab or bundle / "vocab.txt", True))
    pairs = list(texts) if task.pair else None
    encoded = task.encode(tokenizer, list(texts), pairs, max_length)
    rows = []
    for ids, first in zip(encoded.ids, encoded.first_lengths.tolist()):
        if task.per_token:
            rows.append(fake_tokens(ids.tolist(), len(labels)))
        else:
            types = [0] * first + [1] * (len(ids) - first)
            rows.append(fake_logits(ids.tolist(), types, task.outputs(labels)))
    outputs = np.empty(len(rows), object) if task.per_token else np.stack(rows)
    if task.per_token:
        outputs[:] = rows
    return task, labels, task.of_texts(outputs, encoded.words, texts)


def nearly(found, wanted) -> None:
    """Numbers within what is rounded, all else the same."""
    if isinstance(wanted, dict):
        assert list(found) == list(wanted)
        for key in wanted:
            nearly(found[key], wanted[key])
    elif isinstance(wanted, list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted):
            nearly(one, other)
    elif isinstance(wanted, float):
        assert found == pytest.approx(wanted, abs=2e-6)
    else:
        assert found == wanted


@pytest.mark.parametrize("name", TOLD)
def test_predict_and_the_server_tell_what_fleetbert_tells(lite, programs, tmp_path, name):
    bundle = write_bundle(tmp_path, targets=(programs.target,), task=name, **TOLD[name])
    task, labels, outputs = expected(bundle, name, TEXTS)
    lines = "".join(f"{text}\t{text}\n" if task.pair else f"{text}\n" for text in TEXTS)
    done = lite("predict", "--bundle", bundle, "--engine=fake", text=lines)
    assert done.returncode == 0, done.stderr
    told = [json.loads(line) for line in done.stdout.splitlines()]
    nearly(told, [answer.as_json() for answer in task.to_answers(labels, outputs, None)])
    assert name.encode() in lite("info", "--bundle", bundle).stdout

    *tensors, _ = task.tensors(labels)
    text = {"name": "text", "datatype": "BYTES", "shape": [len(TEXTS)], "data": TEXTS}
    inputs = [text, {**text, "name": "text_pair"}] if task.pair else [text]
    with serving(programs, bundle) as (url, _):
        described = requests.get(f"{url}/v2/models/model").json()
        found = requests.post(url + INFER, data=body_of(*inputs)).json()["outputs"]
        binary = body_of(*inputs, parameters={"binary_data_output": True})
        raw = requests.post(url + INFER, data=binary)
        ids = requests.post(url + INFER, data=body_of(IDS))
    assert described["parameters"]["task"] == name
    assert [
        (one["name"], one["datatype"], tuple(one["shape"])) for one in described["outputs"]
    ] == [tuple(one) for one in tensors]
    assert ids.status_code == (400 if task.per_token else 200)
    for one, tensor, values in zip(found, tensors, task.tell(labels, outputs)):
        assert one["shape"] == [len(TEXTS), *tensor.shape[1:]]
        if tensor.datatype == "BYTES":
            nearly(list(map(json.loads, one["data"])), list(map(json.loads, values)))
        else:
            np.testing.assert_allclose(one["data"], np.ravel(values), atol=1e-6)
    head = json.loads(raw.content[: int(raw.headers["Inference-Header-Content-Length"])])
    sizes = [one["parameters"]["binary_data_size"] for one in head["outputs"]]
    assert sum(sizes) + int(raw.headers["Inference-Header-Content-Length"]) == len(raw.content)


def test_words_are_those_of_fleetbert(lite, programs, tmp_path):
    """Of random texts: each token's characters and each word's, told by the spans."""
    known = [
        "".join(one for one in text if unicodedata.category(one) not in ("Cn", "Cc", "Co"))
        for text in random_texts(3000, seed=11)
    ]
    texts = [text for text in known if text.strip()]
    assert len(texts) > 2000
    vocab = write_vocabulary(tmp_path / "vocab.txt", texts)
    name, told = "token_classification", TOLD["token_classification"]
    bundle = write_bundle(
        tmp_path, targets=(programs.target,), task=name, vocab=vocab, max_length=32, **told
    )
    task, labels, outputs = expected(bundle, name, texts, vocab, 32)
    done = lite("predict", "--bundle", bundle, "--engine=fake", text="\n".join(texts))
    found = [json.loads(line) for line in done.stdout.splitlines()]
    wanted = [answer.as_json() for answer in task.to_answers(labels, outputs, None)]
    wrong = [(ascii(text), a, b) for text, a, b in zip(texts, found, wanted)
             if [list(one.values())[:3] for one in a.get("spans", [])]
             != [list(one.values())[:3] for one in b["spans"]]]  # fmt: skip
    assert len(found) == len(wanted) and wrong[:2] == []
    assert sum(len(one["spans"]) for one in wanted) > 2000


def test_what_boards_do_not_tell_is_refused(lite, programs, tmp_path):
    target = programs.target
    bundle = write_bundle(
        tmp_path, targets=(target,), task="multi_label_classification",
        **TOLD["multi_label_classification"],
    )  # fmt: skip
    name = add_early_exit(bundle, target)
    done = lite("predict", "--bundle", bundle, "--variant", name, "--engine=fake", text="word1")
    assert done.returncode == 2 and b"early exit, which is for one label here" in done.stderr
    path = bundle / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    for field, value, words in (
        ("thresholds", {"love": 1.5}, b"task.thresholds.love"),
        ("labels", [], b"task.labels"),
    ):
        changed = {**manifest, "task": {**manifest["task"], field: value}}
        path.write_text(json.dumps(changed), encoding="utf-8")
        done = lite("predict", "--bundle", bundle, "--engine=fake", text="word1")
        assert done.returncode == 2 and words in done.stderr

"""The calls of text-embeddings-inference, by its published document, and the plain one."""

from __future__ import annotations

import fake_core
import numpy as np
import pytest
import requests
from oip_answers import TEXTS

from fleetbert.deploy.inference.protocol import http_tei

LONG = "a text of more than sixteen characters"


@pytest.fixture
def ask(post):
    """ask("embed", "vectors", inputs=...)"""
    return lambda path, model, **message: post(f"/models/{model}/{path}".rstrip("/"), message)


def test_embed(ask):
    vectors = fake_core.vectors_of(TEXTS)
    found = ask("embed", "vectors", inputs=TEXTS, truncate=None, normalize=True).json()
    np.testing.assert_allclose(found, vectors, rtol=1e-6)
    found = ask("embed", "vectors", inputs=TEXTS[0], dimensions=2).json()
    np.testing.assert_allclose(found, [vectors[0, :2] / np.linalg.norm(vectors[0, :2])], rtol=1e-6)


def test_predict(ask):
    logits = fake_core.logits_of(TEXTS)
    for raw in (True, False):
        found = ask("predict", "sst", inputs=[[text] for text in TEXTS], raw_scores=raw).json()
        assert len(found) == len(TEXTS)
        scores = logits if raw else fake_core.softmax(logits)
        for row, expected in zip(found, scores):
            assert [one["score"] for one in row] == pytest.approx(sorted(expected)[::-1], abs=1e-6)
            by_label = {one["label"]: one["score"] for one in row}
            assert list(map(by_label.get, fake_core.LABELS)) == pytest.approx(expected, abs=1e-6)
    assert ask("predict", "sst", inputs=TEXTS[0]).json() == found[0]  # no list around one text
    pair = ask("predict", "pairs", inputs=["good", "bad"]).json()
    assert ask("predict", "pairs", inputs=[["good", "bad"]]).json() == [pair]


@pytest.mark.parametrize("template", [None, "It is a {}."])
@pytest.mark.parametrize("name", ["labels", "candidate_labels"])
def test_labels_may_come_with_the_request(ask, name, template):
    labels = ["good_film", "bad"]
    named = [(template or "{}").format(label) for label in ("good film", "bad")]
    names, texts = (fake_core.vectors_of(some) for some in (named, TEXTS))
    parameters = {name: labels, "hypothesis_template": template, "multi_label": False}
    found = ask("predict", "vectors", inputs=[[text] for text in TEXTS], parameters=parameters)
    rows = found.json()
    assert "x-unknown-parameters" not in found.headers
    assert ask("predict", "vectors", inputs=TEXTS, parameters=parameters).json() == rows
    apart = names[0] - names[1]
    for row, score in zip(rows, texts @ apart - names.mean(0) @ apart):
        assert sum(one["score"] for one in row) == pytest.approx(1)
        assert row[0]["score"] >= row[1]["score"]
        assert abs(score) < 1e-3 or row[0]["label"] == labels[int(score < 0)]
    alone = ask("predict", "vectors", inputs=TEXTS[0], parameters=parameters).json()
    assert [one["label"] for one in alone] == [one["label"] for one in rows[0]]


def test_similarity(ask):
    vectors = fake_core.vectors_of(TEXTS)
    inputs = {"source_sentence": TEXTS[0], "sentences": TEXTS[1:]}
    found = ask("similarity", "vectors", inputs=inputs, parameters=None).json()
    assert found == pytest.approx(vectors[1:] @ vectors[0], abs=1e-6)


def test_tokenize(ask):
    words = [
        {"id": 4, "text": text, "special": False, "start": start, "stop": start + 4}
        for text, start in (("good", 0), ("film", 5))
    ]
    assert ask("tokenize", "sst", inputs="good film").json() == [[fake_core.CLS, *words]]
    found = ask("tokenize", "sst", inputs=["good film"], add_special_tokens=False).json()
    assert found == [words]


def test_info(server):
    for model, kind in (("sst", "classifier"), ("judge", "reranker"), ("vectors", "embedding")):
        found = requests.get(f"http://{server.http}/models/{model}/info", timeout=60).json()
        assert list(found["model_type"]) == [kind]
        assert found["model_id"] == model and found["max_input_length"] == fake_core.MAX_LENGTH
    labels = {name: number for number, name in enumerate(fake_core.LABELS)}
    path = f"http://{server.http}/info?model=sst"
    assert requests.get(path, timeout=60).json()["model_type"]["classifier"]["label2id"] == labels


def test_a_plain_text(ask):
    found = ask("", "sst", text="good").json()
    (answer,) = found["answers"]
    assert (found["model"], found["version"], answer["label"]) == ("sst", "2", "positive")
    assert list(answer["scores"]) == list(fake_core.LABELS)
    assert sum(answer["scores"].values()) == pytest.approx(1)
    assert len(ask("", "pairs", text=TEXTS, text_pair=TEXTS).json()["answers"]) == len(TEXTS)
    assert len(ask("", "vectors", text="good").json()["answers"][0]["embedding"]) == fake_core.WIDTH


def test_so_many_tokens_would_hold_others_up(ask, monkeypatch):
    monkeypatch.setattr(http_tei, "TOKENIZED", 10)
    assert ask("tokenize", "sst", inputs=["good", "film"]).status_code == 200
    found = ask("tokenize", "sst", inputs=["good film", "good"])
    assert found.status_code == 413 and "have 13 characters; 10 are" in found.json()["error"]


@pytest.mark.parametrize(
    ("path", "model", "message"),
    [
        ("embed", "vectors", {"inputs": ["good", LONG]}),
        ("predict", "sst", {"inputs": LONG}),
        ("similarity", "vectors", {"inputs": {"source_sentence": "a", "sentences": [LONG]}}),
        ("rerank", "judge", {"query": "a", "texts": [LONG]}),
        ("", "sst", {"text": LONG}),
    ],
)
def test_texts_that_are_too_long(ask, path, model, message):
    assert ask(path, model, **message).status_code == 200
    no = {"truncate": False}
    message = {**message, **({"parameters": no} if path == "similarity" else no)}
    found = ask(path, model, **message)
    assert found.status_code == 413 and found.json()["error_type"] == "Validation"
    assert "truncate=true" in found.json()["error"]


@pytest.mark.parametrize(
    ("path", "model", "message", "status", "words"),
    [
        ("embed", "sst", {"inputs": "a"}, 400, "answer with vectors: its task is"),
        ("predict", "vectors", {"inputs": "a"}, 400, "does not answer with scores of labels"),
        ("predict", "sst", {"inputs": "a", "parameters": {"labels": ["a", "b"]}}, 400, "vectors"),
        ("predict", "vectors", {"inputs": "a", "parameters": {"labels": ["a"]}}, 400,
         "has to be a list of two or more"),
        ("predict", "vectors", {"inputs": "a", "parameters": {"labels": ["a", "a"]}}, 400, "twice"),
        ("predict", "vectors", {"inputs": "a", "parameters": {"labels": ["a", "_"]}}, 400,
         "parameters.labels[1] is empty"),
        ("predict", "vectors", {"inputs": ["a", " "], "parameters": {"labels": ["a", "b"]}}, 400,
         "inputs[1] is empty"),
        ("similarity", "vectors", {"inputs": {"source_sentence": "a", "sentences": ["b", 5]}}, 400,
         "inputs.sentences[1] is 5; it has to be a text"),
        ("predict", "vectors", {"inputs": [["a", "b"]], "parameters": {"labels": ["a", "c"]}}, 400,
         "labels of a request are for single texts"),
        ("predict", "vectors", {"inputs": "a", "parameters": {
            "candidate_labels": ["a", "b"], "multi_label": True}}, 400, "one is right"),
        ("predict", "vectors", {"inputs": "a", "parameters": {
            "labels": ["a", "b"], "hypothesis_template": "a"}}, 400, "a text with one {}"),
        ("rerank", "judge", {"query": "a", "texts": ["b"], "truncation_direction": "Left"}, 400,
         "is 'Left'"),
        ("tokenize", "sst", {"inputs": "a", "prompt_name": "query"}, 400, "prompts: put its"),
        ("embed", "vectors", {}, 400, "inputs has to be a text or a list of texts"),
        ("embed", "vectors", {"inputs": [1, 2]}, 400, "inputs holds token ids"),
        ("embed", "vectors", {"inputs": "a", "normalize": False}, 400, "normalize is false"),
        ("embed", "vectors", {"inputs": "a", "prompt_name": "query"}, 400, "prompts: put its"),
        ("embed", "vectors", {"inputs": "a", "truncate": 1}, 400, "truncate is 1"),
        ("embed", "vectors", {"inputs": "a", "truncation_direction": "left"}, 400, "is 'left'"),
        ("embed", "vectors", {"inputs": "a", "dimensions": 9}, 400, "dimensions is 9"),
        ("embed", "nobody", {"inputs": "a"}, 404, "no model 'nobody'"),
        ("embed", "full-vectors", {"inputs": "a"}, 503, "queue"),
        ("predict", "sst", {"inputs": ["a", "b", "c"]}, 400, "as [[text], [text]]"),
        ("predict", "sst", {"inputs": [["a"], ["b", "c"]]}, 400, "lists of one text each"),
        ("predict", "sst", {"inputs": ["a", "b"]}, 400, "input 'text_pair' is unknown"),
        ("similarity", "vectors", {"inputs": "a"}, 400, "source_sentence and sentences"),
        ("tokenize", "sst", {"inputs": [None]}, 400, "element 0 of input 'inputs' is None"),
        ("", "sst", {"texts": "a"}, 400, "text has to be a text or a list"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(ask, path, model, message, status, words):
    found = ask(path, model, **message)
    assert found.status_code == status and words in found.json()["error"]
    assert found.json()["error_type"] == ("Overloaded" if status == 503 else "Validation")


def test_a_model_is_named_where_there_are_several(post):
    found = post("/embed", {"inputs": "a"})
    assert found.status_code == 400
    assert "name one of full-vectors, vectors (below /models/NAME" in found.json()["error"]
    assert post("/embed", {"inputs": "a", "model": "vectors"}).status_code == 200
    found = post("/v1/embeddings", {"input": "a"})
    assert found.status_code == 400 and "name one of full" in found.json()["error"]["message"]
    unknown = post("/models/vectors/embed", {"inputs": "a", "pooling": "cls"})
    assert unknown.headers["x-unknown-parameters"] == "'pooling'"


# The fields of the published document's requests, each with a value that its schema allows.
TRUNCATION = {"truncate": None, "truncation_direction": "Right"}
ENCODING = {**TRUNCATION, "prompt_name": None}
REQUESTS = [
    ("embed", "vectors", {"inputs": ["a", "b"], "normalize": True, "dimensions": None, **ENCODING}),
    ("predict", "sst", {"inputs": "a", "raw_scores": False, **TRUNCATION}),
    ("predict", "pairs", {"inputs": ["a", "b"], "raw_scores": True, **TRUNCATION}),
    ("predict", "sst", {"inputs": [["a"], ["b"]], **TRUNCATION}),
    ("rerank", "judge",
     {"query": "a", "texts": ["b"], "raw_scores": False, "return_text": True, **TRUNCATION}),
    ("similarity", "vectors",
     {"inputs": {"source_sentence": "a", "sentences": ["b"]}, "parameters": ENCODING}),
    ("tokenize", "sst", {"inputs": ["a"], "add_special_tokens": True, "prompt_name": None}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "model", "message"), REQUESTS)
def test_each_field_of_the_published_document_is_known(ask, path, model, message):
    found = ask(path, model, **message)
    assert found.status_code == 200 and "x-unknown-parameters" not in found.headers, found.text
    without = {name: value for name, value in message.items() if value is not None}
    assert ask(path, model, **without).json() == found.json()


def test_no_model_is_there_that_could_answer(monkeypatch, server, post):
    monkeypatch.setattr(server.core, "versions", list)
    found = post("/embed", {"inputs": "a"})
    assert found.status_code == 400
    assert found.json()["error"] == "no model of this server answers with vectors"
    monkeypatch.setattr(server.core, "ready", lambda: False)
    assert post("/embed", {"inputs": "a"}).status_code == 503

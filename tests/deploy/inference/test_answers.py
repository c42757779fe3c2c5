"""Answers that are no label, over the server: what the engine says, by each protocol."""

from __future__ import annotations

import numpy as np
import pytest
import requests
import tiny_bert
from served import REAL, serving

from fleetbert.client import Client
from fleetbert.data import tokenizers
from fleetbert.engines import answer as answers
from fleetbert.export.program import export_bundle

TEXTS = ["word1", "word2 word3 字1", "word4 " * 40]
LABELS: dict[str, list[str]] = {
    "regression": [],
    "multi_label_classification": ["joy", "怒", "love"],
    "token_classification": ["O", "B-人", "I-人", "B-loc", "I-loc"],
}


@pytest.fixture(scope="module")
def made(tiny_vocab, tmp_path_factory):
    """A bundle of each task, by the name of the task, in a repository of models."""
    folder = tmp_path_factory.mktemp("answers") / "models"
    for name, labels in LABELS.items():
        per_token = name == "token_classification"
        network = tiny_bert.make_network(labels=max(1, len(labels)), per_token=per_token)
        spec = tokenizers.of_vocab(tiny_vocab, True)
        export_bundle(folder / name / "1", network, task=name, labels=labels, max_length=32,
                      tokenizer=spec)  # fmt: skip
    export_bundle(folder / "embedding" / "1", tiny_bert.make_embedder(), task="embedding",
                  labels=[], max_length=32, tokenizer=spec)  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def server(made, tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    words = [f"repository.path={made}", "repository.default.variant=float32"]
    with serving(folder, *words, "engine.workers=1", "engine.threads=1", command=REAL) as served:
        yield served


def test_numbers_are_those_of_the_engine(server, made):
    expected = answers.answer(answers.load(made / "regression" / "1"), TEXTS)
    with Client(server.http) as client:
        found = client.infer("regression", TEXTS)
        described = client.metadata("regression")
    assert [one.value for one in found] == pytest.approx([a.value for a in expected], abs=1e-5)
    assert [one.exit_layer for one in found] == [2, 2, 2]
    assert described["parameters"]["task"] == "regression"
    assert described["outputs"] == [
        {"name": "values", "datatype": "FP32", "shape": [-1]},
        {"name": "exit_layer", "datatype": "INT32", "shape": [-1]},
    ]
    message = {
        "inputs": [{"name": "text", "datatype": "BYTES", "shape": [3], "data": TEXTS}],
        "outputs": [{"name": "values"}],
    }
    url = f"{server.http}/v2/models/regression/infer"
    (output,) = requests.post(url, json=message, timeout=60).json()["outputs"]
    assert output["shape"] == [3]
    np.testing.assert_allclose(output["data"], [a.value for a in expected], atol=1e-5)
    message["outputs"] = [{"name": "label"}]
    reply = requests.post(url, json=message, timeout=60)
    assert reply.status_code == 400
    assert reply.json()["error"] == "output 'label' is unknown; choose from values, exit_layer"


def test_several_labels_are_those_of_the_engine(server, made):
    name = "multi_label_classification"
    expected = answers.answer(answers.load(made / name / "1"), TEXTS)
    with Client(server.http) as client:
        found = client.infer(name, TEXTS)
    assert [one.labels for one in found] == [one.labels for one in expected]
    assert len({len(one.labels) for one in expected}) > 1  # some texts have more than others
    for one, other in zip(found, expected):
        np.testing.assert_allclose(one.logits, other.logits, atol=1e-5)
        assert one.scores == pytest.approx(other.scores, abs=1e-5)


def test_spans_are_those_of_the_engine(server, made):
    """Of texts that share batches with others, are cut, or have characters beyond Unicode's BMP."""
    name = "token_classification"
    texts = [*TEXTS, "😀 字字 word1, word2", "word7 " * 9]
    expected = answers.answer(answers.load(made / name / "1"), texts)
    assert sum(len(one.spans) for one in expected) > 5
    with Client(server.http) as client:
        found = client.infer(name, texts)
        assert client.metadata(name)["outputs"][0] == {
            "name": "spans", "datatype": "BYTES", "shape": [-1],
        }  # fmt: skip
    for text, one, other in zip(texts, found, expected):
        assert [span[:3] for span in one.spans] == [span[:3] for span in other.spans]
        assert all(text[span.start : span.end] == span.text for span in one.spans)
        scores = ([span.score for span in side.spans] for side in (one, other))
        np.testing.assert_allclose(next(scores), next(scores), atol=1e-5)
    ids = {"name": "input_ids", "datatype": "INT64", "shape": [1, 3], "data": [2, 7, 3]}
    reply = requests.post(
        f"{server.http}/v2/models/{name}/infer", json={"inputs": [ids]}, timeout=60
    )
    assert reply.status_code == 400
    assert reply.json()["error"].endswith("answers with characters of texts: send input 'text'")


def test_vectors_are_those_of_the_engine(server, made):
    expected = answers.answer(answers.load(made / "embedding" / "1"), TEXTS)
    vectors = np.stack([one.vector for one in expected])
    with Client(server.http) as client:
        found = client.infer("embedding", TEXTS)
        described = client.metadata("embedding")
    np.testing.assert_allclose([one.vector for one in found], vectors, atol=1e-5)
    assert described["outputs"][0] == {"name": "embedding", "datatype": "FP32", "shape": [-1, 64]}
    message = {"model": "embedding", "input": TEXTS, "dimensions": 8}
    reply = requests.post(f"{server.http}/v1/embeddings", json=message, timeout=60).json()
    short = vectors[:, :8] / np.linalg.norm(vectors[:, :8], axis=1, keepdims=True)
    np.testing.assert_allclose([one["embedding"] for one in reply["data"]], short, atol=1e-5)
    assert reply["usage"]["total_tokens"] == 3 + 6 + 32  # the last is cut

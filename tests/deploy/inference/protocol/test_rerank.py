"""Documents for a query, ranked as text-embeddings-inference and Cohere have it."""

from __future__ import annotations

import fake_core
import numpy as np
import pytest

QUERY, TEXTS = "abcd", ["xyz", "abcx", "ab", "abcd"]
VALUES = np.array([-2.0, 1, 0, 2])  # letters in common, less two
SCORES = 1 / (1 + np.exp(-VALUES))
ORDER = [3, 1, 2, 0]


@pytest.fixture
def rerank(post):
    return lambda path="/rerank", **message: post(path, message)


def test_as_text_embeddings_inference(rerank):
    found = rerank(query=QUERY, texts=TEXTS, truncate=True).json()
    assert [one["index"] for one in found] == ORDER
    assert [one["score"] for one in found] == pytest.approx(SCORES[ORDER])
    assert "text" not in found[0]
    found = rerank(query=QUERY, texts=TEXTS, raw_scores=True, return_text=True).json()
    assert [one["score"] for one in found] == VALUES[ORDER].tolist()
    assert [one["text"] for one in found] == [TEXTS[n] for n in ORDER]


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_as_cohere(rerank, path):
    asked = {"model": "judge", "query": QUERY, "documents": TEXTS, "top_n": 2}
    found = rerank(path, **asked).json()["results"]
    assert [one["index"] for one in found] == ORDER[:2]
    assert [one["relevance_score"] for one in found] == pytest.approx(SCORES[ORDER[:2]])
    asked["documents"] = [{"text": text} for text in TEXTS]
    found = rerank(path, **asked, return_documents=True).json()["results"]
    assert found[0]["document"] == {"text": "abcd"}


def test_cosines_of_vectors_rank(rerank):
    """As they are, without a sigmoid."""
    vectors = fake_core.vectors_of([QUERY, *TEXTS]).astype(np.float64)
    cosines = vectors[1:] @ vectors[0]
    order = np.argsort(-cosines, kind="stable").tolist()
    found = rerank(query=QUERY, texts=TEXTS, model="vectors").json()
    assert [one["index"] for one in found] == order
    assert [one["score"] for one in found] == pytest.approx(cosines[order])
    assert rerank(query=QUERY, texts=TEXTS, model="vectors", raw_scores=True).json() == found


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"query": None}, 400, "query is None"),
        ({"texts": []}, 400, "texts has to be a list"),
        ({"texts": ["a", 1]}, 400, "texts[1] is 1; it has to be a text"),
        ({"texts": ["a", ""]}, 400, "text 1 of input 'text_pair' is empty"),
        ({"top_n": 0}, 400, "top_n is 0"),
        ({"raw_scores": "yes"}, 400, "raw_scores is 'yes'"),
        ({"documents": TEXTS}, 400, "texts and documents are both given"),
        ({"return_text": {}}, 400, "return_text is a"),
        ({"model": "nobody"}, 404, "there is no model 'nobody'"),
        ({"model": "sst"}, 400, "these can: full-vectors, judge, vectors"),
        ({"model": "pairs"}, 400, "model pairs cannot rank"),
    ],
)
def test_errors(rerank, changes, status, words):
    reply = rerank(**{"query": QUERY, "texts": TEXTS, **changes})
    assert reply.status_code == status
    assert words in reply.json()["error"]
    assert reply.json()["message"] == reply.json()["error"]


def test_what_is_wrong_or_unknown_is_named(rerank):
    asked = {"model": "judge", "query": QUERY, "documents": [TEXTS[0], {"title": "x"}]}
    reply = rerank("/v1/rerank", **asked)
    assert reply.status_code == 400
    assert "documents[1] is an object of 1; it has to be a text" in reply.json()["message"]
    reply = rerank("/v1/rerank", **{**asked, "documents": TEXTS, "top_k": 1})
    assert reply.headers["x-unknown-parameters"] == "'top_k'"

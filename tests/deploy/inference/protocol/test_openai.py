"""OpenAI's calls, as its clients send them, over real sockets."""

from __future__ import annotations

import base64

import fake_core
import numpy as np
import pytest
import requests

TEXTS = ["good good", "bad", "坏"]
PATH = "/v1/embeddings"


def expected(texts, width=fake_core.WIDTH):
    vectors = fake_core.vectors_of(texts)[:, :width]
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def decoded(text):
    return np.frombuffer(base64.b64decode(text), "<f4")


@pytest.mark.parametrize(
    ("form", "dimensions"),
    [(None, None), ("float", 2), ("base64", fake_core.WIDTH), ("base64", 2)],
)
def test_vectors(server, post, form, dimensions):
    asked = {"model": "vectors", "input": TEXTS, "user": "somebody"}
    asked.update({"encoding_format": form} if form else {})
    asked.update({"dimensions": dimensions} if dimensions else {})
    reply = post(PATH, asked)
    assert reply.status_code == 200, reply.text
    assert server.done[-1][:4] == ("http", "vectors", "1", "200") and server.done[-1].texts == 3
    found = reply.json()
    assert (found["object"], found["model"]) == ("list", "vectors")
    tokens = sum(map(len, TEXTS))
    assert found["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert [(one["object"], one["index"]) for one in found["data"]] == [
        ("embedding", number) for number in range(3)
    ]
    rows = [one["embedding"] for one in found["data"]]
    rows = [decoded(row) for row in rows] if form == "base64" else rows
    np.testing.assert_allclose(np.float32(rows), expected(TEXTS, dimensions), rtol=1e-6)


def test_one_text_and_a_version(post, server):
    found = post(PATH, {"model": "vectors/1", "input": "good"}).json()
    np.testing.assert_allclose(found["data"][0]["embedding"], expected(["good"])[0], rtol=1e-6)
    assert server.core.requests[-1].version == "1"


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"model": None}, 400, "model is missing"),
        ({"model": "nobody"}, 404, "there is no model 'nobody'"),
        ({"model": "sst"}, 400, "model sst does not answer with vectors: its task is"),
        ({"model": "vectors/9"}, 404, "has no version '9'"),
        ({"input": None}, 400, "input has to be a text or a list of texts"),
        ({"input": [1, 2]}, 400, "send texts"),
        ({"input": [[1, 2]]}, 400, "send texts"),
        ({"input": ["a", 1]}, 400, "element 1 of input 'text'"),
        ({"input": ""}, 400, "text 0 of input 'text' is empty"),
        ({"input": ["a"] * 65}, 413, "takes at most 64"),
        ({"encoding_format": "int8"}, 400, "float or base64"),
        ({"dimensions": 0}, 400, "whole number from 1"),
        ({"dimensions": 9}, 400, "have 4 numbers"),
    ],
)
def test_errors_have_openais_form(post, changes, status, words):
    reply = post(PATH, {"model": "vectors", "input": "good", **changes})
    assert reply.status_code == status
    error = reply.json()["error"]
    assert words in error["message"]
    assert error["type"] == "invalid_request_error"
    assert error["code"] == ("model_not_found" if status == 404 else None)


def test_other_errors_do_too(server, post):
    reply = requests.get(f"http://{server.http}/v1/embeddings", timeout=60)
    assert (reply.status_code, reply.headers["allow"]) == (405, "POST")
    assert "use POST" in reply.json()["error"]["message"]
    reply = requests.get(f"http://{server.http}/v1/nothing", timeout=60)
    assert "there is nothing" in reply.json()["error"]["message"]
    reply = post(PATH, {"model": "full-vectors", "input": "good"})
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "3")
    assert reply.json()["error"]["type"] == "server_error"


def test_models(server):
    found = requests.get(f"http://{server.http}/v1/models", timeout=60).json()
    names = [one["id"] for one in found["data"]]
    assert {"sst", "vectors"} < {*names}
    assert "loading" not in names
    one = requests.get(f"http://{server.http}/v1/models/vectors", timeout=60).json()
    assert one in found["data"]
    assert (one["object"], one["owned_by"]) == ("model", "fleetbert")
    assert requests.get(f"http://{server.http}/v1/models/nobody", timeout=60).status_code == 404
    reply = requests.get(f"http://{server.http}/v1/nothing", timeout=60)
    assert reply.json()["error"]["code"] == "unknown_url"

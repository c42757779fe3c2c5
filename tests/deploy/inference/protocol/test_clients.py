"""Other people's clients, each as a process of the environment that `make venv-clients` makes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import fake_core
import light
import numpy as np
import pytest
from oip_answers import outputs_of
from oip_cases import without
from served import LIGHT, serving, settings_of

ROOT = Path(__file__).parents[4]
BIN = ROOT / ".venv-clients" / "bin"
CLIENTS = Path(__file__).parent / "clients"
TEXTS = ["good good", "bad", "坏", "a text of more than sixteen characters"]  # as clients/asked.py
IDS = np.array([[2, 7, 3], [2, 3, 0]])
SCHEMATHESIS = """
[parameters]
"path.model" = "sst"
"path.version" = "2"

# No schema can say that a tensor's data have to fit its shape, or that a text is not blank.
[[operations]]
include-operation-id = [
    "infer", "inferVersion", "rerank", "rerank2",
    "plain", "embed", "predict", "similarity", "tokenize", "question", "questionOfModel",
]
checks.positive_data_acceptance.enabled = false
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (BIN / "python").exists(), reason="no .venv-clients here: run `make venv-clients`"
    ),
]


def run(*command, cwd=None):
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=environ,
        capture_output=True,
        timeout=480,
    )
    assert done.returncode == 0, (done.stdout + done.stderr).decode(errors="replace")
    return done.stdout.decode()


def client(name, *addresses):
    return json.loads(run(BIN / "python", CLIENTS / f"{name}.py", *addresses))


def expected(logits):
    return {name: values.tolist() for name, values in outputs_of(logits).items()}


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_tritonclient(server, protocol):
    before = len(server.core.requests)
    saw = client("triton", protocol, server.http if protocol == "http" else server.grpc)
    assert [saw[key] for key in ("live", "ready", "model_ready", "loading")] == [
        *(True, True, True, False),
    ]
    assert saw["server"]["name"] == "fleetbert"
    inputs = [tensor["name"] for tensor in saw["model"]["inputs"]]
    assert inputs == ["text", "input_ids", "token_type_ids"]
    index = saw["index"]["models"] if protocol == "grpc" else saw["index"]
    assert {"sst", "gone"} < {entry["name"] for entry in index}
    (statistics,) = saw["statistics"]["model_stats"]
    assert int(statistics["inference_stats"]["success"]["ns"]) == 100
    assert int(statistics["batch_stats"][0]["batch_size"]) == 4
    by_text = expected(fake_core.logits_of(TEXTS))
    by_ids = expected(fake_core.logits_of_ids(IDS, None))
    assert saw["texts"] == by_text
    assert saw["chosen"] == {name: by_text[name] for name in ("label", "scores")}
    assert saw["pairs"] == expected(fake_core.logits_of([text * 2 for text in TEXTS]))
    assert saw["ids"] == by_ids
    assert saw["ids32"] == {"logits": by_ids["logits"]}
    assert saw["parameters"] == {"label": by_text["label"]}
    assert all(found == by_text for found in saw["compressed"])
    assert saw["json"] == (by_text if protocol == "http" else None)
    codes = {
        "full": ("503", "StatusCode.UNAVAILABLE", "the queue of model full is full"),
        "nobody": ("404", "StatusCode.NOT_FOUND", "there is no model 'nobody'"),
        "wrong": ("400", "StatusCode.INVALID_ARGUMENT", "datatype of input 'text'"),
    }
    for name, (http, grpc, words) in codes.items():
        assert saw[name]["status"] == (http if protocol == "http" else grpc)
        assert words in saw[name]["message"]
    asked = server.core.requests[before:]
    assert asked[0].id == "7"
    assert [(q.timeout, q.speed) for q in asked if q.speed is not None] == [(60.0, 0.25)]
    assert [q.version for q in asked if q.version is not None] == ["stable"]
    assert server.core.calls[-2:] == [("unload", "sst"), ("load", "sst")]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_tritonclient_loads_and_unloads_models(protocol, tmp_path):
    """Of a server that looks for changes on disk only when it is asked to."""
    models = tmp_path / "models"
    light.make_bundle(models / "sst" / "1")
    words = settings_of(models, "repository.poll_seconds=0")
    with serving(tmp_path, *words, command=LIGHT) as server:
        shutil.copytree(models / "sst", models / "other")
        address = server.http.partition("://")[2] if protocol == "http" else server.grpc
        saw = client("triton_repository", protocol, address)
    ready, gone = ["READY", True], ["UNAVAILABLE", False]
    last = {"sst": ready, "other": gone}
    assert saw["seen"] == [{"sst": ready}, {"sst": gone}, {"sst": ready, "other": ready}, last]
    assert saw["after"] == last
    sentences = ["no model 'nobody'", "no model 'nobody'", "parameter 'config' is not offered", ""]
    assert all(part in (said or "-") for part, said in zip(sentences, saw["refused"]))
    assert None not in saw["refused"]


def test_kserve_clients(server):
    saw = client("kserve_client", server.http, server.grpc, "sst", "loading")
    by_text = {"id": "7", **expected(fake_core.logits_of(TEXTS))}
    by_ids = {"id": "7", **expected(fake_core.logits_of_ids(IDS, None))}
    for found in (saw["http"], saw["grpc"]):
        assert [found[key] for key in ("live", "ready", "model_ready")] == [True] * 3
        assert found["unready"] == [False]
        for name in ("texts", "binary"):
            assert without(found[name], "version") == by_text
        for name in ("ids", "binary_ids"):
            assert without(found[name], "version") == by_ids
    assert saw["grpc"]["texts"]["version"] == "2"
    assert saw["repository"] == [True, True, "sst"]
    assert server.core.calls[-2:] == [("unload", "sst"), ("load", "sst")]


def test_openais_client(server):
    saw = client("openai_client", f"http://{server.http}/v1")
    vectors = fake_core.vectors_of(TEXTS)
    np.testing.assert_allclose(saw["vectors"], vectors, rtol=1e-6)
    short = vectors[:1, :2] / np.linalg.norm(vectors[:1, :2])
    np.testing.assert_allclose(saw["short"], short, rtol=1e-6)
    assert saw["tokens"] == sum(map(len, TEXTS))
    assert "vectors" in saw["models"]
    assert saw["missing"] == [404, "there is no model 'nobody'", "model_not_found"]


def test_hugging_faces_client(server):
    """As it is with a server of text-embeddings-inference."""
    saw = client("huggingface_client", f"http://{server.http}/models")
    vectors = fake_core.vectors_of(TEXTS)
    np.testing.assert_allclose(saw["vectors"], vectors, rtol=1e-6)
    np.testing.assert_allclose(saw["vector"], vectors[:1], rtol=1e-6)
    assert saw["similarity"] == pytest.approx(vectors[1:] @ vectors[0], abs=1e-6)
    assert saw["label"][0] == "positive"
    assert set(saw["candidates"]) == {"good_film", "bad"}
    assert sum(saw["candidates"].values()) == pytest.approx(1)
    assert saw["too long"][0] == 413 and "truncate=true" in saw["too long"][1]


def test_schemathesis_finds_nothing(server, tmp_path):
    """It asks what the OpenAPI document allows and forbids, and checks codes, types and schemas."""
    (tmp_path / "schemathesis.toml").write_text(SCHEMATHESIS)
    asked = len(server.done)
    said = run(
        BIN / "schemathesis",
        *("run", f"http://{server.http}/openapi.json"),
        *("--phases", "examples,coverage,fuzzing"),
        *("--max-examples", "5", "--request-timeout", "120", "--suppress-health-check", "all"),
        *("--generation-deterministic", "--no-shrink", "--no-color", "--warnings", "off"),
        cwd=tmp_path,
    )
    assert "No issues found" in said
    codes = {done.code for done in server.done[asked:]}
    assert {"200", "400"} <= codes
    assert "500" not in codes

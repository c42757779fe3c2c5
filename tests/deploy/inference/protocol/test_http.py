"""Every REST call of the contract, over real sockets."""

from __future__ import annotations

import gzip
import json
import socket
import zlib
from urllib.parse import urljoin

import fake_core
import pytest
import requests
from oip_answers import FAILURES, READINESS, TEXTS, check_outputs, outputs_of
from starlette.testclient import TestClient

import fleetbert
from fleetbert.deploy.inference.protocol import auth, http
from fleetbert.deploy.inference.protocol.middleware import Middleware
from fleetbert.deploy.inference.settings import Safety

EXTENSIONS = [
    "binary_tensor_data", "parameters", "model_repository", "model_configuration", "statistics",
]  # fmt: skip


@pytest.fixture
def get(server):
    return lambda path: requests.get(f"http://{server.http}{path}", timeout=60)


def request_of(texts, **rest):
    entry = {"name": "text", "shape": [len(texts)], "datatype": "BYTES", "data": texts}
    return {"inputs": [entry], **rest}


def check_answer(response, texts):
    assert response.status_code == 200, response.text
    outputs = response.json()["outputs"]
    assert outputs[1]["shape"] == [len(texts), len(fake_core.LABELS)]
    found = {output["name"]: output["data"] for output in outputs}
    check_outputs(found, outputs_of(fake_core.logits_of(texts)))


@pytest.mark.parametrize("path", ["/v2", "/v2/"])
def test_server_metadata(get, path):
    found = get(path)
    assert found.status_code == 200
    assert found.headers["content-type"] == "application/json"
    assert found.json() == {
        "name": "fleetbert",
        "version": fleetbert.__version__,
        "extensions": EXTENSIONS,
    }


def test_health(server, get):
    assert get("/v2/health/live").json() == {"live": True}
    assert get("/v2/health/ready").json() == {"live": True, "ready": True}
    server.core.is_ready = False
    try:
        assert get("/health").status_code == 503  # as of text-embeddings-inference
        found = get("/v2/health/ready")
        assert get("/v2/health/live").status_code == 200
    finally:
        server.core.is_ready = True
    assert found.status_code == 503
    assert found.json()["ready"] is False
    assert "error" in found.json()


@pytest.mark.parametrize(("model", "version", "ready"), [*READINESS, ("sst%2F..", "", None)])
def test_readiness_of_models(get, model, version, ready):
    path = f"/v2/models/{model}" + (f"/versions/{version}" if version else "")
    found, code = get(f"{path}/ready"), {True: 200, False: 503, None: 404}[ready]
    assert found.status_code == get(path).status_code == code
    if ready is not None:
        assert (found.json()["name"], found.json()["ready"]) == (model, ready)
    assert ("error" in found.json()) is (not ready)


def test_model_metadata(get):
    def tensors(kind):
        return [(one["name"], one["datatype"], one["shape"]) for one in found[kind]]

    found = get("/v2/models/sst").json()
    ids = [("input_ids", "INT64", [-1, -1]), ("token_type_ids", "INT64", [-1, -1])]
    assert tensors("inputs") == [("text", "BYTES", [-1]), *ids]
    assert tensors("outputs") == [
        ("label", "BYTES", [-1]),
        ("scores", "FP32", [-1, len(fake_core.LABELS)]),
        ("logits", "FP32", [-1, len(fake_core.LABELS)]),
        ("exit_layer", "INT32", [-1]),
    ]
    del found["inputs"], found["outputs"]
    assert found == {
        "name": "sst",
        "versions": ["1", "2"],
        "platform": "paddle_inference",
        "parameters": {
            "task": "classification",
            "labels": list(fake_core.LABELS),
            "max_length": fake_core.MAX_LENGTH,
            "variant": "float32",
            "bundle": "",
        },
    }
    found = get("/v2/models/pairs").json()
    assert tensors("inputs") == [("text", "BYTES", [-1]), ("text_pair", "BYTES", [-1]), *ids]


def test_model_config_is_tritons(get):
    found = get("/v2/models/pairs/versions/1/config").json()
    assert (found["name"], found["max_batch_size"]) == ("pairs", 0)
    assert [(i["name"], i["data_type"], i["dims"], "optional" in i) for i in found["input"]] == [
        ("text", "TYPE_STRING", [-1], False),
        ("text_pair", "TYPE_STRING", [-1], False),
        ("input_ids", "TYPE_INT64", [-1, -1], True),
        ("token_type_ids", "TYPE_INT64", [-1, -1], True),
    ]
    assert found["output"][1] == {"name": "scores", "data_type": "TYPE_FP32", "dims": [-1, 3]}
    assert get("/v2/models/nobody/config").status_code == 404
    assert get("/v2/models/loading/config").status_code == 503


def test_unknown_parameters_are_named(post):
    parameters = {"sped": 0.5, "timeout": 60_000_000, "\u4e2d\r\nx: y": 1, "z" * 500: None}
    found = post("/v2/models/sst/infer", request_of(["good"], parameters=parameters))
    check_answer(found, ["good"])
    named = found.headers["x-unknown-parameters"]
    assert named.startswith(r"'sped', '\u4e2d\r\nx: y', 'zzz") and len(named) < 100
    assert "x-unknown-parameters" not in post("/v2/models/sst/infer", request_of(["good"])).headers
    message = request_of(["good"], outputs=[{"name": "label", "parameters": {"binary_date": True}}])
    message["inputs"][0]["parameters"] = {"content_type": "base64"}
    found = post("/v2/models/sst/infer", message)
    named = "'content_type' of inputs[0], 'binary_date' of outputs[0]"
    assert found.headers["x-unknown-parameters"] == named
    many = {str(number): 1 for number in range(5000)}
    found = post("/v2/models/sst/infer", request_of(["good"], parameters=many))
    assert len(found.headers["x-unknown-parameters"]) < 100


@pytest.mark.parametrize("nested", [False, True])
def test_texts_in_a_column(post, nested):
    message = request_of(TEXTS)
    message["inputs"][0]["shape"] = [len(TEXTS), 1]
    if nested:
        message["inputs"][0]["data"] = [[text] for text in TEXTS]
    check_answer(post("/v2/models/sst/infer", message), TEXTS)
    message["inputs"][0]["data"] = [["good", "bad"], *message["inputs"][0]["data"][1:]]
    assert post("/v2/models/sst/infer", message).status_code == 400


@pytest.mark.parametrize(("path", "version"), [("", "2"), ("/versions/stable", "1")])
def test_inference(post, path, version):
    found = post(f"/v2/models/sst{path}/infer", request_of(TEXTS, id="七"))
    check_answer(found, TEXTS)
    message = found.json()
    assert (message["model_name"], message["model_version"]) == ("sst", version)
    assert (message["id"], message["parameters"]) == ("七", {"truncated": 1, "cut": 1})
    assert float(found.headers["x-queue-time"]) == 12.5
    assert float(found.headers["x-inference-time"]) == 250
    assert found.headers["content-type"] == "application/json"


def test_binary_outputs(post):
    wanted = [{"name": "label", "parameters": {"binary_data": True}}, {"name": "exit_layer"}]
    found = post("/v2/models/sst/infer", request_of(["good"], outputs=wanted))
    head = int(found.headers["inference-header-content-length"])
    assert found.headers["content-type"] == "application/octet-stream"
    label, layer = json.loads(found.content[:head])["outputs"]
    assert label["parameters"] == {"binary_data_size": 12}
    assert found.content[head:] == b"\x08\0\0\0positive"
    assert layer["data"] == [1]


@pytest.mark.parametrize(
    ("encoding", "encode"),
    [
        ("gzip", gzip.compress),
        ("deflate", zlib.compress),
        ("identity", lambda body: (body[at : at + 7] for at in range(0, len(body), 7))),  # chunked
    ],
)
def test_encoded_and_chunked_requests(post, encoding, encode):
    body = encode(json.dumps(request_of(TEXTS)).encode())
    headers = {"Content-Encoding": encoding}
    check_answer(post("/v2/models/sst/infer", data=body, headers=headers), TEXTS)


@pytest.mark.parametrize(("model", "code", "_", "words"), FAILURES)
def test_failures_have_their_codes(server, post, model, code, _, words):
    found = post(f"/v2/models/{model}/infer", request_of(["good"], id="a"))
    assert found.status_code == code
    assert found.headers["content-type"] == "application/json"
    assert words in found.json()["error"]
    assert "secret" not in found.text
    assert found.headers.get("retry-after") == {"full": "3", "lost": "1", "loading": "1"}.get(model)
    known = "" if code == 404 or model == "loading" else model
    assert server.done[-1][:4] == ("http", known, "1" if known else "", str(code))


def test_what_is_not_there(get, post):
    for found, code in (
        (get("/v3"), 404),
        (get("/v2/models/sst/nothing"), 404),
        (get("/v2/health/live/"), 404),
        (get("/v2/models/sst/infer"), 405),
        (post("/v2/health/live"), 405),
    ):
        assert found.status_code == code
        assert found.headers["content-type"] == "application/json"
        assert list(found.json()) == ["error"]
        assert ("allow" in found.headers) is (code == 405)


def test_repository(server, post):
    index = post("/v2/repository/index", {}).json()
    gone = {"name": "gone", "version": "1", "state": "UNAVAILABLE"}
    assert {**gone, "reason": "its golden batch was wrong"} in index
    assert {entry["state"] for entry in index} == {"READY", "LOADING", "UNAVAILABLE"}
    ready = post("/v2/repository/index", {"ready": True}).json()
    assert ready == [entry for entry in index if entry["state"] == "READY"]
    assert post("/v2/repository/index").json() == index  # without a body
    assert post("/v2/repository/models/sst/load").status_code == 200
    message = {"parameters": {"unload_dependents": False}}
    assert post("/v2/repository/models/sst/unload", message).status_code == 200
    assert server.core.calls[-2:] == [("load", "sst"), ("unload", "sst")]


@pytest.mark.parametrize(
    ("path", "message", "code"),
    [
        ("index", {"ready": 1}, 400),
        ("index", [], 400),
        ("models/nobody/load", None, 404),
        ("models/nobody/unload", None, 404),
        ("models/gone/load", None, 503),
        ("models/sst/load", {"parameters": {"config": "{}"}}, 400),
        ("models/sst/load", {"parameters": []}, 400),
    ],
)
def test_repository_refuses(server, post, path, message, code):
    before = list(server.core.calls)
    found = post(f"/v2/repository/{path}", message)
    assert found.status_code == code
    assert "error" in found.json()
    assert server.core.calls == before


@pytest.mark.parametrize("name", ["..%2Fsst", ".sst", "s%00st", "sst%0A", "a" * 300])
def test_no_path_reaches_the_repository(server, post, name):
    before = list(server.core.looked_for)
    assert post(f"/v2/repository/models/{name}/load").status_code == 404
    assert server.core.looked_for == before


def test_openapi_tells_names_of_models_only_where_no_key_is_needed(get):
    def names_in(document):
        parameter = document["paths"]["/v2/models/{model}"]["get"]["parameters"][0]
        return list(parameter.get("examples", {}))

    document = get("/openapi.json").json()
    assert "sst" in names_in(document)
    assert "loading" not in names_in(document)
    assert "security" not in document
    middleware = Middleware(auth.Keys(["a key of the test"]))
    application = http.app(fake_core.FakeCore(), fake_core.SAFETY, middleware=middleware)
    document = TestClient(application).get("/openapi.json").json()
    assert names_in(document) == []
    assert document["security"] == [{"key": []}]
    assert "401" in document["paths"]["/v2/models/{model}/infer"]["post"]["responses"]
    assert document["paths"]["/v2/health/live"]["get"]["security"] == []


def test_openapi_names_calls_beside_itself(get):
    """So that they are right behind a proxy that puts a prefix before each path."""
    (address,) = (one["url"] for one in get("/openapi.json").json()["servers"])
    assert urljoin("https://example.com/nlp/openapi.json", address) == "https://example.com/nlp/"


SITE, OTHER = "https://example.com", "https://example.org"


@pytest.mark.parametrize(
    ("origins", "origin", "allowed"),
    [([], SITE, None), ([SITE], SITE, SITE), ([SITE], OTHER, None), (["*"], OTHER, "*")],
)
def test_pages_of_other_sites_read_what_they_may(origins, origin, allowed):
    wish = {"access-control-request-method": "POST", "access-control-request-headers": "x-a"}
    with fake_core.serve(Safety(cors_origins=origins)) as server:
        url, said = f"http://{server.http}/v2/models", {"origin": origin}
        asked = requests.options(f"{url}/sst/infer", headers={**said, **wish}, timeout=60)
        good = requests.post(f"{url}/sst/infer", json=request_of(TEXTS), headers=said, timeout=60)
        wrong = requests.get(f"{url}/none", headers=said, timeout=60)
    assert (asked.status_code == 200) is (allowed is not None)
    assert (good.status_code, wrong.status_code) == (200, 404)
    for reply in (asked, good, wrong):
        assert reply.headers.get("access-control-allow-origin") == allowed
    if allowed:
        assert "POST" in asked.headers["access-control-allow-methods"]
        assert asked.headers["access-control-allow-headers"] == "x-a"
        assert "retry-after" in wrong.headers["access-control-expose-headers"]


@pytest.mark.parametrize("origin", ["example.com", "https://example.com/", "https://a b"])
def test_what_is_no_origin_is_refused(origin):
    with pytest.raises(ValueError, match="is no origin; write scheme and host"):
        Safety(cors_origins=[origin])


def test_openapi_has_each_protocols_own_errors(get):
    kinds = {"/question-answering": "Error", "/v2/models": "Error"}
    kinds.update({"/rerank": "RerankError", "/v1/": "OpenaiError"})
    kinds.update({"/v2/repository": "Error", "/models/": "RerankError"})
    for path, calls in get("/openapi.json").json()["paths"].items():
        wanted = next((kind for part, kind in kinds.items() if part in path), "Error")
        for call in calls.values():
            answers = call.get("responses", {}) if isinstance(call, dict) else {}
            for code, answer in answers.items():
                schema = answer.get("content", {}).get("application/json", {}).get("schema", {})
                kind = schema.get("$ref", "").rpartition("/")[2]
                assert kind == wanted or kind not in {"Error", *kinds.values()}, (path, code)


def test_statistics(get):
    everything = get("/v2/models/stats").json()["model_stats"]
    assert len(everything) == len({(found["name"], found["version"]) for found in everything}) > 9
    assert get("/v2/models/sst/stats").json()["model_stats"] == [
        found for found in everything if found["name"] == "sst"
    ]
    (found,) = get("/v2/models/sst/versions/2/stats").json()["model_stats"]
    assert found == fake_core.statistics(fake_core.version("sst", "2"))
    assert get("/v2/models/nobody/stats").status_code == 404
    assert get("/v2/models/sst/versions/9/stats").status_code == 404


def test_parameters_and_ids_reach_the_core(server, post):
    message = request_of(["good"], id="a", parameters={"timeout": 1500000, "speed": 0.25})
    post("/v2/models/sst/versions/stable/infer", message)
    request = server.core.requests[-1]
    assert (request.version, request.timeout, request.speed) == ("stable", 1.5, 0.25)
    assert request.id == "a"
    post("/v2/models/sst/infer", request_of(["good"]), headers={"X-Request-ID": "from a proxy"})
    assert server.core.requests[-1].id == "from a proxy"
    assert server.done[-1].id == "from a proxy"
    assert server.done[-1][:4] == ("http", "sst", "2", "200")
    assert server.done[-1].texts == 1


def test_a_client_that_goes_away_cancels_its_request(server, get):
    host, port = server.http.split(":")
    body = json.dumps(request_of(["good"])).encode()
    head = "POST /v2/models/slow/infer HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
    before = server.core.cancelled
    with socket.create_connection((host, int(port))) as client:
        client.sendall((head % len(body)).encode() + body)
        asked = len(server.core.requests)
        fake_core.wait_for(
            lambda: any(q.model == "slow" for q in server.core.requests[asked - 1 :])
        )
        assert server.core.cancelled == before
    fake_core.wait_for(lambda: server.core.cancelled == before + 1)
    fake_core.wait_for(lambda: server.done[-1].code == "499")
    assert get("/v2/health/live").status_code == 200

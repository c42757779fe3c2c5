"""fleetbert-lite-server with the fake engine: the protocol, limits, back pressure, a soft stop."""

from __future__ import annotations

import concurrent.futures
import contextlib
import gzip
import json
import os
import signal
import socket
import subprocess
import time

import http_cases
import numpy as np
import psutil
import pytest
import requests
from boards import LABELS, answer_of, fake_logits, logits_of, write_bundle
from lite_build import DEADLINE, EMULATED_TOO
from lite_serving import INFER, LENGTH, post, serving
from oip_cases import (
    IDS,
    REFUSED,
    TEXT,
    TOO_LARGE,
    body_of,
    raw_texts,
    refused,
    with_binary,
    without,
)
from served import connect, read_all

from fleetbert.data.tokenizers.wordpiece import WordPiece, of_vocab

LIMITS = ("--max-texts=64", "--max-text-bytes=4096", f"--max-body-bytes={1 << 20}")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory, here):
    return write_bundle(tmp_path_factory.mktemp("board"), targets=(here,))


@pytest.fixture(scope="module")
def url(programs, bundle):
    with serving(programs, bundle, *LIMITS) as (url, process):
        yield url
        assert process.poll() is None


@pytest.fixture
def alive(url, bundle):
    """After what a test sends the server still answers, and rightly."""
    yield
    right(post(url, body_of(TEXT)), bundle, TEXT["data"])


def right(response, bundle, texts):
    assert response.status_code == 200, response.text
    tokenizer = WordPiece(of_vocab(bundle / "vocab.txt", True))
    logits = [logits_of(tokenizer, text) for text in texts]
    by_name = {output["name"]: output for output in response.json()["outputs"]}
    assert by_name["label"]["data"] == [answer_of(row)["label"] for row in logits]
    assert by_name["logits"]["data"] == np.concatenate(logits).tolist()
    assert by_name["logits"]["shape"] == by_name["scores"]["shape"] == [len(texts), len(LABELS)]
    scores = [score for row in logits for score in answer_of(row)["scores"].values()]
    np.testing.assert_allclose(by_name["scores"]["data"], scores, atol=1e-6)


def test_the_server_and_the_model_say_what_they_are(url, here):
    for path in ("/v2", "/v2/"):
        assert set(requests.get(url + path).json()) == {"name", "version", "extensions"}
    assert requests.get(f"{url}/v2/health/live").json() == {"live": True}
    assert requests.get(f"{url}/v2/health/ready").json() == {"live": True, "ready": True}
    for path in ("/v2/models/model", "/v2/models/model/versions/1"):
        assert requests.get(f"{url}{path}/ready").json() == {"name": "model", "ready": True}
        found = requests.get(url + path).json()
        assert (found["name"], found["versions"]) == ("model", ["1"])
        assert found["parameters"]["variant"] == f"lite-{here}-int8"
        assert found["parameters"]["labels"] == LABELS
        inputs = {"text": [-1], "input_ids": [-1, -1], "token_type_ids": [-1, -1]}
        assert {tensor["name"]: tensor["shape"] for tensor in found["inputs"]} == inputs
        outputs = {"label": [-1], "scores": [-1, 3], "logits": [-1, 3]}
        assert {tensor["name"]: tensor["shape"] for tensor in found["outputs"]} == outputs


@EMULATED_TOO
def test_texts(url, bundle):
    texts = ["word1 word2", "!", "word3 " * 40, "WÖRD4 字 \x01"]
    sent = {**TEXT, "shape": [4], "data": texts}
    for path in (INFER, "/v2/models/model/versions/1/infer"):
        found = requests.post(url + path, data=body_of(sent, id="é1"))
        right(found, bundle, texts)
        assert found.json()["id"] == "é1"
        assert found.json()["parameters"] == {"truncated": 1, "cut": 1}


@pytest.mark.parametrize("nested", [False, True])
def test_ids(url, nested):
    ids, types = [[2, 9, 3], [2, 3, 0]], [[0, 0, 1], [0, 1, 0]]

    def tensor(name, rows):
        flat = [value for row in rows for value in row]
        return {**IDS, "name": name, "data": rows if nested else flat}

    sent = body_of(tensor("input_ids", ids), tensor("token_type_ids", types))
    (output,) = post(url, sent[:-1] + b', "outputs": [{"name": "logits"}]}').json()["outputs"]
    wanted = [fake_logits(*rows).tolist() for rows in zip(ids, types)]
    assert output["data"] == [value for row in wanted for value in row]


def test_pairs_that_are_none(programs, make):
    second = {**TEXT, "name": "text_pair", "data": ["word1", "\u2003"]}
    with serving(programs, make(pair=True), *LIMITS) as (url, _):
        refused(post(url, body_of(TEXT)), 400, "'text_pair' is missing")
        refused(post(url, body_of(TEXT, second)), 400, "text 1 of input 'text_pair' is empty")


def test_binary_tensors(url, bundle):
    body, length = with_binary(
        (without(TEXT, "data"), raw_texts(TEXT["data"])), parameters={"binary_data_output": True}
    )
    found = post(url, body, length=length)
    head = int(found.headers[LENGTH])
    outputs = json.loads(found.content[:head])["outputs"]
    sizes = [output["parameters"]["binary_data_size"] for output in outputs]
    assert head + sum(sizes) == len(found.content)
    logits = np.frombuffer(found.content[-sizes[2] :], "<f4").reshape(2, 3)
    tokenizer = WordPiece(of_vocab(bundle / "vocab.txt", True))
    np.testing.assert_array_equal(logits, [logits_of(tokenizer, text) for text in TEXT["data"]])
    labels = [answer_of(row)["label"] for row in logits]
    assert found.content[head : head + sizes[0]] == raw_texts(labels)
    raw_ids = np.arange(6, dtype="<i4").tobytes()
    body, length = with_binary(({**without(IDS, "data"), "datatype": "INT32"}, raw_ids))
    found = post(url, body, length=length).json()
    assert found["outputs"][2]["data"][:3] == fake_logits([0, 1, 2]).tolist()


@pytest.mark.parametrize("case", REFUSED)
def test_wrong_requests(url, alive, case):
    body, named = REFUSED[case]
    refused(post(url, body), 413 if case in TOO_LARGE else 400, named)


def test_a_number_over_every_limit(url, alive):
    refused(post(url, body_of(TEXT).replace(b"[2]", b"[1e400]")), 400, "larger than any")


@pytest.mark.parametrize(
    ("raw", "length", "named"),
    [
        *((raw_texts(["a", "b"]), length, LENGTH)
          for length in ("100000", "-1", "x", "1e3", "0x10", "9" * 30)),
        *((raw, None, "input 'text'")
          for raw in (b"", b"\x01\0\0", b"\xff\xff\xff\xffab", raw_texts(["a"]), raw_texts("abc"),
                      b"\x01\0\0\0\xff")),
    ],
)  # fmt: skip
def test_wrong_binary_texts(url, alive, raw, length, named):
    body, right_length = with_binary((without(TEXT, "data"), raw))
    refused(post(url, body, length=length or right_length), 400, named)


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", "/", 404),
        ("GET", "/v2/models", 404),
        ("GET", "/v2/models/other", 404),
        ("GET", "/v2/models/model/versions/2", 404),
        ("GET", "/v2/models/model/stats", 404),
        ("POST", "/v2/models/other/infer", 404),
        ("POST", "/v2/models/model/versions/7/infer", 404),
        ("GET", INFER, 405),
        ("PUT", INFER, 405),
        ("DELETE", INFER, 405),
        ("POST", "/v2/health/live", 405),
        ("GET", "/" + "a" * 7000, 404),
    ],
)
def test_wrong_paths(url, alive, method, path, code):
    refused(requests.request(method, url + path, data=body_of(TEXT), timeout=DEADLINE), code)


def test_bodies_over_the_limit(url, alive):
    with requests.Session() as session:  # what is left of a body is no request
        for body in (bytes(3 << 20), iter([bytes(1 << 18)] * 12)):
            with contextlib.suppress(requests.ConnectionError):  # closed while we still send
                refused(session.post(url + INFER, data=body, timeout=DEADLINE), 413)
    answer = post(url, gzip.compress(bytes(64 << 20)), **{"Content-Encoding": "gzip"})
    assert answer.status_code in (413, 415)


@pytest.mark.parametrize("case", http_cases.CASES)
def test_bytes_on_a_connection(url, alive, case):
    http_cases.check(http_cases.CASES[case], url.split("//")[1], INFER)


def test_a_long_header_is_431(url):
    case = http_cases.Case(http_cases.asked(b"", b"X-A: " + b"a" * 20_000), (431,))
    http_cases.check(case, url.split("//")[1], INFER)


def test_a_mask_says_where_padding_begins(url):
    ids = [[2, 9, 0], [2, 3, 7]]
    mask = {**IDS, "name": "attention_mask", "data": [[1, 1, 1], [1, 1, 0]]}
    found = post(url, body_of({**IDS, "data": ids}, mask, outputs=[{"name": "logits"}])).json()
    wanted = [fake_logits(row).tolist() for row in ([2, 9, 0], [2, 3])]
    assert found["outputs"][0]["data"] == [value for row in wanted for value in row]


def test_idle_connections_hold_nobody_up(programs, bundle):
    """More of them than requests can be answered at a time; each stays open all the while."""
    server = serving(programs, bundle, "--connections=2")
    with server as (url, process), contextlib.ExitStack() as stack:
        kept = [stack.enter_context(requests.Session()) for _ in range(8)]
        for session in kept:
            assert session.get(f"{url}/v2/health/live", timeout=DEADLINE).status_code == 200
        right(post(url, body_of(TEXT)), bundle, TEXT["data"])
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE) == 0


def test_a_chunked_body(url, bundle):
    body = body_of(TEXT)
    right(post(url, iter([body[:7], body[7:]])), bundle, TEXT["data"])


@pytest.mark.parametrize(
    "sent",
    [
        b"\0" * 100,
        b"GET\r\n\r\n",
        b"POST " + INFER.encode() + b" HTTP/1.1\r\nContent-Length: 1000\r\n\r\n{",
        b"POST " + INFER.encode() + b" HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /v2 HTTP/1.1\r\n" + b"X: y\r\n" * 100,
    ],
)
def test_clients_that_send_half_and_go(url, alive, sent):
    host, port = url.split("//")[1].split(":")
    with socket.create_connection((host, int(port)), timeout=DEADLINE) as client:
        client.sendall(sent)


def test_a_client_that_closes_its_sending_side_is_answered(url):
    with connect(url) as client:
        client.sendall(http_cases.asked().replace(b"PATH", INFER.encode()))
        client.shutdown(socket.SHUT_WR)
        assert read_all(client).startswith(b"HTTP/1.1 200 ")


def test_it_listens_on_this_machine_alone_without_its_standard_streams(programs, bundle):
    """A client's connection must not become the descriptor that the log is written to."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ("--bundle", bundle, "--engine=fake", f"--port={port}")
    command = programs.command("fleetbert-lite-server", *words)
    with subprocess.Popen(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command]) as process:
        try:
            end = time.monotonic() + DEADLINE
            while not (addresses := listening(process.pid)):
                assert time.monotonic() < end
                assert process.poll() is None
                time.sleep(0.05)
            assert addresses == [("127.0.0.1", port)]
            streams = [os.readlink(f"/proc/{process.pid}/fd/{number}") for number in range(3)]
            assert streams == ["/dev/null"] * 3
            right(post(f"http://127.0.0.1:{port}", body_of(TEXT)), bundle, TEXT["data"])
        finally:
            process.kill()


def listening(pid: int) -> list[tuple[str, int]]:
    found = psutil.Process(pid).connections("tcp")
    return [tuple(one.laddr) for one in found if one.status == psutil.CONN_LISTEN]


def test_a_full_queue_answers_503(programs, bundle):
    words = ("--queue-texts=64", "--fake-delay-ms=500", "--max-texts=64", "--connections=16")
    sent = body_of({**TEXT, "shape": [32], "data": ["word1"] * 32})
    with serving(programs, bundle, *words) as (url, _):
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            found = list(pool.map(lambda _: post(url, sent), range(12)))
        full = [one for one in found if one.status_code == 503]
        assert full
        for one in full:
            refused(one, 503, "queue is full")
            assert one.headers["Retry-After"] == "1"
        answered = [one for one in found if one.status_code == 200]
        assert len(answered) + len(full) == 12
        assert answered
        metrics = requests.get(f"{url}/metrics").text
        assert f'code="200"}} {len(answered)}\n' in metrics
        assert f'code="503"}} {len(full)}\n' in metrics
        right(post(url, body_of(TEXT)), bundle, TEXT["data"])


def test_a_timeout_answers_504(programs, bundle):
    with serving(programs, bundle, "--fake-delay-ms=500") as (url, _):
        refused(post(url, body_of(TEXT, parameters={"timeout": 1000})), 504, "timeout")


def test_sigterm_answers_what_was_taken(programs, bundle):
    with serving(programs, bundle, "--fake-delay-ms=2000") as (url, process):
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            asked = pool.submit(post, url, body_of(TEXT))
            queued = 'queued_texts{model="model",version="1"} 2'
            end = time.monotonic() + DEADLINE
            while queued not in requests.get(f"{url}/metrics").text:
                assert time.monotonic() < end
                assert not asked.done()
            process.send_signal(signal.SIGTERM)
            right(asked.result(), bundle, TEXT["data"])
            assert asked.result().headers["Connection"] == "close"
        assert process.wait(DEADLINE) == 0
        assert "Stopping" in process.stdout.read()


def test_a_port_that_is_taken(programs, bundle):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = ("--bundle", bundle, "--engine=fake", "--host=127.0.0.1", f"--port={port}")
        done = programs.run("fleetbert-lite-server", *words)
    assert done.returncode == 2
    assert done.stderr.decode() == (
        f"error: cannot listen on 127.0.0.1 port {port}: choose another with --host and --port\n"
    )

"""`fleetbert.client` against both a fake core and what it must not need."""

from __future__ import annotations

import dataclasses
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import fake_core
import numpy as np
import pytest

from fleetbert.client import Client, ServerError, Unreachable
from fleetbert.tasks.metrics import softmax

TEXTS = ["bad", "good good", "\u200b", "a very long text 无", "good"]


@pytest.fixture(scope="module")
def server():
    with fake_core.serve() as served:
        yield served


@pytest.fixture
def client(server):
    with Client(server.http) as opened:
        yield opened


def test_answers_come_in_the_order_of_the_texts(client):
    expected = fake_core.logits_of(TEXTS)
    for count in range(1, len(TEXTS) + 1):
        found = client.infer("sst", TEXTS[:count])
        np.testing.assert_array_equal([one.logits for one in found], expected[:count])
        labels = [fake_core.LABELS[row] for row in expected[:count].argmax(axis=1)]
        assert [one.label for one in found] == labels
        assert [one.exit_layer for one in found] == list(range(1, count + 1))
        for one, row in zip(found, softmax(expected)):
            assert one.scores == pytest.approx(dict(zip(fake_core.LABELS, row)), abs=1e-6)


def test_what_is_asked_for_reaches_the_core(client, server):
    client.infer("sst", ["a"], version="stable", speed=0.5, server_timeout=1.5)
    asked = server.core.requests[-1]
    assert (asked.version, asked.speed, asked.timeout) == ("stable", 0.5, 1.5)
    client.infer("pairs", ["first"], ["第二"])
    assert server.core.requests[-1].texts_b == ["第二"]
    assert client.metadata("sst", "1")["name"] == "sst"
    assert client.ready()


@pytest.mark.parametrize(
    ("model", "status", "part", "wait"),
    [
        ("none", 404, "no model", None),
        ("late", 504, "timeout", None),
        ("broken", 500, "its log says", None),
        ("full", 503, "queue", 3.0),
        ("../repository/index?", 404, "there is nothing at", None),  # names are no paths
    ],
)
def test_errors_are_the_servers_sentences(client, model, status, part, wait):
    with pytest.raises(ServerError, match=part) as caught:
        client.infer(model, ["a"])
    assert (caught.value.status, caught.value.retry_after) == (status, wait)


@pytest.mark.parametrize("text", ["abc", b"abc"])
def test_one_text_is_no_list_of_its_letters(client, text):
    with pytest.raises(TypeError, match=r"texts: has to be a list of texts, not b?'abc'"):
        client.infer("sst", text)
    with pytest.raises(TypeError, match=r"pairs: has to be a list of texts or None, not b?'abc'"):
        client.infer("pairs", ["abc"], text)


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [(None, TypeError, "None; it has"), (float("nan"), TypeError, "nan; it has"),
     (b"a", TypeError, "b'a'; it has"), ("a\ud800", ValueError, "half of a surrogate pair")],
)  # fmt: skip
def test_what_is_no_text_is_named(client, text, kind, words):
    with pytest.raises(kind, match=rf"texts\[1\] .*{words}"):
        client.infer("sst", ["a", text])
    with pytest.raises(kind, match=r"pairs\[0\] "):
        client.infer("pairs", ["a"], [text])


def test_texts_of_a_generator_and_no_keys_of_a_dict(client, server):
    client.infer("pairs", (t for t in ["a", "b"]), (t for t in ["c", "d"]))
    assert server.core.requests[-1].texts_b == ["c", "d"]
    with pytest.raises(TypeError, match="texts: has to be a list of texts, not dict"):
        client.infer("sst", {"a": 1})


def test_nobody_there(client):
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        with Client(f"127.0.0.1:{port}") as other:
            with pytest.raises(Unreachable, match="cannot be reached"):
                other.infer("sst", ["a"])
            assert not other.ready()
        silent.listen()
        with Client(f"127.0.0.1:{port}", timeout=0.2) as other, pytest.raises(
            Unreachable, match=r"did not answer in 0\.2 s"
        ):
            other.infer("sst", ["a"])


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_proxy_is_not_asked_for_this_machine(server, monkeypatch, host):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nobody is there
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with Client(f"{host}:{server.http.rpartition(':')[2]}") as opened:
        assert opened.infer("sst", ["good"])[0].label
    with Client("fleetbert.invalid:80") as opened, pytest.raises(Unreachable, match=r"[Pp]roxy"):
        opened.metadata("sst")


def test_threads_may_share_one(client):
    def ask(number):
        for _ in range(10):
            [one] = client.infer("sst", ["good " * (number + 1)])
            assert one.logits[1] == number + 1.25

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(ask, range(6)))


@pytest.fixture
def replaced():
    """A server of its own, and a function that replaces what its model `sst` is."""
    with fake_core.serve() as served:
        versions = served.core._versions

        def replace(labels, bundle, told=None):
            """`told`: the bundle that answers name, where it is another one than metadata's."""
            (number,) = [n for n, v in enumerate(versions) if (v.model, v.version) == ("sst", "2")]
            versions[number] = dataclasses.replace(versions[number], labels=labels, bundle=bundle)
            served.core.labels, served.core.bundle = labels, bundle if told is None else told

        yield served, replace


def test_labels_are_those_of_the_bundle_that_answered(replaced):
    """Also where the label itself does not tell: the others have changed places."""
    server, replace = replaced
    first, second, third = fake_core.LABELS
    with Client(server.http) as client:
        for labels in ((first, second, third), (third, second, first), (first, third, second)):
            replace(labels, "of " + " ".join(labels))
            for _ in range(2):
                [one] = client.infer("sst", ["good good"])
                scores = softmax(fake_core.logits_of(["good good"]))[0]
                assert one.scores == pytest.approx(dict(zip(labels, scores)), abs=1e-6)
                assert one.label == max(one.scores, key=one.scores.get)
        client.metadata = None  # labels are asked for once
        client.infer("sst", ["good"])


def test_a_version_that_is_replaced_between_answer_and_labels_is_asked_again(replaced):
    server, replace = replaced
    labels = fake_core.LABELS
    replace(labels, "new", told="old")  # for ever: two servers behind one address
    with Client(server.http) as client:
        with pytest.raises(ServerError, match="different bundles") as caught:
            client.infer("sst", ["good"])
        assert (caught.value.status, caught.value.retry_after) == (503, 1.0)
        replace(labels, "new")
        assert client.infer("sst", ["good"])[0].label == labels[1]


def test_servers_that_name_no_bundle_are_asked_where_label_and_scores_contradict(replaced):
    server, replace = replaced
    with Client(server.http) as client:
        for labels in (fake_core.LABELS, fake_core.LABELS[::-1], ("a", "b", "c")):
            replace(labels, "")
            [one] = client.infer("sst", ["bad bad"])
            assert one.label == labels[0] == max(one.scores, key=one.scores.get)
            assert list(one.scores) == list(labels)


def test_it_needs_requests_only():
    code = "import sys, fleetbert.client; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"paddle", "numpy", "tritonclient", "pydantic"} & set(done.stdout.split())

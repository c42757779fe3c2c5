"""A server with Paddle in its workers: what it answers is what the engine says, in each task, and
what its processes are."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest
import requests
import tiny_bert
from grpc_stub import make_stub, request_of
from running_core import gone
from served import DEADLINE, REAL, serving, settings_of

from fleetbert.client import Client
from fleetbert.engines import answer as answers

TEXTS = ["word1", "word2 word3 字1", "word4 " * 40, "\x01"]
TASKS = ("regression", "multi_label_classification", "token_classification", "embedding")


@pytest.fixture(scope="module")
def made(tiny_bundle, tiny_vocab, tmp_path_factory):
    """A repository of models: `tiny`, a classifier, and one of each other task by its name."""
    folder = tmp_path_factory.mktemp("answers") / "models"
    shutil.copytree(tiny_bundle, folder / "tiny" / "1")
    for name in TASKS:
        tiny_bert.make_bundle(folder / name / "1", name, tiny_vocab)
    return folder


@pytest.fixture(scope="module")
def server(made, tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    with serving(folder, *settings_of(made), command=REAL) as served:
        yield served


def mapped(process: psutil.Process) -> bool:
    """Whether Paddle is in a process's memory."""
    return "libpaddle" in Path(f"/proc/{process.pid}/maps").read_text()


def test_answers_are_those_of_the_engine_over_http_and_grpc(server, made):
    expected = answers.answer(answers.load(made / "tiny" / "1"), TEXTS)
    served = ", ".join(f"{name} (1)" for name in sorted((*TASKS, "tiny")))
    assert server.out.startswith(f"serving {served} on http://127.0.0.1:")
    with Client(server.http) as client:
        found = client.infer("tiny", TEXTS)
    assert [one.label for one in found] == [one.label for one in expected]
    for one, other in zip(found, expected):
        np.testing.assert_allclose(one.logits, other.logits, atol=1e-5)
        assert one.scores == pytest.approx(other.scores, abs=1e-5)
        assert one.exit_layer == 2
    request = request_of(TEXTS, "tiny", outputs=[{"name": "logits"}])
    with grpc.insecure_channel(server.grpc) as channel:
        reply = make_stub(channel).ModelInfer(request, timeout=DEADLINE)
    logits = np.frombuffer(reply.raw_output_contents[0], np.float32).reshape(len(TEXTS), -1)
    np.testing.assert_allclose(logits, [one.logits for one in expected], atol=1e-5)


def test_numbers_are_those_of_the_engine(server, made):
    expected = answers.answer(answers.load(made / "regression" / "1"), TEXTS)
    with Client(server.http) as client:
        found = client.infer("regression", TEXTS)
        described = client.metadata("regression")
    assert [one.value for one in found] == pytest.approx([a.value for a in expected], abs=1e-5)
    assert [one.exit_layer for one in found] == [2] * 4
    assert described["parameters"]["task"] == "regression"
    assert described["outputs"] == [
        {"name": "values", "datatype": "FP32", "shape": [-1]},
        {"name": "exit_layer", "datatype": "INT32", "shape": [-1]},
    ]
    message = {
        "inputs": [{"name": "text", "datatype": "BYTES", "shape": [4], "data": TEXTS}],
        "outputs": [{"name": "values"}],
    }
    url = f"{server.http}/v2/models/regression/infer"
    (output,) = requests.post(url, json=message, timeout=60).json()["outputs"]
    assert output["shape"] == [4]
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
    assert reply["usage"]["total_tokens"] == 3 + 6 + 24 + 2  # the third is cut


def test_folders_whose_names_are_no_utf8_are_a_line_each(server, made):
    for name in (b"mod\xff\xfe", b"tiny/1\xe9"):
        Path(os.fsdecode(bytes(made) + b"/" + name)).mkdir()

    def ignored():
        return [line for line in server.lines() if "is ignored" in line["message"]]

    server.wait_for(lambda: len(ignored()) == 2)
    assert [line["message"].partition(" is")[0] for line in ignored()] == [
        rf"{made}/mod\udcff\udcfe",
        rf"{made}/tiny/1\udce9",
    ]
    assert "Traceback" not in server.log
    assert requests.get(f"{server.http}/v2/health/ready").status_code == 200


HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(
    not (HUGE_PAGES.exists() and "[madvise]" in HUGE_PAGES.read_text())
    or "GLIBC_TUNABLES" in os.environ,
    reason="the kernel gives huge pages to all programs or to none, or somebody else decides",
)
def test_workers_ask_for_huge_pages(server):
    def asks(process):
        flags = Path(f"/proc/{process.pid}/smaps").read_text().split("VmFlags:")[1:]
        return any("hg" in line.split("\n")[0].split() for line in flags)

    main = psutil.Process(server.process.pid)
    assert all(asks(child) for child in main.children(recursive=True) if mapped(child))
    assert not asks(main)


def test_the_listening_process_holds_no_paddle(server):
    assert not mapped(psutil.Process(server.process.pid))
    assert any(mapped(child) for child in server.workers())  # maps would tell


def test_workers_leave_signals_of_the_whole_group_to_the_parent(server):
    before = server.workers()
    for worker in filter(mapped, before):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            worker.send_signal(number)
    with Client(server.http) as client:
        assert client.infer("tiny", TEXTS)
    assert server.workers() == before


def test_what_workers_print_is_lines_of_the_json_log_and_nothing_is_left_of_them(
    tiny_bundle, tmp_path
):
    """Of Paddle's import with several threads, and of its C++ where a worker crashes."""
    shutil.copytree(tiny_bundle, tmp_path / "models" / "tiny" / "1")
    words = settings_of(tmp_path / "models", "engine.threads=2", "engine.pin=false")
    environ = {"OMP_NUM_THREADS": "3"}
    with serving(tmp_path, *words, command=REAL, environ=environ) as served:
        [worker] = filter(mapped, served.workers())
        worker.send_signal(signal.SIGSEGV)
        said = f"worker {worker.pid}: "
        served.wait_for(lambda: any(said in line["message"] for line in served.lines()))
        with Client(served.http) as client:
            assert client.infer("tiny", TEXTS)
        assert any("SIGSEGV" in line["message"] for line in served.lines())
        assert "OMP_NUM_THREADS" not in served.log
        [worker] = filter(mapped, served.workers())
        served.process.kill()  # the kernel ends its workers
        served.wait_for(lambda: gone(worker.pid), ended=True)

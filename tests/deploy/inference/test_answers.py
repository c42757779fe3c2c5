"""A server with Paddle in its workers: what it answers is what the engine says, in each task, and
what its processes are."""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from pathlib import Path

import grpc
import light
import numpy as np
import psutil
import pytest
import requests
import same_answers
import tiny_bert
from grpc_stub import make_stub, request_of
from oip_cases import IDS, TEXT, body_of
from running_core import gone
from served import DEADLINE, LIGHT, REAL, SOON, serving, settings_of

from fleetbert.client import Client
from fleetbert.engines import answer as answers

TEXTS = ["word1", "word2 word3 字1", "word4 " * 40, "\x01", "😀 字字 word1, word2", "word7 " * 9]
TASKS = ("classification", *tiny_bert.LABELS_OF, "regression", "embedding")
QUESTIONS = "question_answering"


@pytest.fixture(scope="module")
def made(tiny_bundle, tiny_vocab, tmp_path_factory):
    """A repository with a model of each task, by its name."""
    folder = tmp_path_factory.mktemp("answers") / "models"
    shutil.copytree(tiny_bundle, folder / TASKS[0] / "1")
    for name in (*TASKS[1:], QUESTIONS):
        tiny_bert.make_bundle(folder / name / "1", name, tiny_vocab)
    return folder


@pytest.fixture(scope="module")
def server(made, tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    with serving(folder, *settings_of(made), command=SOON) as served:
        yield served


def mapped(process: psutil.Process) -> bool:
    """Whether Paddle is in a process's memory."""
    return "libpaddle" in Path(f"/proc/{process.pid}/maps").read_text()


def rests(process: psutil.Process) -> bool:
    """Whether a process computes nothing for a while."""
    before = process.cpu_times()
    time.sleep(0.3)
    return process.cpu_times() == before


@pytest.mark.parametrize("name", TASKS)
def test_answers_are_those_of_the_engine(server, made, name):
    """Of texts that share batches with others, are cut, or have characters beyond Unicode's BMP."""
    expected = answers.answer(answers.load(made / name / "1"), TEXTS)
    with Client(server.http) as client:
        found = client.infer(name, TEXTS)
        assert client.metadata(name)["parameters"]["task"] == name
    same_answers.check(found, expected)
    assert {one.exit_layer for one in found} == {2}
    if name == "multi_label_classification":
        assert len({len(one.labels) for one in expected}) > 1  # some texts have more than others
    if name == "token_classification":
        assert sum(len(one.spans) for one in expected) > 5


def test_questions_are_answered_in_their_contexts(server, made):
    """As inputs of the protocol, through the client, and as Hugging Face's inference API has it. A
    context of several windows is one."""
    contexts = ["word1 word2 字3\r\nword4", " ".join(TEXTS) * 9, "e\u0301 word1 word2", "\x01"]
    questions = ["word2", "word1 word3", "word9 " * 40, "word5"]
    expected = answers.answer(answers.load(made / QUESTIONS / "1"), questions, contexts)
    places = [(one.text, context[one.start : one.end]) for one, context in zip(expected, contexts)]
    assert places[-1] == (None, "\x01")  # no token stands for it
    assert all(text == place for text, place in places[:-1])
    with Client(server.http) as client:
        same_answers.check(client.infer(QUESTIONS, questions, contexts), expected, 1e-4)
        names = [tensor["name"] for tensor in client.metadata(QUESTIONS)["inputs"]]
    assert names[:2] == ["question", "context"]

    def post(path, message, status=200):
        reply = requests.post(f"{server.http}/{path}", json=message, timeout=60)
        assert reply.status_code == status, reply.text
        return reply.json()

    given = [("question", questions), ("context", contexts)]
    inputs = [
        {"name": name, "shape": [4], "datatype": "BYTES", "data": data} for name, data in given
    ]
    (output, _) = post(f"v2/models/{QUESTIONS}/infer", {"inputs": inputs})["outputs"]
    assert [json.loads(one)["start"] for one in output["data"]] == [one.start for one in expected]
    refused = post(f"v2/models/{QUESTIONS}/infer", {"inputs": inputs[:1]}, 400)["error"]
    assert refused.startswith("input 'context' is missing")
    refused = post(f"v2/models/{QUESTIONS}/infer", {"inputs": inputs[1:]}, 400)["error"]
    assert refused.startswith("input 'question' is missing")
    (plain,) = post(f"models/{QUESTIONS}", {"question": questions[0], "context": contexts[0]})[
        "answers"
    ]
    assert plain["answer"]["text"] == expected[0].text
    refused = post(f"models/{QUESTIONS}", {"context": contexts[0]}, 400)["error"]
    assert refused == "question has to be a text or a list of texts, at least one"
    for question, context, one in zip(questions, contexts, expected):
        message = {"inputs": {"question": question, "context": context}}
        found = post("question-answering", {**message, "parameters": None})
        assert found == {
            "answer": one.text or "", "start": one.start or 0, "end": one.end or 0,
            "score": pytest.approx(one.score, abs=1e-4),
        }  # fmt: skip
        several = post(
            f"models/{QUESTIONS}/question-answering", {**message, "parameters": {"top_k": 3}}
        )
        n_best = one.n_best[:3] or [one]
        assert [row["start"] for row in several] == [other.start or 0 for other in n_best]
    for message, sentence in [
        ({"inputs": "word1"}, "inputs is 'word1'; it has to be an object of question and context"),
        ({"inputs": {}, "parameters": []}, "parameters is a list of 0; it has to be an object"),
        ({"inputs": {"question": "a", "context": 3}}, "inputs.context is 3; it has to be a text"),
        ({"inputs": {"question": "a", "context": " "}}, "text 0 of input 'context' is empty"),
        (
            {"model": "regression", "inputs": {"question": "a", "context": "b"}},
            "model regression does not answer with answers in a context: its task is regression",
        ),
    ]:
        assert sentence in post("question-answering", message, 400)["error"]


def test_answers_over_grpc_are_those_of_the_engine(server, made):
    expected = answers.answer(answers.load(made / "classification" / "1"), TEXTS)
    served = ", ".join(f"{name} (1)" for name in sorted((*TASKS, QUESTIONS)))
    assert server.out.startswith("serving on http://127.0.0.1:")
    assert server.out.endswith(f"\nready: {served}\n")
    request = request_of(TEXTS, "classification", outputs=[{"name": "logits"}])
    with grpc.insecure_channel(server.grpc) as channel:
        reply = make_stub(channel).ModelInfer(request, timeout=DEADLINE)
    logits = np.frombuffer(reply.raw_output_contents[0], np.float32).reshape(len(TEXTS), -1)
    np.testing.assert_allclose(logits, [one.logits for one in expected], atol=1e-5)


@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("regression", {"name": "values", "datatype": "FP32", "shape": [-1]}),
        ("token_classification", {"name": "spans", "datatype": "BYTES", "shape": [-1]}),
        ("embedding", {"name": "embedding", "datatype": "FP32", "shape": [-1, 64]}),
        (QUESTIONS, {"name": "answer", "datatype": "BYTES", "shape": [-1]}),
    ],
)
def test_outputs_are_the_tasks_own(server, name, output):
    layer = {"name": "exit_layer", "datatype": "INT32", "shape": [-1]}
    found = requests.get(f"{server.http}/v2/models/{name}").json()
    assert found["outputs"] == [output, layer]


@pytest.mark.parametrize(
    ("name", "given", "sentence"),
    [
        ("regression", TEXT, "output 'label' is unknown; choose from values, exit_layer"),
        ("token_classification", IDS, "answers with characters of texts: send input 'text'"),
    ],
)
def test_what_a_task_has_not_is_refused(server, name, given, sentence):
    outputs = [{"name": "label"}] if given is TEXT else []
    url = f"{server.http}/v2/models/{name}/infer"
    reply = requests.post(url, body_of(given, outputs=outputs), timeout=60)
    assert reply.status_code == 400
    assert reply.json()["error"].endswith(sentence)


def test_the_calls_of_text_embeddings_inference(server, made):
    def post(path, message, status=200):
        reply = requests.post(f"{server.http}/models/{path}", json=message, timeout=60)
        assert reply.status_code == status, reply.text
        return reply.json()

    text = "word1  字1 word2"
    (answer,) = answers.answer(answers.load(made / "classification" / "1"), [text])
    assert post("classification/predict", {"inputs": text})[0]["label"] == answer.label
    (found,) = post("classification", {"text": text})["answers"]
    assert found["scores"] == pytest.approx(answer.scores, abs=1e-5)
    entities = answers.answer(answers.load(made / "token_classification" / "1"), [TEXTS[5]])
    (found,) = post("token_classification", {"text": TEXTS[5]})["answers"]
    assert [span["text"] for span in found["spans"]] == [one.text for one in entities[0].spans]
    (tokens,) = post("classification/tokenize", {"inputs": text})
    assert [one["text"] for one in tokens] == ["[CLS]", "word1", "字", "1", "word2", "[SEP]"]
    assert [one["special"] for one in tokens] == [True, False, False, False, False, True]
    assert [(one["start"], one["stop"]) for one in tokens][:3] == [(None, None), (0, 5), (7, 8)]
    long = {"inputs": [["word1"], [TEXTS[2] * 9]], "truncate": False}
    refused = post("classification/predict", long, 413)["error"]
    assert refused.startswith("1 of the texts have more than the ")
    assert len(post("classification/predict", {**long, "truncate": True})) == 2
    info = requests.get(f"{server.http}/models/embedding/info", timeout=60).json()
    assert info["model_type"]["embedding"]["pooling"] in ("cls", "mean")


def test_labels_that_were_integers_are_integers_but_where_the_protocol_has_strings(tmp_path):
    told = {"labels": ["7", "-2", "30"], "integer_labels": True}
    light.make_bundle(tmp_path / "models" / "stars" / "1", **told)
    several = {"task": "multi_label_classification", "thresholds": {"-2": 0.0}, **told}
    light.make_bundle(tmp_path / "models" / "topics" / "1", **several)
    with serving(tmp_path, *settings_of(tmp_path / "models"), command=LIGHT) as served:

        def post(path, message):
            return requests.post(f"{served.http}/{path}", json=message, timeout=60).json()

        with Client(served.http) as client:
            answers = {name: client.infer(name, TEXTS) for name in ("stars", "topics")}
        described = requests.get(f"{served.http}/v2/models/stars").json()
        plain = {name: post(f"models/{name}", {"text": TEXTS})["answers"] for name in answers}
        predicted = post("models/stars/predict", {"inputs": TEXTS[0]})
        info = requests.get(f"{served.http}/models/stars/info").json()["model_type"]
        [label, *_] = post("v2/models/stars/infer", {"inputs": [TEXT]})["outputs"]
    assert described["parameters"]["labels"] == [7, -2, 30]
    for one, in_json in zip(answers["stars"], plain["stars"]):
        assert list(one.scores) == [7, -2, 30]
        assert type(one.label) is int and one.label == max(one.scores, key=one.scores.get)
        assert in_json["label"] == one.label and list(in_json["scores"]) == ["7", "-2", "30"]
    for one, in_json in zip(answers["topics"], plain["topics"]):
        chosen = sorted(one.scores, key=one.scores.get, reverse=True)
        assert (
            one.labels
            == in_json["labels"]
            == [label for label in chosen if one.scores[label] > (0 if label == -2 else 0.5)]
        )
    # Strings in text-embeddings-inference's calls, and in tensors of BYTES.
    assert {row["label"] for row in predicted} == {"7", "-2", "30"}
    assert info["classifier"]["id2label"] == {"0": "7", "1": "-2", "2": "30"}
    assert label["datatype"] == "BYTES" and label["data"][0] in ("7", "-2", "30")


def test_vectors_in_openais_form_are_those_of_the_engine(server, made):
    texts = TEXTS[:4]
    expected = answers.answer(answers.load(made / "embedding" / "1"), texts)
    message = {"model": "embedding", "input": texts, "dimensions": 8}
    reply = requests.post(f"{server.http}/v1/embeddings", json=message, timeout=60).json()
    short = np.stack([one.vector[:8] for one in expected])
    short /= np.linalg.norm(short, axis=1, keepdims=True)
    np.testing.assert_allclose([one["embedding"] for one in reply["data"]], short, atol=1e-5)
    assert reply["usage"]["total_tokens"] == 3 + 6 + 24 + 2  # the third is cut


def test_folders_whose_names_are_no_utf8_are_a_line_each(server, made):
    for name in (b"mod\xff\xfe", b"regression/1\xe9"):
        Path(os.fsdecode(bytes(made) + b"/" + name)).mkdir()

    def ignored():
        return [line for line in server.lines() if "is ignored" in line["message"]]

    server.wait_for(lambda: len(ignored()) == 2)
    assert [line["message"].partition(" is")[0] for line in ignored()] == [
        rf"{made}/mod\udcff\udcfe",
        rf"{made}/regression/1\udce9",
    ]
    assert "Traceback" not in server.log
    assert requests.get(f"{server.http}/v2/health/ready").status_code == 200


def test_the_listening_process_holds_no_paddle(server):
    assert not mapped(psutil.Process(server.process.pid))
    assert any(mapped(child) for child in server.workers())  # maps would tell


def test_workers_leave_signals_of_the_whole_group_to_the_parent(server):
    before = server.workers()
    for worker in filter(mapped, before):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            worker.send_signal(number)
    with Client(server.http) as client:
        assert client.infer("regression", TEXTS)
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
        # In the middle of malloc Paddle's handler would never end, and the server kill the worker.
        served.wait_for(lambda: rests(worker))
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

"""Answers in contexts by the C++ programs, beside those of fleetbert's own decoding."""

from __future__ import annotations

import json
import random
from unicodedata import category

import pytest
import requests
from boards import READINGS, WORDS, add_early_exit, expected, write_bundle
from lite_build import EMULATED_TOO, answers_of, refused
from lite_serving import post, serving
from lite_tokens import random_texts, write_vocabulary
from oip_cases import body_of
from same_answers import nearly

NAME = "question_answering"
NO_ANSWER = {"labels": ["no_answer"], "thresholds": {"no_answer": 0.3}}
URL = "/question-answering"


def answers_in(bundle, questions, contexts, vocab=None):
    """As `predict` writes them."""
    task, labels, outputs = expected(bundle, NAME, questions, vocab, contexts)
    return [answer.as_json() for answer in task.answer.to_answers(labels, outputs, None)]


def lines_of(questions, contexts):
    return "\n".join(map("\t".join, zip(questions, contexts)))


@EMULATED_TOO
@pytest.mark.parametrize("told", [{"labels": []}, NO_ANSWER])
def test_answers_in_random_texts_are_those_of_fleetbert(predict, make, tmp_path, told):
    """Their characters too: of marks, ideographs, unknown words, contexts without a token. Marks
    that follow an answer, which tokenizers strip, belong to it. Versions of Unicode differ in what
    is not assigned."""
    texts = [text.replace("\t", " ") for text in random_texts(1200, seed=21)]
    texts = [text.replace("\n", " ").replace("\0", "") for text in texts]
    texts = ["".join(one for one in text if category(one) != "Cn") for text in texts]
    texts = [text for text in texts if text.strip() and not text.startswith("\ufeff")]
    vocab = write_vocabulary(tmp_path / "vocab.txt", texts)
    bundle = make(task=NAME, vocab=vocab, max_length=24, **told)
    wanted = answers_in(bundle, texts, texts[::-1], vocab)
    done = predict(bundle, text=lines_of(texts, texts[::-1]))
    assert done.returncode == 0, done.stderr
    for found, one, context in zip(answers_of(done), wanted, texts[::-1]):
        nearly(found, one, 2e-6)
        for part in (one, *one["n_best"]):
            assert part["text"] is None or part["text"] == context[part["start"] : part["end"]]
            after = (context + " ")[part["end"] or -1]
            assert category(after)[0] != "M" or after > "\U0001ffff"
    assert {one["text"] is None for one in wanted} == {True, False}
    assert sum(len(one["n_best"]) == 5 for one in wanted) > 1000


@pytest.mark.parametrize("reading", READINGS)
def test_windows_are_of_the_context_whatever_the_bundle_says_of_long_texts(predict, make, reading):
    chance = random.Random(5)
    contexts = [" ".join(chance.choices(WORDS, k=count)) for count in (3, 40, 400, 5000)]
    questions = ["word7", "word1 word2", " ".join(WORDS), "字 word5"]
    bundle = make(task=NAME, reading=READINGS[reading], **NO_ANSWER)
    done = predict(bundle, text=lines_of(questions, contexts))
    nearly(answers_of(done), answers_in(bundle, questions, contexts), 2e-6)
    assert done.stderr == b"1 texts were truncated to 16 tokens\n"  # the question


def test_the_server_takes_questions_as_the_protocol_and_hugging_face_have_them(programs, make):
    bundle = make(task=NAME, **NO_ANSWER)
    questions = ["word2", "word1 word3", "word9 " * 40, "word5"]
    contexts = ["word1 word2 字3\r\nword4", " ".join(WORDS) * 3, "e\u0301 word1 word2", "\x01"]
    wanted = answers_in(bundle, questions, contexts)
    tensor = {"datatype": "BYTES", "shape": [len(questions)]}

    def named(*names):
        return [{"name": name, "data": data, **tensor}
                for name, data in zip(names, (questions, contexts))]  # fmt: skip

    with serving(programs, bundle, "--max-text-bytes=4096") as (url, _):
        described = requests.get(f"{url}/v2/models/model").json()
        assert [one["name"] for one in described["inputs"]] == ["question", "context"]
        assert [one["datatype"] for one in described["inputs"]] == ["BYTES"] * 2
        for names in (("question", "context"), ("text", "text_pair")):
            (output,) = post(url, body_of(*named(*names))).json()["outputs"]
            assert (output["name"], output["shape"]) == ("answer", [len(questions)])
            nearly([json.loads(one) for one in output["data"]], wanted, 2e-6)
        for sent, sentence in [
            (named("question"), "input 'context' is missing: this model finds answers in it"),
            (named("question", "context")[1:], "input 'question' is missing"),
            ([*named("question", "context"), *named("text")], "input 'text' is given twice"),
            (named("input_ids"), "input 'input_ids' is unknown; this model takes question and con"),
        ]:
            assert sentence in post(url, body_of(*sent)).json()["error"]

        def ask(message, path=URL, status=200):
            reply = requests.post(url + path, json=message)
            assert reply.status_code == status, reply.text
            return reply

        for question, context, one in zip(questions, contexts, wanted):
            rows = [theirs(row) for row in (one, *(n for n in one["n_best"] if not same(n, one)))]
            inputs = {"question": question, "context": context}
            for path in (URL, "/models/model" + URL):
                found = ask({"inputs": inputs, "parameters": None, "model": "model"}, path)
                nearly(found.json(), rows[0], 2e-6)
            many = {"inputs": inputs, "parameters": {"top_k": 3, "max_answer_len": 5}}
            found = ask(many)
            nearly(found.json(), rows[:3], 2e-6)
            assert found.headers["x-unknown-parameters"] == "'max_answer_len'"
            sure = {"top_k": 1, "handle_impossible_answer": False}
            with_text = [row for row in rows if row["answer"]] or rows
            nearly(ask({"inputs": inputs, "parameters": sure}).json(), with_text[0], 2e-6)
        for message, sentence in [
            ({"inputs": "word1"}, "inputs is 'word1'; it has to be an object of question and"),
            ({"inputs": {"question": "a", "context": 3}}, "inputs.context is 3; it has to be a"),
            ({"inputs": {"question": "a"}}, "inputs.context is null; it has to be a text"),
            ({"inputs": inputs, "parameters": []}, "parameters is a list of 0; it has to be an ob"),
            ({"inputs": inputs, "parameters": {"top_k": 0}}, "top_k is 0; it has to be a whole"),
            ({"inputs": {"question": "a", "context": " "}}, "text 0 of input 'context' is empty"),
        ]:
            assert sentence in ask(message, status=400).json()["error"]
        long = {"question": "word1", "context": "word2 " * 100_000}
        assert "this server takes at most 4096" in ask({"inputs": long}, status=413).json()["error"]
        assert "no model 'other'" in ask({"inputs": inputs, "model": "other"}, URL, 404).text
        ask({"inputs": inputs}, "/models/other" + URL, 404)
        assert requests.get(url + URL).status_code == 405


def same(one, other):
    return (one["start"], one["end"]) == (other["start"], other["end"])


def theirs(answer):
    """As Hugging Face's API has it: no answer is the empty text."""
    place = {name: answer[name] or 0 for name in ("start", "end")}
    return {"answer": answer["text"] or "", "score": answer["score"], **place}


def test_what_has_no_answers_in_contexts_is_refused(programs, predict, here, make, tmp_path):
    with serving(programs, make()) as (url, _):
        found = requests.post(url + URL, json={"inputs": {"question": "a", "context": "b"}})
        assert found.status_code == 400
        assert "model model does not answer with answers in a context" in found.json()["error"]
    bundle, small = (
        write_bundle(folder, targets=(here,), task=NAME, max_length=length, **NO_ANSWER)
        for length, folder in ((16, tmp_path / "other"), (4, tmp_path / "small"))
        for _ in [folder.mkdir()]
    )
    variant = add_early_exit(bundle, here)
    refused(predict(bundle, "--variant", variant, text="a\tb"), "which no text leaves early")
    refused(predict(small, text="a\tb"), "max_length is 4, and its tokenizer needs 5")

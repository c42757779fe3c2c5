"""Spans of tags beside seqeval's definitions."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetbert.tasks.token_classification import TOKEN_CLASSIFICATION as TASK
from fleetbert.tasks.token_classification import scheme as tagging
from fleetbert.tasks.token_classification.labels import Collector

KINDS = ("LOC", "MISC", "PER")
BIO = ["O", *(f"{p}-{k}" for k in KINDS for p in "BI")]
ALL = ["O", *(f"{p}-{k}" for k in KINDS for p in "BIESMLU")]


def reference(tags):
    """The spans (first, end, kind) of seqeval's default mode, written anew: a span goes on while
    its kind does, until something that begins one, or behind something that ends one."""
    actual = set()
    at = 0
    while at < len(tags):
        if tags[at] == "O":
            at += 1
            continue
        end = at + 1
        while (
            end < len(tags)
            and tags[end - 1][0] not in "ESLU"
            and tags[end][0] not in "OBSU"
            and tags[end][2:] == tags[at][2:]
        ):
            end += 1
        actual.add((at, end, tags[at][2:]))
        at = end
    return actual


def outputs(answers, labels):
    """Texts "w w w" whose words are tagged so, by the tokens 1, 3, 5 ...; others have nonsense."""
    rows = np.empty(len(answers), object)
    words = []
    for number, tags in enumerate(answers):
        count = len(tags)
        rows[number] = np.full((2 * count + 1, len(labels)), 7.0, np.float32)
        rows[number][1::2] = -4
        rows[number][np.arange(count) * 2 + 1, [labels.index(tag) for tag in tags]] = 4
        place = np.arange(count)
        words.append(np.stack([2 * place + 1, 2 * place, 2 * place + 1], 1).astype(np.int32))
    texts = [" ".join("w" * len(tags)) for tags in answers]
    return TASK.answer.of_texts(rows, words, texts)


def truth(texts):
    written = [
        json.dumps(sorted([2 * first, 2 * end - 1, kind] for first, end, kind in reference(tags)))
        for tags in texts
    ]
    return TASK.labels.targets(written, BIO)


def evaluate(true, answered, labels=ALL):
    actual = TASK.labels.targets([json.dumps([])], labels)  # kinds have the same numbers in both
    assert tagging.scheme_of(labels).kinds == tagging.scheme_of(BIO).kinds and len(actual) == 1
    return TASK.metrics.evaluate(truth(true), outputs(answered, labels), labels)


def test_the_figures_of_seqevals_readme():
    true = [["O", "O", "O", "B-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]]
    answered = [["O", "O", "B-MISC", "I-MISC", "I-MISC", "I-MISC", "O"], ["B-PER", "I-PER", "O"]]
    actual = evaluate(true, answered)
    assert (actual["entity_f1"], actual["entity_precision"], actual["entity_recall"]) == (0.5,) * 3
    assert actual["classes"]["PER"] == {"precision": 1, "recall": 1, "f1": 1, "support": 1}
    assert actual["classes"]["MISC"] == {"precision": 0, "recall": 0, "f1": 0, "support": 1}
    # A span of its own at each of the two places.
    assert actual["labels"][-1] == "none"
    assert [actual["confusion"][one][other] for one, other in [(1, 3), (3, 1), (2, 2)]] == [1, 1, 1]


tables = st.lists(
    st.integers(1, 7).flatmap(
        lambda n: st.tuples(
            st.lists(st.sampled_from(BIO), min_size=n, max_size=n),
            st.lists(st.sampled_from(ALL), min_size=n, max_size=n),
        )
    ),
    min_size=1,
    max_size=6,
)


@given(tables)
def test_figures_are_seqevals(table):
    true, answered = (list(side) for side in zip(*table))
    there = {(n, *span) for n, tags in enumerate(true) for span in reference(tags)}
    told = {(n, *span) for n, tags in enumerate(answered) for span in reference(tags)}
    right = there & told
    actual = evaluate(true, answered)
    precision, recall = len(right) / max(len(told), 1), len(right) / max(len(there), 1)
    assert actual["entity_precision"] == pytest.approx(precision)
    assert actual["entity_recall"] == pytest.approx(recall)
    f1 = 2 * precision * recall / (precision + recall) if right else 0.0
    assert actual["entity_f1"] == pytest.approx(f1)
    for kind, scores in actual["classes"].items():
        own = [{span for span in side if span[3] == kind} for side in (right, there, told)]
        assert scores["support"] == len(own[1])
        assert scores["f1"] == pytest.approx(2 * len(own[0]) / max(len(own[1]) + len(own[2]), 1))
    confusion = np.array(actual["confusion"])
    assert confusion[:-1].sum() == len(there) and confusion[:, :-1].sum() == len(told)
    # Of the gate's bootstrap.
    sums = TASK.metrics.sums(truth(true), outputs(answered, ALL), ALL)
    assert TASK.metrics.of_sums(sums.sum(0)) == pytest.approx(f1)


@given(st.lists(st.lists(st.sampled_from(BIO), min_size=1, max_size=8), min_size=1, max_size=5))
def test_what_is_asked_of_words_decodes_to_the_spans(texts):
    """Targets of spans, taken as the answer, are these spans again."""
    scheme = tagging.scheme_of(BIO)
    for spans, one in zip(truth(texts), outputs(texts, BIO)):
        tags = scheme.tags[tagging.tags_of(one.words, spans)]
        logits = np.eye(len(BIO), dtype=np.float32)[tags]
        actual = tagging.spans_of(one._replace(logits=logits), scheme)
        np.testing.assert_array_equal(actual, spans)


@pytest.mark.parametrize(
    ("pieces", "places", "tags"),
    [("first", [1, 3, 4], [1, 2, 0]), ("all", [1, 2, 3, 4, 5], [1, 2, 2, 0, 0])],
)
def test_which_tokens_learn_the_tag_of_their_word(pieces, places, tags):
    """Of [CLS] a ##a b c ##c [SEP], whose first two words are a span."""
    words = np.array([[1, 0, 2], [3, 3, 4], [4, 5, 7]])
    encodings = SimpleNamespace(words=[words], lengths=np.array([7]))
    split = SimpleNamespace(encodings=encodings, labels=[np.array([[0, 4, 0]])])
    job = SimpleNamespace(task=SimpleNamespace(pieces=pieces))
    collector = Collector(split, job, None)
    actual = collector.targets(0)
    assert (actual[0].tolist(), actual[1].tolist()) == (places, tags)
    assert collector.asked_tokens(0) == len(places)


def test_an_answer_names_characters_kind_and_text():
    (one,) = outputs([["B-PER", "I-PER", "O", "B-LOC"]], BIO)
    row = np.empty(1, object)
    row[0] = one._replace(text="a b c d")
    (answer,) = TASK.answer.to_answers(BIO, row, None)
    assert [span[:3] for span in answer.spans] == [(0, 3, "PER"), (6, 7, "LOC")]
    assert [span.text for span in answer.spans] == ["a b", "d"]
    assert answer.spans[0].score == pytest.approx(1 / (1 + (len(BIO) - 1) * np.exp(-8.0)))
    (answered,) = TASK.answer.tell(BIO, row)[0]
    assert json.loads(answered) == answer.as_json()["spans"]
    assert TASK.answer.in_words(answer.as_json()).startswith("a b (PER, 99.8%), d (LOC, ")
    assert TASK.answer.in_words({"spans": []}) == "no span"
    many = {"spans": [{"text": "a", "kind": "PER", "score": 1.0}] * 22}
    assert TASK.answer.in_words(many) == ", ".join(["a (PER, 100.0%)"] * 20) + ", and 2 more"

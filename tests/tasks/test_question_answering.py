"""Answers in contexts: decoding beside all pairs of tokens, windows, thresholds, hard texts."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fleetbert.core.reading import Reading
from fleetbert.data import ragged, tokenizers
from fleetbert.data.split import Split
from fleetbert.tasks.question_answering import QUESTION_ANSWERING as TASK
from fleetbert.tasks.question_answering.collect import Windows
from fleetbert.tasks.question_answering.decoding import LONGEST, MOST, NO_ANSWER, candidates

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "who", "came", "e", "##\u0301", *"abcdefgh"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    path: Path = tmp_path_factory.mktemp("vocab") / "vocab.txt"
    path.write_text("\n".join(dict.fromkeys(WORDS)) + "\n", encoding="utf-8")
    return tokenizers.open(tokenizers.of_vocab(path, False))


def tokens_of(count, first=3):
    """One character each."""
    places = np.arange(count)
    return np.stack([first + places, places, places + 1], 1).astype(np.int32)


def test_candidates_are_the_best_of_all_pairs_of_tokens():
    rng = np.random.default_rng(0)
    for count in (1, 2, 30, LONGEST + 40):
        outputs = rng.normal(0, 3, (count + 4, 2)).astype(np.float32)
        found = candidates(outputs, tokens_of(count), "x" * count)
        begins, ends = outputs[3:-1].astype(np.float64).T
        pairs = [
            (begins[first] + ends[last], first, last + 1)
            for first in range(count)
            for last in range(first, min(count, first + LONGEST))
        ]
        best = sorted(pairs, reverse=True)[:MOST]
        assert found.places.tolist() == [[first, end] for _, first, end in best]
        np.testing.assert_allclose(found.logits, [score for score, *_ in best])
        assert found.none == pytest.approx(float(outputs[0].sum()), abs=1e-5)


def test_no_answer_is_given_above_its_threshold_by_models_that_learned_it():
    outputs = np.full((8, 2), -5, np.float32)
    outputs[0] = 1.0
    outputs[[4, 5], [0, 1]] = 0.8  # from the second character to the third
    rows = TASK.answer.of_texts(np.array([outputs, None], object)[:1], [tokens_of(4)], ["abcd"])
    (answer,) = TASK.answer.to_answers([], rows, None)
    assert (answer.text, answer.start, answer.end) == ("bc", 1, 3)
    assert all(one.text is not None for one in answer.n_best)
    (answer,) = TASK.answer.to_answers([NO_ANSWER], rows, None)
    assert (answer.text, answer.start, answer.n_best[0].text) == (None, None, None)
    assert 0.5 < answer.score < answer.score + answer.n_best[1].score <= 1
    (answer,) = TASK.with_thresholds({NO_ANSWER: 0.7}).answer.to_answers([NO_ANSWER], rows, None)
    assert answer.text == "bc" and answer.n_best[0].text is None
    told = json.loads(TASK.answer.tell([NO_ANSWER], rows)[0][0])
    assert told == TASK.answer.to_answers([NO_ANSWER], rows, None)[0].as_json()


def test_the_threshold_is_the_one_with_the_best_f1():
    """Of questions whose answer is right at lacks below 0.3, and that have none above."""
    rng = np.random.default_rng(1)
    labels, rows = [], np.empty(60, object)
    for number in range(60):
        outputs = np.full((6, 2), -9, np.float32)
        outputs[[3, 3], [0, 1]] = 1.0
        lack = rng.random()
        outputs[0] = 1.0 + np.log(lack / (1 - lack)) / 2
        rows[number] = candidates(outputs, tokens_of(3), "xyz")
        assert rows[number].lack == pytest.approx(lack, abs=1e-5)
        labels.append(json.dumps(["xyz", [] if lack > 0.3 else [[0, "x"]]]))
    truth = TASK.labels.targets(labels, [NO_ANSWER])
    fitted = TASK.metrics.fit(truth, rows, [NO_ANSWER])
    rows = TASK.metrics.at_temperature(rows, fitted.temperature)
    for thresholds, least in ((fitted.thresholds, 1.0), ({}, 0.0)):
        metrics = TASK.with_thresholds(thresholds).metrics.evaluate(truth, rows, [NO_ANSWER])
        assert (metrics["f1"] == 1.0) == bool(least)
        assert {"has_answer_f1", "no_answer_exact_match"} <= set(metrics)
    sums = TASK.metrics.sums(truth, rows, [NO_ANSWER])
    assert TASK.metrics.of_sums(sums.sum(0)) == pytest.approx(metrics["f1"])


def encode(tokenizer, questions, contexts, max_length=16, **reading):
    return TASK.answer.encode(tokenizer, questions, contexts, Reading(max_length, **reading))


def test_windows_divide_the_context_and_repeat_the_question(tokenizer):
    contexts = ["a b c d e f g h " * 5, "a b"]
    encodings = encode(tokenizer, ["who came", "came"], contexts)
    rows = ragged.rows(encodings)
    assert rows.texts.lengths.max() == 16 and encodings.truncated == 0
    texts = rows.texts.split()
    question = encodings.ids[0][:4].tolist()
    assert all(row[:4].tolist() == question for row in texts[:-1])
    assert [len(set(text)) > 0 for text in texts].count(True) == np.count_nonzero(
        rows.layout.text == 0
    ) + 1
    shared = rows.layout.ends[:-2] - rows.layout.begins[1:-1]
    assert shared.min() >= 16 // 3
    # With more room a third of the window is less than half of what the question leaves.
    assert len(ragged.rows(encode(tokenizer, ["who"], contexts[:1], 30)).texts.lengths) == 2
    wider = encode(tokenizer, ["who came"], contexts[:1], long_texts="windows", stride=1)
    assert len(ragged.rows(wider).texts.lengths) < np.count_nonzero(rows.layout.text == 0)


def test_an_answer_is_learned_in_each_window_that_holds_all_of_it(tokenizer):
    context = "a b c d e f g h " * 5
    places = [(12, 17), (0, len(context)), None]  # the last needs the first token
    encodings = encode(tokenizer, ["who came"] * 3, [context] * 3)
    written = [
        json.dumps([context, [[place[0], context[slice(*place)]]] if place else []])
        for place in places
    ]
    split = Split("t", encodings, TASK.labels.targets(written, []), 0, np.arange(3))
    job = SimpleNamespace(
        data=SimpleNamespace(max_length=16, batching="bucket", batch_size=4, batch_tokens=None),
        trainer=SimpleNamespace(seed=0),
    )
    collector = Windows(split, job, tokenizer)
    layout, all_labels = (collector.whole(np.arange(3))[name] for name in ("layout", "labels"))
    inside = (layout.text == 0) & (layout.begins <= 10) & (layout.ends > 12)
    assert inside.any() and all_labels.any(1).tolist() == inside.tolist()
    seen = []
    for packed in (False, True):
        for step in collector.plan(0):  # of windows, not of questions
            arrays = collector.arrays(step, np.ones(len(step), np.float32), step, 0, packed)
            seen += step.tolist()
            assert len(step) <= 4 and arrays["n_texts"] == len(arrays["places"]) == len(step)
            assert arrays["weight"].sum() == pytest.approx(1)
            assert arrays["texts"].tolist() == layout.text[step].tolist()
            assert collector.lines[step].tolist() == layout.text[step].tolist()
            ids = arrays["inputs"]["input_ids"].reshape(-1)
            for window, places, masked, labels in zip(
                step.tolist(), *(arrays[name] for name in ("places", "masked", "labels"))
            ):
                assert ids[places[0]] == tokenizer.cls_id
                own = ids[places[~masked]][4:-1]  # after the question
                first, end = layout.begins[window], layout.ends[window]
                assert own.tolist() == encodings.ids[layout.text[window]][first:end].tolist()
                assert labels.tolist() == all_labels[window].tolist()
                words = [tokenizer.token(ids[places[n]]) for n in range(labels[0], labels[1] + 1)]
                assert (" ".join(words) == context[12:17]) == inside[window]
    assert sorted(seen) == sorted([*range(len(layout.text))] * 2)


def test_pooled_no_answer_is_that_of_the_window_least_for_it(tokenizer):
    encodings = encode(tokenizer, ["who came"], ["a b c d e f g h " * 5])
    rows = ragged.rows(encodings)
    outputs = np.empty(len(rows.texts.lengths), object)
    for number, length in enumerate(rows.texts.lengths.tolist()):
        outputs[number] = np.full((length, 2), number, np.float32)
        outputs[number][0] = -number
    (pooled,) = TASK.answer.pool(outputs, rows.layout)
    assert pooled[0].tolist() == [1 - len(outputs)] * 2
    assert len(pooled) == len(encodings.ids[0])
    assert sorted(set(pooled[4:-1, 0])) == list(range(len(outputs)))


def test_hard_contexts_keep_their_characters(tokenizer):
    contexts = ["a\r\nb e\u0301 c", "\u3000 a \t\n", "zzz", "a " * 100_000]
    encodings = encode(tokenizer, ["who " * 40, "who", "\x01", "came"], contexts)
    assert encodings.truncated == 1  # the long question
    for context, words in zip(contexts, encodings.words):
        pieces = [context[begin:end] for _, begin, end in words]
        # The accent is a token here, and the end of the one before it too.
        assert "".join(pieces) == "".join(context.split()).replace("\u0301", "\u0301" * 2)
    assert len(encodings.words[3]) == 100_000
    assert ragged.rows(encodings).texts.lengths.max() == 16

"""Answers come in the order of the questions, whatever the questions are."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetbert.core.errors import UserError
from fleetbert.data import read
from fleetbert.engines import answer, engine


def make_texts(count: int) -> list[str]:
    generator = np.random.default_rng(0)
    return [
        " ".join(f"word{number}" for number in generator.integers(0, 150, length))
        for length in generator.integers(1, 80, count)
    ]


def answer_all(model, data: bytes, jsonl=None, window=answer.WINDOW):
    windows = list(answer.answer_lines(model, io.BytesIO(data), jsonl, window))
    objects = [line for objects, _ in windows for line in objects]
    return objects, [counts for _, counts in windows]


def test_alone_or_in_company_a_text_has_the_same_answer(model):
    texts = make_texts(60)
    together = answer.answer(model, texts)
    assert len({found.label for found in together}) > 1
    for batch_tokens in (1, 64, 100_000):
        others = answer.answer(model._replace(batch_tokens=batch_tokens), texts)
        assert [one.label for one in others] == [one.label for one in together]
        for found, expected in zip(others, together):
            np.testing.assert_allclose(found.logits, expected.logits, atol=1e-5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        (" \u3000\n", "is empty"),
        ("a\0b", "NUL"),
        ("\ud800", "surrogate"),
        (7, "is not a text but int"),
    ],
)
def test_what_predict_refuses_in_a_line_is_refused_in_a_list(model, text, message):
    with pytest.raises(UserError, match=rf"texts\[1\] .*{message}"):
        answer.answer(model, ["word1", text, "word2"])
    with pytest.raises(UserError, match=rf"pairs\[1\] .*{message}"):
        answer.answer(model, ["word1", "word1"], ["word2", text])


def test_long_texts_are_cut_and_counted(model):
    found = answer.compute_logits(model, ["word1 " * 500, "word1"], None)
    assert found.truncated == 1


def test_windows_change_no_answer(model):
    data = "\n".join(make_texts(50)).encode()
    whole, counts = answer_all(model, data)
    parts, many = answer_all(model, data, window=7)
    assert [line["label"] for line in whole] == [line["label"] for line in parts]
    assert len(counts) == 1
    assert [count.lines for count in many] == [7] * 7 + [1]


def test_a_window_tells_when_some_of_its_texts_are_done(model):
    told = []
    lines = io.BytesIO("\n".join(make_texts(50)).encode())
    ((_, counts),) = answer.answer_lines(
        model._replace(batch_tokens=64), lines, on_done=told.append
    )
    assert sum(told) == counts.lines == 50
    assert len(told) > 1


def test_a_stream_is_read_a_window_at_a_time(model):
    lines = (f"word{number}\n".encode() for number in range(100))
    windows = answer.answer_lines(model, lines, None, 10)
    next(windows)
    # The lines of one window, and no more, are gone.
    assert next(lines) == b"word10\n"


def test_bad_lines_are_answered_with_their_error(model):
    data = b'{"text": "word1", "id": 7}\n{"id": "x"}\nnonsense\n\n{"text_a": "word2", "id": null}\n'
    objects, counts = answer_all(model, data)
    assert [list(line) for line in objects] == [
        ["id", "label", "scores"],
        ["id", "error"],
        ["error"],
        ["error"],
        ["id", "label", "scores"],
    ]
    assert [line.get("id", "-") for line in objects] == [7, "x", "-", "-", None]
    assert "line 3" in objects[2]["error"]
    assert counts == [answer.Counts(5, 3, 0)]


def test_a_table_with_a_header_is_answered_by_its_column(model):
    table, _ = answer_all(model, b"label\ttext_a\nbad\tword1 word2\nbad\tword3\n")
    plain, _ = answer_all(model, b"word1 word2\nword3\n")
    assert table == plain


@pytest.mark.parametrize(
    ("data", "times"),
    [
        (b'{"text": "word1"}\n{"text": "word1", "text_b": "word2"}\n' * 3, 1),
        (b"text_a\ttext_b\nword1\tword2\n", 1),
        (b'{"text": "word1", "text_b": null}\nword1\n', 0),
    ],
)
def test_second_texts_that_the_model_does_not_read_are_told_once(
    model, tmp_path, caplog, data, times
):
    path = tmp_path / ("table.tsv" if b"\t" in data else "table.jsonl")
    path.write_bytes(data)
    form = read.table_format(path, pair=False, labelled=False) if b"\t" in data else None
    list(answer.answer_lines(model, data.splitlines(True), window=2, form=form))
    assert [line for line in caplog.messages if "text_b is not read" in line] == [
        "text_b is not read, as the model answers single texts"
    ] * times


def test_pairs_are_answered_as_pairs(edit_manifest):
    path = edit_manifest(lambda manifest: manifest["task"].update(name="pair_classification"))
    pairs = answer.load(path)
    (one, two, other), _ = answer_all(
        pairs,
        b'{"text_a": "word1", "text_b": "word2"}\n{"text_a": "word1"}\n'
        b'{"text_a": "word2", "text_b": "word1"}\n',
    )
    assert "text_b" in two["error"]
    assert one["scores"] != other["scores"]
    (plain,), _ = answer_all(pairs, b"word1\tword2\n")
    assert plain == one


def test_what_cannot_answer_is_refused(edit_manifest):
    path = edit_manifest(lambda manifest: None)
    with pytest.raises(UserError, match="batch_tokens is 0"):
        answer.load(path, batch_tokens=0)
    edit_manifest(lambda manifest: manifest["task"].update(name="mlm", labels=[]))
    with pytest.raises(UserError, match=r"model\.init"):  # what an encoder is for
        answer.load(path)


def test_a_model_that_answers_nan_says_so(model):
    class Broken(engine.Engine):
        def compute(self, texts, speed=None):
            return np.full((len(texts.lengths), 3), np.nan, np.float32)

    with pytest.raises(UserError, match="NaN or infinity"):
        answer.answer(model._replace(engine=Broken()), ["word1"])


LINES = st.one_of(
    st.binary(max_size=60),
    st.text(max_size=60).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.dictionaries(
        st.sampled_from(["text", "text_a", "text_b", "id", "label"]),
        st.one_of(st.none(), st.integers(), st.floats(), st.text(max_size=9), st.lists(st.none())),
    ).map(lambda row: json.dumps(row).encode()),
    st.sampled_from(
        [b"", b" ", b"{", b"[" * 3000, b'{"text":"\\ud800"}', b"\xef\xbb\xbf", b"a\tb", b"\0",
         b'{"text": "x", "id": NaN}', b'{"text": "x", "id": 1' + b"0" * 5000 + b"}"]
    ),
)  # fmt: skip


@given(lines=st.lists(LINES, max_size=12), jsonl=st.booleans())
@settings(max_examples=80)
def test_every_line_has_one_answer(model, lines, jsonl):
    data = b"\n".join(lines)
    objects, counts = answer_all(model, data, jsonl, window=5)
    assert len(objects) == len(list(io.BytesIO(data)))
    assert sum(count.lines for count in counts) == len(objects)
    assert sum(count.errors for count in counts) == sum("error" in line for line in objects)
    for line in objects:
        assert json.loads(json.dumps(line, ensure_ascii=False).encode()) == line
        assert ("error" in line) != ("label" in line)

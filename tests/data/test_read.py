from __future__ import annotations

import io
import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetbert.data.read import Example, iter_lines, parse_question, read, read_texts
from fleetbert.errors import UserError


def write(folder, content, name="table.tsv"):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))
    return path


def error_of(function, *arguments, **options):
    with pytest.raises(UserError) as caught:
        function(*arguments, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_tsv_columns_in_any_order_and_raw_quotes(tmp_path):
    path = write(tmp_path, 'id\ttext_a\tlabel\r\n1\t"He said"\tpos\r\n2\t 一 二 \tneg')
    assert read(path, pair=False, labelled=True).examples == [
        Example('"He said"', None, "pos", 2),
        Example(" 一 二 ", None, "neg", 3),
    ]


def test_byte_order_mark_is_no_part_of_the_first_column(tmp_path):
    path = write(tmp_path, b"\xef\xbb\xbftext_a\tlabel\nfine\tx\n")
    assert read(path, pair=False, labelled=True).examples[0].text_a == "fine"
    path = write(tmp_path, b'\xef\xbb\xbf{"text_a": "fine", "label": 1}\n', "a.jsonl")
    assert read(path, pair=False, labelled=True).examples == [Example("fine", None, "1", 1)]


@pytest.mark.parametrize("label, expected", [(0, "0"), (True, "true"), ("x", "x"), (-3, "-3")])
def test_json_labels_become_text(tmp_path, label, expected):
    path = write(tmp_path, json.dumps({"text_a": "t", "label": label}), "a.jsonl")
    assert read(path, pair=False, labelled=True).examples[0].label == expected


def test_label_is_kept_where_none_is_needed(tmp_path):
    path = write(tmp_path, "text_a\tlabel\na\tx\nb\t\n")
    labels = [e.label for e in read(path, pair=False, labelled=False).examples]
    assert labels == ["x", None]


BAD_TSV = [
    (b"only one", "columns"),
    (b"a\tb\tc\td", "columns"),
    (b"\tb\tx", "'text_a' is empty"),
    (b"a\t \tx", "'text_b' is empty"),
    (b"a\tb\t", "no 'label'"),
    (b"a\xff\tb\tx", "UTF-8 at byte 2"),
    (b"a\0\tb\tx", "NUL"),
]
BAD_JSON = [
    (b"{", "not valid JSON"),
    (b"[1]", "not a JSON object"),
    (b'{"text_b": "b", "label": "x"}', "no 'text_a'"),
    (b'{"text_a": "a", "label": "x"}', "no 'text_b'"),
    (b'{"text_a": 5, "text_b": "b", "label": "x"}', "not a text but int"),
    (b'{"text_a": "a", "text_b": "b"}', "no 'label'"),
    (b'{"text_a": "a", "text_b": "b", "label": 1.5}', "not a text or an integer"),
    (b'{"text_a": "a\\u0000", "text_b": "b", "label": "x"}', "NUL"),
    (b'{"text_a": "a\\ud800", "text_b": "b", "label": "x"}', "surrogate"),
    (b"[" * 100000, "JSON"),
]


@pytest.mark.parametrize(
    "name, head, good, bad, reason",
    [("t.tsv", b"text_a\ttext_b\tlabel\n", b"a\tb\tx\n", *case) for case in BAD_TSV]
    + [
        ("t.jsonl", b"\n", b'{"text_a": "a", "text_b": "b", "label": "x"}\n', *case)
        for case in BAD_JSON
    ],
)
def test_bad_line_stops_with_its_place_or_is_listed(tmp_path, name, head, good, bad, reason):
    path = write(tmp_path, head + good + bad + b"\n" + good, name)
    message = error_of(read, path, pair=True, labelled=True)
    assert message.startswith(f"{path}:3: ")
    assert reason in message
    table = read(path, pair=True, labelled=True, on_bad_line="skip")
    assert [e.line for e in table.examples] == [2, 4]
    assert [line for line, _ in table.skipped] == [3]
    assert reason in table.skipped[0][1]


def test_header_without_texts_names_what_is_there(tmp_path):
    message = error_of(read, write(tmp_path, "label\tsentence\n1\tx\n"), pair=False, labelled=True)
    assert "'text_a'" in message
    assert "'sentence'" in message


@pytest.mark.parametrize("content", [b"", b"text_a\tlabel\n", b"text_a\tlabel\n\n \n"])
def test_empty_table_is_an_error(tmp_path, content):
    assert "table.tsv" in error_of(read, write(tmp_path, content), pair=False, labelled=True)


def test_all_lines_bad_is_an_error_even_when_skipping(tmp_path):
    path = write(tmp_path, "text_a\tlabel\na\n")
    message = error_of(read, path, pair=False, labelled=True, on_bad_line="skip")
    assert "line 2" in message


def test_missing_file_directory_and_impossible_path(tmp_path):
    options = {"pair": False, "labelled": True}
    assert "no such file" in error_of(read, tmp_path / "none.tsv", **options)
    assert "is a directory" in error_of(read, tmp_path, **options)
    assert "cannot be read" in error_of(read, "a\0b.tsv", **options)


@given(
    lines=st.lists(
        st.one_of(
            st.binary(max_size=20),
            st.sampled_from([b"a\tx", b'{"text_a": "a", "label": "x"}', b"", b'"a\t1']),
        ),
        max_size=8,
    ),
    suffix=st.sampled_from(["tsv", "jsonl"]),
)
def test_any_bytes_are_read_or_refused_at_a_line_that_is_there(tmp_path, lines, suffix):
    content = b"text_a\tlabel\n" * (suffix == "tsv") + b"\n".join(lines)
    path = write(tmp_path, content, f"fuzz.{suffix}")
    count = len(content.split(b"\n"))
    try:
        table = read(path, pair=False, labelled=True)
    except UserError as error:
        place = re.match(re.escape(str(path)) + r":(\d+): ", str(error))
        if place is None:
            assert "holds no example" in str(error) or "is empty" in str(error)
            return
        bad = int(place[1])
        assert 1 <= bad <= count
        # The lines before it are all fine, and skipping passes over just such lines.
        before = b"\n".join(content.split(b"\n")[: bad - 1])
        if before.strip() not in (b"", b"text_a\tlabel"):
            path.write_bytes(before)
            read(path, pair=False, labelled=True)
    else:
        raw = content.split(b"\n")
        for example in table.examples:
            assert example.text_a.strip()
            assert example.label
            if suffix == "tsv":
                text, label = raw[example.line - 1].decode().split("\t")
                assert (text, label.strip()) == (example.text_a, example.label)


@given(
    line=st.binary(max_size=40).map(lambda line: line.replace(b"\n", b"")),
    pair=st.booleans(),
    jsonl=st.booleans(),
)
def test_a_question_is_an_example_or_a_user_error(line, pair, jsonl):
    try:
        example = parse_question(line, 7, pair, jsonl)
    except UserError as error:
        assert str(error).startswith("line 7: ")
    else:
        assert example.text_a.strip()
        assert (example.text_b is not None) == pair


def answers(content, **options):
    return list(iter_lines(io.BytesIO(content), **options))


def test_predict_input_formats_are_told_apart():
    assert answers(b"one\ttwo\nthree\n", pair=False) == [
        (1, Example("one\ttwo", None, None, 1)),
        (2, Example("three", None, None, 2)),
    ]
    assert answers(b"one\ttwo\n", pair=True) == [(1, Example("one", "two", None, 1))]
    assert answers(b'\xef\xbb\xbf{"text": "x"}\n', pair=False) == [(1, Example("x", None, None, 1))]
    assert answers(b"label\ttext_a\npos\tx\n", pair=False) == [(2, Example("x", None, "pos", 2))]


def test_a_bad_line_of_predict_keeps_its_number_and_stops_nothing():
    found = answers(b'{"text": "x"}\n\n{"text": 3}\n{"text": "y"}', pair=False)
    assert [number for number, _ in found] == [1, 2, 3, 4]
    assert [isinstance(answer, UserError) for _, answer in found] == [False, True, True, False]


def test_texts_of_any_file(tmp_path):
    plain = write(tmp_path, "one\n\n  \ntwo\tthree\n", "book.txt")
    assert [e.text_a for e in read_texts(plain).examples] == ["one", "two\tthree"]
    table = write(tmp_path, "label\ttext_a\ttext_b\nx\ta\tb\nx\tc\t\n")
    assert [e[:2] for e in read_texts(table).examples] == [("a", "b"), ("c", None)]
    rows = write(tmp_path, '{"text": "a"}\n{"text_a": "b", "text_b": "c"}\n', "rows.jsonl")
    assert [e[:2] for e in read_texts(rows).examples] == [("a", None), ("b", "c")]

from __future__ import annotations

import csv
import io
import json
import re

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetbert.config import Columns
from fleetbert.core.errors import UserError
from fleetbert.data import read as reading
from fleetbert.data import records
from fleetbert.data.read import Example, iter_lines, read_as, table_format


def read(path, on_bad_line="stop", pair=False, labelled=True, **options):
    return read_as(path, table_format(path, pair=pair, labelled=labelled, **options), on_bad_line)


def read_texts(path):
    return read_as(path, reading.texts_format(path))


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
    assert read(path).examples == [
        Example('"He said"', None, "pos", 2),
        Example(" 一 二 ", None, "neg", 3),
    ]


def test_byte_order_mark_is_no_part_of_the_first_column(tmp_path):
    path = write(tmp_path, b"\xef\xbb\xbftext_a\tlabel\nfine\tx\n")
    assert read(path).examples[0].text_a == "fine"


@pytest.mark.parametrize("label, expected", [(0, "0"), (True, "true"), ("x", "x"), (-3, "-3")])
def test_json_labels_become_text(tmp_path, label, expected):
    line = json.dumps({"text_a": "t", "label": label})
    path = write(tmp_path, b"\xef\xbb\xbf" + line.encode(), "a.jsonl")
    assert read(path).examples == [Example("t", None, expected, 1)]


def test_label_is_kept_where_none_is_needed(tmp_path):
    path = write(tmp_path, "text_a\tlabel\na\tx\nb\t\n")
    labels = [e.label for e in read(path, labelled=False).examples]
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
    [
        *(("t.tsv", b"text_a\ttext_b\tlabel\n", b"a\tb\tx\n", *case) for case in BAD_TSV),
        *(
            ("t.jsonl", b"\n", b'{"text_a": "a", "text_b": "b", "label": "x"}\n', *case)
            for case in BAD_JSON
        ),
    ],
)
def test_bad_line_stops_with_its_place_or_is_listed(tmp_path, name, head, good, bad, reason):
    path = write(tmp_path, head + good + bad + b"\n" + good, name)
    message = error_of(read, path, pair=True)
    assert message.startswith(f"{path}:3: ")
    assert reason in message
    table = read(path, pair=True, on_bad_line="skip")
    assert [e.line for e in table.examples] == [2, 4]
    assert [line for line, _ in table.skipped] == [3]
    assert reason in table.skipped[0][1]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "table.tsv"),
        (b"text_a\tlabel\n", "table.tsv"),
        (b"text_a\tlabel\n\n \n", "table.tsv"),
        ("text_a\tlabel\n\u3000\n".encode(), "holds no example"),  # a blank, no bad line
        (b"label\treview\n1\tx\n", r"'text_a'.*data\.text_column=review$"),
        (b"text_a\tlabel\na\n", "line 2"),  # though bad lines are skipped
    ],
)
def test_a_table_without_texts_is_an_error(tmp_path, content, sentence):
    path = write(tmp_path, content)
    message = error_of(read, path, on_bad_line="skip")
    assert re.search(sentence, message)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("none.tsv", "no such file"), (".", "is a directory"), ("a\0b.tsv", "cannot be read")],
)
def test_what_is_no_file_is_an_error(tmp_path, name, sentence):
    assert sentence in error_of(read, f"{tmp_path}/{name}")


def answers(content, pair=False, **options):
    read = iter_lines(io.BytesIO(content), pair=pair, **options)
    return [(number, found) for number, _, found in read]


SOME_LINES = [b"a\tx", b'{"text_a": "a", "label": "x"}', b"", b'"a\t1']


@given(
    lines=st.lists(st.one_of(st.binary(max_size=20), st.sampled_from(SOME_LINES)), max_size=8),
    suffix=st.sampled_from(["tsv", "jsonl"]),
)
def test_any_bytes_are_read_or_refused_at_a_line_that_is_there(tmp_path, lines, suffix):
    content = b"text_a\tlabel\n" * (suffix == "tsv") + b"\n".join(lines)
    path, raw = write(tmp_path, content, f"fuzz.{suffix}"), content.split(b"\n")
    try:
        table = read(path)
    except UserError as error:
        place = re.match(re.escape(str(path)) + r":(\d+): ", str(error))
        if place is None:
            assert "holds no example" in str(error) or "is empty" in str(error)
            return
        bad = int(place[1])
        assert 1 <= bad <= len(raw)
        # The lines before it are all fine, and skipping passes over just such lines.
        before = b"\n".join(raw[: bad - 1])
        if before.strip() not in (b"", b"text_a\tlabel"):
            path.write_bytes(before)
            read(path)
    else:
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
    [(number, answer)] = answers(line + b"\n", pair=pair, jsonl=jsonl)
    assert number == 1
    if isinstance(answer, UserError):
        assert str(answer).startswith("line 1: ")
    else:
        assert answer.text_a.strip()
        assert (answer.text_b is not None) == pair


def test_predict_input_formats_are_told_apart():
    assert answers(b"one\ttwo\nthree\n") == [
        (1, Example("one\ttwo", None, None, 1)),
        (2, Example("three", None, None, 2)),
    ]
    assert answers(b"one\ttwo\n", pair=True) == [(1, Example("one", "two", None, 1))]
    assert answers(b'\xef\xbb\xbf{"text": "x"}\n') == [(1, Example("x", None, None, 1))]
    assert answers(b"label\ttext_a\npos\tx\n") == [(2, Example("x", None, "pos", 2))]


def test_a_bad_line_of_predict_keeps_its_number_and_stops_nothing():
    found = answers(b'{"text": "x"}\n\n{"text": 3}\n{"text": "y"}')
    assert [number for number, _ in found] == [1, 2, 3, 4]
    assert [isinstance(answer, UserError) for _, answer in found] == [False, True, True, False]


def test_texts_of_any_file(tmp_path):
    plain = write(tmp_path, "one\n\n  \ntwo\tthree\n", "book.txt")
    assert [e.text_a for e in read_texts(plain).examples] == ["one", "two\tthree"]
    table = write(tmp_path, "label\ttext_a\ttext_b\nx\ta\tb\nx\tc\t\n")
    assert [e[:2] for e in read_texts(table).examples] == [("a", "b"), ("c", None)]
    rows = write(tmp_path, '{"text": "a"}\n{"text_a": "b", "text_b": "c"}\n', "rows.jsonl")
    assert [e[:2] for e in read_texts(rows).examples] == [("a", None), ("b", "c")]


# Texts of all that quoting is about; labels that no table strips.
cell = st.text(st.sampled_from('ab"\t\n\r,; \u2028é'), min_size=1, max_size=8).filter(str.strip)
rows = st.lists(st.tuples(cell, st.sampled_from(["x", 'y"z', "a,b"])), min_size=1, max_size=8)


@given(
    rows=rows,
    separator=st.sampled_from("\t,;"),
    ending=st.sampled_from(["\n", "\r\n"]),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
    bom=st.booleans(),
)
def test_what_pandas_writes_reads_as_python_reads_it(
    tmp_path, rows, separator, ending, quoting, bom
):
    text = pd.DataFrame(rows, columns=["text_a", "label"]).to_csv(
        sep=separator, index=False, lineterminator=ending, quoting=quoting
    )
    path = write(tmp_path, b"\xef\xbb\xbf" * bom + text.encode(), "table.csv")
    table = read(path)
    assert [(e.text_a, e.label) for e in table.examples] == rows
    # The number of a record is that of its first line.
    lines = text.split("\n")
    numbers = [e.line for e in table.examples]
    starts = [2, *numbers[1:], len(lines)]
    joined = ["\n".join(lines[a - 1 : b - 1]) for a, b in zip(starts, starts[1:])]
    if "\r" not in text.replace("\r\n", ""):  # Python's module takes a lone one for a line end
        parsed = [next(csv.reader([record], delimiter=separator)) for record in joined]
        assert [tuple(fields) for fields in parsed] == rows
    form = table_format(path, pair=False, labelled=True)
    assert reading.lines_at(path, numbers, form) == {
        number: record.rstrip("\r\n") for number, record in zip(numbers, joined)
    }


@given(rows=rows)
def test_a_tsv_table_of_pandas_is_seen_to_be_quoted(tmp_path, rows):
    # Lines of a field that holds tabs may have the header's columns by themselves.
    rows = [(text.replace("\t", "t"), label) for text, label in rows]
    rows = [*rows, ('a "word"\nand more\nlines', "x"), ("a\ttab", "x")]
    frame = pd.DataFrame(rows, columns=["text_a", "label"])
    path = tmp_path / "table.tsv"
    frame.to_csv(path, sep="\t", index=False)
    table = read(path)
    assert [(e.text_a, e.label) for e in table.examples] == rows


raw_text = st.text(st.sampled_from('ab" ,'), min_size=1, max_size=6).filter(str.strip)


@given(texts=st.lists(raw_text, min_size=1, max_size=6))
def test_raw_tsv_stays_raw(tmp_path, texts):
    path = write(tmp_path, "text_a\tlabel\n" + "".join(f"{text}\tx\n" for text in texts))
    table = read(path, columns=Columns(quoting="none"))
    assert [e.text_a for e in table.examples] == texts
    found = [e.text_a for e in read(path).examples]
    # Only what no program writes but one that quotes is taken as quoted.
    quoted = list(csv.reader([f"{text}\tx" for text in texts], delimiter="\t"))
    assert found in (texts, [fields[0] for fields in quoted])
    if not any('""' in text for text in texts):
        assert found == texts


def test_which_way_a_table_was_read_is_told(tmp_path, caplog):
    caplog.set_level("INFO")
    path = write(tmp_path, 'text_a\tlabel\n"a\tb"\tx\n')
    assert read(path).examples == [Example("a\tb", None, "x", 2)]
    assert f"{path}: its fields are quoted" in caplog.text
    other = write(tmp_path, 'text_a\tlabel\n"a\tb"\tx\n5" and 6"\tx\n', "other.tsv")
    message = error_of(read, other)
    assert message.startswith(f"{other}:2: has 3 tab-separated columns")
    assert "quoting: minimal" in message
    assert f"{other}:2: looks quoted, but line 3 does not" in caplog.text
    texts = [e.text_a for e in read(other, columns=Columns(quoting="minimal")).examples]
    assert texts == ["a\tb", '5" and 6"']


@pytest.mark.parametrize(
    ("more", "texts"),
    [
        ("", []),
        ('"a\tb"\tx\n', []),  # as many that are one record only when they are quoted
        ('"a\tb"\tx\n' * 2 + '5" or 6"\tx\n', ['5" or 6"']),  # more, but another speaks against it
    ],
)
def test_a_quotation_over_lines_that_are_whole_each_is_no_field(tmp_path, more, texts):
    path = write(tmp_path, 'text_a\tlabel\n"He said\tx\nand ""she""\ty\nso"\tx\n' + more)
    found = [e.text_a for e in read(path, on_bad_line="skip").examples]
    assert found == ['"He said', 'and ""she""', 'so"', *texts]


@pytest.mark.parametrize("limit", [16 << 20, 8])
def test_errors_of_quoted_tables_have_the_line_and_cost_no_other(tmp_path, monkeypatch, limit):
    monkeypatch.setattr(records, "LONGEST_RECORD", limit)
    content = 'text_a,label\n"a\nb",x\n"c"d,x\ne,x,y\n"never closed,x\nf,x\ng,x\n'
    path = write(tmp_path, content, "table.csv")
    table = read(path, on_bad_line="skip")
    assert table.examples == [
        Example("a\nb", None, "x", 2), Example("f", None, "x", 7), Example("g", None, "x", 8),
    ]  # fmt: skip
    reasons = dict(table.skipped)
    assert list(reasons) == [4, 5, 6]
    assert "behind a closing quote" in reasons[4]
    assert "3 comma-separated columns" in reasons[5]
    assert "not closed" in reasons[6]
    assert error_of(read, path).startswith(f"{path}:4: ")


@pytest.mark.parametrize(
    ("content", "name"),
    [
        ('"text_a" , "label"\n"a" , "x"\n', "table.csv"),
        ('"review", "stars"\n"a", "x"\n', "table.csv"),
        ('"text_a","label" \n"a","x"\n', "table.csv"),
        ('"text_a"\t "label"\n"a"\t "x"\n', "table.tsv"),
    ],
)
def test_blanks_around_quoted_names_are_what_the_sentence_says(tmp_path, content, name):
    path = write(tmp_path, content, name)
    assert error_of(read, path) == (
        f"{path}:1: has a blank between a quote and a separator; remove the blanks around "
        "separators"
    )


def test_the_remedy_for_other_names_in_quotes_reads_the_table(tmp_path):
    path = write(tmp_path, '"review"\t"stars"\n"a"\t"x"\n"b c"\t"y"\n')
    assert "data.text_column=review data.label_column=stars" in error_of(read, path)
    table = read(path, columns=Columns(text_column="review", label_column="stars"))
    assert [(e.text_a, e.label) for e in table.examples] == [("a", "x"), ("b c", "y")]


def test_a_quoted_table_is_asked_record_by_record(tmp_path):
    content = b'"text_a"\t"label"\n"a\nb"\tx\n"c\td"\tx\n'
    expected = [(2, Example("a\nb", None, "x", 2)), (4, Example("c\td", None, "x", 4))]
    assert answers(content) == expected
    plain = content.replace(b'"text_a"', b"text_a").replace(b'"label"', b"label")
    assert answers(plain, columns=Columns(quoting="minimal")) == expected
    form = table_format(write(tmp_path, plain), pair=False, labelled=False)
    assert answers(plain, form=form) == expected


def test_header_of_csv_names_what_separates_it(tmp_path):
    how = {"pair": None, "labelled": False}
    table_format(write(tmp_path, "label;text_a\n", "a.csv"), **how)
    message = error_of(table_format, write(tmp_path, "label,body\n", "b.csv"), **how)
    assert "the comma-separated header has no 'text_a'" in message


REVIEWS = {"id": ["1", "2", "3"], "review": ["a good, long film", "bad", "so-so"]}
SUFFIXES = ("tsv", "csv", "jsonl")


def table_of(folder, suffix, columns):
    frame, path = pd.DataFrame(columns), folder / f"named.{suffix}"
    if suffix == "jsonl":
        frame.to_json(path, orient="records", lines=True)
    else:
        frame.to_csv(path, sep="\t" if suffix == "tsv" else ",", index=False)
    return path


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    ("label", "kind", "values", "kept"),
    [
        ("stars", "name", ["5", "1", "5"], ["5", "1", "5"]),
        ("stars", "number", ["5", "1.5", "3"], ["5.0", "1.5", "3.0"]),
        ("tags", "names", ["b,a", "a", "b"], ['["a", "b"]', '["a"]', '["b"]']),
        ("right", "relevance", ["1", "0", "0"], [r'[1, "a good, long film"]', '[0, "bad"]', ...]),
    ],
)
def test_columns_that_keys_name_are_read(tmp_path, suffix, label, kind, values, kept):
    path = table_of(tmp_path, suffix, {**REVIEWS, label: values, "text_a": "no", "label": "no"})
    columns = Columns(text_column="review", text_pair_column="id", label_column=label)
    table = read_as(path, table_format(path, pair=True, labelled=True, columns=columns, label=kind))
    if suffix == "jsonl" and kind == "names":
        assert len(table.examples) == 3
    assert [e.text_a for e in table.examples] == REVIEWS["review"]
    assert [e.text_b for e in table.examples] == REVIEWS["id"]
    for example, expected in zip(table.examples, kept):
        assert expected in (..., example.label)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("name", ["text", "sentence"])
def test_usual_names_need_no_key(tmp_path, suffix, name):
    path = table_of(tmp_path, suffix, {"label": ["x", "y"], name: ["one", "two"]})
    assert read(path).examples == [
        Example("one", None, "x", 2 - (suffix == "jsonl")),
        Example("two", None, "y", 3 - (suffix == "jsonl")),
    ]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_refused_header_names_the_keys_with_its_columns(tmp_path, suffix):
    path = table_of(tmp_path, suffix, {**REVIEWS, "stars": ["5", "1", "5"]})
    message = error_of(read, path)
    assert message.startswith(f"{path}:1: ")
    assert message.endswith("or name them: data.text_column=review data.label_column=stars")
    wrong = Columns(text_column="revue", label_column="stars")
    message = error_of(read, path, columns=wrong)
    assert "has no 'revue', only 'id', 'review', 'stars'" in message
    assert message.endswith(" data.text_column=review")
    pair = table_of(tmp_path, suffix, {"s 1": ["aa", "bb"], "s2": ["ccc", "ddd"], "y": ["0", "1"]})
    keys = "data.text_column='s 1' data.text_pair_column=s2 data.label_column=y"
    assert error_of(read, pair, pair=True).endswith(keys)


def test_errors_in_rows_name_the_column(tmp_path):
    columns = Columns(text_column="review", label_column="stars")
    path = write(
        tmp_path, '{"review": "a", "stars": 1}\n{"review": "b", "stars": 1.5}\n', "a.jsonl"
    )
    assert f"{path}:2: 'stars' is not a text or an integer" in error_of(read, path, columns=columns)
    path = write(tmp_path, "review,stars\na,1\n,2\n", "a.csv")
    assert f"{path}:3: 'review' is empty" in error_of(read, path, columns=columns)
    path = write(tmp_path, "review,stars,stars\na,1,2\n", "a.csv")
    assert "the header names 'stars' twice; keep one" in error_of(read, path, columns=columns)


def test_a_stream_tells_what_its_texts_are_called():
    assert [line.text_a for _, line in answers(b"text\nb\n")] == ["text", "b"]
    assert [line.text_a for _, line in answers(b"text\tid\nb\t1\n")] == ["b"]
    assert [line.text_a for _, line in answers(b"text_a\nb\n")] == ["b"]
    [(_, asked)] = answers(b'{"question": "a", "context": "b"}\n', pair=True)
    assert asked[:2] == ("a", "b")
    named = Columns(text_column="review")
    assert [line.text_a for _, line in answers(b"review\nb\n", columns=named)] == ["b"]
    assert [line.text_a for _, line in answers(b'{"review": "b"}\n', columns=named)] == ["b"]


@pytest.mark.parametrize(
    ("content", "name", "pair", "told"),
    [
        ("text_a\ttext_b\tlabel\na\tb\tx\n", "t.tsv", False, True),
        ("text_a\ttext_b\tlabel\na\tb\tx\n", "t.tsv", True, False),
        ("text_a\tlabel\na\tx\n", "t.tsv", False, False),
        ('{"text": "a", "text_b": "b", "label": "x"}\n', "t.jsonl", False, True),
        ('{"text": "a", "text_b": null, "label": "x"}\n', "t.jsonl", False, False),
        ("nothing of JSON\n", "t.jsonl", False, False),
    ],
)
def test_second_texts_that_nobody_reads_are_told(tmp_path, caplog, content, name, pair, told):
    path = write(tmp_path, content, name)
    reading.warn_of_pairs(path, table_format(path, pair=pair, labelled=True))
    assert ("text_b is not read" in caplog.text) == told

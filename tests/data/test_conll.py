"""Tables of spans: columns of tagged tokens, and JSONL with characters."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetbert.config import Columns
from fleetbert.core.errors import UserError
from fleetbert.data import conll, read


def parse(path, on_bad_line="stop", labelled=True):
    form = read.table_format(path, pair=False, labelled=labelled, label="spans")
    return read.read_as(path, form, on_bad_line)


def spans(table):
    return [
        [(example.text_a[begin:end], kind) for begin, end, kind in json.loads(example.label)]
        for example in table.examples
    ]


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({}, "choose that, or give texts"),
        ({"label": "spans", "columns": Columns(label_column="tag")}, "leave label_column out"),
    ],
)
def test_tagged_tokens_are_refused_to_those_who_mean_something_else(tmp_path, given, sentence):
    path = tmp_path / "a.conll"
    path.write_text("John B-person\n")
    with pytest.raises(UserError, match=sentence):
        read.table_format(path, pair=False, labelled=True, **given)


def test_columns_of_every_scheme_are_the_same_spans(tmp_path):
    """CoNLL-2003's files with more columns, documents, spaces or tabs, and Windows' line ends."""
    tokens = ["Paul", "Smith", "saw", "Rome", ",", "Bonn"]
    schemes = {
        "BIO": "B-PER I-PER O B-LOC O B-LOC",
        "IOB1": "I-PER I-PER O I-LOC O I-LOC",
        "BIOES": "B-PER E-PER O S-LOC O S-LOC",
        "BILOU": "B-PER L-PER O U-LOC O U-LOC",
        "BMES": "B-PER E-PER O S-LOC O S-LOC",
    }
    for number, (name, tags) in enumerate(schemes.items()):
        path = tmp_path / f"{name}.txt"
        between = " NNP " if number % 2 else "\t"
        lines = ["-DOCSTART- -X- O O", "", *map(between.join, zip(tokens, tags.split())), "", ""]
        lines += ["-DOCSTART- -X- O O", f"Oslo{between}O"]
        path.write_bytes(("\r\n" if number == 2 else "\n").join(lines).encode())
        table = parse(path)
        assert [one.text_a for one in table.examples] == ["Paul Smith saw Rome , Bonn", "Oslo"]
        assert [one.line for one in table.examples] == [3, 12]
        assert spans(table) == [[("Paul Smith", "PER"), ("Rome", "LOC"), ("Bonn", "LOC")], []]


@pytest.mark.parametrize("tagged", [True, False])
def test_predict_reads_all_texts_of_columns(tagged):
    """Also the first token, which is no header; without tags there are no spans to compare with."""
    form = read.Format("conll", None, False, False, label="spans")
    tag = "\tO" if tagged else ""
    lines = f"-DOCSTART-{tag}\n\nJohn{tag}\nSmith{tag}\n\nOslo{tag}\n".encode()
    found = list(read.iter_lines(lines.splitlines(True), pair=False, form=form))
    assert [(number, one.text_a) for number, _, one in found] == [(3, "John Smith"), (6, "Oslo")]
    assert {one.label for *_, one in found} == {"[]" if tagged else None}
    bad = [b"John\tO\n", b"Smith\tX-per\n"]
    [(*_, error)] = read.iter_lines(bad, pair=False, form=form)
    assert "line 2: " in str(error)


def test_scripts_without_blanks_are_joined_without(tmp_path):
    path = tmp_path / "table.bmes"
    chinese = "王 B-NAME\n明 E-NAME\n1 O\n9 O\n年 O\n在 O\nI B-ORG\nB M-ORG\nM E-ORG\n"
    words = "我们\tO\nlove\tO\nIBM\tB-ORG\n。\tO\n"
    path.write_text(f"{chinese}\n{words}", encoding="utf-8")
    table = parse(path)
    assert [one.text_a for one in table.examples] == ["王明19年在IBM", "我们love IBM。"]
    assert spans(table) == [[("王明", "NAME"), ("IBM", "ORG")], [("IBM", "ORG")]]


def write_json(folder, *rows):
    path = folder / "table.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_spans_of_json(tmp_path):
    both = [{"start": 5, "end": 6, "label": "x"}, {"start": 0, "end": 4, "kind": "LOC"}]
    path = write_json(tmp_path, {"text": "Rome 城", "spans": both}, {"text": "none", "spans": []})
    assert spans(parse(path)) == [[("Rome", "LOC"), ("城", "x")], []]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a O\n\nb\n", 3, "has the token 'b' but no tag"),
        ("a O\nb\tO\n\tB-x\n", 3, "has the tag 'B-x' but no token"),
        ("a O\n O\n", 2, "has the tag 'O' but no token"),
        ("a O\nb X-PER\n", 2, "has the tag 'X-PER', which is of no known scheme"),
        ("a O\nb PER\n", 2, "has the tag 'PER', which is of no known scheme"),
        ("a O\nb B-\n", 2, "has the tag 'B-', which is of no known scheme"),
        ("text_a\tlabel\na\tO\n", 1, r"is a header \(text_a, label\); here each line is a token"),
        ("a M-x\nb I-x\n", 2, "tags begin with I, M: that is none of BIO"),
    ],
)
def test_what_is_wrong_in_columns_has_its_line(tmp_path, text, line, message):
    path = tmp_path / "table.conll"
    path.write_text(text)
    with pytest.raises(UserError, match=message) as error:
        parse(path)
    assert str(error.value).startswith(f"{path}:{line}: ")
    path.write_text(f"Rome B-LOC\n\n{text}")
    table = parse(path, "skip")
    assert [number for number, _ in table.skipped] == [line + 2]
    assert spans(table)[0] == [("Rome", "LOC")]


@pytest.mark.parametrize(
    ("given_spans", "message"),
    [
        ([[0, 4, "x"], [3, 5, "y"]], r"overlap: 'Rome' \(x, 0 to 4\) and 'e ' \(y, 3 to 5\)"),
        ([[0, 9, "x"]], "is from character 0 to 9, which is no part of a text of 6 characters"),
        ([[2, 2, "x"]], "is from character 2 to 2, which is no part"),
        ([[0, 1.5, "x"]], r"'spans'\[0\] has the end 1\.5; it has to be a whole number"),
        ([["0", 1, "x"]], r"'spans'\[0\] has the start \"0\"; it has to be a whole number"),
        ([[0]], "lacks start, end or kind"),
        ([[0, 1, ""]], "lacks start, end or kind"),
        ([7], r"'spans'\[0\] is not an object"),
        ("x", "'spans' is not a list but str"),
        (None, "has no 'spans'"),
    ],
)
def test_what_is_wrong_in_json_has_its_line(tmp_path, given_spans, message):
    listed = given_spans
    if isinstance(given_spans, list):
        names = ("start", "end", "kind")
        listed = [dict(zip(names, s)) if isinstance(s, list) else s for s in given_spans]
    path = write_json(tmp_path, {"text": "a", "spans": []}, {"text": "Rome a", "spans": listed})
    with pytest.raises(UserError, match=message) as error:
        parse(path)
    assert str(error.value).startswith(f"{path}:2: ")


tags = st.lists(st.sampled_from(["O", *(f"{p}-{k}" for p in "BIESMLU" for k in "xy")]), max_size=9)


@given(tags)
def test_spans_are_those_of_seqeval(tags):
    """It knows the tags of BIOES only."""
    library = pytest.importorskip("seqeval.metrics.sequence_labeling", reason="with PaddleNLP")
    known = [{"M": "I", "L": "E", "U": "S"}.get(tag[0], tag[0]) + tag[1:] for tag in tags]
    found = [(begin, end + 1, kind) for kind, begin, end in library.get_entities(known)]
    assert conll.spans_of(tags) == found


@given(st.lists(st.sampled_from([b"a O\n", b"b B-x\n", b"\n"]), max_size=12))
def test_records_keep_every_byte(given_lines):
    """The token cache reads pieces of whole records: nothing may be lost between them."""
    found = list(conll.records(enumerate(given_lines, 1)))
    assert b"".join(record for _, record in found) == b"".join(given_lines)
    for number, record in found:
        assert given_lines[number - 1 :][: record.count(b"\n")] == record.splitlines(True)

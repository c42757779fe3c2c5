"""Questions as SQuAD, CMRC 2018 and DRCD have them, and what is wrong with some."""

from __future__ import annotations

import json

import pytest

from fleetbert.core.errors import UserError
from fleetbert.data import in_memory, read, squad
from fleetbert.tasks.question_answering import QUESTION_ANSWERING as TASK

CONTEXT = "Café: 1 of 2.\r\nThe cafe\u0301 of Zoë opened in 1900 and 1900 again. 字句"


def written(answers, context=CONTEXT, number="q1", **more):
    return {"id": number, "question": "When?", "context": context, "answers": answers, **more}


def as_squad(rows, **layout):
    """Rows of one context each, as a file of SQuAD's layout."""
    paragraphs = []
    for row in rows:
        question = {name: value for name, value in row.items() if name != "context"}
        paragraphs.append({"context": row["context"], "qas": [question]})
    return json.dumps(
        {"version": "1", "data": [{"title": "t", "paragraphs": paragraphs}]}, **layout
    )


def at(text, context=CONTEXT):
    return {"text": text, "answer_start": context.index(text)}


def read_rows(path, on_bad_line="stop", labelled=True):
    form = read.table_format(path, pair=True, labelled=labelled, label="answers")
    return read.read_as(path, form, on_bad_line)


def write(folder, name, text):
    path = folder / name
    path.write_text(text, encoding="utf-8", newline="")
    return path


def in_rows(folder, name, rows):
    return in_memory.as_file(name, rows, folder, label="answers")


@pytest.mark.parametrize("indent", [None, 1])
def test_a_file_of_squad_reads_as_its_rows_in_jsonl(tmp_path, indent):
    rows = [
        written([at("1900"), at("The cafe\u0301")]),
        written([], number="q2", is_impossible=True),
        written([at("字句")], number="第3"),
    ]
    paths = (
        write(tmp_path, "a.json", as_squad(rows, indent=indent, ensure_ascii=indent is None)),
        write(tmp_path, "b.jsonl", "".join(json.dumps(row) + "\n" for row in rows)),
        write(tmp_path, "c.json", "".join(json.dumps(row) + "\n" for row in rows)),
        in_rows(tmp_path, "d", rows),
        in_rows(tmp_path, "e", [(*list(row.values())[1:3], row["answers"]) for row in rows]),
    )
    assert [squad.is_squad(path) for path in paths] == [True, False, False, False, False]
    tables = [read_rows(path).examples for path in paths]
    for table in tables:
        assert [row[:3] for row in table] == [row[:3] for row in tables[0]]
    contexts = [json.loads(row.label) for row in tables[0]]
    assert contexts[0] == [CONTEXT, [[CONTEXT.index("1900"), "1900"], [15, "The cafe\u0301"]]]
    assert contexts[1] == [CONTEXT, []]
    lines = paths[0].read_text(encoding="utf-8").splitlines()
    if indent:
        assert [json.dumps(row["id"]) in lines[e.line - 1] or "第3" in lines[e.line - 1]
                for row, e in zip(rows, tables[0])] == [True] * 3  # fmt: skip


@pytest.mark.parametrize(
    "answers",
    [
        "1900",
        ["1900"],
        [{"text": "1900"}],
        {"text": ["1900"], "answer_start": [CONTEXT.index("1900")]},
        {"text": "1900", "answer_start": CONTEXT.index("1900")},
        [at("1900"), {"text": "in that year", "answer_start": -1}],
    ],
)
def test_answers_may_be_written_so(tmp_path, answers):
    (row,) = read_rows(in_rows(tmp_path, "a", [written(answers)])).examples
    context, found = json.loads(row.label)
    assert found[0] == [context.index("1900"), "1900"]


WRONG = [
    ([{"text": "1901", "answer_start": 40}], r"'answers'\[0\] is '1901', which is not in its"),
    (["2.\nThe"], r"which its context has with other line ends or in another Unicode form: copy"),
    (["Cafe\u0301"], "which its context has with other line ends or in another Unicode form: copy"),
    ([at("1900"), {"text": "Zoë", "answer_start": 3}], r"\[1\] is 'Zoë', but .* 3 .* 'é: '.* 28"),
    ([{"text": "x", "answer_start": -1}], "none stands in the context"),
    ([{"text": "1900", "answer_start": 1.5}], "has the answer_start 1.5; it has to be a whole"),
    ([{"answer_start": 1}], r"\[0\] is no text; write"),
    ([None], r"'answers'\[0\] is no text; write .*, or 'answers' as \[\] for no answer"),
    ({"text": ["1900"], "answer_start": []}, "as many 'text' as 'answer_start'"),
    (None, "has no 'answers'"),
]


@pytest.mark.parametrize(("answers", "sentence"), WRONG)
@pytest.mark.parametrize("kind", ["squad", "jsonl", "tuples"])
def test_a_wrong_answer_is_told_with_line_and_id_or_skipped(tmp_path, kind, answers, sentence):
    rows = [written([at("1900")]), written(answers, number="bad")]
    if kind == "squad":
        path, line = write(tmp_path, "a.json", as_squad(rows, indent=1)), None
    elif kind == "tuples":  # without ids
        tuples = [(row["question"], row["context"], row["answers"]) for row in rows]
        path, line = in_rows(tmp_path, "a", tuples), 2
    else:
        path, line = write(tmp_path, "a.jsonl", "\n".join(map(json.dumps, rows))), 2
    with pytest.raises(UserError, match=sentence) as error:
        read_rows(path)
    number = int(str(error.value)[len(str(path)) + 1 :].partition(":")[0])
    lines = path.read_text(encoding="utf-8").splitlines()
    assert number == line or '"bad"' in lines[number - 1]
    if kind != "tuples":
        assert str(error.value).endswith("(id bad)")
    table = read_rows(path, "skip")
    assert (len(table.examples), len(table.skipped)) == (1, 1)


def test_what_is_no_question_is_refused(tmp_path):
    for text, sentence in [
        (as_squad([written([], context=" ")]), "'context' is empty"),
        (as_squad([written([], question="")]), r"'question' is empty \(id \w+\)"),
        (as_squad([written([], context="", number="x" * 99)]), r"empty \(id x{40}\)$"),
        (as_squad([written([], context="", number=None)]), "empty$"),
        ('{"data": [\n{"paragraphs": [\n{"context": 1,,}]}]}', ":3: is not valid JSON"),
        ('{"version": "1", "data": []}', "has no questions; SQuAD's layout has them in 'data'"),
        ('{"data": [{"question": "a", "context": "b"}]}', "has no questions; .* one object with"),
        ('{"data": [{"paragraphs": 3}]}', "'paragraphs' has to be a list of objects; 3 is none"),
        ('{"data": [{"paragraphs": []}, 5]}', "'data' has to be a list of objects; 5 is none"),
        (as_squad([written([])]) + "\n}", ":2: is not valid JSON .Extra data"),
        ("{}", "has no 'question' and no 'context' and no 'answers'; write them in each line"),
    ]:
        with pytest.raises(UserError, match=sentence):
            read_rows(write(tmp_path, "a.json", text))
    path = write(tmp_path, "b.json", as_squad([written([])]))
    form = read.table_format(path, pair=True, labelled=False, label="answers")
    assert form.kind == "squad"
    with pytest.raises(UserError, match="under SQuAD's names; leave text_column out"):
        read.table_format(
            path, pair=True, labelled=True, label="answers",
            columns=read.USUAL.model_copy(update={"text_column": "q"}),
        )  # fmt: skip


def test_a_file_that_ends_early_is_told_so_wherever_it_ends(tmp_path):
    whole = as_squad([written([at("字句")])] * 2, indent=1, ensure_ascii=False).encode()
    begin = whole.index(b"[") + 1
    for end in {*range(begin, len(whole), 37), whole.index("字".encode()) + 1, len(whole) - 1}:
        path = tmp_path / "a.json"
        path.write_bytes(whole[:end])
        with pytest.raises(UserError, match="ends before its JSON object does; copy") as error:
            read_rows(path)
        assert f"{path}:{whole[:end].count(10) + 1}: " in str(error.value)


def test_questions_to_answer_need_no_right_answers(tmp_path):
    """Errors name the line of the file."""
    rows = [written([at("1900")]), written(["1901"]), written([], context=" ", number="q9")]
    path = write(tmp_path, "a.json", as_squad(rows, indent=1))
    form = TASK.labels.input_format(path, read.USUAL)
    with path.open("rb") as lines:
        read_lines = list(read.iter_lines(lines, pair=True, form=form))
    assert [example.text_a for *_, example in read_lines[:2]] == ["When?", "When?"]
    number, _, error = read_lines[2]
    assert str(error) == f"line {number}: 'context' is empty (id q9)"
    assert '"q9"' in path.read_text(encoding="utf-8").splitlines()[number - 1]

"""`fleetbert predict` of folders: each row once, in the folders that it came in, after any end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import commands
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

import fleetbert
from fleetbert.scoring import files, places, scorer

WORDS = [f"word{number} word{number + 1}" for number in range(30)]


def make(path: Path) -> Path:
    """`path`, with its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def write(path: Path, table: pa.Table) -> None:
    make(path)
    name = path.name
    if name.endswith(".parquet"):
        pq.write_table(table, path)
    elif name.endswith(".arrow"):
        pa.feather.write_feather(table, path, compression="uncompressed")
    elif ".jsonl" in name:
        lines = "".join(json.dumps(row) + "\n" for row in table.to_pylist())
        with pa.output_stream(path) as stream:  # compressed as the ending says
            stream.write(lines.encode())
    elif name.endswith(".tsv"):
        rows = [table.schema.names, *zip(*table.to_pydict().values())]
        path.write_text("".join("\t".join(map(str, row)) + "\n" for row in rows))
    else:
        with pa.output_stream(path) as stream:
            pa.csv.write_csv(table, stream)


def table_of(first: int, rows: int = 10) -> pa.Table:
    ids = list(range(first, first + rows))
    texts = [WORDS[number % len(WORDS)] for number in ids]
    return pa.table({"id": ids, "text": pa.array(texts, pa.string())})


@pytest.fixture
def texts(tmp_path):
    """A folder of three Parquet files, in two folders of a column `lang`."""
    for number, name in enumerate(("lang=de/a", "lang=de/b", "lang=en/a")):
        write(tmp_path / "in" / f"{name}.parquet", table_of(10 * number))
    return tmp_path / "in"


@pytest.fixture
def predict(tiny_bundle, tmp_path, capsys):
    """predict(*options, source=…) → (exit code, stderr) of a run to tmp_path/out."""

    def call(*options: object, source: object = tmp_path / "in", output: object = None):
        words = ["--bundle", tiny_bundle, "--input", source]
        words += ["--output", output or tmp_path / "out", *options]
        code = commands.call("predict", *map(str, words))
        return code, capsys.readouterr().err

    return call


@pytest.fixture
def expected(tiny_bundle):
    """The labels of the words, by `fleetbert.load`."""
    model = fleetbert.load(tiny_bundle)
    return {text: answer.label for text, answer in zip(WORDS, model(WORDS))}


@pytest.mark.parametrize(
    "ending", ["parquet", "arrow", "jsonl", "jsonl.gz", "csv.gz", "tsv", "json"]
)
def test_each_file_becomes_one_with_answers(predict, expected, tmp_path, ending):
    if ending == "json":
        write(tmp_path / "in" / "a.jsonl", table_of(0))
        (tmp_path / "in" / "a.jsonl").rename(tmp_path / "in" / "a.json")
    else:
        write(tmp_path / "in" / "deep" / f"a.{ending}", table_of(0))
        write(tmp_path / "in" / f"b.{ending}", table_of(10))
    assert predict()[0] == 0
    paths = sorted(path for path in (tmp_path / "out").rglob("*") if path.is_file())
    names = ["a.parquet"] if ending == "json" else ["b.parquet", "deep/a.parquet"]
    assert [path.relative_to(tmp_path / "out").as_posix() for path in paths] == names
    for path in paths:
        table = pq.read_table(path)
        assert table.schema.names == ["id", "text", "predicted_label", "predicted_scores"]
        rows = table.to_pylist()
        assert [row["id"] for row in rows] == table_of(0 if path.stem == "a" else 10)[
            "id"
        ].to_pylist()
        assert [row["predicted_label"] for row in rows] == [expected[row["text"]] for row in rows]


def test_columns_and_rows_are_chosen_before_they_are_read(predict, texts, tmp_path):
    code, err = predict("--keep", "id", "--where", "lang=de", "--where", "id=12", "--prefix", "p_")
    assert code == 0, err
    table = pq.read_table(tmp_path / "out")
    assert table.schema.names == ["id", "p_label", "p_scores", "lang"]
    assert table["id"].to_pylist() == [12]
    assert not (tmp_path / "out" / "lang=en").exists()


def test_shards_share_the_files_out_and_a_second_run_has_nothing_to_do(predict, texts, tmp_path):
    for shard in ("0/2", "1/2"):
        assert predict("--shard", shard)[0] == 0
        times = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.parquet")}
        assert len(times) == {"0/2": 2, "1/2": 3}[shard]
    assert "0 rows of 0 files" in predict()[1]
    assert times == {path: path.stat().st_mtime_ns for path in times}
    ids = pq.read_table(tmp_path / "out")["id"].to_pylist()
    assert sorted(ids) == list(range(30))


def test_rows_without_a_text_go_to_a_folder_of_their_own(predict, tmp_path):
    table = pa.table({"text": ["word1", None, " ", "word\0", "word2"], "id": range(5)})
    write(tmp_path / "in" / "deep" / "a.parquet", table)
    code, err = predict()
    assert code == 0 and f"3 rows could not be answered: see {tmp_path}/out/_errors" in err
    assert pq.read_table(tmp_path / "out")["id"].to_pylist() == [0, 4]
    lines = (tmp_path / "out" / "_errors" / "deep" / "a.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["row"] for row in rows] == [1, 2, 3]
    assert {row["file"] for row in rows} == {f"{tmp_path}/in/deep/a.parquet"}
    assert [row["error"] for row in rows] == [
        "(text) is null",
        "(text) is empty",
        "(text) holds a NUL character",
    ]
    # The file is mended, and its answers removed, as another run asks for.
    write(tmp_path / "in" / "deep" / "a.parquet", table_of(0))
    (tmp_path / "out" / "deep" / "a.parquet").unlink()
    assert predict()[0] == 0
    assert [path.name for path in (tmp_path / "out").rglob("*.*")] == ["a.parquet"]


def test_a_run_that_answers_no_row_says_so(predict, texts, tmp_path):
    for options in (["--where", "lang=fr"], ["--where", "id=99", "--shard", "0/4"]):
        for _ in range(2):
            code, err = predict(*options, output=tmp_path / options[1])
            assert code == 0 and f"{texts} {' '.join(options)} has no rows to answer" in err
    for path in texts.rglob("*.parquet"):
        write(path, pa.table({"text": pa.array([None, " "], pa.string())}))
    for _ in range(2):  # a scheduler may start it again
        code, err = predict()
        sentence = f"error: --input {texts}: none of its rows could be answered; see {tmp_path}/out"
        assert code == 2 and f"{sentence}/_errors" in err
    assert len(list((tmp_path / "out" / "_errors").rglob("*.jsonl"))) == 3
    write(texts / "lang=fr" / "a.parquet", table_of(0))
    assert predict()[0] == 0


def test_a_column_may_be_empty_where_its_file_begins(predict, tmp_path):
    nulls = '{"text": null}\n' * 80_000  # more than the block that tells the types of columns
    make(tmp_path / "in" / "a.jsonl").write_text(nulls + '{"text": "word1"}\n')
    make(tmp_path / "in" / "b.jsonl").write_text('{"text": null}\n')
    code, err = predict()
    assert code == 0 and "80001 rows could not be answered" in err
    assert pq.read_table(tmp_path / "out")["text"].to_pylist() == ["word1"]


def test_windows_run_over_the_ends_of_files(predict, expected, tmp_path, monkeypatch):
    """Each row keeps its file, its place and its own error."""
    monkeypatch.setattr(files, "WINDOW", 16)
    windows = []
    answer = scorer.Scorer.answer_together

    def counting(self, tables):
        windows.append(sum(table.num_rows for table in tables))
        return answer(self, tables)

    monkeypatch.setattr(scorer.Scorer, "answer_together", counting)
    for number, rows in enumerate((10, 0, 3, 40, 1)):
        table = table_of(100 * number, rows)
        if rows == 40:  # row groups of other sizes than windows, and other columns
            table = table.rename_columns(["id", "sentence"])
            column = table["sentence"].to_pylist()
            column[2] = column[20] = None
            table = table.set_column(1, "sentence", pa.array(column, pa.large_string()))
        pq.write_table(table, make(tmp_path / "in" / f"{number}.parquet"), row_group_size=7)
    code, err = predict()
    assert code == 0, err
    assert windows == [16, 16, 16, 6]
    for number, rows in enumerate((10, 0, 3, 40, 1)):
        answered = pq.read_table(tmp_path / "out" / f"{number}.parquet").to_pylist()
        missing = (302, 320) if rows == 40 else ()
        ids = [n for n in table_of(100 * number, rows)["id"].to_pylist() if n not in missing]
        assert [row["id"] for row in answered] == ids
        assert [row["predicted_label"] for row in answered] == [
            expected[row.get("text") or row.get("sentence")] for row in answered
        ]
    (path,) = (tmp_path / "out" / "_errors").iterdir()
    assert path.name == "3.jsonl"
    assert [json.loads(line)["row"] for line in path.read_text().splitlines()] == [2, 20]


def test_files_before_a_damaged_one_are_answered(predict, texts, tmp_path):
    path = texts / "lang=en" / "a.parquet"
    content = bytearray(path.read_bytes())
    content[4:100] = bytes(96)  # of the first page; the footer is whole
    path.write_bytes(content)
    code, err = predict()
    (sentence,) = [line for line in err.splitlines() if "error" in line]
    assert code == 2 and f"{path} cannot be read: Couldn't deserialize" in sentence
    assert sentence.endswith("; mend it, or move it out of the folder") and err.endswith("folder\n")
    assert sorted(path.name for path in (tmp_path / "out").rglob("*") if path.is_file()) == [
        "a.parquet",
        "b.parquet",
    ]


def test_a_file_without_rows_has_an_answer_without_rows(predict, texts, tmp_path):
    write(texts / "empty.parquet", table_of(0).slice(0, 0))
    assert predict()[0] == 0
    table = pq.read_table(tmp_path / "out" / "empty.parquet")
    assert table.num_rows == 0 and "predicted_label" in table.schema.names


@pytest.mark.parametrize(
    ("break_it", "options", "sentence"),
    [
        ("column", (), "lang=en/a.parquet: no column 'text_a' or 'text' or 'sentence' holds"),
        ("kind", (), "column 'text' is of int64; the texts have to be strings"),
        ("formats", (), "holds csv and parquet; it has to hold files of one format, by their end"),
        ("doubled", (), "holds several files lang=en/a.*, whose answers would be one file; rename"),
        ("damaged", (), "lang=en/a.parquet"),
        ("name", (), "lat\\xe9.parquet' is not UTF-8; rename the file"),
        ("answer", (), "has a column 'predicted_label' already; choose another prefix than"),
        ("", ("--keep", "id,no"), "no column 'no', of id, text, lang"),
        ("", ("--where", "no=1"), "no column 'no', of id, text, lang"),
        ("", ("--where", "id=x"), "--where id=x: the column is of int64"),
        ("", ("--where", "id"), "--where id: say COLUMN=VALUE"),
        ("", ("--shard", "2/2"), "--shard 2/2: say I/N, such as 0/4, I from 0 to N-1"),
        ("", ("--text-column", "no"), "no column 'no' holds the texts; name it by"),
        ("", ("--abstain", "0.5"), "--abstain is not for tables; leave it out"),
        ("", ("--output", __file__), "test_files.py is a file; name a folder"),
        ("", ("--output", "{texts}/out"), "/in/out is in --input /"),
        ("", ("--output", "{texts}"), "where the answers would be texts of the next run; name a"),
        ("", ("--address", "h:1"), "--address h:1 is of a cluster: say --on ray or --on spark too"),
        (
            "",
            ("--on", "ray"),
            "--on ray needs what is not installed (ray): pip install 'fleetbert[ray]",
        ),
        ("", ("--output", "-"), "is a table: name a folder as --output"),
    ],
)
def test_errors_are_one_sentence_before_anything_is_written(
    predict, texts, tmp_path, break_it, options, sentence
):
    path = texts / "lang=en" / "a.parquet"
    if break_it == "column":
        write(path, table_of(0).drop(["text"]))
    elif break_it == "kind":
        write(path, pa.table({"id": [1], "text": [1]}))
    elif break_it == "formats":
        write(texts / "b.csv", table_of(0))
    elif break_it == "doubled":
        shutil.copy(path, path.with_suffix(".pq"))
    elif break_it == "name":
        shutil.copy(path, path.with_name("lat\udce9.parquet"))
    elif break_it == "damaged":
        path.write_bytes(path.read_bytes()[:-8])
    elif break_it == "answer":
        write(path, table_of(0).append_column("predicted_label", [["x"] * 10]))
    code, err = predict(*(option.format(texts=texts) for option in options))
    assert code == 2
    assert sentence in err and len(err.strip().splitlines()) == 1, err
    assert not list(tmp_path.glob("**/out/**/*.parquet"))


def test_places_that_are_not_there_are_named(predict, texts):
    assert "--keep is for tables; " in predict("--keep", "id", source=__file__)[1]
    code, err = predict(source=texts / "none.parquet")
    assert code == 2 and "none.parquet: no file or folder is there; name one that is" in err


def test_the_output_of_another_job_is_left_alone(predict, texts, tmp_path):
    assert predict()[0] == 0
    path = tmp_path / "out" / "lang=en" / "a.parquet"
    before = path.read_bytes()
    assert "is not of this job, but of another model, other columns" in predict("--keep", "id")[1]
    write(texts / "lang=en" / "a.parquet", table_of(0, 11))
    assert "has changed since" in predict()[1]
    assert path.read_bytes() == before
    path.write_text("no Parquet")
    assert "is not of this job" in predict()[1]
    for other in (texts / "lang=en").iterdir():  # names that the folder has not
        other.rename(other.with_name("c.parquet"))
    err = predict("--keep", "id", source=texts / "lang=en")[1]
    assert f"{tmp_path}/out/lang=de/a.parquet is not of this job" in err
    assert not list((tmp_path / "out").rglob("c.parquet"))


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ("in/lang=en/a.parquet", r"a\.parquet changed while it was read"),
        ("out/a.parquet", r"out/a\.parquet is not of this job, but of another model"),
    ],
)
def test_what_changes_while_a_file_is_read_is_seen(
    tiny_bundle, texts, tmp_path, monkeypatch, changed, sentence
):
    answer = scorer.Scorer.answer_together

    def changing(self, tables):
        write(tmp_path / changed, table_of(0, 12))
        return answer(self, tables)

    monkeypatch.setattr(scorer.Scorer, "answer_together", changing)
    with pytest.raises(fleetbert.UserError, match=sentence):
        files.score(
            fleetbert.Scorer(tiny_bundle),
            places.place(f"{texts}/lang=en"),
            places.place(str(tmp_path / "out")),
        )
    left = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert left == [tmp_path / changed] * changed.startswith("out")
    assert pq.read_table(tmp_path / changed).num_rows == 12


def test_addresses_are_read_and_written(tiny_bundle, texts, tmp_path):
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.put(str(texts), "/bucket/in", recursive=True)
    place = places.place("memory://bucket/out")
    counts = files.score(fleetbert.Scorer(tiny_bundle), places.place("memory://bucket/in"), place)
    assert counts == files.Counts(rows=30, faults=0, files=3, earlier=0)
    counts = files.score(fleetbert.Scorer(tiny_bundle), places.place("memory://bucket/in"), place)
    assert counts == files.Counts(rows=0, faults=0, files=0, earlier=3)
    memory.get("/bucket/out", str(tmp_path / "got"), recursive=True)
    assert sorted(pq.read_table(tmp_path / "got")["id"].to_pylist()) == list(range(30))
    with pytest.raises(fleetbert.UserError, match="nothing://x"):
        places.place("nothing://x")


def test_a_killed_run_goes_on(tiny_bundle, tmp_path):
    """Killed in the middle of the second file: the first is not answered again, no row is twice."""
    for number in range(3):
        write(tmp_path / "in" / f"{number}.parquet", table_of(20_000 * number, 20_000))
    words = ["--bundle", tiny_bundle, "--input", tmp_path / "in", "--output", tmp_path / "out"]
    command = [sys.executable, "-m", "fleetbert.cli", "predict", *map(str, words)]
    running = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    first = tmp_path / "out" / "0.parquet"
    until = time.monotonic() + 300
    while not (first.exists() and list(first.parent.glob(".*.1.parquet.part"))):
        assert running.poll() is None and time.monotonic() < until
        time.sleep(0.001)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()
    before = first.stat().st_mtime_ns
    assert commands.call("predict", *map(str, words)) == 0
    assert first.stat().st_mtime_ns == before
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        f"{number}.parquet" for number in range(3)
    ]
    assert pq.read_table(tmp_path / "out")["id"].to_pylist() == list(range(60_000))

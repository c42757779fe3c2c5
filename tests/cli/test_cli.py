"""The command: what it prints, where, and its exit code."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys

import fresh
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny_bert import LABELS

from fleetbert import bundle as bundles
from fleetbert.cli import main as cli
from fleetbert.cli.commands import COMMANDS


@pytest.fixture
def fleetbert(capfdbinary, monkeypatch):
    """fleetbert(*words, stdin=b"") → exit code, stdout, stderr."""

    def call(*words, stdin: bytes = b"") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with pytest.raises(SystemExit) as caught:
            cli.main([str(word) for word in words])
        out, err = capfdbinary.readouterr()
        return caught.value.code, out.decode(), err.decode()

    return call


@pytest.fixture
def refused(fleetbert):
    """refused(message, *words): the command says that in one line, and does nothing."""

    def check(message, *words, stdin: bytes = b"") -> None:
        code, out, err = fleetbert(*words, stdin=stdin)
        assert (code, out) == (2, "")
        assert message in err
        assert err.splitlines()[-1].startswith("error: ")
        assert "Traceback" not in err

    return check


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "dev.tsv"
    path.write_text("text_a\tlabel\nword1 word2\tbad\nword3\t好\nword4\tso so\n", encoding="utf-8")
    return path


def test_help_teaches_and_imports_nothing_heavy():
    code = (
        "import sys\nfrom fleetbert.cli import main as cli\n"
        "try:\n    cli.main(['--help'])\n"
        "except SystemExit:\n"
        "    print([name for name in ('paddle', 'numpy') if name in sys.modules])"
    )
    done = fresh.python(code)
    assert done.stdout.endswith("[]\n")
    for name in ("evaluate", "predict", "export"):
        assert name in done.stdout


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_has_help_with_an_example(fleetbert, name):
    code, out, _ = fleetbert(name, "--help")
    assert code == 0
    assert re.search(rf"^  .*(fleetbert |launch/){name}(\.py)? ", out, re.MULTILINE), out


def test_the_home_of_the_user_behind_an_option(fleetbert, monkeypatch):
    monkeypatch.setenv("HOME", "/some/home")
    code, _, said = fleetbert("ask", "--bundle=~/none", "a")
    assert (code, "/some/home/none" in said) == (2, True)


@pytest.mark.parametrize("variant", ["float32", "onnx"])
def test_evaluate_prints_a_table_or_one_line_of_json(fleetbert, tiny_bundle, table, variant):
    words = ["evaluate", "--bundle", tiny_bundle, "--data", table, "--variant", variant]
    code, out, _ = fleetbert(*words)
    assert code == 0
    assert out.startswith("accuracy ")
    assert "precision" in out
    code, out, _ = fleetbert(*words, "--json")
    assert code == 0
    assert out.count("\n") == 1
    report = json.loads(out)
    assert report["variant"] == variant
    assert report["n"] == 3
    assert set(report["classes"]) == {"bad", "so so", "好"}
    assert {"accuracy", "loss", "texts_per_s", "confusion"} <= set(report)


def test_what_the_user_got_wrong_is_one_line_and_exit_code_2(refused, tiny_bundle, table):
    table.write_text("text_a\tlabel\nword1\tawful\n")
    other = table.with_name("other.tsv")
    other.write_text("good\tword1\n")
    evaluate, predict = (
        (name, "--bundle", tiny_bundle, option)
        for name, option in (("evaluate", "--data"), ("predict", "--input"))
    )
    refused("dev.tsv:2: the model does not", *evaluate, table)
    refused("is not a bundle", "evaluate", "--bundle", table.parent, "--data", table)
    refused("no such file", *evaluate, "none.tsv")
    refused("no variant", *evaluate, table, "--variant", "x")
    refused("none.txt: No such file", *predict, "none.txt")
    refused("--text-column word1", *predict, other)
    refused("--text-column word1 --label-column good", *evaluate, other)
    refused("--abstain is 1.5; it has to be from 0 to 1", *predict, "-", "--abstain", 1.5)
    refused("are the same file", *predict, table, "--output", table)
    refused("Is a directory", *predict, table, "--output", table.parent)
    missing = table.parent / "no" / "folder"
    refused("No such file or directory", *predict, table, "--output", missing)
    refused("/dev/full: cannot be written: No space", *predict, table, "--output", "/dev/full")
    refused("--file none.txt: No such", "ask", "--bundle", tiny_bundle, "--file", "none.txt")
    refused("opset is 3", "export", "--bundle", tiny_bundle, "--format", "onnx", "--opset", 3)
    assert table.read_text() == "text_a\tlabel\nword1\tawful\n"


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("loss.class_weights.so-so=much", "loss.class_weights"),
        ("Data.train=a.tsv", "unknown key Data; did you mean data.train=a.tsv?"),
    ],
)
def test_a_word_with_an_equals_sign_is_a_key_behind_options_too(refused, word, message):
    refused(f"command line: {message}", "train", "data.train=x", "--folds", "3", word)


@pytest.mark.parametrize(
    "words", [["{table}", "output_dir={new}"], ["output_dir={new}", "{table}"]]
)
def test_a_path_with_an_equals_sign_is_no_key(refused, tmp_path, words):
    places = {"table": tmp_path / "lang=en" / "none.tsv", "new": tmp_path / "new"}
    given = [word.format(**places) for word in words]
    refused(f"{places['table']}: no such file", "audit", *given, "model.init=.")


def test_predict_abstains_where_no_label_is_likely(fleetbert, tiny_bundle):
    lines = b"".join(b"word%d word%d\n" % (n, 3 * n) for n in range(20)) + b"\n"
    words = ["predict", "--bundle", tiny_bundle, "--input", "-"]
    answers = []
    for more in ([], ["--abstain", 0.5]):
        code, out, err = fleetbert(*words, *more, stdin=lines)
        assert code == 0
        answers.append([json.loads(line) for line in out.splitlines()])
    plain, found = answers
    sure = [max(line["scores"].values()) >= 0.5 for line in plain[:-1]]
    assert 0 < sum(sure) < len(sure)
    for before, after, kept in zip(plain, found, sure):
        assert after == (before if kept else {**before, "label": None})
    assert found[-1] == plain[-1] and list(plain[-1]) == ["error"]
    assert "1 of 21 lines could not be answered" in err
    assert f"{sure.count(False)} of 21 lines have no label of probability 0.5 or more" in err


@pytest.mark.parametrize(
    ("text", "code", "sentence"),
    [
        ("", 0, "questions.txt has no lines to answer"),
        ("\n \n", 2, "questions.txt: none of its 2 lines could be answered; see their error"),
        ("\nword1\n", 0, "1 of 2 lines could not be answered: see their error"),
    ],
)
def test_predict_fails_where_no_line_is_answered(
    fleetbert, tiny_bundle, tmp_path, text, code, sentence
):
    questions, output = tmp_path / "questions.txt", tmp_path / "answers.jsonl"
    questions.write_text(text)
    words = ["predict", "--bundle", tiny_bundle, "--input", questions, "--output", output]
    ended, _, err = fleetbert(*words)
    assert (ended, sentence in err) == (code, True)
    answers = [json.loads(line) for line in output.read_text().splitlines()]
    assert ["error" in line for line in answers] == [not line.strip() for line in text.splitlines()]


def test_predict_reads_what_the_files_ending_says(fleetbert, tiny_bundle, tmp_path):
    answers = {}
    for name, text in [
        ("a.txt", "word1 word2\n"),
        ("a.jsonl", '{"id": 1, "text": "word1 word2"}\n'),
        ("a.tsv", "label\ttext_a\nbad\tword1 word2\n"),
        ("a", "word1 word2\n"),
    ]:
        (tmp_path / name).write_text(text)
        code, out, _ = fleetbert("predict", "--bundle", tiny_bundle, "--input", tmp_path / name)
        assert code == 0
        answers[name] = json.loads(out)
    assert answers["a.jsonl"].pop("id") == 1
    assert all(found == answers["a.txt"] for found in answers.values())


def test_predict_writes_a_file_whole_or_not_at_all(fleetbert, tiny_bundle, tmp_path, monkeypatch):
    questions, output = tmp_path / "questions.txt", tmp_path / "answers.jsonl"
    questions.write_text("word1\nword2\n")
    words = ["predict", "--bundle", tiny_bundle, "--input", questions, "--output", output]
    assert fleetbert(*words[:-1], "/dev/null")[:2] == (0, "")
    assert fleetbert(*words)[0] == 0
    written = output.read_text(encoding="utf-8")
    assert written.count("\n") == 2

    from fleetbert.core.errors import UserError
    from fleetbert.engines import answer

    def fail(*arguments, **options):
        yield [{"label": "bad"}], answer.Counts(1, 0, 0)
        raise UserError("the power went")

    monkeypatch.setattr(answer, "answer_lines", fail)
    assert fleetbert(*words)[0] == 2
    assert output.read_text(encoding="utf-8") == written
    assert sorted(path.name for path in tmp_path.iterdir()) == ["answers.jsonl", "questions.txt"]


def test_options_of_another_format_are_refused(refused, tiny_bundle):
    export = ("export", "--bundle", tiny_bundle, "--format")
    for words, message in [
        (("onnx", "--target", "x86"), "--target is for --format lite"),
        (("lite", "--target", "x86", "--opset", 17), "--opset is for --format onnx"),
        (("onnx", "--early-exit"), "--early-exit is for --format lite"),
        (
            ("lite", "--target", "x86", "--early-exit"),
            "early exit is made from the variant early-exit-float32",
        ),
        (("lite",), "--format lite needs --target: armv8, armv7, armv8-opencl or x86"),
        (("lite", "--target", "x86", "--max-accuracy-drop", 0.1), "drop needs --data"),
    ]:
        refused(message, *export, *words)


def test_export_adds_a_variant_for_paddle_lite(fleetbert, copied_bundle, table):
    pytest.importorskip("paddlelite", reason="paddlelite has wheels for Python 3.8 to 3.10")
    rows = "".join(f"word1 word2\t{label}\n" for label in LABELS)  # of which float32 gets one right
    table.write_text(f"text_a\tlabel\n{rows}", encoding="utf-8")
    words = ["export", "--bundle", copied_bundle, "--format", "lite", "--target", "x86"]
    code, out, err = fleetbert(*words, "--data", table, "--max-accuracy-drop", 1)
    assert code == 0, err
    assert "added variant lite-x86-float32" in out
    assert "of Paddle's, accuracy 0." in out or "of Paddle's, accuracy 1." in out
    code, out, err = fleetbert(*words, "--data", table, "--max-accuracy-drop", -1)
    assert (code, out) == (3, "")


def test_export_adds_the_variant(fleetbert, copied_bundle):
    code, out, _ = fleetbert("export", "--bundle", copied_bundle, "--format", "onnx")
    assert code == 0
    assert "added variant onnx" in out
    assert "opset 17" in out


def test_ask_takes_lines_as_predict_does_and_shows_what_it_cannot(fleetbert, tiny_bundle, tmp_path):
    path = tmp_path / "texts.txt"
    path.write_bytes("word1\u2028word2\n\fword3\n".encode() + b"caf\xe9\n")
    code, out, said = fleetbert("ask", "--bundle", tiny_bundle, "--file", path, "caf\udce9")
    assert code == 2
    assert "2 of 4 texts had no answer" in said
    assert out.count("→") == 2
    assert out.count("caf\\xe9\n  error: line ") == 2
    assert "`iconv -f latin1 -t utf-8`" in out


def test_a_bundle_below_a_name_that_the_locale_has_no_letters_for_is_opened(tiny_bundle, tmp_path):
    """Each kind of engine gets the name as the system has it."""
    names = [name for name in ("float32", "onnx") if name in bundles.read(tiny_bundle).names]
    path = shutil.copytree(tiny_bundle, tmp_path / "möchte字")
    code = (
        "import fleetbert, sys\n"
        "for name in sys.argv[2:]:\n"
        "    print(name, len(fleetbert.load(sys.argv[1], name)(['word1'])))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, os.fsencode(path), *names],
        capture_output=True,
        env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0"},
        timeout=300,
    )
    assert done.stdout.decode().splitlines() == [f"{name} 1" for name in names], done.stderr
    code = (
        "from fleetbert.cli.main import main; from fleetbert.core import errors\nerrors.run(main)"
    )
    job = tmp_path / "job.yaml"
    job.write_text("gate:\n  data: [möchte字.tsv]\n", encoding="utf-8")
    for words in (
        ["quantize", f"bundle={path}"],
        ["serve", f"bundle={path}"],
        ["quantize", "--config", str(job)],
    ):
        done = fresh.python(code, *words, LC_ALL="C", PYTHONUTF8="0")
        assert done.returncode == 2
        assert "has letters that this locale lacks; set LC_ALL=C.UTF-8" in done.stderr, done.stderr
    texts, answers = tmp_path / "möchte", tmp_path / "字"
    texts.mkdir()
    pq.write_table(pa.table({"字": ["word1"]}), texts / "字.parquet")
    words = ["predict", "--bundle", tiny_bundle, "--input", texts, "--output", answers]
    done = fresh.python(code, *words, "--text-column", "字", LC_ALL="C", PYTHONUTF8="0")
    assert done.returncode == 0, done.stderr
    assert pq.read_table(answers / "字.parquet")["字"].to_pylist() == ["word1"]


def test_no_answer_is_lost_to_the_encoding_of_a_pipe(tiny_bundle, table):
    """What it cannot show is escaped; JSON is the same to whoever parses it."""
    texts = ["字 möchte word1", "word3"]
    commands = [
        ["ask", *texts],
        ["predict", "--input", "-"],
        ["evaluate", "--data", table, "--json"],
    ]
    commands = [[*map(str, words), "--bundle", str(tiny_bundle)] for words in commands]
    code = (
        "import json, sys\nfrom fleetbert.cli import main as cli\n"
        "for words in json.loads(sys.argv[1]):\n"
        "    try:\n        cli.main(words)\n"
        "    except SystemExit as ended:\n        print('ended:', ended.code, flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(commands)],
        input="\n".join(texts).encode(),
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
        timeout=300,
    )
    shown, answers, report, rest = done.stdout.split(b"ended: 0\n")
    assert not rest, done.stderr.decode(errors="replace")
    shown = shown.decode("ascii")
    assert "\\u5b57 " in shown and "\\u2192 " in shown
    unescaped = re.sub(
        r"\\(?:u(....)|x(..))", lambda found: chr(int(found[1] or found[2], 16)), shown
    ).splitlines()
    assert unescaped[::2] == texts
    assert all(re.fullmatch(r"  → (bad|so so|好) \([\d.]+%\)", line) for line in unescaped[1::2])
    found = [json.loads(line) for line in answers.splitlines()]
    assert [set(line["scores"]) for line in found] == [{"bad", "so so", "好"}] * 2
    assert set(json.loads(report.decode("ascii"))["classes"]) == {"bad", "so so", "好"}

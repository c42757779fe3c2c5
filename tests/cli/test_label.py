"""`fleetbert label`: a table, and a bundle that gives other texts the same answers."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import subprocess
import sys

import commands
import numpy as np
import pytest
import tiny_bert

import fleetbert
from fleetbert.export import from_names

RANDOM = np.random.default_rng(0)
NAMES = ["word1 word2", "word30_word31", "字3"]
TEXTS = [
    " ".join([*RANDOM.choice(NAMES[number % 3].replace("_", " ").split(), 4), *more])
    for number, more in enumerate(RANDOM.choice(tiny_bert.WORDS, (45, 2)))
]


@pytest.fixture(scope="module")
def labelled(tiny_encoder, tmp_path_factory):
    """What the command wrote: its table, and its bundle."""
    folder = tmp_path_factory.mktemp("labelled")
    (folder / "texts.txt").write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    words = ["label", folder / "texts.txt", "--init", tiny_encoder, "--labels", ", ".join(NAMES)]
    words += ["--output", folder / "table.tsv", "--bundle", folder / "bundle"]
    assert commands.call(*words) == 0
    with (folder / "table.tsv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t")), folder / "bundle"


def test_texts_get_the_labels_that_they_name(labelled):
    rows, _ = labelled
    assert [row["text_a"] for row in rows] == TEXTS
    right = [row["label"] == NAMES[number % 3] for number, row in enumerate(rows)]
    assert np.mean(right) > 0.9


def test_the_bundle_answers_as_the_table_says(labelled, tmp_path):
    rows, bundle = labelled
    model = fleetbert.load(bundle, task="classification")
    answers = model(TEXTS)
    assert [answer.label for answer in answers] == [row["label"] for row in rows]
    found = [max(answer.scores.values()) for answer in answers]
    np.testing.assert_allclose(found, [float(row["probability"]) for row in rows], atol=1e-3)
    gate = list(zip(TEXTS, (answer.label for answer in answers)))
    for method in ("static", "dynamic"):
        calibration = {"calibration": TEXTS} if method == "static" else {}
        keys = {"gate": gate, "max_drop": 0.1, "output_dir": tmp_path / method, **calibration}
        variant = fleetbert.quantize(bundle, method=method, **keys)
        quantized = fleetbert.load(bundle, variant.name)
        expected = model.predict_proba(TEXTS)
        np.testing.assert_allclose(quantized.predict_proba(TEXTS), expected, atol=0.1)
        alone = np.concatenate([quantized.predict_proba([text]) for text in TEXTS[:5]])
        np.testing.assert_allclose(alone, quantized.predict_proba(TEXTS)[:5], atol=1e-3)


def test_without_certainty_it_abstains(tiny_encoder, tmp_path, capsys):
    path = tmp_path / "texts.jsonl"
    rows = [{"text": text, "label": "other"} for text in TEXTS]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    descriptions = tmp_path / "labels.yaml"
    descriptions.write_text("no: word1\n字3: [word30, word31]\n", encoding="utf-8")
    words = ["label", path, "--init", tiny_encoder, "--descriptions", descriptions]
    output = tmp_path / "table.jsonl"
    assert commands.call(*words, "--abstain", "0.995", "--output", output) == 0
    rows = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert {row["label"] for row in rows} >= {""}
    assert all((row["probability"] >= 0.995) == (row["label"] != "") for row in rows)
    capsys.readouterr()
    assert commands.call(*words) == 0
    said = capsys.readouterr()
    assert "texts.jsonl: its labels are not read; compare them" in said.err
    header, *lines = said.out.splitlines()
    assert header.split("\t") == ["text_a", "label", "probability"]
    assert {line.split("\t")[1] for line in lines} == {"no", "字3"}


@pytest.mark.parametrize(
    ("given", "code", "output"),
    [
        (b'{"text": "word1"}\n', 0, "word1\t"),
        (b"text\tid\nword1\t3\n", 0, "word1\t"),
        (b"word1\n \n", 2, "error: stdin: line 2: 'text_a' is empty"),
    ],
)
def test_texts_may_come_from_stdin(given, code, output, tiny_encoder, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given)))
    assert commands.call("label", "-", "--init", tiny_encoder, "--labels", "word1, word2") == code
    said = capsys.readouterr()
    assert output in said.out + said.err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "give --labels, --descriptions or both"),
        (("--labels", "a,"), "labels: 1 is given; at least two are needed"),
        (("--labels", "a, b, a"), "--labels: 'a' occurs twice; name each label once"),
        (("--labels", "a,b", "--abstain", "2"), "--abstain is 2.0; it has to be from 0 to 1"),
        (("--labels", "a,b", "--output", "a.xls"), "name a .tsv, .csv or .jsonl file"),
        (("--labels", "a,b", "--descriptions", "{y}"), "describes 'c', which is not among"),
        (("--descriptions", "{bad}"), "must hold keys, like `label: what describes it`"),
        (("--descriptions", "{twice}"), "twice.yaml, line 2: key a stands here a second time"),
        (("--descriptions", "{inner}"), "labels['a'][0] is not a text but dict"),
        (("--labels", "a,b", "--init", "random"), "random weights know no names of labels"),
        (("--labels", "a,b", "--init", "no/model"), "--init: the folder no/model does not exist"),
        (("--labels", "a,b", "--output", "{texts}"), "texts.tsv and the input are the same file"),
        (("--labels", "a,b", "--output", "{y}/a.tsv"), "a.tsv: Not a directory; name a file that"),
        (("--labels", "a,b", "--bundle", "{y}"), "y.yaml exists and is not a bundle"),
    ],
)
def test_mistakes_are_named(words, sentence, tiny_encoder, tmp_path, capsys, monkeypatch):
    """Before the work begins."""
    worked = []
    monkeypatch.setattr(from_names.vectors, "of", lambda *_: worked.append(1))
    (tmp_path / "texts.tsv").write_text("text_a\nword1\n")
    (tmp_path / "y.yaml").write_text("c: word3\n")
    (tmp_path / "bad.yaml").write_text("- word3\n")
    (tmp_path / "twice.yaml").write_text("a: word3\na: word4\nb: word5\n")
    (tmp_path / "inner.yaml").write_text("a: {word3: word4}\nb: word5\n")
    places = {name: tmp_path / f"{name}.yaml" for name in ("y", "bad", "twice", "inner")}
    places["texts"] = tmp_path / "texts.tsv"
    given = [word.format(**places) for word in words]
    assert commands.call("label", places["texts"], "--init", tiny_encoder, *given) == 2
    assert sentence in capsys.readouterr().err
    assert not worked
    assert places["texts"].read_text() == "text_a\nword1\n"


def test_sigterm_ends_with_a_sentence(tiny_encoder, tmp_path):
    """The texts come from a pipe into which nobody writes."""
    os.mkfifo(tmp_path / "texts.txt")
    words = [tmp_path / "texts.txt", "--init", tiny_encoder, "--labels", "a, b"]
    command = [sys.executable, "-m", "fleetbert.cli", "label", *map(str, words)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    pipe = os.open(tmp_path / "texts.txt", os.O_WRONLY)  # returns when the command reads
    try:
        while process.poll() is None:  # a signal that comes just before read() does not wake it
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(20)
    finally:
        process.kill()
        _, said = process.communicate()
        os.close(pipe)
    assert process.returncode == 143, said
    assert said == "stopped: SIGTERM: nothing is half written; start the same command again\n"

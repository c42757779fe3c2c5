"""The token cache gives what memory gives, and never anything that was not written whole."""

from __future__ import annotations

import ctypes
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import tiny_job
from hypothesis import given, settings
from hypothesis import strategies as st

from fleetbert.core.errors import UserError
from fleetbert.core.reading import Reading
from fleetbert.data import cache, read, split, tokenizers

DEADLINE = 120


def table_of(path):
    return read.table_format(path, pair=path.name.endswith(".pair.tsv"), labelled=True)


# Kind of file: (how it is read, its first line)
KINDS = {
    "csv": (table_of, "label,text_a"),
    "tsv": (table_of, "label\ttext_a"),
    "pair.tsv": (table_of, "text_a\tlabel\ttext_b"),
    "jsonl": (table_of, None),
    "txt": (read.texts_format, None),
}


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr(cache, "PIECE", 700)


@pytest.fixture
def in_this_process(monkeypatch):
    """Pieces are made here: what is in them does not depend on the process, and starting one takes
    a second."""

    def make(name, own, recipe, pieces, missing):
        cache._open_tokenizer(recipe)
        return {n: cache._write_piece(name, own, pieces[n], n) for n in missing}

    monkeypatch.setattr(cache, "_make", make)


def recipe_of(path: Path, vocab: Path, **changes) -> cache.Recipe:
    kind = path.name.split(".", 1)[1]
    form = KINDS[kind][0](path)
    spec, reading = tokenizers.of_vocab(vocab, True), Reading(16)
    recipe = cache.Recipe(form, "stop", spec, kind == "pair.tsv", reading)
    return recipe._replace(**changes)


def in_memory(path: Path, recipe: cache.Recipe):
    table = read.read_as(path, recipe.form, recipe.on_bad_line)
    tokenizer = tokenizers.open(recipe.tokenizer)
    labelled = recipe.form.labelled
    return split.tokenize(str(path), table, tokenizer, recipe.pair, labelled, recipe.reading)


def cached(path: Path, folder: Path, recipe: cache.Recipe):
    return cache.load(str(path), cache.prepare(str(path), folder, recipe))


def assert_same(found, expected):
    (one, labels), (other, other_labels) = found, expected
    assert labels == other_labels
    assert one.counts() == other.counts()
    ids, other_ids = ([row.tolist() for row in each.encodings.ids] for each in (one, other))
    assert ids == other_ids
    np.testing.assert_array_equal(one.encodings.lengths, other.encodings.lengths)
    np.testing.assert_array_equal(one.encodings.first_lengths, other.encodings.first_lengths)
    np.testing.assert_array_equal(one.labels, other.labels)
    np.testing.assert_array_equal(one.lines, other.lines)
    assert split.fingerprint(one) == split.fingerprint(other)
    assert other.fingerprint is None  # two ways to the same digest


@pytest.fixture
def table(tiny_data, tmp_path) -> Path:
    """Some ten pieces of 700 bytes."""
    path = tmp_path / "train.tsv"
    path.write_bytes((tiny_data / "train.tsv").read_bytes())
    return path


@pytest.fixture
def recipe(table, tiny_vocab) -> cache.Recipe:
    """Of that table."""
    return recipe_of(table, tiny_vocab)


word = st.one_of(
    st.sampled_from(["word1", "word2s", "word3", "中文", "é", "WORD1", "[SEP]", "\u2028", '"']),
    st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=4),
)
ODD = ["", " ", "a\tb\tc", "word1\tx\tword2", 'x,"word1', 'word2",', '"x","a ""b"""', "x,word3",
       '{"text": "word1 word2", "label": 1}', "\r"]  # fmt: skip
line = st.one_of(
    st.tuples(st.sampled_from("xyz"), st.lists(word, max_size=20).map(" ".join)).map("\t".join),
    st.lists(word, max_size=4).map("\t".join),
    st.sampled_from(ODD),
).map(lambda text: text.encode("utf-8"))


@settings(max_examples=60)
@given(
    lines=st.lists(st.one_of(line, st.binary(max_size=6)), max_size=30),
    kind=st.sampled_from(list(KINDS)),
    on_bad_line=st.sampled_from(["stop", "skip"]),
    bom=st.booleans(),
    ending=st.sampled_from([b"\n", b"\r\n"]),
)
def test_any_table_is_as_in_memory(
    small_pieces, in_this_process, tmp_path_factory, tiny_vocab,
    lines, kind, on_bad_line, bom, ending,
):  # fmt: skip
    folder = tmp_path_factory.mktemp("any")
    path = folder / f"table.{kind}"
    head = [KINDS[kind][1].encode()] if KINDS[kind][1] else []
    path.write_bytes(b"\xef\xbb\xbf" * bom + ending.join([*head, *lines]))
    try:
        recipe = recipe_of(path, tiny_vocab, on_bad_line=on_bad_line)
    except UserError:  # there is nothing to make
        assert not path.read_bytes().strip(b"\xef\xbb\xbf\r\n ")
        return
    try:
        expected = in_memory(path, recipe)
    except UserError as error:
        with pytest.raises(UserError) as caught:
            cached(path, folder, recipe)
        assert str(caught.value) == str(error)
    else:
        assert_same(cached(path, folder, recipe), expected)


def test_processes_make_it_and_the_next_start_does_not(
    small_pieces, table, recipe, tmp_path, capfd, monkeypatch
):
    assert_same(cached(table, tmp_path / "c", recipe), in_memory(table, recipe))
    assert "tokenizing train.tsv: 100%" in capfd.readouterr().err
    monkeypatch.setattr(cache, "_make", None)
    monkeypatch.setattr(cache, "_finish", None)
    assert_same(cached(table, tmp_path / "c", recipe), in_memory(table, recipe))


@pytest.mark.parametrize("kind", ["bytes", "vocabulary", "lowercase", "max_length", "bad lines"])
def test_what_decides_the_tokens_makes_another_cache(
    in_this_process, table, recipe, tmp_path, tiny_vocab, kind
):
    first = cache.prepare(str(table), tmp_path / "c", recipe)
    other = tmp_path / "other.tsv"
    other.write_bytes(table.read_bytes())  # its place and name decide nothing
    assert cache.prepare(str(other), tmp_path / "c", recipe) == first
    if kind == "bytes":
        content = table.read_bytes()
        table.write_bytes(content.replace(b"word7 ", b"word8 ", 1))
        assert table.stat().st_size == len(content)
    vocab = tmp_path / "vocab.txt"
    vocab.write_text(tiny_vocab.read_text() + "more\n")
    changes = {
        "vocabulary": {"tokenizer": tokenizers.of_vocab(vocab, True)},
        "lowercase": {"tokenizer": tokenizers.of_vocab(tiny_vocab, False)},
        "max_length": {"reading": Reading(8)},
        "bad lines": {"on_bad_line": "skip"},
    }
    recipe = recipe._replace(**changes.get(kind, {}))
    second = cache.prepare(str(table), tmp_path / "c", recipe)
    assert second != first
    assert_same(cache.load(str(table), second), in_memory(table, recipe))


def flipped(content):
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


DAMAGE = {
    "flipped": flipped,
    "short": lambda content: content[:-1],
    "longer": lambda content: content + b" ",
    "empty": lambda content: b"",
    "missing": None,
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", ["00000-*", "00003-*", "labels.npy", "lines.npy", "manifest.json"])
def test_damage_is_named_and_mended(
    small_pieces, in_this_process, table, recipe, tmp_path, capsys, name, damage
):
    own = cache.prepare(str(table), tmp_path / "c", recipe)
    others = {path: path.stat().st_mtime_ns for path in own.glob("0*")}
    (path,) = own.glob(name)
    content = path.read_bytes()
    path.unlink()
    if damage != "missing":
        path.write_bytes(DAMAGE[damage](content))
    capsys.readouterr()
    assert_same(cached(table, tmp_path / "c", recipe), in_memory(table, recipe))
    output = capsys.readouterr().err
    # JSON does not mind a space; a manifest or a piece that is missing was never made.
    unnoticed = (name, damage) == ("manifest.json", "longer") or (
        damage == "missing" and not name.endswith(".npy")
    )
    assert (f"{path.name}: is not what was written" in output) != unnoticed
    for piece, written in others.items():
        assert piece == path or piece.stat().st_mtime_ns == written


def test_a_table_that_changes_while_it_is_read(
    small_pieces, in_this_process, table, recipe, tmp_path, monkeypatch
):
    pieces = list(cache._pieces(str(table), recipe.form))
    table.write_bytes(table.read_bytes().replace(b"word7", b"word8"))
    monkeypatch.setattr(cache, "_pieces", lambda name, form: pieces)
    with pytest.raises(UserError, match=r"train\.tsv: was changed while it was read"):
        cache.prepare(str(table), tmp_path / "c", recipe)


def test_a_folder_that_cannot_be_written(table, recipe, tmp_path):
    (tmp_path / "c").write_text("a file")
    with pytest.raises(UserError, match=r"data\.cache: the tokens of .* cannot be kept in"):
        cache.prepare(str(table), tmp_path / "c", recipe)


def test_a_cache_that_is_only_read_is_enough(in_this_process, small_disk, table, recipe):
    """As on a share: what is there is taken, what is missing is an error."""
    disk = small_disk("8m")
    cache.prepare(str(table), disk, recipe)
    remount, only_read = 32, 1  # linux/mount.h
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mount(b"none", bytes(disk), b"tmpfs", remount | only_read, b"") == 0
    assert_same(cached(table, disk, recipe), in_memory(table, recipe))
    with pytest.raises(UserError, match=r"data\.cache: .* cannot be kept .*Read-only"):
        cache.prepare(str(table), disk, recipe._replace(reading=Reading(8)))


def test_what_is_held_out_of_it_can_be_sent(in_this_process, table, recipe, tmp_path):
    """And is what is held out of the table in memory."""
    kept, _ = split.hold_out(cached(table, tmp_path / "c", recipe)[0], 0.1, 3)
    other, _ = split.hold_out(in_memory(table, recipe)[0], 0.1, 3)
    for one in (kept, pickle.loads(pickle.dumps(kept))):
        assert split.fingerprint(one) == split.fingerprint(other)


def test_a_cache_that_is_gone_when_it_is_opened(tmp_path):
    with pytest.raises(UserError, match=r"data\.cache: .* cannot be read"):
        cache.load("train.tsv", tmp_path)


PREPARE = """
import sys
from fleetbert.core import errors
from fleetbert.core.reading import Reading
from fleetbert.data import cache, read
from fleetbert.data.tokenizers import of_vocab

def main(argv):
    cache.PIECE = 2000
    form = read.table_format(argv[0], pair=False, labelled=True)
    cache.prepare(argv[0], __import__("pathlib").Path(argv[1]),
                  cache.Recipe(form, "stop", of_vocab(argv[2], True), False, Reading(16)))

if __name__ == "__main__":
    errors.run(main)
"""


class TestInterrupted:
    @pytest.fixture
    def start(self, tmp_path, tiny_vocab):
        """start() → Popen that prepares a table of some 200 pieces."""
        tiny_job.write_table(tmp_path / "large.tsv", 6000, 1)
        (tmp_path / "prepare.py").write_text(PREPARE)
        command = [sys.executable, "prepare.py", "large.tsv", "c", str(tiny_vocab)]

        def call() -> subprocess.Popen:
            process = subprocess.Popen(
                command, cwd=tmp_path, stderr=subprocess.PIPE, text=True, start_new_session=True
            )
            started.append(process)
            return process

        started: list[subprocess.Popen] = []
        yield call
        for process in started:
            process.kill()
            process.wait()

    def wait_for_pieces(self, process, folder: Path) -> list[psutil.Process]:
        """Until some pieces are there; returns the processes at work."""
        until = time.monotonic() + DEADLINE
        while len(list(folder.glob("c/*/0*.arrow"))) < 3:
            assert process.poll() is None, process.stderr.read()
            assert time.monotonic() < until
            time.sleep(0.005)
        return psutil.Process(process.pid).children(recursive=True)

    @pytest.mark.parametrize(
        ("how", "code"),
        [
            ("kill -9", -signal.SIGKILL),
            pytest.param("Ctrl-C", 130, marks=pytest.mark.slow),
            pytest.param("a worker", 2, marks=pytest.mark.slow),
        ],
    )
    def test_goes_on_with_the_finished_pieces(self, start, tmp_path, tiny_vocab, how, code):
        process = start()
        family = self.wait_for_pieces(process, tmp_path)
        if how == "a worker":
            next(p for p in family if "spawn_main" in " ".join(p.cmdline())).kill()
        elif how == "Ctrl-C":
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.kill()
        _, output = process.communicate(timeout=DEADLINE)
        assert process.returncode == code
        assert "Traceback" not in output
        if how == "a worker":
            assert "error: data.cache: a process that tokenized large.tsv was killed" in output
        _, alive = psutil.wait_procs(family, timeout=DEADLINE)
        assert not alive

        there = {path: path.stat().st_mtime_ns for path in tmp_path.glob("c/*/0*.arrow")}
        (own,) = (tmp_path / "c").iterdir()
        assert len(there) >= 3
        assert not (own / "manifest.json").exists()
        process = start()
        _, output = process.communicate(timeout=DEADLINE)
        assert process.returncode == 0, output
        for path, written in there.items():
            assert path.stat().st_mtime_ns == written
        assert not list(own.glob(".*"))
        manifest = json.loads((own / "manifest.json").read_text())
        assert len(manifest["pieces"]) > len(there)
        path = tmp_path / "large.tsv"
        assert_same(cache.load(str(path), own), in_memory(path, recipe_of(path, tiny_vocab)))

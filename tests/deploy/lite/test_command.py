"""fleetbert-lite: bundles, and what it answers with the fake engine."""

from __future__ import annotations

import io
import json
import random
import shutil
from pathlib import Path

import pytest
from boards import LABELS, MODEL, TARGETS, VOCAB, answer_of, logits_of, write_bundle
from lite_build import EMULATED_TOO, answers_of, refused
from same_answers import nearly

from fleetbert.core.errors import UserError
from fleetbert.data.read import iter_lines
from fleetbert.data.tokenizers.wordpiece import WordPiece, of_vocab


@pytest.fixture(scope="module")
def other(here):
    return next(target for target in TARGETS.values() if target != here)


@pytest.fixture(scope="module")
def name(here):
    return f"lite-{here}-int8"


@pytest.fixture(scope="module")
def shared_bundle(tmp_path_factory, here, other):
    return write_bundle(tmp_path_factory.mktemp("board"), targets=(here, other))


@pytest.fixture
def bundle(shared_bundle, tmp_path):
    """A bundle, to be changed."""
    return shutil.copytree(shared_bundle, tmp_path / "bundle")


def same_answer(found, logits):
    nearly(found, answer_of(logits), 2e-6)


def tokenizer_of(bundle):
    return WordPiece(of_vocab(bundle / "vocab.txt", True))


@EMULATED_TOO
def test_texts_are_answered_in_their_order(predict, shared_bundle):
    chance = random.Random(3)
    texts = [" ".join(chance.choices(VOCAB[5:], k=chance.randint(1, 30))) for _ in range(700)]
    done = predict(shared_bundle, text="\n".join(texts))
    assert done.returncode == 0
    tokenizer = tokenizer_of(shared_bundle)
    found = answers_of(done)
    assert len(found) == len(texts)
    for one, text in zip(found, texts):
        same_answer(one, logits_of(tokenizer, text))
    assert b"texts were truncated to 16 tokens" in done.stderr


def test_pairs(predict, make, tmp_path):
    bundle = make(pair=True)
    lines = "word1 word2\tword3\nword4\n!\t?\r\na\tb\tc\n\tb\na\t \n"
    (tmp_path / "pairs.txt").write_text(lines)
    done = predict(bundle, "--input", tmp_path / "pairs.txt")
    assert done.returncode == 0
    found = answers_of(done)
    same_answer(found[0], logits_of(tokenizer_of(bundle), "word1 word2", "word3"))
    same_answer(found[2], logits_of(tokenizer_of(bundle), "!", "?"))
    assert [one.get("error") for one in found] == errors_of_fleetbert(lines.encode(), pair=True)
    assert done.stderr.decode() == "4 of 6 lines could not be answered: see their error\n"


def errors_of_fleetbert(lines: bytes, pair: bool) -> list[str | None]:
    read = iter_lines(io.BytesIO(lines), pair=pair, jsonl=False)
    return [str(found) if isinstance(found, UserError) else None for _, _, found in read]


def test_lines_are_and_texts_are_what_they_are_to_fleetbert_predict(predict, shared_bundle):
    every = [chr(code).encode() for code in range(1, 0x3100) if chr(code) != "\n"]
    lines = [b"\xef\xbb\xbf word1", b"word1\r\r", b"", b"\r", b"a\x0cb\x0bc\xe2\x80\xa8d", *every]
    done = predict(shared_bundle, text=b"\n".join(lines))
    assert done.returncode == 0
    found = answers_of(done)
    assert [one.get("error") for one in found] == errors_of_fleetbert(b"\n".join(lines), False)
    word = logits_of(tokenizer_of(shared_bundle), "word1")
    for one in found[:2]:
        same_answer(one, word)


def test_lines_that_are_no_texts(predict, shared_bundle):
    done = predict(shared_bundle, text=b"word1\n\xff\xfe\na\0\nword2\n")
    assert done.returncode == 0
    assert [one.get("error") for one in answers_of(done)] == [
        None,
        "line 2: is not UTF-8",
        "line 3: 'text_a' holds a NUL character",
        None,
    ]
    done = predict(shared_bundle, text=b"\xff\n\n")
    assert (done.returncode, len(answers_of(done))) == (2, 2)
    assert done.stderr == b"error: none of the 2 lines could be answered; see their error\n"


def test_bench(lite, shared_bundle, name):
    words = ("--engine=fake", "--batch=4", "--length", "8", "--repeats=20", "--fake-delay-ms=1")
    done = lite("bench", "--bundle", shared_bundle, *words, "--json=yes")
    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert (found["variant"], found["batch"], found["length"]) == (name, 4, 8)
    order = [found[f"{key}_ms"] for key in ("min", "p50", "p90", "p99", "max")]
    assert order == sorted(order)
    assert order[0] >= 1
    assert 0 < found["texts_per_second"] <= 4000
    assert found["peak_memory_mb"] > 1
    assert b"p99_ms" in lite("bench", "--bundle", shared_bundle, *words).stdout


def test_a_bundle_of_format_1_is_read_as_before(lite, tmp_path):
    """Made at 0d8f5a1; what its variants say is in `extra`."""
    archive = Path(__file__).parents[2] / "bundle" / "format-1.zip"
    shutil.unpack_archive(archive, tmp_path)
    told = lite("info", "--bundle", tmp_path / "format-1").stdout.decode()
    assert "lite-x86-int8: int8 for x86, " in told
    assert "lite-armv8-static-int8: static-int8 for armv8, " in told


def test_info(lite, bundle, name, here):
    (bundle / name / "model.nb").write_bytes(MODEL[:-1] + b"!")
    found = lite("info", "--bundle", bundle).stdout.decode()
    assert all(label in found for label in LABELS)
    assert "built without Paddle Lite" in found
    assert f"{name}: int8 for {here}" in found
    assert "sha256 differs" in found
    assert "for another processor" in found


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("MODEL", MODEL[:-1] + b"!", ("model.nb", "sha256")),
        ("MODEL", MODEL[:-1], ("model.nb", "bytes instead of")),
        ("MODEL", None, ("model.nb", "cannot be read")),
        ("vocab.txt", "\n".join([*VOCAB, "more"]).encode(), ("vocab.txt", "sha256")),
        ("vocab.txt", None, ("vocab.txt", "cannot be read")),
        ("manifest.json", None, ("not a bundle",)),
        ("manifest.json", b"{", ("not JSON",)),
        ("manifest.json", b"[" * 200000, ("nested",)),
        ("manifest.json", b"[]", ("has to be an object",)),
    ],
)
def test_damaged_bundles(predict, bundle, name, file, content, words):
    path = bundle / file.replace("MODEL", f"{name}/model.nb")
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    refused(predict(bundle), *words)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (["format_version"], 3, ("format_version 3", "reads 1 and 2")),
        (["task"], {"name": "mlm"}, ("task.name", "fleetbert serve")),
        (["task", "shape"], {"answer": "spans", "pair": True}, ("task.shape", "fleetbert serve")),
        (["task", "labels"], ["a"], ("task.labels", "two")),
        (["task", "labels", 1], 7, ("task.labels.1", "string")),
        (["max_length"], -5, ("max_length", "whole number")),
        (["max_length"], 2, ("max_length", "bounds")),
        (["max_length"], 1e300, ("max_length", "whole number")),
        (["tokenizer", "lowercase"], "yes", ("tokenizer.lowercase", "true or false")),
        (["tokenizer", "settings"], {"strip_accents": 1}, ("strip_accents", "true or false")),
        (["tokenizer", "settings"], {"fold": True}, ("tokenizer.settings.fold", "not known")),
        (["variants"], {}, ("variants", "list")),
        (["variants", 0, "runs_on"], [], ("variants.0.runs_on", "one processor")),
        (["variants", 0, "files"], [], ("variants.0.files", "model.nb")),
        (["variants", 0, "files", 0, "path"], "../../etc/model.nb", ("inside the bundle",)),
        (["variants", 0, "files", 0, "path"], "/etc/model.nb", ("inside the bundle",)),
        (["variants", 0, "files", 0, "path"], "model.nb", ("inside the bundle",)),
        (["variants", 0, "files", 0, "size"], "many", ("size", "whole number")),
        (["variants", 0, "name"], None, ("variants.0.name", "string")),
    ],
)
def test_wrong_manifests(predict, bundle, path, value, words):
    file = bundle / "manifest.json"
    manifest = json.loads(file.read_text(encoding="utf-8"))
    place = manifest
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    file.write_text(json.dumps(manifest), encoding="utf-8")
    refused(predict(bundle), *words)


def test_a_model_for_another_processor_is_refused(predict, shared_bundle, here, other, make):
    done = predict(shared_bundle, "--variant", f"lite-{other}-int8")
    refused(done, f"runs on {other}", f"this program is for {here}")
    refused(predict(make(targets=(other,))), f"no variant for {here}")


def test_of_several_variants_one_has_to_be_named(predict, here, name, make):
    bundle = make(precisions=("int8", "float32"))
    refused(predict(bundle), "--variant", name, f"lite-{here}-float32")
    assert predict(bundle, "--variant", name, text="word1\n").returncode == 0
    refused(predict(bundle, "--variant", "lite"), "no variant lite", name)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("predict",), "--bundle is missing"),
        (("predict", "--bundle"), "--bundle needs a value"),
        (("predict", "--bundel", "x"), "--bundel is no option"),
        (("predict", "--bundle=a", "--bundle=b"), "twice"),
        (("predict", "--bundle", "nowhere"), "nowhere is not a bundle"),
        (("predict", "--bundle", ".", "text"), "'text' is no option"),
        (("predict", "--bundle", ".", "--threads", "0"), "--threads is '0'"),
        (("predict", "--bundle", ".", "--threads=4x"), "--threads is '4x'"),
        (("predict", "--bundle", ".", "--power-mode=fast"), "rand-high"),
        (("predict", "--bundle", "BUNDLE", "--engine=onnx"), "choose lite or fake"),
        (("predict", "--bundle", "BUNDLE"), "-DLITE_DIR"),
        (("predict", "--bundle", "BUNDLE", "--engine=fake", "--input=no.txt"), "no.txt"),
        (("bench", "--bundle", "BUNDLE", "--engine=fake", "--length=17"), "from 1 to 16"),
        (("ask",), "'ask' is no command"),
    ],
)
def test_wrong_command_lines(lite, shared_bundle, words, sentence):
    refused(lite(*(shared_bundle if word == "BUNDLE" else word for word in words)), sentence)


def test_help(lite):
    for words in ((), ("--help",), ("predict", "--help")):
        done = lite(*words)
        assert done.returncode == 0
        assert b"--power-mode" in done.stdout

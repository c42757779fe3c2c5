"""A reader sees the old bundle or the new one, whatever happens to files and writers."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fleetbert import bundle as bundles
from fleetbert.bundle import Accuracy, OnnxVariant, ProgramVariant, Variant
from fleetbert.core import files
from fleetbert.core.errors import UserError
from fleetbert.data.tokenizers import of_vocab


def fill_with(content: str, names=("float32",)):
    def fill(folder: Path) -> list[Variant]:
        for name in names:
            (folder / name).mkdir()
            (folder / name / "model.pdmodel").write_text(content)
            (folder / name / "model.pdiparams").write_text(content * 100)
        accuracy = [Accuracy(data="dev", n=10, accuracy=0.9)]
        return [ProgramVariant(name=name, accuracy=accuracy) for name in names]

    return fill


def fill_one(name: str, content: str):
    def fill(folder: Path) -> Variant:
        (folder / "model.onnx").write_text(content)
        return OnnxVariant(name=name, made_from="float32", runs_on=["x86"])

    return fill


def create(path: Path, fill=None, **changes) -> bundles.Bundle:
    vocab = path.parent / "given-vocab.txt"
    vocab.parent.mkdir(parents=True, exist_ok=True)
    vocab.write_text("[PAD]\n[UNK]\n")
    arguments = {
        "task": "classification",
        "labels": ["no", "是"],
        "max_length": 64,
        "tokenizer": of_vocab(vocab, True),
        **changes,
    }
    return bundles.create(path, fill=fill or fill_with("one"), **arguments)


def content(path: Path, variant: str = "float32", file: str = "model.pdmodel") -> str:
    bundle = bundles.read(path)
    bundles.verify(bundle, variant)
    return (bundle.folder(variant) / file).read_text()


def names(path: Path) -> list[str]:
    return sorted(found.name for found in path.iterdir())


@pytest.fixture
def root(tmp_path) -> Path:
    """A bundle; beside it is the vocabulary that it was given."""
    return create(tmp_path / "bundle").root


WHOLE = ["README.md", "float32", "manifest.json", "vocab.txt"]


def test_what_is_written_is_read_wherever_it_is_moved(tmp_path):
    made = create(tmp_path / "deep" / "bundle").root
    assert names(made.parent) == ["bundle", "given-vocab.txt"]
    bundle = bundles.read(made.rename(tmp_path / "elsewhere"))
    bundles.verify(bundle, "float32")
    assert bundle.labels == ["no", "是"]
    assert bundle.max_length == 64
    assert not bundle.task.pair
    assert bundle.variant("float32").accuracy[0].accuracy == 0.9
    assert names(bundle.root) == WHOLE
    # Whoever serves it need not be who trained it.
    mask = os.umask(0)
    os.umask(mask)
    assert bundle.root.stat().st_mode & 0o055 == 0o055 & ~mask


def flipped(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


FILES = ("vocab.txt", "float32/model.pdmodel", "float32/model.pdiparams")


@pytest.mark.parametrize("file", FILES)
def test_a_changed_file_is_named(root, file):
    (root / file).write_bytes(flipped((root / file).read_bytes()))
    with pytest.raises(UserError, match=f"{file} is not the file that was exported"):
        bundles.verify(bundles.read(root), "float32")


@pytest.mark.parametrize("file", FILES[1:])
def test_a_cut_file_is_named_at_once(root, file):
    (root / file).write_bytes((root / file).read_bytes()[:-1])
    with pytest.raises(UserError, match=rf"{file} has \d+ bytes instead of \d+"):
        bundles.read(root)


@pytest.mark.parametrize("file", ["manifest.json", *FILES])
def test_a_missing_file_is_named(root, file):
    (root / file).unlink()
    with pytest.raises(UserError, match=file):
        bundles.read(root)


def test_a_bundle_that_is_a_mount_point_is_replaced_within_it(small_disk, tmp_path):
    """What killed writers and the disk left is no reason to refuse it; what others put there is."""
    folder = small_disk("1m", tmp_path / "bundle")
    assert files.is_mount_point(folder)
    assert not files.is_mount_point(tmp_path)
    for name in ("lost+found", ".bundle.tmp-killed"):
        (folder / name).mkdir()
    create(folder)
    bundles.add_variant(folder, "int8", fill_one("int8", "x"))
    second = create(folder, labels=["no", "other"])
    bundles.verify(bundles.read(folder), "float32")
    assert second.manifest.task.labels == ["no", "other"]
    assert sorted(path.name for path in folder.iterdir()) == sorted([*WHOLE, "int8", "lost+found"])
    (folder / "manifest.json").unlink()
    with pytest.raises(UserError, match="exists and is not a bundle, so it is not replaced"):
        create(folder)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        *((OSError(code, os.strerror(code)), "make room") for code in (28, 122)),
        *((OSError(code, os.strerror(code)), "mend that") for code in (16, 30)),
        (
            RuntimeError("I/O: No space left on device (os error 28)"),
            "No space.* device; make room",
        ),
        (TimeoutError("no answer"), "no answer; mend that"),
    ],
)
def test_what_to_do_about_a_file_that_cannot_be_written(error, said):
    with pytest.raises(UserError, match=f"^x: .*{said}, and start"), files.writing(Path("x")):
        raise error


def test_a_disk_that_is_full_while_a_variant_is_added_is_one_sentence(tmp_path):
    """Libraries have types of their own for it."""
    create(tmp_path / "bundle")

    def fill(folder: Path):
        raise RuntimeError("Error while serializing: No space left on device (os error 28)")

    with pytest.raises(UserError, match=r"/bundle/int8: cannot be written: No space.* make room"):
        bundles.add_variant(tmp_path / "bundle", "int8", fill)
    assert bundles.read(tmp_path / "bundle").names == ["float32"]


def test_not_a_bundle(tmp_path):
    with pytest.raises(UserError, match=r"is not a bundle: it has no manifest\.json"):
        bundles.read(tmp_path)
    with pytest.raises(UserError, match="is not a bundle"):
        bundles.read(tmp_path / "nowhere")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="is a file"):
        bundles.read(tmp_path / "file")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(format_version=3), "format_version 3 and this fleetbert reads 1, 2:"),
        (lambda m: m.pop("format_version"), "has format_version None"),
        (lambda m: m.update(colour="red"), "colour: Extra inputs are not permitted"),
        (lambda m: m["task"].update(name="translation"), "task.name: Input should be"),
        (lambda m: m["task"].update(labels=["one"]), "needs two labels or more"),
        (lambda m: m["task"].update(labels=["one", "one"]), "labels appear twice"),
        (lambda m: m.update(max_length="many"), "max_length"),
        (lambda m: m["variants"].append(m["variants"][0]), "two variants have the same name"),
        (lambda m: m["variants"][0].update(name="../x"), "variants.0.name"),
        (lambda m: m["variants"][0].update(colour="red"), "variants.0.colour: Extra inputs"),
        (lambda m: m["variants"][0].update(thresholds={}), "variants.0.thresholds: Extra inputs"),
        (lambda m: m["variants"].append("onnx"), "variants.1"),
        (lambda m: m["variants"][0]["files"][0].update(path="../x"), "variants.0.files.0.path"),
        (lambda m: m["variants"][0]["files"][0].update(path="/etc/passwd"), "files.0.path"),
        (lambda m: m["variants"][0]["files"][0].update(path="alone"), "files.0.path"),
    ],
)
def test_a_wrong_manifest_says_what_and_where(root, change, message):
    path = root / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    change(manifest)
    path.write_text(json.dumps(manifest))
    with pytest.raises(UserError) as caught:
        bundles.read(root)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b"[1]", b"null", b"7"])
def test_a_manifest_that_is_no_manifest(root, data):
    (root / "manifest.json").write_bytes(data)
    with pytest.raises(UserError, match=r"manifest\.json"):
        bundles.read(root)


def test_an_unknown_variant_is_answered_with_the_known_ones(tmp_path):
    bundle = create(tmp_path / "bundle", fill_with("x", ("float32", "int8-static")))
    with pytest.raises(UserError, match="no variant 'int8'; it has: float32, int8-static"):
        bundle.variant("int8")


@pytest.mark.parametrize("swapped", [True, False])
def test_a_bundle_is_replaced_whole(tmp_path, monkeypatch, swapped):
    if not swapped:  # where the file system cannot
        monkeypatch.setattr(files, "_exchange", lambda first, second: False)
    create(tmp_path / "bundle", fill_with("old", ("float32", "other")))
    create(tmp_path / "bundle", fill_with("new"))
    assert content(tmp_path / "bundle") == "new"
    assert names(tmp_path) == ["bundle", "given-vocab.txt"]
    assert names(tmp_path / "bundle") == WHOLE


def test_a_folder_that_is_no_bundle_is_left_alone(tmp_path):
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("...")
    with pytest.raises(UserError, match="exists and is not a bundle"):
        create(tmp_path / "thesis")
    assert names(tmp_path / "thesis") == ["chapter1.tex"]
    (tmp_path / "empty").mkdir()
    create(tmp_path / "empty")


def test_what_cannot_be_a_bundle_is_refused_before_anything_is_written(tmp_path):
    with pytest.raises(UserError, match="needs two labels"):
        create(tmp_path / "bundle", labels=["one"])
    with pytest.raises(UserError, match="vocabulary"):
        create(tmp_path / "bundle", tokenizer=of_vocab(tmp_path / "none.txt", True))
    assert not (tmp_path / "bundle").exists()


def test_a_failing_fill_changes_nothing(root, tmp_path):
    def fail(folder: Path):
        (folder / "half").write_text("half")
        raise RuntimeError("out of ideas")

    with pytest.raises(RuntimeError):
        create(root, fail)
    with pytest.raises(RuntimeError):
        bundles.add_variant(root, "onnx", fail)
    assert content(root) == "one"
    assert names(tmp_path) == ["bundle", "given-vocab.txt"]
    assert names(root) == WHOLE


def test_variants_are_added_and_replaced(root):
    """Those of like names and a user's own folders stay."""
    (root / "notes").mkdir()
    bundles.add_variant(root, "onnx-int8", fill_one("onnx-int8", "int8"))
    for text in ("first", "second", "third", "fourth"):
        bundles.add_variant(root, "onnx", fill_one("onnx", text))
        assert content(root, "onnx", "model.onnx") == text
        assert content(root) == "one"
    assert content(root, "onnx-int8", "model.onnx") == "int8"
    assert (root / "notes").is_dir()
    folders = [found for found in root.iterdir() if found.is_dir()]
    assert len(folders) == 4  # old ones are gone


def test_a_kind_that_is_not_known_stays_as_it_is(root):
    """Of a newer fleetbert, or of a user's own engine: another variant is added beside it."""
    path = root / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8"))
    other = {**manifest["variants"][0], "name": "mine", "kind": "my-engine", "deep": {"a": [1]}}
    manifest["variants"].append(other)
    path.write_text(json.dumps(manifest))
    bundle = bundles.add_variant(root, "onnx", fill_one("onnx", "x"))
    assert isinstance(bundle.variant("mine"), bundles.OtherVariant)
    assert not bundle.variant("mine").compared
    stored = json.loads(path.read_text(encoding="utf-8"))["variants"]
    assert next(variant for variant in stored if variant["name"] == "mine") == other


def test_two_writers_at_once_lose_nothing(root):
    def write(name: str) -> None:
        for number in range(10):
            bundles.add_variant(root, name, fill_one(name, f"{name} {number}"))

    with ThreadPoolExecutor() as threads:
        list(threads.map(write, ("a", "b", "c")))
    for name in ("a", "b", "c"):
        assert content(root, name, "model.onnx") == f"{name} 9"
    folders = [bundles.read(root).folder(name).name for name in ("a", "b", "c")]
    assert names(root) == sorted([*WHOLE, *folders])


WRITER = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from fleetbert import bundle as bundles
from fleetbert.core import files
from fleetbert.bundle import write
from test_bundle import create, fill_one, fill_with

def die(*arguments, **keywords):
    os.kill(os.getpid(), signal.SIGKILL)

def wait(value):
    print("writes", flush=True)
    sys.stdin.read()
    return value

root = Path({root!r})
{body}
"""


def run_writer(root: Path, body: str, **pipes: int) -> subprocess.Popen:
    code = WRITER.format(tests=str(Path(__file__).parent), root=str(root), body=body)
    return subprocess.Popen([sys.executable, "-c", code], **pipes)


ADD = "bundles.add_variant(root, {0!r}, lambda folder: wait(fill_one({0!r}, 'x')(folder)))"
REPLACE = "create(root, wait)"
PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


@pytest.mark.parametrize(
    ("first", "second", "named"),
    [
        (ADD.format("a"), ADD.format("a"), "variant a"),
        (ADD.format("a"), ADD.format("b"), None),
        pytest.param(ADD.format("a"), REPLACE, "variant a", marks=pytest.mark.slow),
        pytest.param(REPLACE, ADD.format("a"), "bundle", marks=pytest.mark.slow),
        pytest.param(REPLACE, REPLACE, "bundle", marks=pytest.mark.slow),
    ],
)
def test_a_second_writer_is_told_who_the_first_is(root, tmp_path, first, second, named):
    writer = run_writer(root, first, **PIPES)
    assert writer.stdout.readline() == b"writes\n"
    other = run_writer(root, second, **PIPES)
    if named is None:
        assert other.stdout.readline() == b"writes\n"
    else:
        output = other.communicate(timeout=60)[1].decode()
        assert re.search(f"UserError: .*{named}.*: process {writer.pid} .* is writing it; ", output)
    for process in (writer, other):
        process.kill()
        process.communicate()
    create(tmp_path / "bundle")  # a dead one's lock is none
    bundles.add_variant(root, "a", fill_one("a", "x"))
    assert names(tmp_path) == ["bundle", "given-vocab.txt"]
    assert names(root) == sorted([*WHOLE, "a"])


@pytest.mark.parametrize(
    "body",
    [
        # while the files are written
        "create(root, die)",
        "bundles.add_variant(root, 'onnx', die)",
        # when they are complete but not in place
        "files.put_in_place = die; create(root)",
        "write._replace_manifest = die; bundles.add_variant(root, 'onnx', fill_one('onnx', 'new'))",
        # with the new manifest half written
        "files.sync = die; os.fsync = die; files.sync_tree = lambda folder: None\n"
        "bundles.add_variant(root, 'onnx', fill_one('onnx', 'new'))",
    ],
)
def test_a_killed_writer_leaves_the_bundle_as_it_was(root, tmp_path, body):
    bundles.add_variant(root, "onnx", fill_one("onnx", "old"))
    writer = run_writer(root, body)
    assert writer.wait(60) == -signal.SIGKILL
    assert content(root) == "one"
    assert content(root, "onnx", "model.onnx") == "old"
    # The next writer removes what was left.
    bundles.add_variant(root, "onnx", fill_one("onnx", "new"))
    create(tmp_path / "bundle", fill_with("two"))
    bundles.add_variant(root, "onnx", fill_one("onnx", "newer"))
    assert names(tmp_path) == ["bundle", "given-vocab.txt"]
    assert names(root) == sorted([*WHOLE, "onnx"])


@pytest.mark.slow
def test_writers_killed_at_any_time_leave_a_whole_bundle(root):
    bundles.add_variant(root, "onnx", fill_one("onnx", "x" * 100_000))
    body = (
        "print('ready', flush=True)\n"
        "for number in range(10_000):\n"
        "    text = str(number) * 20_000\n"
        "    if number % 3 == 0:\n"
        "        create(root, fill_with(text))\n"
        "    bundles.add_variant(root, 'onnx', fill_one('onnx', text))\n"
    )
    generator = random.Random(0)
    for _ in range(6):
        writer = run_writer(root, body)
        time.sleep(0.7 + generator.random() / 3)
        writer.kill()
        writer.wait()
        bundle = bundles.read(root)
        for variant in bundle.manifest.variants:
            bundles.verify(bundle, variant.name)


def test_a_live_writers_folder_is_not_cleaned_away(root):
    def fill(folder: Path) -> Variant:
        bundles.add_variant(root, "other", fill_one("other", "other"))
        return fill_one("onnx", "slow")(folder)

    bundles.add_variant(root, "onnx", fill)
    assert content(root, "onnx", "model.onnx") == "slow"
    assert content(root, "other", "model.onnx") == "other"

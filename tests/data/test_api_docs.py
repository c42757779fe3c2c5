from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import Counter

import pytest

from fleetbert.data import api_docs
from fleetbert.errors import UserError

SENTENCE = "Return the {} of every word that a patient reader has found in the list of words. "


@pytest.fixture(scope="module")
def cache_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def sides(cache_folder):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache_folder))
        yield api_docs.load()


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of one's own in place of the real ones; returns its folder."""
    folder = tmp_path / "path" / "tinypackage"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('imported')\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path / "path"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(api_docs, "PACKAGES", {"tiny": "tinypackage"})
    return folder


def module(folder, name, *docs):
    source = "".join(f'def f{n}():\n    """{doc}"""\n' for n, doc in enumerate(docs))
    (folder / name).write_text(source, encoding="utf-8")


def test_sizes_and_labels(sides):
    train, dev = sides
    for side, most in ((train, 550), (dev, 150)):
        counts = Counter(example.label for example in side)
        assert sorted(counts) == sorted(api_docs.PACKAGES)
        assert max(counts.values()) == most
    assert len(train) > 1900
    assert len(dev) > 300
    assert min(Counter(example.label for example in train).values()) > 400
    assert min(Counter(example.label for example in dev).values()) > 40


def test_texts_are_short_prose_without_the_packages_names(sides):
    names = re.compile(
        "python|numpy|scipy|pandas|scikit|sklearn|matplotlib|pyplot|sympy|paddle", re.IGNORECASE
    )
    for example in (*sides[0], *sides[1]):
        words = example.text_a.split()
        assert api_docs.MIN_WORDS <= len(words) <= api_docs.MAX_WORDS
        assert not names.search(example.text_a), example
        assert not {"np", "pd", "plt"} & set(api_docs.normalized(example.text_a).split())
        assert ">>>" not in example.text_a
        assert example.text_b is None


def test_nothing_is_on_both_sides_or_twice(sides):
    train, dev = ([api_docs.normalized(e.text_a) for e in side] for side in sides)
    assert len(set(train + dev)) == len(train) + len(dev)
    seen = {sequence for text in train for sequence in api_docs.sequences(text)}
    for text in dev:
        own = api_docs.sequences(text)
        assert len(own & seen) * 2 <= len(own)


def test_an_object_and_its_methods_are_on_one_side(package):
    words = [f"{a}{b}q" for a in "abcdefgh" for b in "klmnopr"]
    for file, start in (("a.py", 0), ("b.py", 28)):
        source = ""
        for word in words[start : start + 28]:
            source += f'class {word}:\n    """{SENTENCE.format(word)}"""\n'
            source += f'    def f(self):\n        """Count each {word} of them all here."""\n'
        (package / file).write_text(source, encoding="utf-8")
    train, dev = (" ".join(e.text_a for e in side).split() for side in api_docs.load())
    assert len(set(words) & set(train)) > 20
    assert len(set(words) & set(dev)) > 2
    assert not set(words) & set(train) & set(dev)


def test_no_file_makes_a_label(monkeypatch):
    monkeypatch.setattr(api_docs, "WANTED", {False: 200, True: 40})
    root = api_docs.locate("scikit-learn")
    found = list(api_docs.documents("scikit-learn", root))
    assert max(Counter((d.file, d.dev) for d in found).values()) <= api_docs.PER_FILE
    assert len({d.file for d in found}) > 20


def test_same_in_another_process_and_read_from_the_cache(sides, cache_folder):
    code = (
        "import json, sys\nfrom fleetbert.data import api_docs\n"
        "api_docs.PACKAGES = {'scikit-learn': 'sklearn'}\n"
        "api_docs.WANTED = {False: 100, True: 20}\n"
        "print(api_docs.digest(json.dumps(api_docs.load())))\n"
        "assert 'sklearn' not in sys.modules"
    )

    def run(seed, cache):
        return subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "XDG_CACHE_HOME": str(cache)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    one = run("1", cache_folder / "one")
    assert run("2", cache_folder / "two") == one
    assert run("3", cache_folder / "one") == one
    assert len(list((cache_folder / "one" / "fleetbert").iterdir())) == 1


def test_cache_folder_that_cannot_be_written_is_no_error(package, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    module(package, "a.py", *(SENTENCE.format(f"{item} item") * 3 for item in ("first", "last")))
    assert sum(map(len, api_docs.load())) == 1


def test_files_that_are_no_python_and_tests_are_left_out(package):
    (package / "broken.py").write_text('"""a""" this is not Python')
    (package / "bytes.py").write_bytes(b'"""\xff\xfe\0"""')
    (package / "tests").mkdir()
    module(
        package / "tests", "a.py", SENTENCE.format("tested item") * 5, SENTENCE.format("other item")
    )
    module(package, "test_b.py", SENTENCE.format("tested item") * 5, SENTENCE.format("other item"))
    assert api_docs.load() == ([], [])


def test_missing_package_is_named(monkeypatch):
    monkeypatch.setattr(api_docs, "PACKAGES", {"tiny": "package_that_is_not_there"})
    with pytest.raises(UserError, match="the package tiny is not installed"):
        api_docs.load()


def test_text_under_two_labels_is_nobodys():
    def document(file, label, text):
        return api_docs.Document(file, label, text, False)

    train, dev = api_docs.split(
        [
            document("a/x.py", "a", "One two three 4 five six."),
            document("b/y.py", "b", "one  two three 9 five, six"),
            document("a/z.py", "a", "quite another text of seven words here"),
            document("a/w.py", "a", "Quite another text, of seven words: here!"),
        ]
    )
    assert len(train + dev) == 1
    assert api_docs.normalized((train + dev)[0].text).startswith("quite another")


def test_dev_text_that_train_nearly_has_is_left_out():
    text = "this is a rather long sentence which two files of a package share but for"
    train, dev = api_docs.split(
        [
            api_docs.Document("a/x.py", "a", f"{text} apples", False),
            api_docs.Document("a/y.py", "a", f"{text} pears", True),
            api_docs.Document(
                "a/y.py", "a", "something that no one else in the package has said", True
            ),
        ]
    )
    assert len(train) == 1
    assert [document.text[:9] for document in dev] == ["something"]


def test_only_sentences_are_taken():
    doc = """Compute the sine of all of `x` with :func:`~numpy.sin`, see http://numpy.org/x.

    Parameters
    ----------
    x : array
        The angles that are given here in radians.

    Notes
    -----
    It was written with NumPy and pd.DataFrame in mind, says PaddlePaddle.

        indented = code that is not taken()

    >>> numpy.sin(1)  # nor is this taken at all

    Args:
        x (int): nor is this one taken by anyone.
    """
    assert api_docs.prose(doc) == (
        "Compute the sine of all of x with library.sin, see "
        "It was written with library and library.DataFrame in mind, says library."
    )

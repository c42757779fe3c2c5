from __future__ import annotations

import re
from collections import Counter

import fresh
import pytest

from fleetbert.core.errors import UserError
from fleetbert.data import api_docs

SENTENCE = "Return the {} of every word that a patient reader has found in the list of words. "


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


WORDS = [f"{a}{b}q" for a in "abcdefgh" for b in "klmnopr"]


def write_classes(package):
    """Two files of classes with a method each, whose texts have their own of WORDS."""
    for file, start in (("a.py", 0), ("b.py", 28)):
        source = ""
        for word in WORDS[start : start + 28]:
            source += f'class {word}:\n    """{SENTENCE.format(word)}"""\n'
            source += f'    def f(self):\n        """Count each {word} of them all here."""\n'
        (package / file).write_text(source, encoding="utf-8")


@pytest.mark.slow
def test_the_real_texts(tmp_path, monkeypatch):
    """So many of each label, short prose without the packages' names, nothing on both sides or
    twice."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    train, dev = api_docs.load()
    assert len(train) > 2500
    assert len(dev) > 300
    for side, least, most in ((train, 550, 800), (dev, 40, 100)):
        counts = Counter(example.label for example in side)
        assert sorted(counts) == sorted(api_docs.PACKAGES)
        assert max(counts.values()) == most
        assert min(counts.values()) > least
    names = re.compile(
        "python|numpy|scipy|pandas|scikit|sklearn|matplotlib|pyplot|sympy|paddle", re.IGNORECASE
    )
    for example in (*train, *dev):
        words = example.text_a.split()
        assert api_docs.MIN_WORDS <= len(words) <= api_docs.MAX_WORDS
        assert not names.search(example.text_a), example
        assert not {"np", "pd", "plt"} & set(api_docs.normalized(example.text_a).split())
        assert ">>>" not in example.text_a
        assert example.text_b is None
    train, dev = ([api_docs.normalized(e.text_a) for e in side] for side in (train, dev))
    assert len(set(train + dev)) == len(train) + len(dev)
    seen = {sequence for text in train for sequence in api_docs.sequences(text)}
    for text in dev:
        own = api_docs.sequences(text)
        assert len(own & seen) * 2 <= len(own)


def test_an_object_and_its_methods_are_on_one_side(package):
    write_classes(package)
    train, dev = (" ".join(e.text_a for e in side).split() for side in api_docs.load())
    assert len(set(WORDS) & set(train)) > 20
    assert len(set(WORDS) & set(dev)) > 2
    assert not set(WORDS) & set(train) & set(dev)


def test_no_file_makes_a_label(package, monkeypatch):
    """Of each so many texts, and no more files are read than give what is wanted."""
    for number in range(9):
        docs = (SENTENCE.format(f"{name} {number}") * 5 for name in range(200))
        module(package, f"{number}.py", *docs)
    every = Counter((d.file, d.dev) for d in api_docs.documents("tiny", package))
    assert len({file for file, _ in every}) == 9
    assert {most for (_, dev), most in every.items() if not dev} == {api_docs.PER_FILE}
    assert {most for (_, dev), most in every.items() if dev} == {api_docs.PER_FILE // 6}
    monkeypatch.setattr(api_docs, "WANTED", {False: 60, True: 9})  # and a third more
    some = Counter((d.file, d.dev) for d in api_docs.documents("tiny", package))
    assert some == dict([*every.items()][:4])


def test_same_in_another_process_and_read_from_the_cache(package, tmp_path):
    write_classes(package)
    code = (
        "import json, sys\nfrom fleetbert.data import api_docs\n"
        "api_docs.PACKAGES = {'tiny': 'tinypackage'}\n"
        "print(api_docs.digest(json.dumps(api_docs.load())))\n"
        "assert 'tinypackage' not in sys.modules"
    )

    def run(seed, cache):
        environ = {"PYTHONHASHSEED": seed, "XDG_CACHE_HOME": str(cache)}
        environ["PYTHONPATH"] = str(package.parent)
        done = fresh.python(code, **environ)
        assert done.returncode == 0, done.stderr
        return done.stdout

    one = run("1", tmp_path / "one")
    assert run("2", tmp_path / "two") == one
    assert run("3", tmp_path / "one") == one
    assert len(list((tmp_path / "one" / "fleetbert").iterdir())) == 1


def test_cache_folder_that_cannot_be_written_is_no_error(package, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    module(package, "a.py", *(SENTENCE.format(f"{item} item") * 3 for item in ("first", "last")))
    assert sum(map(len, api_docs.load())) == 1


def test_files_that_are_no_python_and_tests_are_left_out(package):
    (package / "broken.py").write_text('"""a""" this is not Python')
    (package / "bytes.py").write_bytes(b'"""\xff\xfe\0"""')
    (package / "tests").mkdir()
    docs = [SENTENCE.format("tested item") * 5, SENTENCE.format("other item")]
    module(package / "tests", "a.py", *docs)
    module(package, "test_b.py", *docs)
    assert api_docs.load() == ([], [])


def test_missing_packages_are_named(monkeypatch):
    monkeypatch.setattr(api_docs, "PACKAGES", {"tiny": "not_there", "small": "not_there"})
    with pytest.raises(UserError, match="tiny and small are not there: pip install tiny small"):
        api_docs.load()


def test_text_under_two_labels_is_nobodys():
    texts = [
        ("a/x.py", "One two three 4 five six."),
        ("b/y.py", "one  two three 9 five, six"),
        ("a/z.py", "quite another text of seven words here"),
        ("a/w.py", "Quite another text, of seven words: here!"),
    ]
    train, dev = api_docs.split([api_docs.Document(f, f[0], text, False) for f, text in texts])
    assert len(train + dev) == 1
    assert api_docs.normalized((train + dev)[0].text).startswith("quite another")


def test_dev_text_that_train_nearly_has_is_left_out():
    text = "this is a rather long sentence which two files of a package share but for"
    texts = [
        ("x", f"{text} apples", False),
        ("y", f"{text} pears", True),
        ("y", "something that no one else in the package has said", True),
    ]
    train, dev = api_docs.split([api_docs.Document(file, "a", *text) for file, *text in texts])
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

"""Real English text classification that is on every machine with fleetbert: `builtin: api_docs`.

A text is about 45 words of the prose of consecutive docstrings in one source file of Python's
standard library or of a package that fleetbert depends on; its label is that package. Source files
are parsed and never imported. The names of all the packages are masked in all texts, so that a
model has to know what a package is about.

Train and dev are split by top-level object: a class with its methods, a function or a module's
own docstring is on one side, and a text is made of objects of one side. Of
texts that are equal but for digits and punctuation one is kept, none if they are found under two
labels, and a dev text that shares more than half of its five-word sequences with the train texts
is left out.

Everything is ordered by SHA-256, so the same versions of the packages and of Python give the same
texts, and other versions about the same. The texts are kept in the user's cache folder.
"""

from __future__ import annotations

import ast
import contextlib
import hashlib
import importlib.util
import inspect
import json
import re
import sys
import sysconfig
import warnings
from collections import defaultdict
from importlib import metadata
from pathlib import Path
from typing import Iterator, NamedTuple

from fleetbert.core import files
from fleetbert.core.errors import UserError
from fleetbert.data.records import Example

# Label: what is imported.
PACKAGES = {
    "matplotlib": "matplotlib",
    "paddle": "paddle",
    "python": "",  # the standard library
    "scikit-learn": "sklearn",
}
DISTRIBUTIONS = {"paddle": "paddlepaddle"}  # where the name differs from the label
TEXTS = "texts.json"  # in the cache
MASK = "library"
# Any word that holds one of these goes, "cpython" and "numpydoc" too; and the usual aliases.
NAMES = re.compile(
    r"\w*(?:python|numpy|scipy|pandas|scikit(?:[- ]?learn)?|sklearn|matplotlib|pyplot|sympy|paddle"
    r"|pylab)\w*|(?<![a-z])(?:np|pd|plt|mpl|sk)(?![a-z])",
    re.IGNORECASE,
)

MIN_WORDS, MAX_WORDS = 40, 50
WANTED = {False: 800, True: 100}  # texts of a label, by whether they are for dev
PER_FILE = 40  # texts of one side: one large file must not make a label
DEV_ONE_IN = 6

SKIPPED_FOLDERS = {
    "test", "tests", "testing", "idlelib", "lib2to3", "site-packages", "dist-packages", "_vendor",
    "externals", "_build_utils",
}  # fmt: skip

# Sections that are prose; all others (parameters, examples, references) are tables or code.
PROSE_SECTIONS = {"notes", "note", "explanation", "description", "overview", "details"}
UNDERLINE = re.compile(r"^\s*([-=~^*])\1{2,}\s*$")
TITLE = re.compile(r"^\s*([A-Z][A-Za-z]*(?: [A-Za-z]+)?)\s*:\s*$")
MARKUP = (
    (re.compile(r"https?://\S+"), " "),
    (re.compile(r":[\w:.+-]+:`~?\.?([^`<]*?)\s*(?:<[^`]*>)?`"), r"\1"),  # :func:`~numpy.sin`
    (re.compile(r"`([^`<]*?)\s*<[^`]*>`_*"), r"\1"),  # `text <address>`_
    (re.compile(r"`+|\*\*|\[\d+\]_?|\|"), ""),
    (re.compile(r"::\s*$"), ":"),
    (re.compile(r"\s+"), " "),
)


class Document(NamedTuple):
    """One text with the source file that it is from, and whether it is on the dev side."""

    file: str
    label: str
    text: str
    dev: bool


def load() -> tuple[list[Example], list[Example]]:
    """Return (train, dev): at most WANTED texts of each label, mixed, `line` counting from 1.

    The labels are the keys of PACKAGES. Raises UserError where a package is not installed. Takes
    some 15 s the first time and well under a second from the cache.
    """
    located = {label: locate(label) for label in PACKAGES}
    roots = {label: root for label, root in located.items() if root is not None}
    missing = [label for label in located if label not in roots]
    if missing:
        raise UserError(
            f"data.builtin: api_docs is the documentation of installed packages, of which "
            f"{' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} not there: "
            f"pip install {' '.join(missing)}, or give a table of your own as data.train"
        )
    versions = [sys.version, Path(__file__).read_text(encoding="utf-8"), str(WANTED)]
    for label, root in roots.items():
        versions += [label, str(root)]
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions.append(metadata.version(DISTRIBUTIONS.get(label, label)))

    def fill(folder: Path) -> None:
        all_documents = [document for root in roots.items() for document in documents(*root)]
        sides = [_choose(side, most) for side, most in zip(split(all_documents), WANTED.values())]
        (folder / TEXTS).write_text(json.dumps(sides))

    made = files.cached(f"api_docs-{digest(chr(0).join(versions))[:16]}", fill)
    train, dev = json.loads((made / TEXTS).read_text())
    return [Example(*row) for row in train], [Example(*row) for row in dev]


def documents(label: str, root: Path) -> Iterator[Document]:
    """The texts under `root`, file by file in the order of their paths' digests.

    Ends when both sides have a third more than is wanted, for duplicates that are removed later:
    parsing is what takes the time.
    """
    names = [path.relative_to(root).as_posix() for path in root.rglob("*.py")]
    wanted = dict(WANTED)
    for name in sorted(names, key=lambda name: digest(f"{label}/{name}")):
        folders = name.split("/")
        if any(part in SKIPPED_FOLDERS or part.startswith("test_") for part in folders):
            continue
        file = f"{label}/{name}"
        if all(wanted[dev] * 3 <= -most for dev, most in WANTED.items()):
            return
        objects = docstrings(root / name)
        for dev, most in ((True, max(1, PER_FILE // DEV_ONE_IN)), (False, PER_FILE)):
            chosen = (docs for name, docs in objects.items() if is_dev(f"{file}:{name}") == dev)
            # dict: a docstring that several methods of a file share is taken once, in order.
            texts = list(dict.fromkeys(prose(doc) for docs in chosen for doc in docs))
            for text in sorted(set(excerpts(texts)), key=digest)[:most]:
                wanted[dev] -= 1
                yield Document(file, label, text, dev)


def locate(label: str) -> Path | None:
    """The folder of a package's source, found without importing it; None where there is none."""
    if not PACKAGES[label]:
        return Path(sysconfig.get_path("stdlib"))
    spec = importlib.util.find_spec(PACKAGES[label])
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def docstrings(path: Path) -> dict[str, list[str]]:
    """The docstrings of a file by top-level object, in the order of the source.

    The module's own, and those of what has no name, are under "". Empty where the file cannot be
    parsed, which is so of a few that are meant for other versions of Python.
    """
    source = path.read_bytes()
    if source.count(b'"""') < 2:
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes and the like in others' sources
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError):
            return {}
    objects: dict[str, list[str]] = {"": []}
    doc = ast.get_docstring(tree, clean=False)
    if doc:
        objects[""].append(doc)
    for node in tree.body:
        objects.setdefault(getattr(node, "name", ""), []).extend(_docstrings_of(node))
    return objects


def prose(docstring: str) -> str:
    """A docstring's sentences as one masked line of at most MAX_WORDS words, cut at a sentence."""
    words: list[str] = []
    taking = True
    for block in re.split(r"\n\s*\n", inspect.cleandoc(docstring)):
        lines = block.split("\n")
        if len(lines) > 1 and UNDERLINE.match(lines[1]):
            taking = lines[0].strip().lower() in PROSE_SECTIONS
            lines = lines[2:]
        elif TITLE.match(lines[0]):
            taking = lines[0].strip(" :").lower() in PROSE_SECTIONS
            lines = [line.strip() for line in lines[1:]]
        if taking and _is_prose(lines):
            words += masked(" ".join(lines)).split()
        if len(words) >= MAX_WORDS:
            break
    if len(words) > MAX_WORDS:
        words = words[:MAX_WORDS]
        ends = [n for n, word in enumerate(words, 1) if word.endswith(".")]
        words = words[: ends[-1]] if ends else words
    return " ".join(words)


def excerpts(texts: list[str]) -> Iterator[str]:
    """Consecutive texts joined, MIN_WORDS to MAX_WORDS words each; a rest that is less is lost."""
    words: list[str] = []
    for text in texts:
        words += text.split()
        if len(words) >= MIN_WORDS:
            yield " ".join(words[:MAX_WORDS])
            words = []


def masked(text: str) -> str:
    """Text without markup, white space made single, and with the packages' names masked."""
    for pattern, replacement in MARKUP:
        text = pattern.sub(replacement, text)
    return NAMES.sub(MASK, text).strip()


def split(documents: list[Document]) -> tuple[list[Document], list[Document]]:
    """Remove duplicates and return (train, dev), as the module describes."""
    by_key: dict[str, list[Document]] = defaultdict(list)
    for document in documents:
        by_key[normalized(document.text)].append(document)
    train: list[Document] = []
    dev: list[Document] = []
    for same in by_key.values():
        if len({document.label for document in same}) > 1:
            continue
        chosen = min(same, key=lambda document: digest(document.file))
        (dev if chosen.dev else train).append(chosen)
    seen = {sequence for document in train for sequence in sequences(document.text)}
    return train, [
        document
        for document in dev
        if len((runs := sequences(document.text)) & seen) * 2 <= len(runs)
    ]


def is_dev(name: str) -> bool:
    """The side that an object is on, by its file and name."""
    return int(digest(name)[:8], 16) % DEV_ONE_IN == 0


def normalized(text: str) -> str:
    """The letters of a text in lower case: equal for near-duplicates."""
    return re.sub(r"[\W\d_]+", " ", text.lower()).strip()


def sequences(text: str, length: int = 5) -> set[str]:
    """All runs of `length` words of a normalized text."""
    words = normalized(text).split()
    return {" ".join(words[i : i + length]) for i in range(len(words) - length + 1)}


def digest(text: str) -> str:
    """SHA-256 in hexadecimal: an order that is shuffled, but the same everywhere."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _docstrings_of(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
        doc = ast.get_docstring(node, clean=False)
        if doc:
            yield doc
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield from _docstrings_of(child)


def _choose(documents: list[Document], per_label: int) -> list[Example]:
    counts: dict[str, int] = defaultdict(int)
    chosen: list[Example] = []
    for document in sorted(documents, key=lambda document: digest(document.text)):
        if counts[document.label] < per_label:
            counts[document.label] += 1
            chosen.append(Example(document.text, None, document.label, len(chosen) + 1))
    return chosen


def _is_prose(lines: list[str]) -> bool:
    """Whether a block is sentences, and not code, a list, a table, a directive or a formula."""
    text = "\n".join(lines)
    if len(text.split()) < 5 or not text[0].isalpha():
        return False
    if any(re.match(r"\s*(>>>|\.\. |:\w|@\w|[-*+|] |\$|\w+ : |\w+\(.*\)$)", x) for x in lines):
        return False
    if any(line.startswith(("  ", "\t")) for line in lines) or re.search(r"\S {3,}\S", text):
        return False
    letters = sum(char.isascii() and (char.isalpha() or char == " ") for char in text)
    return letters >= 0.8 * len(text) and "\\" not in text

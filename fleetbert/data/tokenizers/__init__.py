"""How texts become token ids, a file for each kind. The rest of the package opens tokenizers here.

A kind from outside the package is a class below `Tokenizer` that is given to `register`. Processes
that read for a trainer import what their job needs by themselves: the class has to lie in a module.
"""

from __future__ import annotations

from pathlib import Path

from fleetbert.bundle import Bundle, Setting
from fleetbert.core.registry import Registry
from fleetbert.data.tokenizers.base import WHOLE, Encodings, Spec, Tokenizer
from fleetbert.data.tokenizers.fields import Fields
from fleetbert.data.tokenizers.whole import Whole
from fleetbert.data.tokenizers.wordpiece import WordPiece, of_vocab

__all__ = ["WHOLE", "Encodings", "Spec", "Tokenizer", "of_vocab"]

_kinds: Registry[type[Tokenizer]] = Registry(
    "tokenizer.kind", {kind.kind: kind for kind in (WordPiece, Whole, Fields)}
)


def register(kind: type[Tokenizer]) -> None:
    """Add a kind of tokenizer. Folders are shown to the newest kind first."""
    _kinds[kind.kind] = kind


def find(folder: Path) -> Spec:
    """That of a model's folder; WordPiece's, whose files may be missing, if no other kind's."""
    for kind in reversed(list(_kinds.values())):
        spec = kind.find(folder)
        if spec is not None:
            return spec
    return WordPiece.spec_in(folder)


def changed(spec: Spec, vocab: str | None, lowercase: bool | None) -> Spec:
    """As a job's `model.vocab` and `model.lowercase` say, with defaults for the rest."""
    files, settings = dict(spec.files), dict(spec.settings)
    if vocab is not None:
        files[next(iter(files))] = Path(vocab)
    if lowercase is not None:
        settings["lowercase"] = lowercase
    return _kinds[spec.kind].with_defaults(spec._replace(files=files, settings=settings))


def differing(first: Spec, other: Spec) -> dict[str, tuple[Setting | None, Setting | None]]:
    """The settings in which two tokenizers differ, defaults included."""
    ours, theirs = (_kinds[spec.kind].settings_in_full(spec) for spec in (first, other))
    pairs = {name: (ours.get(name), theirs.get(name)) for name in {**ours, **theirs}}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def save(spec: Spec, folder: Path) -> None:
    """Write its files into a model's folder in Hugging Face's layout."""
    _kinds[spec.kind].save(spec, folder)


def open(source: Spec | Bundle) -> Tokenizer:  # noqa: A001
    """The tokenizer of a spec or of a bundle. UserError if its kind is unknown or its files are
    wrong."""
    spec = source if isinstance(source, Spec) else source.tokenizer
    return _kinds[spec.kind].open(spec)

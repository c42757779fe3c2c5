"""Writing a bundle: a new one whole, or a variant more, each put in place by one rename."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import re
import shutil
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Callable, Iterator, Mapping

from pydantic import ValidationError

from fleetbert.bundle import card
from fleetbert.bundle.manifest import (
    MANIFEST,
    LongTexts,
    Manifest,
    Task,
    TokenizerInfo,
    TokenizerSpec,
    to_json,
)
from fleetbert.bundle.read import Bundle, PathLike, read
from fleetbert.bundle.variants import File, Variant
from fleetbert.core import files, locks
from fleetbert.core.errors import UserError
from fleetbert.core.reading import Reading

TEMPORARY = ".tmp-"
WRITING = ".writing-"  # begins the name of a variant's lock


def create(
    path: PathLike,
    *,
    task: str,
    labels: list[str],
    max_length: int,
    tokenizer: TokenizerSpec,
    fill: Callable[[Path], list[Variant]],
    width: int | None = None,
    pooling: str | None = None,
    thresholds: Mapping[str, float] | None = None,
    integer_labels: bool = False,
    reading: Reading | None = None,
) -> Bundle:
    """Write a new bundle at `path`; a bundle that is there is replaced in one step. width, pooling,
    integer_labels: see `manifest.Task`. reading: what becomes of texts with more than `max_length`
    tokens; None: they are cut.

    `fill(folder)` writes each variant's files into `folder/<variant name>/` and returns the
    variants; their `files` are filled in here. UserError for a folder that is not a bundle, which
    is never replaced, and while another process writes it.
    """
    final = Path(path).resolve()
    check_replaceable(final)
    contents = {name: _read_vocab(path) for name, path in tokenizer.files.items()}
    try:
        task_info = Task(
            name=task,
            labels=labels,
            width=width,
            pooling=pooling,
            thresholds=dict(thresholds or {}),
            integer_labels=integer_labels,
        )
    except ValidationError as error:
        raise UserError(f"bundle {final}: {error.errors()[0]['msg']}") from None
    writing = files.replacing_folder(final, f".{final.name}{TEMPORARY}")
    with files.new_folders(final.parent):
        final.parent.mkdir(parents=True, exist_ok=True)
        with replacing(final), writing as temporary:
            for name, content in contents.items():
                (temporary / name).write_bytes(content)
            variants = [_with_files(temporary / v.name, v, v.name) for v in fill(temporary)]
            manifest = Manifest(
                task=task_info,
                max_length=max_length,
                long_texts=None if reading is None else LongTexts.of(reading),
                tokenizer=_describe(tokenizer, contents),
                variants=variants,
            )
            (temporary / MANIFEST).write_text(to_json(manifest), encoding="utf-8")
            (temporary / card.NAME).write_text(card.card(manifest), encoding="utf-8")
    return read(final)


def check_replaceable(final: Path) -> None:
    """UserError where there is a file or a folder that is not a bundle."""
    if final.exists() and not (_is_empty(final) or (final / MANIFEST).is_file()):
        raise UserError(
            f"{final} exists and is not a bundle, so it is not replaced: name a new folder"
        )


def _is_empty(path: Path) -> bool:
    """Whether this is a folder with nothing in it, or a mounted disk with what such disks bring
    along and killed writers leave."""
    if not path.is_dir():
        return False
    names = [child.name for child in path.iterdir()]
    is_mount = files.is_mount_point(path)
    return all(is_mount and (name[0] == "." or name == "lost+found") for name in names)


def _describe(tokenizer: TokenizerSpec, contents: dict[str, bytes]) -> TokenizerInfo:
    (vocab, sha256), *more = (
        (name, hashlib.sha256(content).hexdigest()) for name, content in contents.items()
    )
    settings = dict(tokenizer.settings)
    lowercase = settings.pop("lowercase", None)
    return TokenizerInfo(
        kind=tokenizer.kind,
        vocab=vocab,
        lowercase=None if lowercase is None else bool(lowercase),
        sha256=sha256,
        more_files=dict(more),
        settings=settings,
    )


@dataclass(frozen=True)
class Adding:
    """A variant on its way into the bundle at `root`: its files go into `folder`, then `add`."""

    root: Path
    folder: Path

    def add(self, variant: Variant) -> Bundle:
        """Put the variant in place; one of the same name is replaced. Until the new manifest takes
        the old one's place, in one rename, the bundle reads as before."""
        with files.locked(self.root):
            manifest = read(self.root).manifest
            used = {PurePosixPath(f.path).parts[0] for v in manifest.variants for f in v.files}
            # Left by a writer that was killed between its two renames.
            for left in _generations(self.root, variant.name):
                if left.name not in used:
                    shutil.rmtree(left)
            taken = {former.name for former in _generations(self.root, variant.name)}
            # `onnx`, or `onnx.2`, ... while the old one is in use
            names = (f"{variant.name}.{number}" for number in itertools.count(2))
            name = next(n for n in itertools.chain([variant.name], names) if n not in taken)
            variant = _with_files(self.folder, variant, name)
            files.sync_tree(self.folder)
            files.put_in_place(self.folder, self.root / name)
            variants = [v for v in manifest.variants if v.name != variant.name] + [variant]
            manifest = manifest.model_copy(update={"variants": variants})
            _replace_manifest(self.root, manifest)
            for former_name in taken:
                shutil.rmtree(self.root / former_name)
        return read(self.root)


@contextlib.contextmanager
def adding(path: PathLike, name: str) -> Iterator[Adding]:
    """A new variant of the bundle at `path`. Without a call of its `add` the bundle stays as it
    is. UserError as from `writing`, or where the disk is full."""
    root = Path(path).resolve()
    temporary = files.temporary_folder(root, TEMPORARY)
    with writing(root, name), files.room(root / name), temporary as folder:
        yield Adding(root, folder)


REMEDY = "wait for its end, or stop it"


@contextlib.contextmanager
def writing(path: PathLike, name: str) -> Iterator[None]:
    """Be the only one that writes variant `name` of the bundle at `path`; others may write others.

    UserError that names the process which writes it, or which replaces the whole bundle.
    """
    root = read(path).root.resolve()
    with locks.only_writer(root / f"{WRITING}{name}", f"bundle {root}: variant {name}", REMEDY):
        locks.check_free(_lock_of(root), f"bundle {root}", REMEDY)
        yield


@contextlib.contextmanager
def replacing(path: PathLike) -> Iterator[None]:
    """Be the only one that writes the bundle at `path`, whole, for as long as this takes.

    UserError that names the process which does, or which adds a variant.
    """
    root = Path(path).resolve()
    with locks.only_writer(_lock_of(root), f"bundle {root}", REMEDY):
        for lock in root.glob(f"{WRITING}*"):
            variant = lock.name[len(WRITING) :]
            locks.check_free(lock, f"bundle {root}: variant {variant}", REMEDY)
        yield


def _lock_of(root: Path) -> Path:
    name = f".{root.name}{WRITING}all"
    # Beside a mount point may be another disk, which others do not share or nobody can write.
    return root / name if files.is_mount_point(root) else root.with_name(name)


def add_variant(path: PathLike, name: str, fill: Callable[[Path], Variant]) -> Bundle:
    """Add the variant that `fill(folder)` writes into `folder` and returns; see `adding`."""
    with adding(path, name) as new:
        return new.add(fill(new.folder))


def _read_vocab(path: PathLike) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"vocabulary {path} cannot be read: {error.strerror}") from None


def _with_files(folder: Path, variant: Variant, name: str) -> Variant:
    """The variant with the files that are in `folder`, which will be `name` in the bundle."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    if not paths:
        raise ValueError(f"variant {variant.name} was filled with no files")
    listed = [
        File(
            path=f"{name}/{path.relative_to(folder).as_posix()}",
            sha256=files.sha256(path),
            size=path.stat().st_size,
        )
        for path in paths
    ]
    return variant.model_copy(update={"files": listed})


def _generations(root: Path, name: str) -> list[Path]:
    pattern = re.compile(re.escape(name) + r"(\.\d+)?$")
    return [path for path in root.iterdir() if path.is_dir() and pattern.match(path.name)]


def _replace_manifest(root: Path, manifest: Manifest) -> None:
    for name, text in ((MANIFEST, to_json(manifest)), (card.NAME, card.card(manifest))):
        for left in root.glob(f".{name}.tmp-*"):  # by a killed writer: we have the lock
            left.unlink()
        with files.replacing(root / name) as stream:
            stream.write(text.encode())

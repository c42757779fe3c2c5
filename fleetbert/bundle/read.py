"""Reading a bundle: the manifest and the files' sizes at once, their hashes when one is opened."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Union

from fleetbert.bundle.manifest import MANIFEST, Manifest, Task, TokenizerSpec, parse
from fleetbert.bundle.variants import Variant
from fleetbert.core import files
from fleetbert.core.errors import UserError
from fleetbert.core.reading import Reading

PathLike = Union[str, "os.PathLike[str]"]


@dataclass(frozen=True)
class Bundle:
    """A bundle on disk: its folder and what its manifest says."""

    root: Path
    manifest: Manifest

    @property
    def task(self) -> Task:
        return self.manifest.task

    @property
    def labels(self) -> list[str]:
        return self.manifest.task.labels

    @property
    def max_length(self) -> int:
        return self.manifest.max_length

    @property
    def reading(self) -> Reading:
        """How its model reads texts."""
        long = self.manifest.long_texts
        if long is None:
            return Reading(self.max_length)
        return Reading(self.max_length, long.method, long.stride, long.pool)

    @property
    def vocab_path(self) -> Path:
        return self.root / self.manifest.tokenizer.vocab

    @property
    def tokenizer(self) -> TokenizerSpec:
        """What `data.tokenizers.open` opens."""
        info = self.manifest.tokenizer
        settings = dict(info.settings)
        if info.lowercase is not None:
            settings["lowercase"] = info.lowercase
        paths = {name: self.root / name for name in info.hashes}
        return TokenizerSpec(info.kind, paths, settings)

    @property
    def names(self) -> list[str]:
        """Of its variants."""
        return [variant.name for variant in self.manifest.variants]

    def variant(self, name: str) -> Variant:
        """The variant of that name; UserError with the names there are."""
        for variant in self.manifest.variants:
            if variant.name == name:
                return variant
        names = ", ".join(self.names) or "none"
        raise UserError(f"bundle {self.root} has no variant {name!r}; it has: {names}")

    def folder(self, name: str) -> Path:
        """The folder that holds the variant's files. It need not have the variant's name."""
        variant = self.variant(name)
        if not variant.files:
            raise UserError(f"variant {name} of bundle {self.root} has no files; export it again")
        return self.root / PurePosixPath(variant.files[0].path).parts[0]


def read(path: PathLike) -> Bundle:
    """Read a bundle's manifest, of any format; checks that every file has its size.

    Contents are checked by `verify`, per variant, so that opening a small variant does not hash
    the large ones. UserError for what is no bundle, is damaged, or is of a newer format.
    """
    root = Path(path)
    while True:
        text = _read_manifest(root)
        bundle = Bundle(root, parse(root / MANIFEST, text))
        try:
            _check_sizes(bundle)
            return bundle
        except UserError:
            if _read_manifest(root) == text:
                raise
            # A writer replaced the manifest, and removed the old one's files, meanwhile.


def verify(bundle: Bundle, variant_name: str) -> None:
    """Check the hashes of the vocabulary and of one variant; UserError names the wrong file."""
    hashes = {file.path: file.sha256 for file in bundle.variant(variant_name).files}
    for name, sha256 in {**bundle.manifest.tokenizer.hashes, **hashes}.items():
        path = bundle.root / name
        try:
            actual = files.sha256(path)
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}") from error
        if actual != sha256:
            raise UserError(
                f"{path} is not the file that was exported (its sha256 differs from "
                f"{MANIFEST}'s): copy the bundle again or export it again"
            )


def _read_manifest(root: Path) -> bytes:
    try:
        return (root / MANIFEST).read_bytes()
    except FileNotFoundError as error:
        raise UserError(
            f"{root} is not a bundle: it has no {MANIFEST}; name the folder that "
            "training or `fleetbert export` wrote"
        ) from error
    except NotADirectoryError as error:
        raise UserError(f"{root} is a file; a bundle is the folder that has {MANIFEST}") from error
    except OSError as error:
        raise UserError(f"{root / MANIFEST} cannot be read: {error.strerror}") from error


def _check_sizes(bundle: Bundle) -> None:
    for path in bundle.tokenizer.files.values():
        if not path.is_file():
            raise UserError(f"{path} is missing: copy the bundle again")
    for variant in bundle.manifest.variants:
        for file in variant.files:
            path = bundle.root / file.path
            if not path.is_file():
                raise UserError(
                    f"{path} is missing (variant {variant.name}): copy the bundle again"
                )
            size = path.stat().st_size
            if size != file.size:
                raise UserError(
                    f"{path} has {size} bytes instead of {file.size} "
                    f"(variant {variant.name}): copy the bundle again"
                )

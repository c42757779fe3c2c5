# ruff: noqa: FA100  pydantic evaluates these annotations at run time, also on Python 3.8
"""The bundle: the folder that training hands over and that everything after it reads.

    manifest.json     format version; task, labels, max length; tokenizer; the list of variants
    vocab.txt
    float32/ ...      one folder per variant: the same model in another form

Whoever reads sees a complete bundle, the old or the new one, whatever happens to the writer:
files are written to a temporary folder, forced to disk, and come into place by one rename.
"""

import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Callable, Dict, Iterator, List, Literal, Optional, Union

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from fleetbert import files
from fleetbert.errors import UserError

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
VOCAB: Literal["vocab.txt"] = "vocab.txt"
TEMPORARY = ".tmp-"

PathLike = Union[str, "os.PathLike[str]"]


class _Strict(BaseModel):
    # What this format version does not know belongs into a variant's `extra`.
    model_config = ConfigDict(extra="forbid")


class Task(_Strict):
    """What the model answers. `labels` are in the order of the logits; none for `mlm`."""

    name: Literal["classification", "pair_classification", "mlm"]
    labels: List[str] = Field(default_factory=list)

    @property
    def pair(self) -> bool:
        return self.name == "pair_classification"

    @model_validator(mode="after")
    def _labels_fit(self) -> "Task":
        if self.name != "mlm" and len(self.labels) < 2:
            raise ValueError(f"task {self.name} needs two labels or more, got {self.labels}")
        if len(set(self.labels)) != len(self.labels):
            raise ValueError(f"labels appear twice in {self.labels}")
        return self


class TokenizerInfo(_Strict):
    """How texts become token ids; `sha256` is that of the vocabulary file."""

    kind: Literal["wordpiece"] = "wordpiece"
    vocab: Literal["vocab.txt"] = VOCAB
    lowercase: bool
    sha256: str


class File(_Strict):
    """A file of a variant: `path` from the bundle's root with forward slashes, `size` in bytes."""

    path: str
    sha256: str
    size: int

    @field_validator("path")
    @classmethod
    def _stays_inside(cls, path: str) -> str:
        parts = PurePosixPath(path).parts
        if len(parts) < 2 or ".." in parts or path.startswith("/") or "\\" in path:
            raise ValueError(f"{path!r} is not a path of the form variant/file inside the bundle")
        return path


class Accuracy(_Strict):
    """Accuracy (0 to 1) of a variant on `n` examples of named data, beside float32's."""

    data: str
    data_sha256: Optional[str] = None
    n: int
    accuracy: float
    float32_accuracy: Optional[float] = None


class Variant(_Strict):
    """The model in one form. `files` is filled in by the writer.

    kind says what opens it ("paddle-inference", "onnx", "paddle-lite", ...), made_from names the
    variant or the run that it was made from, versions the packages that made it.
    """

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    kind: str
    files: List[File] = Field(default_factory=list)
    made_from: Optional[str] = None
    accuracy: List[Accuracy] = Field(default_factory=list)
    runs_on: List[Literal["x86", "gpu", "armv8", "armv7"]] = Field(default_factory=list)
    versions: Dict[str, str] = Field(default_factory=dict)
    extra: Dict[str, Any] = Field(default_factory=dict)


class Manifest(_Strict):
    format_version: Literal[1] = 1
    task: Task
    max_length: int = Field(ge=3)
    tokenizer: TokenizerInfo
    variants: List[Variant] = Field(default_factory=list)

    @field_validator("variants")
    @classmethod
    def _names_differ(cls, variants: List[Variant]) -> List[Variant]:
        names = [variant.name for variant in variants]
        if len(set(names)) != len(names):
            raise ValueError(f"two variants have the same name: {names}")
        return variants


@dataclass(frozen=True)
class Bundle:
    """A bundle on disk: its folder and what its manifest says."""

    root: Path
    manifest: Manifest

    @property
    def task(self) -> Task:
        return self.manifest.task

    @property
    def labels(self) -> List[str]:
        return self.manifest.task.labels

    @property
    def max_length(self) -> int:
        return self.manifest.max_length

    @property
    def vocab_path(self) -> Path:
        return self.root / self.manifest.tokenizer.vocab

    def variant(self, name: str) -> Variant:
        """The variant of that name; UserError with the names there are."""
        for variant in self.manifest.variants:
            if variant.name == name:
                return variant
        names = ", ".join(variant.name for variant in self.manifest.variants) or "none"
        raise UserError(f"bundle {self.root} has no variant {name!r}; it has: {names}")

    def folder(self, name: str) -> Path:
        """The folder that holds the variant's files. It need not have the variant's name."""
        variant = self.variant(name)
        if not variant.files:
            raise UserError(f"variant {name} of bundle {self.root} has no files; export it again")
        return self.root / PurePosixPath(variant.files[0].path).parts[0]


def read(path: PathLike) -> Bundle:
    """Read a bundle's manifest; checks the format version and that every file has its size.

    Contents are checked by `verify`, per variant, so that opening a small variant does not hash
    the large ones.
    """
    root = Path(path)
    while True:
        text = _read_manifest(root)
        bundle = Bundle(root, _parse(root / MANIFEST, text))
        try:
            _check_sizes(bundle)
            return bundle
        except UserError:
            if _read_manifest(root) == text:
                raise
            # A writer replaced the manifest, and removed the old one's files, meanwhile.


def _read_manifest(root: Path) -> bytes:
    try:
        return (root / MANIFEST).read_bytes()
    except FileNotFoundError:
        raise UserError(
            f"{root} is not a bundle: it has no {MANIFEST}; name the folder that "
            "training or `fleetbert export` wrote"
        ) from None
    except NotADirectoryError:
        raise UserError(f"{root} is a file; a bundle is the folder that has {MANIFEST}") from None
    except OSError as error:
        raise UserError(f"{root / MANIFEST} cannot be read: {error.strerror}") from None


def _parse(path: Path, text: bytes) -> Manifest:
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is not JSON ({error}): copy the bundle again") from None
    version = raw.get("format_version") if isinstance(raw, dict) else None
    if version != FORMAT_VERSION:
        raise UserError(
            f"{path} has format_version {version!r} and this fleetbert reads "
            f"{FORMAT_VERSION}: install the fleetbert that wrote it or export again"
        )
    try:
        return Manifest.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UserError(
            f"{path}: {where or 'manifest'}: {first['msg']}; restore the file or export again"
        ) from None


def _check_sizes(bundle: Bundle) -> None:
    if not bundle.vocab_path.is_file():
        raise UserError(f"{bundle.vocab_path} is missing: copy the bundle again")
    for variant in bundle.manifest.variants:
        for file in variant.files:
            found = bundle.root / file.path
            if not found.is_file():
                raise UserError(
                    f"{found} is missing (variant {variant.name}): copy the bundle again"
                )
            size = found.stat().st_size
            if size != file.size:
                raise UserError(
                    f"{found} has {size} bytes instead of {file.size} "
                    f"(variant {variant.name}): copy the bundle again"
                )


def verify(bundle: Bundle, variant_name: str) -> None:
    """Check the hashes of the vocabulary and of one variant; UserError names the wrong file."""
    expected = [(bundle.vocab_path, bundle.manifest.tokenizer.sha256)]
    expected += [(bundle.root / f.path, f.sha256) for f in bundle.variant(variant_name).files]
    for path, sha256 in expected:
        try:
            found = files.sha256(path)
        except OSError as error:
            raise UserError(f"{path} cannot be read: {error.strerror}") from None
        if found != sha256:
            raise UserError(
                f"{path} is not the file that was exported (its sha256 differs from "
                f"{MANIFEST}'s): copy the bundle again or export it again"
            )


def create(
    path: PathLike,
    *,
    task: str,
    labels: List[str],
    max_length: int,
    vocab_path: PathLike,
    lowercase: bool,
    fill: Callable[[Path], List[Variant]],
) -> Bundle:
    """Write a new bundle at `path`; a bundle that is there is replaced in one step.

    `fill(folder)` writes each variant's files into `folder/<variant name>/` and returns the
    variants; their `files` are filled in here. A folder that is not a bundle is never replaced.
    """
    final = Path(path).resolve()
    if (
        final.exists()
        and not (final / MANIFEST).is_file()
        and (not final.is_dir() or any(final.iterdir()))
    ):
        raise UserError(
            f"{final} exists and is not a bundle, so it is not replaced: name a new folder"
        )
    vocab = _read_vocab(vocab_path)
    try:
        task_info = Task(name=task, labels=labels)
    except ValidationError as error:
        raise UserError(f"bundle {final}: {error.errors()[0]['msg']}") from None
    final.parent.mkdir(parents=True, exist_ok=True)
    with files.temporary_folder(final.parent, f".{final.name}{TEMPORARY}") as temporary:
        (temporary / VOCAB).write_bytes(vocab)
        tokenizer = TokenizerInfo(lowercase=lowercase, sha256=hashlib.sha256(vocab).hexdigest())
        variants = [_with_files(temporary, temporary / v.name, v) for v in fill(temporary)]
        manifest = Manifest(
            task=task_info, max_length=max_length, tokenizer=tokenizer, variants=variants
        )
        (temporary / MANIFEST).write_text(_to_json(manifest), encoding="utf-8")
        files.sync_tree(temporary)
        files.put_in_place(temporary, final)
    return read(final)


def add_variant(
    path: PathLike, name: str, fill: Callable[[Path], Variant], replace: bool = True
) -> Bundle:
    """Add a variant to a bundle, or replace the one of that name.

    `fill(folder)` writes the variant's files into `folder` and returns the variant. Until the new
    manifest takes the old one's place, in one rename, the bundle reads as before.
    """
    root = Path(path).resolve()
    names = [variant.name for variant in read(root).manifest.variants]
    if name in names and not replace:
        raise UserError(f"bundle {root} has a variant {name} already")
    with files.temporary_folder(root, TEMPORARY) as temporary:
        variant = fill(temporary)
        if variant.name != name:
            raise ValueError(f"fill returned variant {variant.name!r} for {name!r}")
        with files.locked(root):
            manifest = read(root).manifest
            used = {PurePosixPath(f.path).parts[0] for v in manifest.variants for f in v.files}
            # Left by a writer that was killed between its two renames.
            for found in _generations(root, name):
                if found.name not in used:
                    shutil.rmtree(found)
            taken = {found.name for found in _generations(root, name)}
            folder = next(root / f for f in _folder_names(name) if f not in taken)
            variant = _with_files(temporary, temporary, variant, prefix=folder.name)
            files.sync_tree(temporary)
            files.put_in_place(temporary, folder)
            variants = [v for v in manifest.variants if v.name != name] + [variant]
            _replace_manifest(root, manifest.model_copy(update={"variants": variants}))
            for old in taken:
                shutil.rmtree(root / old)
    return read(root)


def update_variant(path: PathLike, variant: Variant) -> Bundle:
    """Replace what the manifest says of a variant (its accuracy, say); its files stay."""
    root = Path(path).resolve()
    with files.locked(root):
        bundle = read(root)
        old = bundle.variant(variant.name)
        variant = variant.model_copy(update={"files": old.files})
        variants = [variant if v.name == variant.name else v for v in bundle.manifest.variants]
        _replace_manifest(root, bundle.manifest.model_copy(update={"variants": variants}))
    return read(root)


def _read_vocab(path: PathLike) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"vocabulary {path} cannot be read: {error.strerror}") from None


def _to_json(manifest: Manifest) -> str:
    return json.dumps(manifest.model_dump(), ensure_ascii=False, indent=2) + "\n"


def _with_files(root: Path, folder: Path, variant: Variant, prefix: str = "") -> Variant:
    """The variant with the files that are in its folder, as paths from `root` (or `prefix`)."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    if not found:
        raise ValueError(f"variant {variant.name} was filled with no files")
    base = PurePosixPath(prefix)
    listed = [
        File(
            path=str(base / path.relative_to(root).as_posix()),
            sha256=files.sha256(path),
            size=path.stat().st_size,
        )
        for path in found
    ]
    return variant.model_copy(update={"files": listed})


def _folder_names(name: str) -> Iterator[str]:
    """The folders a variant may have: `onnx`, or `onnx.2`, ... while the old one is in use."""
    yield name
    number = 2
    while True:
        yield f"{name}.{number}"
        number += 1


def _generations(root: Path, name: str) -> List[Path]:
    pattern = re.compile(re.escape(name) + r"(\.\d+)?$")
    return [path for path in root.iterdir() if path.is_dir() and pattern.match(path.name)]


def _replace_manifest(root: Path, manifest: Manifest) -> None:
    for found in root.glob(f".{MANIFEST}.tmp-*"):  # left by a killed writer: we have the lock
        found.unlink()
    with files.replacing(root / MANIFEST) as stream:
        stream.write(_to_json(manifest).encode())

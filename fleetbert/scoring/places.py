"""Where tables are: files and folders, here or at an address, and the format of what they hold."""

from __future__ import annotations

import os
import posixpath
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import Iterator, NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import fs

from fleetbert.core.errors import UserError

# The formats that `pyarrow.dataset` reads, by the endings of files.
FORMATS = {
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "ipc",
    ".feather": "ipc",
    ".jsonl": "json",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "tsv",
}
COMPRESSED = (".gz", ".bz2", ".zst")  # JSONL and CSV


class Place(NamedTuple):
    """A file or folder, here or at an address that fsspec knows."""

    files: fs.FileSystem
    path: str
    name: str  # as it was given

    def within(self, relative: str) -> str:
        return posixpath.join(self.path, relative) if relative else self.path


def place(name: str) -> Place:
    """UserError where the address is of a kind that is not installed."""
    if not _is_remote(name):
        path = os.fsencode(Path(name).expanduser().absolute())
        try:  # Arrow makes UTF-8 of the names of files, in every locale
            return Place(fs.LocalFileSystem(), path.decode("utf-8"), name)
        except UnicodeDecodeError:
            raise UserError(f"{name!a}: is not UTF-8; rename the file or folder") from None
    import fsspec

    try:
        remote, path = fsspec.core.url_to_fs(name)
    except (ImportError, ValueError) as error:
        raise UserError(f"{name}: {error}") from None
    return Place(fs.PyFileSystem(fs.FSSpecHandler(remote)), path.rstrip("/"), name)


def open_dataset(source: Place) -> tuple[ds.Dataset, str]:
    """The files of a place, and the folder that their names are relative to."""
    with explained(f"--input {source.name}"):
        base, paths = _list(source)
    paths = [path for path in paths if not _is_hidden(posixpath.relpath(path, base))]
    kinds = {_format_of(path) for path in paths}
    if len(kinds) != 1 or None in kinds:
        known = ", ".join(FORMATS)
        names = {kind or "another format" for kind in kinds} or {"no files"}
        raise UserError(
            f"--input {source.name} holds {' and '.join(sorted(names))}; it has to hold files of "
            f"one format, by their endings: {known}"
        )
    shortened = [without_endings(posixpath.relpath(path, base)) for path in paths]
    doubled = [name for name, count in Counter(shortened).items() if count > 1]
    if doubled:
        raise UserError(
            f"--input {source.name} holds several files {doubled[0]}.*, whose answers would be one "
            "file; rename one of them"
        )
    with explained(f"--input {source.name}"):
        data = ds.dataset(
            paths,
            format=_reader(kinds.pop()),
            filesystem=source.files,
            partitioning=ds.partitioning(flavor="hive"),
            partition_base_dir=base,
        )
    return data, base


@contextmanager
def explained(what: str, hint: str = "") -> Iterator[None]:
    """UserError where `what`, the name of a file or folder, cannot be read or written."""
    if _is_remote(what) and not hint:
        hint = "; look at the address and at the credentials"
    try:
        yield
    except UnicodeDecodeError as error:  # as Arrow lists a folder
        raise UserError(f"{what}: {error.object!r} is not UTF-8; rename the file") from None
    except (*_errors_of_clients(), pa.ArrowInvalid, pa.ArrowTypeError, OSError) as error:
        raise UserError(f"{what}: {' '.join(str(error).split())}{hint}") from None


def _errors_of_clients() -> tuple[type[Exception], ...]:
    """Those of s3fs that are no OSError, if it was loaded."""
    exceptions = sys.modules.get("botocore.exceptions")
    return () if exceptions is None else (exceptions.BotoCoreError,)


def _is_remote(name: str) -> bool:
    return "://" in name


def _list(source: Place) -> tuple[str, list[str]]:
    """The folder of a place, and the paths of its files."""
    info = source.files.get_file_info(source.path)
    if info.type == fs.FileType.NotFound:
        raise UserError(f"--input {source.name}: no file or folder is there; name one that is")
    if info.type == fs.FileType.File:
        return posixpath.dirname(source.path), [source.path]
    infos = source.files.get_file_info(fs.FileSelector(source.path, recursive=True))
    return source.path, [file.path for file in infos if file.type == fs.FileType.File]


def without_endings(relative: str) -> str:
    for ending in COMPRESSED:
        relative = relative[: -len(ending)] if relative.endswith(ending) else relative
    return posixpath.splitext(relative)[0]


def _reader(kind: str | None) -> ds.FileFormat | str:
    if kind == "tsv":
        from pyarrow import csv

        options = csv.ParseOptions(delimiter="\t", quote_char=False)
        return ds.CsvFileFormat(parse_options=options)
    assert kind is not None
    return kind


def _is_hidden(relative: str) -> bool:
    return any(part[0] in "._" for part in relative.split("/"))


def _format_of(name: str) -> str | None:
    path = Path(name)
    ending = Path(path.stem).suffix if path.suffix in COMPRESSED else path.suffix
    return FORMATS.get(ending.lower())

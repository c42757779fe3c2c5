"""Where tables are: files and folders, here or at an address, and the format of what they hold."""

from __future__ import annotations

import posixpath
from pathlib import Path
from typing import NamedTuple

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
    if "://" not in name:
        return Place(fs.LocalFileSystem(), Path(name).expanduser().absolute().as_posix(), name)
    import fsspec

    try:
        remote, path = fsspec.core.url_to_fs(name)
    except (ImportError, ValueError) as error:
        raise UserError(f"{name}: {error}") from None
    return Place(fs.PyFileSystem(fs.FSSpecHandler(remote)), path.rstrip("/"), name)


def open_dataset(source: Place) -> tuple[ds.Dataset, str]:
    """The files of a place, and the folder that their names are relative to."""
    info = source.files.get_file_info(source.path)
    if info.type == fs.FileType.NotFound:
        raise UserError(f"--input {source.name}: no file or folder is there; name one that is")
    if info.type == fs.FileType.File:
        base, paths = posixpath.dirname(source.path), [source.path]
    else:
        base = source.path
        infos = source.files.get_file_info(fs.FileSelector(base, recursive=True))
        paths = [file.path for file in infos if file.type == fs.FileType.File]
    paths = [path for path in paths if not _is_hidden(posixpath.relpath(path, base))]
    kinds = {_format_of(path) for path in paths}
    if len(kinds) != 1 or None in kinds:
        known = ", ".join(FORMATS)
        names = {kind or "another format" for kind in kinds} or {"no files"}
        raise UserError(
            f"--input {source.name} holds {' and '.join(sorted(names))}; it has to hold files of "
            f"one format, by their endings: {known}"
        )
    try:
        data = ds.dataset(
            paths,
            format=_reader(kinds.pop()),
            filesystem=source.files,
            partitioning=ds.partitioning(flavor="hive"),
            partition_base_dir=base,
        )
    except (pa.ArrowInvalid, OSError) as error:
        raise UserError(f"--input {source.name}: {one_line(error)}") from None
    return data, base


def one_line(error: Exception) -> str:
    return " ".join(str(error).split())


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

"""A folder of Parquet, Arrow, JSONL or CSV files → a folder of Parquet files with their answers.

Each file of the input becomes one of the output, which appears when it is complete. Its footer says
of which input and which model it is, so that a run that was killed goes on with the files that are
missing, and several processes may share the files out.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
from contextlib import suppress
from pathlib import Path
from typing import Iterator, Mapping, NamedTuple, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow import fs

from fleetbert import bundle as bundles
from fleetbert.core.errors import UserError
from fleetbert.core.progress import bar
from fleetbert.scoring.scorer import WINDOW, Scorer

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
KEY = b"fleetbert"  # of what a footer says
# The folder of the rows that could not be answered; readers of Parquet pass over such a name.
ERRORS = "_errors"


class Place(NamedTuple):
    """A file or folder, here or at an address that fsspec knows."""

    files: fs.FileSystem
    path: str
    name: str  # as it was given

    def within(self, relative: str) -> str:
        return posixpath.join(self.path, relative) if relative else self.path


class Counts(NamedTuple):
    """Rows that were read, and those that could not be answered; files of this and earlier runs."""

    rows: int
    faults: int
    files: int
    earlier: int


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


def score(
    scorer: Scorer,
    source: Place,
    target: Place,
    keep: Sequence[str] | None = None,
    where: Mapping[str, str] | None = None,
    shard: tuple[int, int] = (0, 1),
) -> Counts:
    """Answer the files of `source` that `target` has not yet.

    keep: the columns that go to the output beside the answers; None: all. where: only rows whose
    columns have these values; files whose folders (`date=2026-11-28`) say otherwise are not opened.
    shard: (number, count): of every `count` files the one with this number.

    Raises UserError where there is nothing to read, a file lacks a column, a file changes while it
    is read, or `target` holds another job's output.
    """
    data, base = _open(source)
    fragments = _fragments(data, where or {})
    job = _job(scorer, keep, where)
    mine = sorted(fragments, key=lambda fragment: fragment.path)[shard[0] :: shard[1]]
    plans = [_Plan(fragment, scorer, source, target, base, keep, where, job) for fragment in mine]
    waiting = [plan for plan in plans if not plan.is_done()]
    rows = faults = 0
    with bar(total=_rows(waiting), unit=" rows") as progress:
        for plan in waiting:
            for read, wrong in plan.run():
                rows, faults = rows + read, faults + wrong
                progress.update(read)
    return Counts(rows, faults, len(waiting), len(plans) - len(waiting))


class _Plan:
    """One file: what is read of it, and where its answers go."""

    def __init__(
        self,
        fragment: ds.Fragment,
        scorer: Scorer,
        source: Place,
        target: Place,
        base: str,
        keep: Sequence[str] | None,
        where: Mapping[str, str] | None,
        job: str,
    ):
        self.fragment, self.scorer, self.source, self.target = fragment, scorer, source, target
        relative = posixpath.relpath(fragment.path, base)
        self.name = source.name if base != source.path else posixpath.join(source.name, relative)
        self.relative = _without_endings(relative)
        self.output = target.within(f"{self.relative}.parquet")
        folders = ds.get_partition_keys(fragment.partition_expression)
        own = fragment.physical_schema
        partition = [pa.field(name, pa.scalar(value).type) for name, value in folders.items()]
        self.schema = pa.schema([*own, *(f for f in partition if f.name not in own.names)])
        self.filter = _expression(self.schema, where or {}, self.name)
        self.kept = own.names if keep is None else list(keep)
        self.columns = self._columns(self.kept)
        self.info = source.files.get_file_info(fragment.path)
        self.said = json.dumps({"job": job, "file": relative, "state": self._state(self.info)})

    def _columns(self, keep: Sequence[str]) -> list[str]:
        """The columns to read: those to keep, and those of the texts."""
        try:
            for name in keep:
                if name not in self.schema.names:
                    raise UserError(f"no column {name!r}, of {', '.join(self.schema.names)}")
            self.scorer.schema(pa.schema([self.schema.field(name) for name in keep]))
            texts = self.scorer.texts_in(self.schema)
        except UserError as error:
            raise UserError(f"{self.name}: {error}") from None
        return list(dict.fromkeys([*keep, *texts]))

    @staticmethod
    def _state(info: fs.FileInfo) -> list[object]:
        return [info.size, None if info.mtime is None else info.mtime.isoformat()]

    def is_done(self) -> bool:
        """Whether the output has this file's answers. UserError where it has another job's."""
        files = self.target.files
        if files.get_file_info(self.output).type == fs.FileType.NotFound:
            return False
        try:
            with files.open_input_file(self.output) as stream:
                said = json.loads((pq.read_schema(stream).metadata or {}).get(KEY, b"{}"))
        except (pa.ArrowInvalid, ValueError):
            said = {}
        mine = json.loads(self.said)
        if said == mine:
            return True
        if said.get("job") == mine["job"] and said.get("file") == mine["file"]:
            raise UserError(
                f"{self.name} has changed since {self.output} was written; remove that file, and "
                "it is answered again"
            )
        raise UserError(
            f"{self.output} is not of this job, but of another model, other columns or another "
            "folder; name another --output"
        )

    def run(self) -> Iterator[tuple[int, int]]:
        """Answer the file; gives (rows, those without an answer) after each window."""
        files, faults = self.target.files, []
        temporary = posixpath.join(
            posixpath.dirname(self.output), f".{posixpath.basename(self.output)}.part"
        )
        files.create_dir(posixpath.dirname(self.output), recursive=True)
        scanner = self.fragment.scanner(
            schema=self.schema,
            columns=self.columns,
            filter=self.filter,
            batch_size=WINDOW,
        )
        try:
            row, writer = 0, None
            with files.open_output_stream(temporary) as stream:
                for batch in _windows(scanner):
                    table, wrong = self.scorer.answer(batch)
                    faults += [
                        {"file": self.name, "row": row + fault.row, "error": fault.problem}
                        for fault in wrong
                    ]
                    if wrong:
                        good = set(range(len(batch))) - {fault.row for fault in wrong}
                        table = table.take(pa.array(sorted(good), pa.int64()))
                    if writer is None:
                        writer = self._writer(stream, table.schema)
                    writer.write_table(table.select(writer.schema.names).cast(writer.schema))
                    row += len(batch)
                    yield len(batch), len(wrong)
                if writer is None:
                    none = scanner.projected_schema.empty_table()
                    writer = self._writer(stream, self.scorer.answer(none)[0].schema)
                writer.close()
            now = self.source.files.get_file_info(self.fragment.path)
            if self._state(now) != self._state(self.info):
                raise UserError(f"{self.name} changed while it was read; say the same again")
            if faults:
                self._write_faults(faults)
            files.move(temporary, self.output)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OSError) as error:
            raise UserError(f"{self.name}: {error}") from None
        finally:
            with suppress(OSError):
                files.delete_file(temporary)

    def _writer(self, stream: pa.NativeFile, answered: pa.Schema) -> pq.ParquetWriter:
        """Of the kept columns and the answers; answered: the schema with the columns of texts."""
        names = [*self.kept, *answered.names[len(self.columns) :]]
        metadata = {**(answered.metadata or {}), KEY: self.said.encode()}
        schema = pa.schema([answered.field(name) for name in names], metadata)
        return pq.ParquetWriter(stream, schema)

    def _write_faults(self, faults: list[dict[str, object]]) -> None:
        path = self.target.within(posixpath.join(ERRORS, f"{self.relative}.jsonl"))
        self.target.files.create_dir(posixpath.dirname(path), recursive=True)
        with self.target.files.open_output_stream(path) as stream:
            for fault in faults:
                stream.write(json.dumps(fault, ensure_ascii=False).encode() + b"\n")


def _open(source: Place) -> tuple[ds.Dataset, str]:
    """The files of a place, and the folder that their names are relative to."""
    info = source.files.get_file_info(source.path)
    if info.type == fs.FileType.NotFound:
        raise UserError(f"--input {source.name}: no file or folder is there; name one that is")
    if info.type == fs.FileType.File:
        base, paths = posixpath.dirname(source.path), [source.path]
    else:
        base = source.path
        found = source.files.get_file_info(fs.FileSelector(base, recursive=True))
        paths = [file.path for file in found if file.type == fs.FileType.File]
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
        raise UserError(f"--input {source.name}: {error}") from None
    return data, base


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


def _without_endings(relative: str) -> str:
    for ending in COMPRESSED:
        relative = relative[: -len(ending)] if relative.endswith(ending) else relative
    return posixpath.splitext(relative)[0]


def _fragments(data: ds.Dataset, where: Mapping[str, str]) -> list[ds.Fragment]:
    """The files that may have rows of these values."""
    known = {name: value for name, value in where.items() if name in data.schema.names}
    expression = _expression(data.schema, known, "--where")
    return list(data.get_fragments(filter=expression))


def _expression(schema: pa.Schema, where: Mapping[str, str], name: str) -> pc.Expression | None:
    expression = None
    for column, word in where.items():
        if column not in schema.names:
            raise UserError(f"{name}: no column {column!r}, of {', '.join(schema.names)}")
        kind = schema.field(column).type
        try:
            value = pa.scalar(word).cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise UserError(f"--where {column}={word}: the column is of {kind}") from None
        term = ds.field(column) == value
        expression = term if expression is None else expression & term
    return expression


def _job(scorer: Scorer, keep: Sequence[str] | None, where: Mapping[str, str] | None) -> str:
    """A digest of all that the answers depend on but the input."""
    read = bundles.read(scorer.bundle)
    manifest = (read.root / "manifest.json").read_bytes()
    parts = [scorer.variant, scorer.prefix, scorer.column_names, keep, where]
    digest = hashlib.sha256(manifest + json.dumps(parts, sort_keys=True).encode())
    return digest.hexdigest()


def _rows(plans: Sequence[_Plan]) -> int | None:
    """How many rows there are, where footers say so."""
    if not all(isinstance(plan.fragment, ds.ParquetFileFragment) for plan in plans):
        return None
    return sum(
        plan.fragment.scanner(schema=plan.schema, columns=[], filter=plan.filter).count_rows()
        for plan in plans
    )


def _windows(scanner: ds.Scanner) -> Iterator[pa.Table]:
    """Tables of up to WINDOW rows; short batches are put together."""
    waiting: list[pa.RecordBatch] = []
    for batch in scanner.to_batches():
        waiting.append(batch)
        if sum(map(len, waiting)) >= WINDOW:
            yield pa.Table.from_batches(waiting)
            waiting = []
    if sum(map(len, waiting)):
        yield pa.Table.from_batches(waiting)

"""One file of tables: what is read of it, and the file of its answers."""

from __future__ import annotations

import json
import posixpath
import uuid
from contextlib import ExitStack, suppress
from typing import Iterable, Iterator, List, Mapping, Sequence, Tuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from pyarrow import fs

from fleetbert.core.errors import UserError
from fleetbert.scoring.places import Place, explained, without_endings
from fleetbert.scoring.scorer import WINDOW, Fault, Scorer

KEY = b"fleetbert"  # of what a footer says
# The folder of the rows that could not be answered; readers of Parquet pass over such a name.
ERRORS = "_errors"
UNFINISHED = ".part"
# Rows with their answers, null in those that could not be answered, and these rows.
Answered = Tuple[pa.Table, List[Fault]]


class Plan:
    """One file: what is read of it, and where its answers go. It can be pickled."""

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
        self.chosen, self.job = (keep, where), job
        self.attempt = ""
        relative = posixpath.relpath(fragment.path, base)
        self.name = source.name if base != source.path else posixpath.join(source.name, relative)
        self.relative = without_endings(relative)
        self.output = target.within(f"{self.relative}.parquet")
        self.errors = target.within(posixpath.join(ERRORS, f"{self.relative}.jsonl"))
        folders = ds.get_partition_keys(fragment.partition_expression)
        with explained(self.name):
            within = pa.schema(map(_named_kind, fragment.physical_schema))
        partition = [pa.field(name, pa.scalar(value).type) for name, value in folders.items()]
        self.schema = pa.schema([*within, *(f for f in partition if f.name not in within.names)])
        self.filter = expression_of(self.schema, where or {}, self.name)
        self.kept = within.names if keep is None else list(keep)
        self.columns = self._columns(self.kept)
        self.state = self._state()
        self.footer = json.dumps({"job": job, "file": relative, "state": self.state})

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

    def _state(self) -> list[object]:
        with explained(self.name):
            info = self.source.files.get_file_info(self.fragment.path)
        return [info.size, None if info.mtime is None else info.mtime.isoformat()]

    def is_done(self) -> bool:
        """Whether the output has this file's answers. UserError where it has another job's."""
        files = self.target.files
        with explained(f"--output {self.target.name}"):
            if files.get_file_info(self.output).type == fs.FileType.NotFound:
                return False
            footer = read_footer(files, self.output)
        mine = json.loads(self.footer)
        if footer == mine:
            return True
        if footer.get("job") == mine["job"] and footer.get("file") == mine["file"]:
            raise UserError(
                f"{self.name} has changed since {self.output} was written; remove that file, and "
                "it is answered again"
            )
        raise of_another_job(self.output)

    def has_answers(self) -> bool:
        """Whether the output, which `is_done`, has rows."""
        with explained(self.output), self.target.files.open_input_file(self.output) as stream:
            rows: int = pq.read_metadata(stream).num_rows
            return rows > 0

    def has_errors(self) -> bool:
        """Whether rows could not be answered."""
        with explained(self.errors):
            info = self.target.files.get_file_info(self.errors)
            return info.type != fs.FileType.NotFound

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows to answer, of the columns that are read."""
        hint = "; mend it, or move it out of the folder"
        with explained(f"{self.name} cannot be read", hint):
            yield from self._scanner().to_batches()

    def _scanner(self) -> ds.Scanner:
        return self.fragment.scanner(
            schema=self.schema, columns=self.columns, filter=self.filter, batch_size=WINDOW
        )

    def write(self, parts: Iterable[Answered]) -> Iterator[tuple[int, int]]:
        """Write the file's answers from its rows, part by part; gives (rows, those without an
        answer) after each."""
        files, row = self.target.files, 0
        # Two processes may answer one file, when a cluster takes one of them for dead.
        self.attempt = uuid.uuid4().hex
        try:
            with explained(f"{self.output} cannot be written"), ExitStack() as stack:
                stream = stack.enter_context(self._open(self.output))
                writer = stack.enter_context(self._writer(stream))
                faults = None
                for table, wrong in parts:
                    rows = table.num_rows
                    if wrong:
                        faults = faults or stack.enter_context(self._open(self.errors))
                        for fault in wrong:
                            line = {"file": self.name, "row": row + fault.row}
                            line["error"] = fault.problem
                            faults.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
                        good = set(range(rows)) - {fault.row for fault in wrong}
                        table = table.take(pa.array(sorted(good), pa.int64()))
                    writer.write_table(table.select(writer.schema.names).cast(writer.schema))
                    row += rows
                    yield rows, len(wrong)
            if self._state() != self.state:
                raise UserError(
                    f"{self.name} changed while it was read; start the same command again"
                )
            self.is_done()  # UserError where another job has written there meanwhile
            with explained(f"{self.output} cannot be written"):
                if faults:
                    files.move(self._unfinished(self.errors), self.errors)
                else:
                    with suppress(FileNotFoundError):  # of a former try
                        files.delete_file(self.errors)
                files.move(self._unfinished(self.output), self.output)
        finally:
            for path in (self.errors, self.output):
                with suppress(Exception):  # the first error is the one to show
                    files.delete_file(self._unfinished(path))

    def _open(self, path: str) -> pa.NativeFile:
        """The file that becomes `path` when it is complete."""
        self.target.files.create_dir(posixpath.dirname(path), recursive=True)
        return self.target.files.open_output_stream(self._unfinished(path))

    def _unfinished(self, path: str) -> str:
        folder, name = posixpath.split(path)
        return posixpath.join(folder, f".{self.attempt}.{name}{UNFINISHED}")

    def _writer(self, stream: pa.NativeFile) -> pq.ParquetWriter:
        """Of the kept columns and the answers."""
        answered = self.scorer.schema(self._scanner().projected_schema)
        names = [*self.kept, *answered.names[len(self.columns) :]]
        metadata = {**(answered.metadata or {}), KEY: self.footer.encode()}
        return pq.ParquetWriter(stream, pa.schema(map(answered.field, names), metadata))


def _named_kind(field: pa.Field) -> pa.Field:
    """JSONL and CSV say no type: a column whose first block is empty may hold texts later."""
    return field.with_type(pa.string()) if pa.types.is_null(field.type) else field


def read_footer(files: fs.FileSystem, path: str) -> dict[str, object]:
    """What the footer of an output says of its job; {} where it says nothing."""
    with files.open_input_file(path) as stream, suppress(ValueError, KeyError, TypeError):
        footer: dict[str, object] = json.loads(pq.read_schema(stream).metadata[KEY])
        return footer
    return {}


def of_another_job(path: str) -> UserError:
    return UserError(
        f"{path} is not of this job, but of another model, other columns or another folder; name "
        "another --output"
    )


def expression_of(schema: pa.Schema, where: Mapping[str, str], name: str) -> pc.Expression | None:
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

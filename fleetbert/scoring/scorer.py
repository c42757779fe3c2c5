"""`Scorer`: Arrow tables with the answers to their texts as more columns."""

from __future__ import annotations

import functools
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, Sequence, Union

import numpy as np
import pyarrow as pa

from fleetbert import bundle as bundles
from fleetbert import tasks
from fleetbert.compat import environment
from fleetbert.config import Columns
from fleetbert.core.arguments import checked
from fleetbert.core.errors import UserError
from fleetbert.core.files import below_home
from fleetbert.data.read import fault_of

if TYPE_CHECKING:
    from fleetbert.engines import answer as answers
    from fleetbert.tasks.answer import Tensor, Values

PathLike = Union[str, "os.PathLike[str]"]
PREFIX = "predicted_"
# Texts that are sorted by length and answered together.
WINDOW = 16_384
# Tensors of a server that a table has no use for.
LEFT_OUT = ("logits",)


class Fault(NamedTuple):
    """A row of a table, counted from 0, that cannot be answered."""

    row: int
    problem: str


class Scorer:
    """Answer the texts of Arrow tables: `Scorer("bundle")(table)` has the answers as columns.

    It can be pickled, so that Ray's and Spark's workers take it. Each process opens the model once,
    when it answers its first table.

    variant: as in `load`. prefix: of the names of the answers' columns.
    text_column, text_pair_column: the columns of the texts. Default: text_a, text or sentence, and
        text_b.
    on_bad_row: what happens at a row without a text: stop raises UserError, null answers null.
    threads: CPU threads. Default: OMP_NUM_THREADS, else one per processor.
    """

    @checked
    def __init__(
        self,
        bundle: PathLike,
        variant: str = "float32",
        *,
        text_column: str | None = None,
        text_pair_column: str | None = None,
        prefix: str = PREFIX,
        on_bad_row: Literal["stop", "null"] = "stop",
        device: str = "cpu",
        threads: int | None = None,
        batch_tokens: int | None = None,
    ):
        self.bundle = str(Path(below_home(bundle)).absolute())
        self.variant, self.prefix = variant, prefix
        self.on_bad_row = on_bad_row
        self._columns = Columns(text_column=text_column, text_pair_column=text_pair_column)
        self.column_names = [text_column, text_pair_column]
        self.device, self.threads, self.batch_tokens = device, threads, batch_tokens
        read = bundles.read(self.bundle)
        self._task, self._labels = tasks.of(read.task), read.labels
        self._task.check_answers(self.bundle)
        self._task.check_of_texts(self.bundle, "Scorer")
        self._unpickled = False
        self._model: answers.Model | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_unpickled": True, "_model": None}

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """The schema of the result for tables of this schema. UserError if a column has the name of
        an answer's."""
        for field in self._fields():
            if field.name in schema.names:
                raise UserError(
                    f"the table has a column {field.name!r} already; choose another prefix than "
                    f"{self.prefix!r}"
                )
            schema = schema.append(field)
        return schema

    def __call__(self, table: pa.Table | pa.RecordBatch) -> pa.Table:
        """`table` with the answers' columns, its rows in their order."""
        result, faults = self.answer(table)
        if faults and self.on_bad_row == "stop":
            raise UserError(
                f"row {faults[0].row} {faults[0].problem}; leave it out, or say on_bad_row='null'"
            )
        return result

    def answer(self, table: pa.Table | pa.RecordBatch) -> tuple[pa.Table, list[Fault]]:
        """`table` with the answers' columns, null in the rows that cannot be answered, and those
        rows."""
        if isinstance(table, pa.RecordBatch):
            table = pa.Table.from_batches([table])
        parts, faults = [], []
        for begin in range(0, max(1, table.num_rows), WINDOW):
            ((part, wrong),) = self.answer_together([table.slice(begin, WINDOW)])
            parts.append(part)
            faults += [fault._replace(row=begin + fault.row) for fault in wrong]
        return pa.concat_tables(parts), faults

    def answer_together(self, tables: Sequence[pa.Table]) -> list[tuple[pa.Table, list[Fault]]]:
        """What `answer` gives for each of several tables, whose texts share batches. They may have
        other columns each, and should have no more than WINDOW rows together."""
        kept: list[tuple[str, ...]] = []
        bad: list[bool] = []
        faults = []
        for table in tables:
            self.schema(table.schema)
            names = self.texts_in(table.schema)
            rows = list(zip(*(table.column(name).to_pylist() for name in names)))
            problems = [_problem(names, texts) for texts in rows]
            kept += [texts for texts, problem in zip(rows, problems) if problem is None]
            bad += [problem is not None for problem in problems]
            faults.append([Fault(row, problem) for row, problem in enumerate(problems) if problem])
        columns = self._answered([list(texts) for texts in zip(*kept)], np.array(bad, bool))
        results, begin = [], 0
        for table, wrong in zip(tables, faults):
            for field, column in zip(self._fields(), columns):
                table = table.append_column(field, column.slice(begin, table.num_rows))
            results.append((table, wrong))
            begin += table.num_rows
        return results

    def texts_in(self, schema: pa.Schema) -> list[str]:
        """The names of the columns that hold the texts."""
        columns = []
        known = self._columns.names()
        for role in ("text_a", "text_b") if self._task.shape.pair else ("text_a",):
            name = next((name for name in known[role] if name in schema.names), None)
            if name is None:
                named = "text_column" if role == "text_a" else "text_pair_column"
                option = f"{named} (--{named.replace('_', '-')})"
                raise UserError(
                    f"no column {' or '.join(map(repr, known[role]))} holds the texts; name it by "
                    f"{option}, of {', '.join(map(repr, schema.names))}"
                )
            kind = schema.field(name).type
            if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
                raise UserError(f"column {name!r} is of {kind}; the texts have to be strings")
            columns.append(name)
        return columns

    def _tensors(self) -> list[Tensor]:
        task = self._task
        return [
            tensor
            for tensor in task.answer.tensors(self._labels, task.outputs(self._labels))
            if tensor.name not in (*LEFT_OUT, "exit_layer")
        ]

    def _fields(self) -> list[pa.Field]:
        """A column for each tensor that a server tells. Scores are lists in the labels' order,
        which the field's metadata has."""
        fields = []
        for name, datatype, shape in self._tensors():
            kind = pa.string() if datatype == "BYTES" else pa.float32()
            if len(shape) > 1:
                kind = pa.list_(kind)  # Spark has no lists of a fixed size
            labels = {"labels": json.dumps(self._labels)} if name == "scores" else None
            fields.append(pa.field(self.prefix + name, kind, metadata=labels))
        return fields

    def _answered(self, texts: list[list[str]], bad: np.ndarray) -> list[pa.Array]:
        """The answers' columns for the rows of a window: null where it is bad. texts: of the other
        rows, in one or two columns."""
        values: list[Values] = []
        if texts:
            model = self._opened()
            from fleetbert.engines import answer as answers  # loads Paddle

            logits = answers.compute_logits(model, texts[0], texts[1] if texts[1:] else None)
            outputs = model.task.answer.tell(self._labels, logits.values)
            names = [tensor.name for tensor in self._task.answer.tensors(self._labels, 0)]
            values = [outputs[names.index(tensor.name)] for tensor in self._tensors()]
        columns = []
        place = np.cumsum(~bad) - 1  # of a row's answer
        index = pa.array(place, mask=bad)
        for number, field in enumerate(self._fields()):
            column = _array(values[number], field.type) if values else pa.array([], field.type)
            columns.append(column.take(index) if bad.any() else column)
        return columns

    def _opened(self) -> answers.Model:
        if self._model is None:
            manifest = Path(self.bundle, "manifest.json").stat().st_mtime_ns
            how = self.device, self.threads, self.batch_tokens
            # Spark's workers unpickle a Scorer for each task.
            opening = _open if self._unpickled else _open.__wrapped__
            self._model = opening(self.bundle, self.variant, *how, manifest)
        return self._model


@functools.lru_cache(maxsize=1)
def _open(
    bundle: str,
    variant: str,
    device: str,
    threads: int | None,
    batch_tokens: int | None,
    _manifest: int,
) -> answers.Model:
    """_manifest: when it was written, so that a process opens a newer bundle of the same name."""
    environment.import_paddle()
    from fleetbert.engines import answer as answers  # loads Paddle

    return answers.load(bundle, variant, device, threads, batch_tokens, streams=True)


def _problem(names: list[str], texts: tuple[object, ...]) -> str | None:
    for name, text in zip(names, texts):
        fault = fault_of(text) if isinstance(text, str) else "is null"
        if fault is not None:
            return f"({name}) {fault}"
    return None


def _array(values: Values, kind: pa.DataType) -> pa.Array:
    if isinstance(values, np.ndarray) and values.ndim == 2:
        flat = pa.array(np.ascontiguousarray(values, np.float32).ravel())
        offsets = np.arange(0, values.size + 1, values.shape[1], dtype=np.int32)
        return pa.ListArray.from_arrays(offsets, flat).cast(kind)
    return pa.array(values, kind)

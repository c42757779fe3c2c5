"""A folder of Parquet, Arrow, JSONL or CSV files → a folder of Parquet files with their answers.

Each file of the input becomes one of the output, which appears when it is complete. Its footer says
of which input and which model it is, so that a run that was killed goes on with the files that are
missing, and several processes may share the files out. Rows are answered in windows that run over
the ends of files, because texts of like length share batches.
"""

from __future__ import annotations

import hashlib
import json
import logging
import posixpath
from contextlib import closing, suppress
from typing import Callable, Generator, Iterator, Mapping, NamedTuple, Sequence

import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import fs

from fleetbert import bundle as bundles
from fleetbert.core.errors import UserError
from fleetbert.core.progress import bar
from fleetbert.scoring.places import Place, explained, open_dataset
from fleetbert.scoring.plan import (
    ERRORS,
    UNFINISHED,
    Answered,
    Plan,
    expression_of,
    of_another_job,
    read_footer,
)
from fleetbert.scoring.scorer import WINDOW, Scorer

log = logging.getLogger(__name__)


class Counts(NamedTuple):
    """Rows that were read, and those that could not be answered; files of this and earlier runs."""

    rows: int
    faults: int
    files: int
    earlier: int


def score(
    scorer: Scorer,
    source: Place,
    target: Place,
    keep: Sequence[str] | None = None,
    where: Mapping[str, str] | None = None,
    shard: tuple[int, int] = (0, 1),
    runner: Runner | None = None,
) -> Counts:
    """Answer the files of `source` that `target` has not yet.

    keep: the columns that go to the output beside the answers; None: all. where: only rows whose
    columns have these values; files whose folders (`date=2026-11-28`) say otherwise are not opened.
    shard: (number, count): of every `count` files the one with this number. runner: answers the
    files elsewhere than in this process.

    A warning says that there are no rows. Raises UserError where there are no files, a file lacks a
    column, a file changes while it is read, `target` holds another job's output, or none of the
    rows, also those of earlier runs, could be answered.
    """
    data, base = open_dataset(source)
    fragments = _fragments(data, where or {})
    job = _job(scorer, keep, where)
    mine = sorted(fragments, key=lambda fragment: fragment.path)[shard[0] :: shard[1]]
    plans = [Plan(fragment, scorer, source, target, base, keep, where, job) for fragment in mine]
    _check_target(source, target, {plan.output for plan in plans}, job)
    waiting: list[Plan] = []
    done: list[Plan] = []
    for plan in plans:
        (done if plan.is_done() else waiting).append(plan)
    rows = faults = 0
    if waiting:
        counts = (runner or in_turn)(waiting)
        try:
            with bar(total=_rows(waiting), unit=" rows") as progress, closing(counts):
                for read, wrong in counts:
                    rows, faults = rows + read, faults + wrong
                    progress.update(read)
        finally:
            _remove_unfinished(waiting)
    if rows == faults and not any(plan.has_answers() for plan in done):
        if faults or any(plan.has_errors() for plan in done):
            raise UserError(
                f"--input {source.name}: none of its rows could be answered; see "
                f"{target.name}/{ERRORS}"
            )
        conditions = "".join(f" --where {name}={value}" for name, value in (where or {}).items())
        part = conditions if shard == (0, 1) else f"{conditions} --shard {shard[0]}/{shard[1]}"
        log.warning(f"--input {source.name}{part} has no rows to answer")
    return Counts(rows, faults, len(waiting), len(done))


# Answers files, and gives (rows, those without an answer) whenever some are answered.
Runner = Callable[[Sequence[Plan]], "Generator[tuple[int, int], None, None]"]


def in_turn(plans: Sequence[Plan]) -> Generator[tuple[int, int], None, None]:
    """The runner of one process."""
    parts = _answer(plans[0].scorer, plans)
    for plan in plans:
        yield from plan.write(iter(parts.__next__, None))


def check_bundle(plan: Plan) -> None:
    """UserError unless this machine has the bundle that the job began with."""
    if _job(plan.scorer, *plan.chosen) != plan.job:
        raise UserError(
            f"{plan.scorer.bundle} is another bundle than where the job was started; copy that one "
            "to each machine"
        )


def _remove_unfinished(plans: Sequence[Plan]) -> None:
    """What processes that were killed have left of these files."""
    paths = {path for plan in plans for path in (plan.output, plan.errors)}
    files = plans[0].target.files
    for folder in sorted(set(map(posixpath.dirname, paths))):
        with suppress(Exception):  # an error before it is the one to show
            for info in files.get_file_info(fs.FileSelector(folder, allow_not_found=True)):
                name = info.base_name[: -len(UNFINISHED)].split(".", 2)[-1]
                if info.base_name.endswith(UNFINISHED) and posixpath.join(folder, name) in paths:
                    files.delete_file(info.path)


def _answer(scorer: Scorer, plans: Sequence[Plan]) -> Iterator[Answered | None]:
    """The answered rows of files, part by part, and None at the end of each file."""
    for window in _windows(plans):
        tables = [table for table in window if table is not None]
        answered = iter(scorer.answer_together(tables))
        for table in window:
            yield None if table is None else next(answered)


def _windows(plans: Sequence[Plan]) -> Iterator[list[pa.Table | None]]:
    """The rows of files, WINDOW of them at a time: tables of one file each, and None at the end of
    a file. What was read before a file that is at fault comes before the error."""
    window: list[pa.Table | None] = []
    room = WINDOW
    for plan in plans:
        batches = []
        try:
            for batch in plan.batches():
                while len(batch):
                    batches.append(batch.slice(0, room))
                    room -= len(batches[-1])
                    batch = batch.slice(len(batches[-1]))
                    if not room:
                        yield [*window, pa.Table.from_batches(batches)]
                        window, batches, room = [], [], WINDOW
        except UserError:
            yield window
            raise
        if batches:
            window.append(pa.Table.from_batches(batches))
        window.append(None)
    yield window


def _check_target(source: Place, target: Place, outputs: set[str], job: str) -> None:
    """UserError where the folder is one of the input's, or has another job's answers, as one file
    beside `outputs` shows."""
    if f"{target.path}/".startswith(f"{source.path}/") and target.files == source.files:
        raise UserError(
            f"--output {target.name} is in --input {source.name}, where the answers would be texts "
            "of the next run; name a folder elsewhere"
        )
    with explained(f"--output {target.name}"):
        if target.files.get_file_info(target.path).type == fs.FileType.File:
            raise UserError(f"--output {target.name} is a file; name a folder")
        everything = fs.FileSelector(target.path, recursive=True, allow_not_found=True)
        infos = target.files.get_file_info(everything)
        others = {info.path for info in infos if info.path.endswith(".parquet")} - outputs
        path = min(others, default=None)
        if path is not None and read_footer(target.files, path).get("job") != job:
            raise of_another_job(path)


def _fragments(data: ds.Dataset, where: Mapping[str, str]) -> list[ds.Fragment]:
    """The files that may have rows of these values."""
    known = {name: value for name, value in where.items() if name in data.schema.names}
    expression = expression_of(data.schema, known, "--where")
    return list(data.get_fragments(filter=expression))


def _job(scorer: Scorer, keep: Sequence[str] | None, where: Mapping[str, str] | None) -> str:
    """A digest of all that the answers depend on but the input."""
    read = bundles.read(scorer.bundle)
    manifest = (read.root / "manifest.json").read_bytes()
    parts = [scorer.variant, scorer.prefix, scorer.column_names, keep, where]
    digest = hashlib.sha256(manifest + json.dumps(parts, sort_keys=True).encode())
    return digest.hexdigest()


def _rows(plans: Sequence[Plan]) -> int | None:
    """How many rows there are, where footers say so."""
    if not all(isinstance(plan.fragment, ds.ParquetFileFragment) for plan in plans):
        return None
    return sum(
        plan.fragment.scanner(schema=plan.schema, columns=[], filter=plan.filter).count_rows()
        for plan in plans
    )

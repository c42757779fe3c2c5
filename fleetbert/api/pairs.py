"""Second texts of rows in memory: the job becomes one of pairs, or refuses them."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Mapping, Optional, TypeVar

from fleetbert import bundle as bundles
from fleetbert import config as configs
from fleetbert.core import task_names
from fleetbert.data import in_memory
from fleetbert.data.in_memory import Table

Tables = Mapping[str, Optional[Table]]
Job = TypeVar("Job", bound=configs.Config)


def written(job: configs.Section, tables: Tables) -> dict[str, str]:
    """The files of the tables that are rows, by the names that errors have for them."""
    rows = {
        key: table
        for key, table in tables.items()
        if table is not None and not isinstance(table, (str, os.PathLike))
    }
    paths = {key: str(functools.reduce(getattr, key.split("."), job)) for key in rows}
    return {Path(path).stem: path for path in paths.values()}


def of_pairs(job: Job, written: Mapping[str, str]) -> Job:
    """The job, whose task is that of pairs where the training rows have two texts. written: files
    of rows, by name. UserError at a second text that the task does not read."""
    pair = f"pair_{job.task.name}"
    has_pairs = "train" in written and in_memory.first_pair(written["train"], job.data) is not None
    if has_pairs and pair in task_names.SHAPES:
        job = job.model_copy(update={"task": job.task.model_copy(update={"name": pair})})
    refuse(job.task.name, written, job.data, f"task: {job.task.name}")
    return job


def refuse(
    task: str,
    written: Mapping[str, str],
    columns: configs.Columns,
    reader: str,
    unlabelled: str = "",
) -> None:
    """UserError at a second text that the task, which `reader` has, does not read. unlabelled: the
    table without labels."""
    from fleetbert import tasks

    for name, path in written.items():
        if tasks.get(task).labels.table_format(path, columns, labelled=False).pair is False:
            row = in_memory.first_pair(path, columns)
            in_memory.refuse_pair(name, row, reader, name != unlabelled)


def refuse_of_bundle(
    job: configs.Quantize | configs.SelfDistill | configs.Compress,
    tables: Tables,
    unlabelled: str = "",
) -> None:
    task = bundles.read(job.bundle).task.name
    refuse(task, written(job, tables), job.data, f"the bundle, of {task},", unlabelled)

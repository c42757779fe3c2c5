"""Turns a caller's arguments into a job: keys of the config, tables, the output folder."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from pathlib import Path
from typing import Iterator, Mapping, TypeVar, Union

from fleetbert import bundle as bundles
from fleetbert import config as configs
from fleetbert.config.names import SHORT
from fleetbert.core import task_names
from fleetbert.core.errors import UserError
from fleetbert.core.files import below_home
from fleetbert.data import in_memory
from fleetbert.data.in_memory import Table

PathLike = Union[str, "os.PathLike[str]"]
Job = TypeVar(
    "Job",
    configs.Config,
    configs.Distill,
    configs.Quantize,
    configs.SelfDistill,
    configs.Compress,
)


def keys_of(
    given: Mapping[str, object],
    named: Mapping[str, object | None] | None = None,
    short: Mapping[str, str] = SHORT,
) -> dict[str, object]:
    """Return arguments as keys of the config. `task={...}` is the section of that name.

    named: the arguments that the function names; None means that one was left out. short: the
    short names of keys, which jobs that train have.
    """
    present = {name: value for name, value in (named or {}).items() if value is not None}
    keys: dict[str, object] = {}
    for name, value in {**given, **present}.items():
        value = os.fspath(value) if isinstance(value, os.PathLike) else value
        keys[name if isinstance(value, Mapping) else short.get(name, name)] = value
    return keys


def job_of(
    schema: type[Job],
    given: Mapping[str, object],
    tables: Mapping[str, Table | None],
    config: PathLike | None,
    output_dir: PathLike | None,
    unlabelled: str = "",
) -> Job:
    """Return the job; in-memory tables are saved after all keys have been checked.

    output_dir: None: the config's. unlabelled: the table without labels.
    """
    path = None if config is None else below_home(config)
    output_dir = None if output_dir is None else below_home(output_dir)
    keys, in_memory_only = dict(given), {}
    for key, table in tables.items():
        if isinstance(table, (str, os.PathLike)):
            keys[key] = os.fspath(table)
        elif table is not None:
            keys[key], in_memory_only[key] = key, table  # until its folder is known
    if output_dir is not None and "output_dir" in schema.model_fields:
        keys["output_dir"] = output_dir
    job = configs.from_keys(schema, keys, path)
    if output_dir is None:
        assert isinstance(job, configs.Config)
        output_dir = job.output_dir
    label = _kind_of_labels(job) if in_memory_only else ""
    for key, table in in_memory_only.items():
        name = ".".join(part for part in key.split(".") if part != "data")
        folder = Path(output_dir) / "data"
        written = in_memory.as_file(name, table, folder, key != unlabelled, job.data, label)
        keys[key] = str(written)
        are_named = isinstance(job, configs.Config) and label in ("name", "names")
        if are_named and key == "data.train" and in_memory.has_integer_labels(written, job.data):
            keys.setdefault("data.integer_labels", True)
    return configs.from_keys(schema, keys, path)


def _kind_of_labels(
    job: configs.Config | configs.Quantize | configs.SelfDistill | configs.Compress,
) -> str:
    """How the tables of the job write labels, of `data.written.KINDS`: its task's or its bundle's
    task's."""
    named = job if isinstance(job, configs.Config) else bundles.read(job.bundle)
    return task_names.SHAPES[named.task.name].label


@contextlib.contextmanager
def folder_of(
    kind: str,
    output_dir: PathLike | None,
    config: PathLike | None = None,
    keys: Mapping[str, object] | None = None,
) -> Iterator[PathLike | None]:
    """The folder of a run: `output_dir`; None where the config or a key names it; else a new one,
    output/`kind`-N, which is removed if the block fails before training begins its first step."""
    if output_dir is not None or config is not None or "output_dir" in (keys or {}):
        yield output_dir
        return
    folder = _numbered(kind)
    try:
        yield folder
    except BaseException as error:
        if (folder / "metrics.jsonl").exists():
            raise
        message = str(error)
        for path in (folder / "data").glob("*.jsonl"):
            message = in_memory.by_row(message, path.stem, path, path.parent)
        shutil.rmtree(folder, ignore_errors=True)
        with contextlib.suppress(OSError):  # it has other runs
            folder.parent.rmdir()
        if type(error) is UserError:
            raise UserError(message) from None
        raise


def _numbered(kind: str) -> Path:
    """Make a new folder output/`kind`-N."""
    if int(os.environ.get("PADDLE_TRAINERS_NUM", "1")) > 1:
        raise UserError("output_dir: name one, which all ranks share")
    for number in itertools.count(1):
        folder = Path("output") / f"{kind}-{number}"
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise UserError(f"output_dir: cannot make {folder}: {error.strerror}") from error
        return folder
    raise AssertionError

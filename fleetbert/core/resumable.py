"""Searches that go on where they were: whether a folder is of the same job and the same files."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Collection, Iterable

from pydantic import BaseModel

from fleetbert.core import files
from fleetbert.core.errors import UserError


def digest(
    job: BaseModel, free: Collection[str], tables: Iterable[str | os.PathLike[str]], *more: str
) -> str:
    """Of a job without its keys `free`, the contents of its tables, and more that counts."""
    whole = hashlib.sha256(job.model_dump_json(exclude=set(free)).encode())
    for text in (*map(files.sha256, tables), *more):
        whole.update(text.encode())
    return whole.hexdigest()


def check_same(folder: Path, former: str, now: str) -> None:
    """UserError unless both digests are the same."""
    if former != now:
        raise UserError(
            f"output_dir: {folder} holds the search of another job, bundle or table; name another "
            "folder, or remove it"
        )

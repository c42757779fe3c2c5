"""Whether a job has nothing left to do, told from its files, without Paddle."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Iterator

import fleetbert
from fleetbert import config

log = logging.getLogger(__name__)


def is_finished(job: config.Config) -> bool:
    """Whether `output_dir` holds the results of this very job, made from inputs that have not been
    changed since. Where that is not sure, the answer is no, and training looks at checkpoints.

    Inputs are compared by the time of their last change, as `make` does, so that a large table
    need not be read.
    """
    folder = Path(job.output_dir)
    results = [folder / "model", folder / "summary.json", folder / "bundle" / "manifest.json"]
    if job.callbacks.report:
        results.append(folder / "report.html")
    if job.trainer.resume != "auto" or not all(path.exists() for path in results):
        return False
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        written = (folder / "summary.json").stat().st_mtime
        is_same = (
            summary["config"] == json.loads(job.model_dump_json())
            and summary["versions"]["fleetbert"] == fleetbert.__version__
            and all(changed < written for changed in _changes(job))
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False
    if is_same:
        log.info(
            f"nothing is left to train: step {summary['steps']} is done; for more set "
            "trainer.epochs or trainer.max_steps higher, to start anew trainer.resume=none"
        )
        log.info(f"done: {', '.join(map(str, results))}")
    return is_same


def _changes(job: config.Config) -> Iterator[float]:
    """When each of the job's inputs was changed or put where it is. OSError for one that is gone;
    packages and names of models are taken to stay as they are."""
    words = job.model.vocabulary.data
    paths = [job.data.train, job.data.dev, job.data.unlabelled, job.model.vocab, job.model.init]
    paths.append(None if words == "train" else words)
    if isinstance(job, config.Distill):
        paths.append(job.distill.teacher)
    for path in map(Path, filter(None, paths)):
        if path == Path(job.model.init) and not path.exists():
            continue
        for file in [path, *path.rglob("*")]:
            yield max(file.stat().st_mtime, file.stat().st_ctime)

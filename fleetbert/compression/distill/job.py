"""A distillation job from its config to its results: what `launch/distill.py` runs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Callable

from fleetbert import config as schema
from fleetbert.compression.distill import teacher as teachers
from fleetbert.compression.distill.student import Student
from fleetbert.compression.distill.theseus import Theseus
from fleetbert.training.job import Result, only_writer, result, train_with
from fleetbert.training.strategies import connect
from fleetbert.training.strategies.single import Single
from fleetbert.training.texts import TextTask, open_task


def distill(job: schema.Distill) -> Result:
    """Distill as `job` says, from where a former run of it was; returns the results of the
    run whose files are in `job.output_dir`."""
    strategy = connect(job)
    if job.distill.kind == "student":
        return result(job, train_with(strategy, job, partial(_open, Student)))
    with only_writer(strategy, Path(job.output_dir)):
        first = replacing(job)
        train_with(strategy, first, partial(_open, Theseus))
        last = alone(job, Path(first.output_dir) / "model")
        return result(last, train_with(strategy, last))


def replacing(job: schema.Distill) -> schema.Distill:
    """Theseus' first training, in a folder of its own within the job's."""
    epochs = job.distill.replacing_epochs or job.trainer.epochs
    return job.model_copy(
        update={
            "output_dir": str(Path(job.output_dir) / "replacing"),
            "trainer": job.trainer.model_copy(update={"epochs": epochs}),
        }
    )


def alone(job: schema.Distill, start: Path) -> schema.Config:
    """Theseus' second one: a training like any other, from what the first one left."""
    values = job.model_dump(exclude={"distill"})
    values["model"].update(init=str(start), vocab=None)
    return schema.Config.model_validate(values)


def _open(kind: Callable[..., TextTask], job: schema.Distill, strategy: Single) -> TextTask:
    teacher = teachers.open_teacher(job)
    source = teachers.student_source(job, teacher)
    return open_task(job, strategy, source, partial(kind, teacher, strategy))

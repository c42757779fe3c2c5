"""Whether a checkpoint is of the job that is to resume from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fleetbert import config as schema
from fleetbert.core.errors import UserError
from fleetbert.training import precision
from fleetbert.training.checkpoint import Checkpoint

if TYPE_CHECKING:
    from fleetbert.training.loop import Run


def check(run: Run, saved: Checkpoint) -> None:
    """Raise UserError for what must not differ: settings, data, precision, labels, teacher."""
    kind = type(run.job)
    jobs = run.job, kind.model_construct()
    now, defaults = (schema.flat(job.model_dump(mode="json"), kind) for job in jobs)
    before = schema.flat(saved.state["config"], kind)
    # What a path names counts, not the path.
    digests = {**run.task.origins, "data.train": run.task.fingerprint}
    former = {**saved.state.get("origins", {}), "data.train": saved.state["data"]}
    free = {path for path, digest in former.items() if digests.get(path) == digest}
    for key in {**now, **before}:
        # Keys may have come after the checkpoint.
        old, new = before.get(key, defaults.get(key)), now.get(key)
        if old != new and key not in free and schema.on_resume(kind, key) == "same":
            raise UserError(
                f"checkpoint {saved.folder}: was trained with {key}: {schema.yaml_word(old)}, this "
                f"job has {schema.yaml_word(new)}; set it back, or start anew with "
                "trainer.resume=none or another output_dir"
            )
    # An old checkpoint has only the job's settings.
    settings = (str({**defaults, **before}[f"precision.{key}"]) for key in ("level", "dtype"))
    former_precision = saved.state.get("precision") or precision.named(*settings)
    if former_precision != run.precision.name:
        raise UserError(
            f"checkpoint {saved.folder}: was trained in {former_precision}, this job computes in "
            f"{run.precision.name} (precision.level, precision.dtype, and what the device has); "
            "keep the precision, or start anew with trainer.resume=none or another output_dir"
        )
    labels = list(run.task.labels)
    old_labels = saved.state.get("labels", labels)  # a checkpoint may be older than the key
    is_same_data = former["data.train"] == digests["data.train"]
    if old_labels != labels and (is_same_data or sorted(old_labels) == sorted(labels)):
        raise UserError(
            f"checkpoint {saved.folder}: was trained with the labels {', '.join(old_labels[:12])}, "
            "in this order; give these, or start anew with trainer.resume=none or another "
            "output_dir"
        )
    whole = {"data.train": "training texts have", "distill.teacher": "teacher has"}
    for path, changed in whole.items():
        if path in former and former[path] != digests.get(path):
            raise UserError(
                f"checkpoint {saved.folder}: the {changed} changed since; start anew with "
                "trainer.resume=none or another output_dir"
            )

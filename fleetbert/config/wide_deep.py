"""What a job on rows that are no texts has of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, List, Literal

from pydantic import field_validator
from pydantic_core import PydanticCustomError

from fleetbert.config.section import Section, key

if TYPE_CHECKING:
    from fleetbert.config.training import Config


class WideDeep(Section):
    embedding_size: int = key(8, "size of a category's embedding", ge=1)
    deep_layers: List[int] = key([128, 64], "widths of the hidden layers")
    optimizer: Literal["adagrad", "sgd"] = key(
        "adagrad",
        "optimizer of the categories' embeddings; the section optimizer is for all else",
    )
    learning_rate: float = key(
        0.05,
        "peak learning rate of the embeddings, with the schedule of optimizer.learning_rate",
        gt=0,
    )
    initial_range: float = key(0.01, "embeddings start uniformly between minus this and this", ge=0)
    entry: str = key(
        "none",
        "which categories get an embedding: none: all, at first sight; count:N: those seen N "
        "times; probability:P: with this probability at each sight",
        pattern=r"^(none|count:[1-9]\d{0,5}|probability:(0?\.\d*[1-9]\d*|1|1\.0))$",
    )

    @field_validator("deep_layers")
    @classmethod
    def _is_wide(cls, value: List[int]) -> List[int]:
        if min(value, default=1) < 1:
            raise PydanticCustomError("width", "Input should hold widths of at least 1")
        return value


def check_rows(job: Config) -> None:
    task = f"task.name: {job.task.name}"
    if job.data.builtin:
        raise ValueError(f"data.builtin: {task} needs a table of rows (data.train)")
    if job.data.batch_size is None or job.data.batch_tokens is not None:
        raise ValueError(f"data.batch_size: {task} has no tokens; give rows, and no tokens")
    if job.data.long_texts != "cut":
        raise ValueError(f"data.long_texts: {task} reads no texts; leave it out")
    if job.precision.level not in ("O0", "auto"):
        raise ValueError(f"precision.level: {task} computes in float32; choose O0")
    if job.precision.scale:
        raise ValueError(f"precision.scale: {task} needs no loss scale; leave it out")
    if job.loss != type(job.loss)():
        raise ValueError(f"loss: {task} has a loss of its own; leave the section out")
    if job.trainer.calibrate:
        raise ValueError(f"trainer.calibrate: {task} holds no rows out; set it to 0")
    if job.trainer.recompute:
        raise ValueError(f"trainer.recompute: {task} has no encoder; set it to false")
    if job.trainer.compile:
        raise ValueError(f"trainer.compile: {task} runs as Python only; set it to false")

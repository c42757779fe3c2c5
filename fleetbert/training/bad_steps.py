"""Bad steps, whose loss is not finite on some rank, or whose gradients are not.

A bad step changes neither weights nor optimizer nor schedule, on no rank (`strategy.step`). It is
counted, its texts are added to bad_steps.jsonl, and `trainer.max_bad_steps` of them in a row stop
the run. Infinite gradients of a finite loss that a lower loss scale may mend are no bad step: the
GradScaler skips it and backs off.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Dict, Iterator

import numpy as np
import paddle

from fleetbert.core import files, strict_json
from fleetbert.core.errors import UserError
from fleetbert.training.strategies.single import Single, Tensors
from fleetbert.training.trainable import Trainable

NAME = "bad_steps.jsonl"

Row = Dict[str, float]


def keep_texts(
    path: Path, strategy: Single, task: Trainable, indices: np.ndarray, epoch: int, step: int
) -> None:
    """Add a row for each of the step's texts to `path`, bad_steps.jsonl, non-finite losses first.

    A row has step, epoch, loss and what `task.locate` gives (file, line, text). The loss is that
    of the text alone, without dropout: a number, "nan" or "inf".
    """
    losses = []
    for text in indices[strategy.rank :: strategy.world_size]:
        (arrays,) = task.micro_batches(np.array([text]), epoch, 1, slice(0, 1))
        losses.append((int(text), strategy.loss(arrays)))
    strategy.barrier()  # has no time limit, unlike gather
    loss_of = dict(pair for rank in strategy.gather(losses) for pair in rank)
    if strategy.rank:
        return
    texts = sorted(loss_of, key=lambda text: (math.isfinite(loss_of[text]), text))
    rows = [
        {
            "step": step,
            "epoch": epoch,
            "loss": loss_of[text] if math.isfinite(loss_of[text]) else str(loss_of[text]),
            **described,
        }
        for text, described in zip(texts, task.locate(texts))
    ]
    with files.writing(path), path.open("a", encoding="utf-8") as file:
        file.writelines(strict_json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def too_many(row: Row, in_a_row: int, remedy: str, path: Path) -> UserError:
    """Return the error for `trainer.max_bad_steps` in a row; `row` is that of the last step."""
    reason = "the gradients are not finite"
    if not math.isfinite(row["loss"]):
        reason = f"the loss is {row['loss']}"
    elif row["scale"] != 1:
        reason += f" at a loss scale of {row['scale']:g}"
    return UserError(
        f"step {row['step']}: {reason}, {in_a_row} bad steps in a row at a learning rate "
        f"of {row['lr']:.3g}, which changed nothing; {remedy}; or mend their texts, "
        f"which are in {path}; and start anew with trainer.resume=none, or go on with "
        "a higher trainer.max_bad_steps"
    )


def check_weights(step: int, tensors: Tensors) -> None:
    """Raise UserError if a tensor is not finite: a run that resumes from it would fail."""
    for name, tensor in _named(tensors):
        if tensor.is_floating_point() and not bool(paddle.isfinite(tensor).all()):
            raise UserError(
                f"step {step}: {name} is no longer finite, so nothing is saved; lower "
                "optimizer.learning_rate and start anew with trainer.resume=none"
            )


def _named(tensors: Tensors) -> Iterator[tuple[str, paddle.Tensor]]:
    for name, value in tensors.items():
        if isinstance(value, dict):
            yield from _named(value)
        elif isinstance(value, paddle.Tensor):
            yield name, value

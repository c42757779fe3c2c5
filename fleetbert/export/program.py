"""A trained network → a Paddle Inference program, checked against the network, in a bundle."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import Callable, Iterator, Mapping, Sequence

import numpy as np
import paddle

import fleetbert
from fleetbert import bundle, tasks
from fleetbert.compat import program_desc
from fleetbert.core.errors import UserError
from fleetbert.core.reading import Reading
from fleetbert.data import tokenizers
from fleetbert.data.batching import SAFE_LENGTHS
from fleetbert.data.tokenizers import Spec
from fleetbert.engines import alike, engine, golden
from fleetbert.engines.alike import LARGEST_DIFFERENCE
from fleetbert.graph import program as programs
from fleetbert.graph import tidy
from fleetbert.models.task_heads import Headed

log = logging.getLogger(__name__)


def export_bundle(
    path: str | os.PathLike[str],
    network: paddle.nn.Layer,
    *,
    task: str,
    labels: Sequence[str],
    max_length: int,
    tokenizer: Spec,
    accuracy: Sequence[bundle.Accuracy] = (),
    made_from: str | None = None,
    thresholds: Mapping[str, float] | None = None,
    integer_labels: bool = False,
    reading: Reading | None = None,
    measure: Callable[[bundle.Variant, Path], bundle.Variant] | None = None,
) -> bundle.Bundle:
    """Write `network` as the `float32` variant of a new bundle at `path`; returns the bundle.

    network: forward(input_ids, token_type_ids), both int64 [texts, length] → logits float32
        [texts, labels] (for `mlm` whatever the network returns, one tensor). The `width` and
        `pooling` of a `Headed` are told with the task.
    accuracy: what was measured on named data.
    made_from: the run or the model that it comes from.
    thresholds, integer_labels: of labels, see `bundle.manifest.Task`. reading: see `bundle.create`.
    measure: completes the variant, whose files are in the folder, before it is written; an error
        leaves nothing behind.

    A bundle that is at `path` is replaced in one step, after the new one is complete and the
    program was found to answer like the network (UserError otherwise).
    """

    log.info(f"{path}: writing the program, and comparing its answers with the network's")
    headed = network if isinstance(network, Headed) else None
    opened = tokenizers.open(tokenizer)
    limits = {"max_length": max_length, "vocab_size": opened.vocab_size, "pad_id": opened.pad_id}

    def fill(folder: Path) -> list[bundle.Variant]:
        difference = export_program(network, folder / "float32", **limits)
        kept = None
        if tasks.get(task).shape.answers:
            with _answering(network, max_length) as run:
                kept = golden.record(run, share=golden.FLOAT_SHARE, **limits)
        variant = bundle.ProgramVariant(
            name="float32",
            made_from=made_from,
            accuracy=list(accuracy),
            runs_on=["x86", "gpu", "armv8"],
            versions=versions(),
            max_difference_to_network=difference,
            golden=kept,
        )
        return [measure(variant, folder / "float32") if measure else variant]

    return bundle.create(
        path,
        task=task,
        labels=list(labels),
        max_length=max_length,
        tokenizer=tokenizer,
        fill=fill,
        width=headed and headed.width,
        pooling=headed and headed.pooling,
        thresholds=thresholds,
        integer_labels=integer_labels,
        reading=reading,
    )


def versions() -> dict[str, str]:
    """The versions of the packages that make a program."""
    return {"fleetbert": fleetbert.__version__, "paddlepaddle": paddle.__version__}


def export_program(
    network: paddle.nn.Layer, folder: Path, *, max_length: int, vocab_size: int, pad_id: int = 0
) -> float:
    """Write model.pdmodel and model.pdiparams to `folder`; returns the largest difference found.

    The program has the inputs input_ids and token_type_ids (int64 [-1, -1]) and the output
    `logits`. It is run on random ids below `vocab_size` in several shapes beside the network; a
    difference in logits above LARGEST_DIFFERENCE is a UserError.
    """
    save_program(network, folder)
    run = engine.open_folder(engine.FLOAT32, folder, pad_id=pad_id)
    batches = alike.random_batches(max_length, vocab_size, pad_id)
    with _answering(network, max_length) as exact:
        expected = [alike.at_tokens(exact(*batch), batch[0] != pad_id) for batch in batches]
    difference = alike.difference([run(*batch, pad_id=pad_id) for batch in batches], expected)
    check_difference(difference, "export an earlier checkpoint")
    return difference


def check_difference(difference: float, remedy: str) -> None:
    """UserError if a program's logits differ so much from its network's; remedy: of a NaN."""
    if not difference <= LARGEST_DIFFERENCE:  # also catches NaN
        raise UserError(
            f"the exported program's logits differ from the network's by {difference:.3g} (at "
            f"most {LARGEST_DIFFERENCE} is allowed): nothing was written; if the loss was NaN "
            f"{remedy}"
        )


def save_program(network: paddle.nn.Layer, folder: Path) -> None:
    """`save_tidied` of the network in evaluation mode, which is left as it was."""
    folder.mkdir(parents=True, exist_ok=True)
    spec = [
        paddle.static.InputSpec([-1, -1], "int64", name) for name in ("input_ids", "token_type_ids")
    ]
    with _answering(network):
        save_tidied(network, folder, spec)


def save_tidied(
    network: paddle.nn.Layer, folder: Path, inputs: Sequence[paddle.static.InputSpec]
) -> None:
    """Write the network's program and parameters to `folder`."""
    program_desc.save(network, folder / "model", inputs)
    program = programs.read(folder / "model.pdmodel")
    programs.write(folder / "model.pdmodel", tidy.tidy(program))


@contextlib.contextmanager
def _answering(network: paddle.nn.Layer, max_length: int = 0) -> Iterator[golden.Run]:
    """What the network answers without dropout; it is left as it was."""

    def run(input_ids: np.ndarray, token_type_ids: np.ndarray) -> np.ndarray:
        try:
            with paddle.no_grad():
                inputs = paddle.to_tensor(input_ids), paddle.to_tensor(token_type_ids)
                return network(*inputs).numpy()
        except Exception as error:
            length = input_ids.shape[1]
            if length <= max_length:
                raise
            raise UserError(
                f"texts of up to {max_length} tokens (max_length) are padded to {length} at "
                "inference and the network has no such positions; choose a max_length from "
                f"{SAFE_LENGTHS}"
            ) from error

    training = network.training
    network.eval()
    try:
        yield run
    finally:
        if training:
            network.train()

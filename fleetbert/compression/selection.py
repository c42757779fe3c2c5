"""The texts that methods choose on. They are never the gate's, which only accepts."""

from __future__ import annotations

import logging

import numpy as np

from fleetbert import config
from fleetbert.compression.gate import Gate, Sample
from fleetbert.compression.texts import draw, held_out
from fleetbert.core import files
from fleetbert.core.errors import UserError
from fleetbert.engines import evaluate
from fleetbert.tasks.unlabelled import read_unlabelled

log = logging.getLogger(__name__)


def open_sample(
    gate: Gate, settings: config.Selection, table: str | None, seed: int, key: str
) -> Sample:
    """`selection.data`, or the texts held out of `table`, which the user calls `key`.

    Held-out texts keep their labels; where some have none, what float32 answers counts as right.
    UserError for the gate's own table, and for one too small.
    """
    path, key = (table, key) if settings.data is None else (settings.data, "selection.data")
    if path is None:
        raise UserError("selection.data: name a labelled table to choose on, not gate.data")
    known = None
    if settings.data is not None:
        known = evaluate.read_known(gate.model, path, gate.columns)
    if files.sha256(path) == gate.sha256:
        raise UserError(
            f"{key}: {path} has the texts of gate.data, which only accept what was chosen on "
            "others; name another table as selection.data"
        )
    if known is not None:
        texts = draw(len(known.truth), settings.texts, seed)
        some = evaluate.Known([known.examples[text] for text in texts], known.truth[texts], 0)
        log.info(f"choosing on {len(texts)} texts of {path}")
        return Sample(gate.model, path, some)
    model = gate.model
    examples = read_unlabelled(path, model.task, key, gate.columns)
    count = held_out(len(examples), settings)
    if not count:
        raise UserError(
            f"{key}: {path}: {len(examples)} texts are too few to hold some out to choose on; name "
            "a labelled table as selection.data"
        )
    chosen = [examples[number] for number in draw(len(examples), len(examples), seed)[-count:]]
    labels = frozenset(model.labels)
    written = [example.label or "" for example in chosen]
    labelled = all(label and model.task.labels.unknown(label, labels) is None for label in written)
    if not labelled and not model.task.shape.picks_label:
        raise UserError(f"{key}: {path} has no labels; name a labelled table as selection.data")
    truth = np.zeros(count, np.int64)
    if labelled:
        truth = model.task.labels.targets(written, model.labels)
    name = f"{count} texts held out of {path}"
    sample = Sample(model, name, evaluate.Known(chosen, truth, 0))
    if not labelled:
        sample.truth = sample.float32.argmax(1)
    by = "their labels" if labelled else "what float32 answers to them"
    log.info(f"choosing on {name}, by {by}")
    return sample

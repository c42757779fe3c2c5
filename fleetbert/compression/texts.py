"""Texts of a job as batches of token ids: tokenized once, sorted by length."""

from __future__ import annotations

from typing import Dict, Sequence

import numpy as np

from fleetbert import bundle as bundles
from fleetbert import config, tasks
from fleetbert.data import ragged, read, tokenizers
from fleetbert.data.batching import plan_inference
from fleetbert.data.tokenizers import Encodings
from fleetbert.tasks.unlabelled import read_unlabelled

# Of a table, at most, that is held out of what it is for.
SHARE = 5
# Padded tokens of a batch of calibration texts.
BATCH_TOKENS = 1024
# What a program is fed: input_ids, token_type_ids and attention_mask, int64 [texts, length].
Feeds = Dict[str, np.ndarray]


def feeds(encodings: Encodings, chosen: Sequence[int] | np.ndarray, pad_id: int) -> list[Feeds]:
    """Texts in batches, sorted by length so that padding does not set the scales. chosen: the
    numbers of the texts to take."""
    rows = ragged.rows(encodings)
    numbers = np.concatenate(rows.of(chosen))
    plan = plan_inference(rows.texts.lengths[numbers], BATCH_TOKENS)
    batches = rows.texts.parts(numbers[some] for some in plan)
    names = ("input_ids", "token_type_ids", "attention_mask")
    return [dict(zip(names, ragged.pad(batch, pad_id))) for _, batch in batches]


def draw(count: int, texts: int, seed: int = 0) -> np.ndarray:
    """The numbers of at most so many of `count` texts, by chance; int64."""
    return np.random.default_rng(seed).permutation(count)[:texts]


def held_out(texts: int, settings: config.Selection) -> int:
    """How many of a table's texts are left to choose on: the last that `draw` would take."""
    return 0 if settings.data is not None else min(settings.texts, texts // SHARE)


def read_batches(
    settings: config.Calibration,
    bundle: bundles.Bundle,
    selection: config.Selection | None = None,
    columns: config.Columns = read.USUAL,
) -> list[Feeds]:
    """Calibration texts as batches for the bundle's model, but those that are held out for
    `selection`; UserError as `data.read` raises it."""
    task = tasks.of(bundle.task)
    examples = read_unlabelled(str(settings.data), task, "calibration.data", columns)
    left = len(examples) - (held_out(len(examples), selection) if selection else 0)
    most = min(settings.texts, left)
    chosen = [examples[number] for number in draw(len(examples), most, settings.seed)]
    tokenizer = tokenizers.open(bundle)
    encodings = task.answer.encode(tokenizer, *task.labels.texts(chosen), bundle.reading)
    every = range(len(encodings.ids))
    return feeds(encodings, every, tokenizer.pad_id)

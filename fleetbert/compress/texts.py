"""Texts of a job as batches of token ids: tokenized once, sorted by length."""

from __future__ import annotations

from pathlib import Path
from typing import Callable, Dict, Sequence

import numpy as np

from fleetbert import bundle as bundles
from fleetbert import config, tasks
from fleetbert.data import read, tokenizers
from fleetbert.data.batching import collate_padded, plan_inference
from fleetbert.data.read import Example
from fleetbert.data.tokenizers import Encodings
from fleetbert.errors import UserError
from fleetbert.tasks import Task

# What a program is fed: input_ids and token_type_ids, int64 [texts, length].
Feeds = Dict[str, np.ndarray]


def feeds(
    encodings: Encodings, chosen: Sequence[int] | np.ndarray, batch_tokens: int, pad_id: int
) -> list[Feeds]:
    """Texts in batches, sorted by length so that padding does not set the scales. chosen: the
    numbers of the texts to take; batch_tokens: of a batch, with padding."""
    numbers = np.asarray(chosen, np.int64)
    plan = plan_inference(encodings.lengths[numbers], batch_tokens)
    batches = (collate_padded(encodings, numbers[some], pad_id) for some in plan)
    return [{"input_ids": one.input_ids, "token_type_ids": one.token_type_ids} for one in batches]


def draw(count: int, texts: int, seed: int = 0) -> np.ndarray:
    """The numbers of at most so many of `count` texts, by chance; int64."""
    return np.random.default_rng(seed).permutation(count)[:texts]


def read_batches(
    settings: config.Calibration,
    bundle: bundles.Bundle,
    left: Callable[[int], int] | None = None,
) -> list[Feeds]:
    """Calibration texts as batches for the bundle's model; UserError as `data.read` raises it.

    left: of so many texts, how many stay for others, the last that are drawn.
    """
    task = tasks.of(bundle.task)
    examples = read_unlabelled(str(settings.data), task, "calibration.data")
    most = min(settings.texts, len(examples) - (left(len(examples)) if left else 0))
    chosen = [examples[number] for number in draw(len(examples), most, settings.seed)]
    tokenizer = tokenizers.open(bundle)
    encodings = tokenizer.encode(*task.texts(chosen), bundle.max_length)
    every = range(len(encodings.ids))
    return feeds(encodings, every, settings.batch_tokens, tokenizer.pad_id)


def read_unlabelled(path: str, task: Task, key: str) -> list[Example]:
    """The texts of a table, or of a file with one a line; UserError names the job's `key`."""
    tagged = read.TAG_SUFFIXES if task.label == "spans" else ()
    if Path(path).suffix.lower() in (*read.COLUMN_SUFFIXES, *read.JSON_SUFFIXES, *tagged):
        return read.read_as(path, task.table_format(path, labelled=False)).examples
    if task.pair:
        raise UserError(f"{key}: {path}: pairs need a .tsv, .csv or .jsonl with text_b")
    return read.read_as(path, read.texts_format(path)).examples

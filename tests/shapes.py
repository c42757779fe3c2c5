"""Batches of random shapes in random order: an engine that has answered others before has to say
what a new one says. oneDNN's cache confuses shapes; see fleetbert/compat/paddle_inference.py."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import tiny_bert
from tiny_bert import LABELS

from fleetbert import bundle as bundles
from fleetbert import config
from fleetbert.compat import processor
from fleetbert.compression import pipeline
from fleetbert.data.batching import SAFE_LENGTHS
from fleetbert.engines import engine
from fleetbert.engines.alike import random_batch

THREADS = 2
VOCAB_SIZE = 195


def add_int8_and_early_exit(source: Path, folder: Path) -> bundles.Bundle:
    """A copy of the tiny bundle, with int8-static and early-exit-int8 added."""
    root = Path(shutil.copytree(source, folder / "bundle"))
    _quantize(root, folder, method="static", calibration={"data": str(_write_table(folder))})
    tiny_bert.add_early_exit(root, source="int8-static")
    return bundles.read(root)


def add_bfloat16(source: Path, folder: Path) -> bundles.Bundle:
    """A copy of the bundle, with bfloat16 added; the copy alone where the processor lacks it."""
    root = Path(shutil.copytree(source, folder / "bundle"))
    if processor.bfloat16():
        _quantize(root, folder, method="bfloat16")
    return bundles.read(root)


def _quantize(root: Path, folder: Path, **job: object) -> None:
    gate = {"data": str(_write_table(folder)), "max_accuracy_drop": 1}
    given = {"bundle": str(root), "gate": gate, **job}
    pipeline.quantize(config.Quantize.model_validate(given))


def _write_table(folder: Path) -> Path:
    table = folder / "texts.tsv"
    rows = [f"{LABELS[number % 3]}\tword{number} word{number + 1}" for number in range(32)]
    table.write_text("\n".join(["label\ttext_a", *rows]) + "\n", encoding="utf-8")
    return table


def random_shapes(count: int, most_tokens: int, seed: int) -> list[tuple[int, int]]:
    """(rows, length) of so many tokens at most, in random order; some come again."""
    random = np.random.default_rng(seed)
    lengths = random.choice(SAFE_LENGTHS, count)
    rows = random.integers(1, most_tokens // lengths + 1)
    return list(zip(rows.tolist(), lengths.tolist()))


def check(bundle: bundles.Bundle, variant: str, shapes: list[tuple[int, int]]) -> None:
    """Every answer of one engine to all shapes is that of an engine opened for that shape alone."""
    kind, folder = bundle.variant(variant).kind, bundle.folder(variant)
    used = engine.open_folder(kind, folder, "cpu", THREADS)
    batches = {shape: _batch(shape) for shape in dict.fromkeys(shapes)}
    # All of them first: a predictor that is freed empties the cache of the others.
    answers = [used(*batches[shape]) for shape in shapes]
    expected = {
        shape: engine.open_folder(kind, folder, "cpu", THREADS)(*batch)
        for shape, batch in batches.items()
    }
    for shape, found in zip(shapes, answers):
        np.testing.assert_allclose(found, expected[shape], atol=1e-5, err_msg=str(shape))


def _batch(shape: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Rows have random numbers of tokens: engines may go by these instead of the length."""
    random = np.random.default_rng(shape)
    input_ids, token_type_ids = random_batch(random, shape, VOCAB_SIZE)
    lengths = random.integers(1, shape[1] + 1, shape[0])
    input_ids[np.arange(shape[1]) >= lengths[:, None]] = 0
    return input_ids, token_type_ids

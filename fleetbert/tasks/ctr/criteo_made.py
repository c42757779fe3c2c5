"""Click logs in Criteo's format that are made up, of which the best AUC is known.

  python -m fleetbert.tasks.ctr.criteo_made --rows 200000 --dev-rows 50000 --ids 2600 \\
    --out data/clicks

writes train.tsv, dev.tsv and truth.json into --out. The chance of a click is a known function of a
row; its AUC and its log loss on dev.tsv, which no model can beat but by luck, are in truth.json.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fleetbert.core import errors, files
from fleetbert.core.errors import UserError
from fleetbert.data.fields import CATEGORIES, NUMBERS
from fleetbert.tasks.ctr.metrics import auc, log_loss

ROWS_AT_ONCE = 100_000
MISSING_NUMBERS, MISSING_CATEGORIES = 0.2, 0.03  # shares
PAIRS = ((0, 1), (2, 3), (4, 5))  # columns of categories that act together: not linear
BIAS = -1.2


class World:
    """Which rows there are, and the chance of a click of each."""

    def __init__(self, ids: int, seed: int):
        """`ids` categories, shared out over the columns."""
        rng = np.random.default_rng([seed, 0])
        self.each = ids // CATEGORIES
        self.effects = rng.normal(0, 0.25, (CATEGORIES, self.each)).astype(np.float32)
        for left, right in PAIRS:
            self.effects[[left, right]] *= 2
        self.slopes = rng.normal(0, 0.2, NUMBERS)
        self.of_missing = rng.normal(0, 0.3, NUMBERS)

    def draw(
        self, rng: np.random.Generator, rows: int, first: int | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Numbers (int64, -1 where missing) and categories (int64, -1 where missing) of rows, and
        the logits of their clicks. Frequent categories are drawn more often than rare ones; with
        `first`, row n of the first ones has category `first` + n of each column instead."""
        numbers = np.floor(np.exp(rng.normal(2, 1.5, (rows, NUMBERS)))).astype(np.int64)
        numbers[rng.random(numbers.shape) < MISSING_NUMBERS] = -1
        skewed = rng.random((rows, CATEGORIES)) ** 2 * self.each
        categories = np.minimum(skewed.astype(np.int64), self.each - 1)
        categories[rng.random(categories.shape) < MISSING_CATEGORIES] = -1
        if first is not None:
            count = max(0, min(rows, self.each - first))
            categories[:count] = (first + np.arange(count))[:, None]
        logs = (np.log1p(np.maximum(numbers, 0)) - 2) / 1.5
        logits = BIAS + np.where(numbers < 0, self.of_missing, self.slopes * logs).sum(axis=1)
        known = categories >= 0
        for column in range(CATEGORIES):
            logits += self.effects[column][categories[:, column]] * known[:, column]
        for left, right in PAIRS:
            first_effects, other = self.effects[left], self.effects[right]
            both = known[:, left] & known[:, right]
            logits += first_effects[categories[:, left]] * other[categories[:, right]] * both
        return numbers, categories, logits


def write(
    stream: BinaryIO, world: World, rng: np.random.Generator, rows: int, every_id: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Write rows; returns their labels and the logits that these were drawn by."""
    labels, logits = [], []
    for start in range(0, rows, ROWS_AT_ONCE):
        count = min(ROWS_AT_ONCE, rows - start)
        numbers, categories, logit = world.draw(rng, count, start if every_id else None)
        label = rng.random(count) < 1 / (1 + np.exp(-logit))
        columns: list[list[str]] = [["01"[number] for number in label.astype(int).tolist()]]
        columns += [["" if n < 0 else str(n) for n in column] for column in numbers.T.tolist()]
        for column, known in zip(categories.T, categories.T >= 0):
            words = _words(column)
            columns.append([word if is_known else "" for word, is_known in zip(words, known)])
        stream.write("".join("\t".join(row) + "\n" for row in zip(*columns)).encode())
        labels.append(label.astype(np.float32))
        logits.append(logit)
    return np.concatenate(labels), np.concatenate(logits)


def _words(categories: np.ndarray) -> list[str]:
    """Eight hexadecimal digits for each, others for each category."""
    scattered = categories.astype(np.uint32) * np.uint32(0x9E3779B1)  # odd: none twice
    scattered ^= scattered >> np.uint32(16)
    digits = (scattered * np.uint32(0x85EBCA6B)).astype(">u4").tobytes().hex()
    return [digits[place : place + 8] for place in range(0, len(digits), 8)]


def expected_auc(logits: np.ndarray) -> float:
    """The AUC of the true chances themselves, over all labels that rows may get."""
    order = np.argsort(logits, kind="stable")
    chance = 1 / (1 + np.exp(-logits[order].astype(np.float64)))
    below = np.cumsum(1 - chance) - (1 - chance)  # zeros to be expected with a lower score
    pairs = chance.sum() * (1 - chance).sum() - (chance * (1 - chance)).sum()
    return float((chance * below).sum() / pairs)


def make(
    folder: Path, rows: int, dev_rows: int, ids: int, seed: int, every_id: bool = False
) -> dict[str, Any]:
    """Write train.tsv, dev.tsv and truth.json; returns what the last one holds.

    every_id: each category is in train.tsv at least once, for which it needs as many rows as a
    column has categories. UserError where it has less, or there are no ids for each column.
    """
    if ids < CATEGORIES or min(rows, dev_rows) < 1:
        raise UserError(f"--ids: at least {CATEGORIES}, one for each column; --rows: at least 1")
    if every_id and rows < ids // CATEGORIES:
        raise UserError(f"--every-id: needs --rows {ids // CATEGORIES} or more for {ids} ids")
    world = World(ids, seed)
    with files.writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with files.replacing(folder / "train.tsv") as stream:
            write(stream, world, np.random.default_rng([seed, 1]), rows, every_id)
        with files.replacing(folder / "dev.tsv") as stream:
            labels, logits = write(stream, world, np.random.default_rng([seed, 2]), dev_rows, False)
    dev = {"n": dev_rows, "expected_auc": expected_auc(logits)}
    if 0 < labels.sum() < len(labels):
        dev.update(best_auc=auc(labels, logits), best_loss=log_loss(labels, logits))
    ids = world.each * CATEGORIES
    truth = {"rows": rows, "ids": ids, "seed": seed, "dev": dev}
    files.write_json(folder / "truth.json", truth)
    return truth


def main(argv: list[str]) -> None:
    parser = argparse.ArgumentParser(
        "python -m fleetbert.tasks.ctr.criteo_made",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", required=True, metavar="FOLDER")
    parser.add_argument("--rows", type=int, default=200_000, help="of train.tsv (200000)")
    parser.add_argument("--dev-rows", type=int, default=50_000, help="of dev.tsv (50000)")
    parser.add_argument(
        "--ids", type=int, default=2_600, help="categories of all columns together (2600)"
    )
    parser.add_argument("--every-id", action="store_true", help="each is in train.tsv")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(argv)
    truth = make(Path(given.out), given.rows, given.dev_rows, given.ids, given.seed, given.every_id)
    best = ", ".join(f"{name} {value:.4f}" for name, value in truth["dev"].items() if name != "n")
    print(f"{given.out}: {given.rows} and {given.dev_rows} rows; on dev.tsv {best}")


if __name__ == "__main__":
    errors.run(main)

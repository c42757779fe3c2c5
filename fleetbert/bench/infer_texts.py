"""The texts of `fleetbert bench infer`, and their batches.

Texts come in three orders: one at a time, in arrival order in batches of 32, and sorted by length
in batches of 2,048 tokens.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Collection, NamedTuple, Sequence

import numpy as np

from fleetbert import bundle as bundles
from fleetbert import tasks
from fleetbert.bench import lengths, measure
from fleetbert.bench.lengths import Batches
from fleetbert.core.errors import UserError
from fleetbert.data import api_docs, tokenizers
from fleetbert.data.batching import SAFE_LENGTHS, plan_inference, round_up
from fleetbert.data.read import read_as
from fleetbert.data.records import Example
from fleetbert.data.tokenizers import Encodings
from fleetbert.engines.engine import BATCH_TOKENS

BATCH_SIZE = 32
ORDERS = {
    "single": "one text at a time",
    "arrival": f"batches of {BATCH_SIZE} as texts come, padded to the longest",
    "sorted": f"texts of like length together, at most {BATCH_TOKENS:,} tokens a batch",
}
# Besides, with a size, as arrival:8.
SIZED = {
    "arrival": "batches of {} as texts come, padded to the longest",
    "length": "batches of {} texts of like length, padded to the longest",
}


class Texts(NamedTuple):
    """What all engines answer: `path` is a .npz file with the token ids, for the workers. timed:
    orders of which the times of single batches are told."""

    examples: list[Example]
    encodings: Encodings
    plans: dict[str, Batches]
    path: Path
    timed: Collection[str]

    @property
    def tokens(self) -> int:
        return int(self.encodings.lengths.sum())


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of what is answered and how."""
    parser.add_argument(
        "--data",
        metavar="FILE",
        help="texts: .tsv, .csv or .jsonl; with labels also accuracy (default: api_docs)",
    )
    parser.add_argument(
        "--orders",
        type=order_names,
        default=list(ORDERS),
        metavar="A,B",
        help=f"order of texts (default: {','.join(ORDERS)}); arrival:N, length:N: batches of N",
    )
    parser.add_argument(
        "--drops",
        type=lambda text: [float(number) for number in text.split(",")],
        default=[0.015],
        metavar="D,D",
        help="drops of accuracy that early exit may have, a row each (default: 0.015: 1.5 points)",
    )
    measure.add_numbers(parser, texts=(1000, "limit of texts, from the first on"))


def order_names(text: str) -> list[str]:
    """The type of --orders."""
    for order in text.split(","):
        kind, _, size = order.partition(":")
        if order not in ORDERS and not (kind in SIZED and size.isdecimal() and int(size)):
            sized = ", ".join(f"{kind}:N" for kind in SIZED)
            raise argparse.ArgumentTypeError(f"{order} is none of {', '.join(ORDERS)}, {sized}")
    return text.split(",")


def described(order: str) -> str:
    kind, _, size = order.partition(":")
    return SIZED[kind].format(size) if size else ORDERS[order]


def tokenize(
    bundle: bundles.Bundle,
    data: str | None,
    most: int,
    orders: Sequence[str],
    folder: Path,
    points: Sequence[lengths.Point] | None = None,
) -> Texts:
    """The first `most` texts of the table `data` as token ids, in a file of `folder` too; points:
    texts of these lengths, of the same tokens."""
    pair = bundle.task.pair
    if data is not None:
        form = tasks.of(bundle.task).labels.table_format(data, labelled=False)
        examples = read_as(data, form).examples[:most]
    elif pair:
        raise UserError("the bundle answers pairs of texts, api_docs has none: give --data")
    else:
        train, dev = api_docs.load()
        examples = (dev + train)[:most]
    tokenizer = tokenizers.open(bundle)
    encodings = tokenizer.encode(
        [example.text_a for example in examples],
        [example.text_b or "" for example in examples] if pair else None,
        bundle.max_length,
    )
    if points:
        encodings, plans = lengths.texts_of(encodings, points)
        examples = [Example("", None, None, 0)] * len(encodings.ids)
    else:
        plans = plan(encodings, orders)
    path = folder / "texts.npz"
    np.savez(
        path,
        ids=np.concatenate(encodings.ids),
        lengths=encodings.lengths,
        first_lengths=encodings.first_lengths,
        pad_id=tokenizer.pad_id,
    )
    return Texts(examples, encodings, plans, path, timed=plans if points else ("single",))


def plan(encodings: Encodings, orders: Sequence[str] = tuple(ORDERS)) -> dict[str, Batches]:
    lengths: list[int] = encodings.lengths.tolist()

    def batches(order: str) -> Batches:
        if order == "sorted":
            planned = [texts.tolist() for texts in plan_inference(encodings.lengths, BATCH_TOKENS)]
        else:
            kind, _, given = order.partition(":")
            size = int(given or {"single": 1, "arrival": BATCH_SIZE}[order])
            texts = list(range(len(lengths)))
            if kind == "length":
                texts.sort(key=lengths.__getitem__)
            planned = [texts[start : start + size] for start in range(0, len(texts), size)]
        longest = [max(lengths[index] for index in part) for part in planned]
        if order == "sorted":
            longest = [round_up(length, SAFE_LENGTHS) for length in longest]
        return list(zip(planned, longest))

    return {order: batches(order) for order in orders}

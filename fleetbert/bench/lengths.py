"""`fleetbert bench infer --lengths`: the time of a text by its length and the size of its batch."""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Dict, List, Mapping, NamedTuple, Sequence, Tuple

import numpy as np

from fleetbert.compat import environment
from fleetbert.core.errors import UserError
from fleetbert.data.tokenizers import Encodings

if TYPE_CHECKING:
    from fleetbert.bench.infer_table import Measured

LENGTHS = "16,32,64,128,256,512"
SIZES = "1,8,32"
LEAST, MOST, TEXTS = 2, 8, 64  # batches that a turn answers, of so many texts together
# Indices of the texts of each batch, and the tokens that its rows are padded to.
Batches = List[Tuple[List[int], int]]
STYLES = ("-", "--", ":", "-.")


class Point(NamedTuple):
    """Texts of so many tokens in batches of so many."""

    length: int
    size: int

    @property
    def order(self) -> str:
        return f"{self.length} tokens, batches of {self.size}"


def numbers(text: str) -> list[int]:
    """The type of --lengths and --sizes."""
    parts = text.split(",")
    if not all(part.isdecimal() and int(part) for part in parts):
        raise argparse.ArgumentTypeError(f"{text} is no list of whole numbers from 1 on, as 16,32")
    return sorted({int(part) for part in parts})


def points(lengths: Sequence[int], sizes: Sequence[int], max_length: int) -> list[Point]:
    """All combinations of lengths that the bundle takes; UserError if there are none."""
    kept = [length for length in lengths if 3 <= length <= max_length]
    if not kept:
        raise UserError(
            f"--lengths: the bundle answers texts of 3 to {max_length} tokens; give such lengths"
        )
    return [Point(length, size) for size in sizes for length in kept]


def texts_of(encodings: Encodings, wanted: Sequence[Point]) -> tuple[Encodings, dict[str, Batches]]:
    """Texts of exactly these lengths, of the tokens of the given texts one after the other between
    the first and the last token of a text; and the batches of each point."""
    inner = itertools.cycle(np.concatenate([ids[1:-1] for ids in encodings.ids]).tolist())
    first, last = encodings.ids[0][0], encodings.ids[0][-1]
    ids: list[np.ndarray] = []
    plans: dict[str, Batches] = {}
    for point in wanted:
        batches = min(MOST, max(LEAST, TEXTS // point.size))
        plans[point.order] = []
        for _ in range(batches):
            numbers = list(range(len(ids), len(ids) + point.size))
            plans[point.order].append((numbers, point.length))
            for _ in numbers:
                tokens = [first, *itertools.islice(inner, point.length - 2), last]
                ids.append(np.array(tokens, np.int32))
    lengths = np.array([len(text) for text in ids], np.int32)
    return Encodings(ids, lengths, 0), plans


Curves = Dict[str, Dict[int, List[float]]]  # by engine and size of the batches


def curves(measured: Mapping[str, Measured], wanted: Sequence[Point]) -> Curves:
    """Milliseconds of a text of each length, ascending."""
    by_place = {(row.engine, row.order): row for row in measured.values()}
    lengths, sizes = (sorted(set(axis)) for axis in zip(*wanted))
    return {
        engine: {
            size: [
                1000 / by_place[engine, Point(length, size).order].figures.texts_per_s
                for length in lengths
            ]
            for size in sizes
        }
        for engine in dict.fromkeys(row.engine for row in measured.values())
    }


def table_rows(measured: Mapping[str, Measured], wanted: Sequence[Point]) -> list[list[str]]:
    """Milliseconds of a text: a row for each engine and size, a column for each length."""
    lengths = sorted({point.length for point in wanted})
    rows = [["ms of a text", *(f"{length} tokens" for length in lengths)]]
    for engine, sizes in curves(measured, wanted).items():
        for size, times in sizes.items():
            rows.append([f"{engine}, batches of {size}", *(f"{time:.2f}" for time in times)])
    return rows


def write_report(
    path: Path,
    bundle: Path,
    measured: Mapping[str, Measured],
    wanted: Sequence[Point],
    notes: Sequence[str],
    arguments: argparse.Namespace,
) -> None:
    """Write a page with the curves of each engine and the table."""
    # Matplotlib is for whoever writes the page only.
    import matplotlib

    from fleetbert.reports import figures, page

    header, *rows = table_rows(measured, wanted)
    lengths = sorted({point.length for point in wanted})
    drawn = []
    with matplotlib.rc_context(figures.STYLE):
        for engine, sizes in curves(measured, wanted).items():
            figure, axes = figures.axes_of()
            for number, (size, times) in enumerate(sizes.items()):
                axes.plot(
                    lengths,
                    times,
                    STYLES[number % len(STYLES)],
                    marker="o",
                    markersize=3,
                    color=(figures.TRAIN, figures.DEV)[number % 2],
                    label=f"batches of {size}",
                )
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            axes.set_xlabel("tokens of a text")
            axes.set_ylabel("ms of a text")
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0f}")
            axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.legend(frameon=False, fontsize=8)
            drawn.append(page.Figure(engine, figure))
    page.write(
        path,
        title=f"{bundle.resolve().parent.name}/{bundle.resolve().name}: time by length",
        kind="time by length",
        note=notes[0],
        sections=[
            page.Section("", [*drawn, page.Table(header, [tuple(row) for row in rows])]),
            page.how_it_was_made(
                {key: value for key, value in vars(arguments).items() if value is not None},
                "Machine",
                environment.machine(arguments.threads),
            ),
        ],
    )

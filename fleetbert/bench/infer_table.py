"""The figures of `bench infer`: rows of a table, and notes below it."""

from __future__ import annotations

from typing import NamedTuple, Sequence

from fleetbert.bench.measure import Figures
from fleetbert.bench.worker import Json
from fleetbert.engines.alike import LARGEST_DIFFERENCE


class Measured(NamedTuple):
    """A row's figures. Times are in ms, of single texts only. `difference`: the largest between its
    logits and those of the first row. `padding`: the part of all tokens. `first_seconds`: of the
    uncounted pass, in which an engine compiles each shape."""

    engine: str
    order: str
    figures: Figures
    batches: int
    padding: float
    p50_ms: float | None
    p99_ms: float | None
    accuracy: float | None
    difference: float
    first_seconds: float = 0.0


def report(measured: dict[str, Measured]) -> dict[str, Json]:
    return {
        label: {**row._asdict(), **row.figures._asdict(), "figures": None}
        for label, row in measured.items()
    }


def table_rows(measured: dict[str, Measured]) -> list[list[str]]:
    header = ["", "texts/s", "lowest", "highest", "padding", "batches", "p50 ms", "p99 ms"]
    rows = [[*header, "CPU ms/text", "peak MB", "accuracy"]]
    for label, row in measured.items():
        figures = row.figures
        rows.append(
            [
                label,
                *(f"{value:.1f}" for value in figures[:3]),
                f"{row.padding:.1%}",
                str(row.batches),
                "-" if row.p50_ms is None else f"{row.p50_ms:.2f}",
                "-" if row.p99_ms is None else f"{row.p99_ms:.2f}",
                f"{figures.cpu_ms_per_text:.1f}",
                f"{figures.peak_mb:.0f}",
                "-" if row.accuracy is None else f"{row.accuracy:.4f}",
            ]
        )
    return rows


def difference_notes(measured: dict[str, Measured], exact: Sequence[str]) -> list[str]:
    """How far the logits of engines that compute in float32 are from the first row's."""
    differences = [row.difference for row in measured.values() if row.engine in exact]
    if not differences:
        return []
    largest = max(differences)
    notes = [f"Largest difference between logits in float32: {largest:.1e}."]
    if not largest <= LARGEST_DIFFERENCE:
        notes.append(f"WARNING: that is more than {LARGEST_DIFFERENCE}: they are different models.")
    return notes

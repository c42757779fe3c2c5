"""How well, and how fast, a variant answers a labelled table."""

from __future__ import annotations

import time
import unicodedata
from pathlib import Path
from typing import NamedTuple, Sequence

import numpy as np

from fleetbert.config import Columns
from fleetbert.core.errors import UserError
from fleetbert.data.labels import alike
from fleetbert.data.read import USUAL, Example, read_as, warn_of_pairs
from fleetbert.engines import answer
from fleetbert.tasks import Metrics
from fleetbert.tasks.calibration import calibration_error

# A confusion matrix of more classes does not fit a terminal.
WIDEST_CONFUSION = 12
MOST_CLASSES = 50  # shown, the worst
MOST_CONFUSIONS = 30
NOT_IN_THE_HEADLINE = ("macro_f1", "macro_f1_all", "texts_per_s", "mean_layers")


class Known(NamedTuple):
    """A labelled table for a model: its examples, their targets [examples, ...]
    (`tasks.Labels.targets`), and how many bad lines were left out."""

    examples: list[Example]
    truth: np.ndarray
    skipped: int


def read_known(
    model: answer.Model,
    path: str | Path,
    columns: Columns = USUAL,
) -> Known:
    """Read the labelled table at `path`; a label that the model does not know is a bad line."""
    task, labels = model.task, model.labels
    form = task.labels.table_format(path, columns, labelled=True)
    warn_of_pairs(path, form)
    stops = columns.on_bad_line == "stop"
    table = read_as(path, form, columns.on_bad_line)
    written = [example.label or "" for example in table.examples]
    known = frozenset(labels)
    strange = [task.labels.unknown(label, known) for label in written]
    examples = [example for example, label in zip(table.examples, strange) if label is None]
    unknown = [(example, label) for example, label in zip(table.examples, strange) if label]
    if unknown and (stops or not examples):
        example, label = unknown[0]
        leave_out = stops and columns is not USUAL  # which no user has set
        skip = columns.setting("on_bad_line", "skip")
        shown = ", ".join(map(repr, labels[:12])) + (", ..." if len(labels) > 12 else "")
        raise UserError(
            f"{path}:{example.line}: the model does not know the label {label!r}"
            f"{alike(label, labels)}; it knows {shown}; correct the line"
            + (f", or leave such lines out with {skip}" if leave_out else "")
        )
    truth = task.labels.targets([example.label or "" for example in examples], labels)
    task.labels.check_targets(str(path), truth)
    return Known(examples, truth, len(table.skipped) + len(unknown))


def evaluate(
    model: answer.Model,
    path: str | Path,
    columns: Columns = USUAL,
) -> Metrics:
    """Measures of the model on the table at `path`, ready for JSON.

    Those of the task, ece (expected calibration error of its probabilities), texts_per_s
    (tokenization to logits), skipped (bad lines), truncated (texts longer than max_length) and
    mean_layers (that a text went through; None where all do).
    A line whose label the model does not know is a bad line.
    """
    table = read_known(model, path, columns)
    texts_a, texts_b = model.task.labels.texts(table.examples)
    with answer.progress(len(texts_a)) as bar:
        start = time.perf_counter()
        logits = answer.compute_logits(model, texts_a, texts_b, bar.update)
        seconds = time.perf_counter() - start
    outputs = model.task.metrics.per_example(logits.values)
    calibrated = {}
    if model.task.metrics.calibrates:
        confidence = model.task.metrics.confidence(table.truth, outputs, model.labels)
        calibrated["ece"] = calibration_error(*confidence)
    return {
        **model.task.metrics.evaluate(table.truth, outputs, model.labels),
        **calibrated,
        "texts_per_s": round(len(texts_a) / seconds, 1),
        "skipped": table.skipped,
        "truncated": logits.truncated,
        "cut": logits.truncated,  # its former name, for one more release
        "mean_layers": None if logits.exit_layers is None else float(logits.exit_layers.mean()),
    }


def format_report(report: Metrics) -> str:
    """The measures of `evaluate` for reading, as a few lines."""
    speed = f"{report['n']} texts at {report['texts_per_s']:.0f} texts/s" + (
        f", {layers:.2f} layers each" if (layers := report["mean_layers"]) else ""
    )
    metrics = {n: value for n, value in report.items() if isinstance(value, float)}
    numbers = [f"{n} {value:.4f}" for n, value in metrics.items() if n not in NOT_IN_THE_HEADLINE]
    lines = ["   ".join([*numbers, speed])]
    if "classes" in report:
        lines += ["", *_tables(report)]
    skipped, truncated = report["skipped"], report["truncated"]
    if skipped:
        lines += ["", skipped_lines(skipped)]
    if truncated:
        lines += ["", f"texts truncated to the model's maximum length: {truncated}"]
    return "\n".join(lines)


def skipped_lines(count: int) -> str:
    return f"{count} bad line{'s were' if count > 1 else ' was'} skipped"


def _tables(report: Metrics) -> list[str]:
    """A classifier's table by class, and its confusion matrix or most frequent mistakes."""
    rows = [["", "precision", "recall", "f1", "texts"]]
    classes, labels = report["classes"], report["labels"]
    for label, scores in list(classes.items())[:MOST_CLASSES]:
        numbers = [f"{scores[name]:.4f}" for name in ("precision", "recall", "f1")]
        rows.append([label, *numbers, str(scores["support"])])
    lines = align(rows)
    if len(classes) > MOST_CLASSES:
        lines.append(f"the {MOST_CLASSES} worst of {len(classes)} classes; --json has all")
    if "macro_f1_classes" in report:
        lines += ["", _macro_f1(report)]
    if "confusion" in report and len(labels) <= WIDEST_CONFUSION:
        counts = [[label, *map(str, row)] for label, row in zip(labels, report["confusion"])]
        lines += ["", *align([["true \\ answered", *labels], *counts])]
    if confusions := report.get("confusions"):
        shown = [[*pair, str(texts)] for *pair, texts in confusions[:MOST_CONFUSIONS]]
        lines += ["", *align([["most confused: true", "answered", "texts"], *shown])]
        if report["confused_pairs"] > len(shown):
            lines.append(f"the most frequent of {report['confused_pairs']} pairs")
    return lines


def _macro_f1(report: Metrics) -> str:
    """The figure, and over which classes it is the mean."""
    occurring, total = report["macro_f1_classes"], len(report["labels"])
    if occurring == total:
        return f"macro F1 {report['macro_f1']:.4f}, the mean over all {total} classes"
    return (
        f"macro F1 {report['macro_f1']:.4f}, the mean over the {occurring} classes that occur in "
        f"the table or the answers; {report['macro_f1_all']:.4f} over all {total}"
    )


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines: the first column to the left, the others to the right."""
    widths = [max(map(_width, column)) for column in zip(*rows)]
    lines = []
    for row in rows:
        spaces = [" " * (width - _width(cell)) for cell, width in zip(row, widths)]
        cells = [row[0] + spaces[0], *(space + cell for cell, space in zip(row[1:], spaces[1:]))]
        lines.append("  ".join(cells).rstrip())
    return lines


def _width(text: str) -> int:
    """Columns in a terminal: Chinese characters take two."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)

"""An audit of a labelled table: what looks wrong in it, the most worthwhile first."""

from __future__ import annotations

import csv
import io
import json
import logging
from pathlib import Path
from typing import NamedTuple, Sequence

import numpy as np

from fleetbert import config, tasks
from fleetbert.core import files, locks
from fleetbert.core.errors import UserError
from fleetbert.core.quantities import number
from fleetbert.data import folds as tables
from fleetbert.data import read
from fleetbert.data.records import Example, Format
from fleetbert.labelling import checks, confident, regression, vectors
from fleetbert.labelling.audit_report import write_report
from fleetbert.labelling.checks import Issue, issue
from fleetbert.tasks.metrics import softmax
from fleetbert.training import folds

log = logging.getLogger(__name__)

ISSUES, REPORT = "issues.tsv", "report.html"
COLUMNS = ("worth", "line", "kind", "label", "suggestion", "reason", "text")
FOLDS = 5
# What `drop` leaves out, besides invalid rows.
DROPPED = ("wrong label", "conflict", "duplicate", "leak", "no words")
# What `suggest` writes another label for.
SUGGESTED = ("wrong label", "spelling")


class Audit(NamedTuple):
    """issues: the most worthwhile first. labels, given, probabilities [texts, labels]: of the
    examples, by a model that has not seen the text. fixed: the new table, if one was asked for."""

    table: tables.Records
    issues: list[Issue]
    labels: Sequence[str]
    given: np.ndarray
    probabilities: np.ndarray
    folder: Path
    fixed: Path | None


def audit(
    job: config.Config, bundle: str | None = None, trains: bool = False, fix: str | None = None
) -> Audit:
    """Write issues.tsv and report.html to `job.output_dir`; the table stays as it is.

    bundle: an embedding bundle whose vectors are taken; None: those of `job.model.init`. trains:
    probabilities are those of `folds.train`, the job's own training; else of logistic regression on
    the vectors. fix: drop or suggest, which write a new table. UserError for what is wrong with the
    job, or with a table as a whole.
    """
    task = tasks.get(job.task.name)
    if not task.shape.picks_label:
        raise UserError(
            f"task.name: {task.name} has no one label for a text, which an audit needs; it takes "
            "classification and pair_classification"
        )
    folder = Path(job.output_dir)
    with locks.only_job(folder):
        return _audit(job, folder, bundle, trains, fix)


def _audit(
    job: config.Config, folder: Path, bundle: str | None, trains: bool, fix: str | None
) -> Audit:
    task, path = tasks.get(job.task.name), str(job.data.train)
    form = task.labels.table_format(path, job.data)
    if fix is not None:
        files.check_not_read(_fixed(folder, form), path, job.data.dev)
    table, issues = _read(path, form, job.data.group_column)
    examples = table.examples
    labels = task.labels.labels_of([example.label or "" for example in examples])
    if len(labels) < 2:
        invalid = [f", and line {row.line} is invalid ({row.reason})" for row in issues[:1]]
        raise UserError(
            f"{path}: all texts have the label {labels[0]!r}{''.join(invalid)}; give a table with "
            "two labels"
        )
    given = task.labels.targets([example.label or "" for example in examples], labels)
    counts = np.bincount(given, minlength=len(labels))
    encoder = vectors.open_encoder(bundle, job.model, folder)
    points = vectors.encode_examples(encoder, examples, task.shape.pair)
    issues += checks.of_labels(examples, labels, counts)
    longest = job.data.max_length if job.data.long_texts == "cut" else checks.WHOLE
    issues += checks.of_texts(examples, encoder.tokenizer, longest)
    issues += checks.doubles(examples, points)
    if job.data.dev is not None:
        dev_path = str(job.data.dev)
        dev = read.read_as(dev_path, task.labels.table_format(dev_path, job.data)).examples
        dev_points = vectors.encode_examples(encoder, dev, task.shape.pair)
        issues += checks.leaks(examples, dev, points, dev_points, dev_path)
        for label, lines in checks.unknown_labels(dev, labels).items():
            log.warning(
                f"{dev_path}:{lines[0]}: {path} has no text of the label {label!r}, which "
                f"{len(lines)} dev texts have"
            )
    count = job.data.folds or min(FOLDS, len(examples))
    data = job.data.model_copy(update={"on_bad_line": "skip", "folds": count})
    run = job.model_copy(update={"data": data, "output_dir": str(folder / "folds")})
    if trains:
        outputs = folds.train(run).outputs
    else:
        fold_of = folds.divide(run, table)
        chosen = np.array([fold_of[example.line] for example in examples])
        inputs = vectors.inputs_of(points, task.shape.pair)
        outputs, _ = regression.out_of_sample(inputs, given, len(labels), chosen)
    labels, given, probabilities = _without_spellings(labels, given, counts, softmax(outputs))
    issues += _wrong_labels(examples, labels, given, probabilities)
    issues.sort(key=lambda row: (-row.worth, row.line))
    _write_issues(folder / ISSUES, issues, examples)
    fixed = None if fix is None else _fix(folder, table, form, issues, fix)
    done = Audit(table, issues, labels, given, probabilities, folder, fixed)
    write_report(folder / REPORT, job, done)
    kinds = [row.kind for row in issues]
    shown = ", ".join(f"{number(kinds.count(kind))} {kind}" for kind in dict.fromkeys(kinds))
    log.info(f"{path}: {number(len(examples))} texts; issues: {shown or 'none'}")
    log.info(f"done: {folder / REPORT}, {folder / ISSUES}" + (f", {fixed}" if fixed else ""))
    return done


def _read(path: str, form: Format, group_column: str | None) -> tuple[tables.Records, list[Issue]]:
    """The table, and its invalid rows."""
    skipped = read.read_as(path, form, "skip").skipped
    return tables.read_records(path, form, "skip", group_column), [
        issue("invalid", line, reason) for line, reason in skipped
    ]


def _without_spellings(
    labels: Sequence[str], given: np.ndarray, counts: np.ndarray, probabilities: np.ndarray
) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Labels, given and probabilities, where labels that differ by their spelling are one."""
    usual = checks.spellings(labels, counts)
    if not usual:
        return list(labels), given, probabilities
    kept = [label for label in labels if label not in usual]
    places = np.array([kept.index(usual.get(label, label)) for label in labels])
    return kept, places[given], probabilities @ np.eye(len(kept))[places]


def _wrong_labels(
    examples: Sequence[Example],
    labels: Sequence[str],
    given: np.ndarray,
    probabilities: np.ndarray,
) -> list[Issue]:
    """Of labels that are rare nothing is said: the folds have hardly learned them."""
    rows = []
    sure = confident.is_sure(given, probabilities)
    is_rare = np.bincount(given, minlength=len(labels)) < checks.FEW
    named = confident.wrong(given, probabilities)
    for place in named[~is_rare[given[named]]].tolist():
        chance, best = probabilities[place, given[place]], int(probabilities[place].argmax())
        reason = (
            f"{labels[best]!r} has a probability of {probabilities[place, best]:.3f}, "
            f"{labels[given[place]]!r} of {chance:.3f}"
        )
        kind = "wrong label" if sure[place] else "doubtful label"
        line = examples[place].line
        rows.append(Issue(1 - float(chance), line, kind, reason, labels[best]))
    return rows


def _write_issues(path: Path, issues: Sequence[Issue], examples: Sequence[Example]) -> None:
    by_line = {example.line: example for example in examples}
    stream = io.StringIO()
    writer = csv.writer(stream, delimiter="\t", lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in issues:
        example = by_line.get(row.line)
        label, text = ("", "") if example is None else (example.label, example.text_a)
        worth = f"{row.worth:.4f}"
        writer.writerow([worth, row.line, row.kind, label, row.suggestion, row.reason, text])
    with files.writing(path), files.replacing(path) as target:
        target.write(stream.getvalue().encode())


def _fix(
    folder: Path, table: tables.Records, form: Format, issues: Sequence[Issue], how: str
) -> Path:
    """Write the table without the rows to drop, or with the suggested labels."""
    path = _fixed(folder, form)
    if how == "drop":
        dropped = {row.line for row in issues if row.kind in DROPPED}
        kept = [example for example in table.examples if example.line not in dropped]
        tables.write(path, table, [example.line for example in kept])
        for label in {example.label for example in table.examples} - {row.label for row in kept}:
            log.warning(f"{path}: no row of the label {label!r} is left; see {folder / ISSUES}")
        return path
    suggested = {row.line: row.suggestion for row in reversed(issues) if row.kind in SUGGESTED}
    records = {
        line: _labelled(record, form, suggested[line]) if line in suggested else record
        for line, record in table.records.items()
    }
    tables.write(path, table._replace(records=records), list(records))
    return path


def _fixed(folder: Path, form: Format) -> Path:
    """Where the new table is written."""
    is_plain = form.separator == "\t" and not form.quoted
    suffix = "jsonl" if form.kind == "jsonl" else "tsv" if is_plain else "csv"
    return folder / f"fixed.{suffix}"


def _labelled(record: bytes, form: Format, label: str) -> bytes:
    """A record with another label."""
    row = form.row(record)
    row[form.column("label", row) or "label"] = label
    if form.columns is None:
        return json.dumps(row, ensure_ascii=False).encode() + b"\n"
    values = [str(row[column]) for column in form.columns]
    if not form.quoted:
        return form.separator.join(values).encode() + b"\n"
    stream = io.StringIO()
    csv.writer(stream, delimiter=form.separator, lineterminator="\n").writerow(values)
    return stream.getvalue().encode()

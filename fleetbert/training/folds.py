"""Cross-validation: a run for each fold, which is measured on the texts that it did not learn."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import NamedTuple, Sequence

import numpy as np

from fleetbert import config as schema
from fleetbert import tasks
from fleetbert.core import files, locks, strict_json, task_names
from fleetbert.core.errors import UserError
from fleetbert.core.quantities import number
from fleetbert.data import folds as tables
from fleetbert.engines import answer, evaluate
from fleetbert.reports import page
from fleetbert.reports.page import Section, Table, Text, Tile
from fleetbert.tasks import FIGURES, Metrics
from fleetbert.training import finished
from fleetbert.training import job as training
from fleetbert.training.loop import versions
from fleetbert.training.report import classes_of

log = logging.getLogger(__name__)

PREDICTIONS, SUMMARY, REPORT = "predictions.jsonl", "summary.json", "report.html"
# By the kind of label: the text that examples of one fold share, a query whose documents are
# compared or a context that a run would know by other questions; and the name of such texts.
SHARED = {"relevance": ("text_a", "queries"), "answers": ("text_b", "contexts")}


class Folded(NamedTuple):
    """The outputs [texts, ...] for each example of the table, by the run that did not learn it, and
    the targets [texts, ...]. folds: int64 [texts], from 0."""

    table: tables.Records
    labels: Sequence[str]
    folds: np.ndarray
    truth: np.ndarray
    outputs: np.ndarray


def train(job: schema.Config) -> Folded:
    """Train `data.folds` runs, each in a folder of its own below `output_dir`, and measure each on
    the fold that it did not learn.

    Writes predictions.jsonl, summary.json and report.html. What a former call has finished is not
    trained again, and an unfinished run resumes. `data.dev` chooses the best step of each run, and
    the mean logits of all runs are measured on it; without it the last step counts. UserError for
    what is wrong with the job.
    """
    folder, task = Path(job.output_dir), tasks.get(job.task.name)
    if job.data.train is None:
        raise UserError("data.folds: divides the table data.train; give one")
    if task.shape.pooled or not (task.shape.of_texts and task.shape.answers):
        raise UserError(f"data.folds: task.name: {task.name} is not cross-validated; leave it out")
    if job.strategy.name not in ("auto", "single"):
        raise UserError(
            f"data.folds: trains in one process, not with strategy.name: {job.strategy.name}; "
            "leave one of them out"
        )
    with locks.only_job(folder):
        return _train(job, folder)


def _train(job: schema.Config, folder: Path) -> Folded:
    task, path = tasks.get(job.task.name), str(job.data.train)
    form = task.labels.table_format(path, job.data)
    table = tables.read_records(path, form, job.data.on_bad_line, job.data.group_column)
    written = [example.label or "" for example in table.examples]
    labels = task.labels.labels_of(written) if task.shape.least_labels else []
    truth = task.labels.targets(written, labels)
    fold_of = divide(job, table)
    folds = np.array([fold_of[example.line] for example in table.examples])
    outputs = task.room(len(truth), labels)
    measured, dev_logits = [], []
    dev: evaluate.Known | None = None
    runs = [
        _of_fold(job, folder / f"fold-{fold + 1}", form.quoted) for fold in range(folds.max() + 1)
    ]
    learned = [[line for line in fold_of if fold_of[line] != fold] for fold in range(len(runs))]
    _check_same(runs, table, learned)
    for fold, run in enumerate(runs):
        tables.write(Path(str(run.data.train)), table, learned[fold])
        log.info(f"fold {fold + 1} of {job.data.folds}: {run.output_dir}")
        if not finished.is_finished(run):
            training.train(run, labels=labels or None)
        model = answer.load(Path(run.output_dir) / "bundle")
        held = np.flatnonzero(folds == fold)
        examples = [table.examples[place] for place in held]
        outputs[held] = answer.compute_logits(model, *task.labels.texts(examples)).values
        # By the run's own thresholds and labels, as `no_answer`.
        measured.append(model.task.metrics.evaluate(truth[held], outputs[held], model.labels))
        if job.data.dev is not None and not task.shape.per_token:
            dev = dev or evaluate.read_known(model, str(job.data.dev), job.data)
            texts = task.labels.texts(dev.examples)
            dev_logits.append(answer.compute_logits(model, *texts).values)
    folded = Folded(table, labels or model.labels, folds, truth, outputs)
    _write_predictions(folder / PREDICTIONS, model, folded)
    summary = _summary(job, folded, measured)
    if dev is not None:
        mean = np.mean(dev_logits, axis=0)
        summary["ensemble"] = task.metrics.evaluate(dev.truth, mean, labels)
    files.write_json(folder / SUMMARY, summary)
    _write_report(folder / REPORT, summary)
    log.info(_in_words(summary))
    log.info(f"done: {folder / REPORT}, {folder / PREDICTIONS}")
    return folded


def divide(job: schema.Config, table: tables.Records) -> dict[int, int]:
    """The fold of each record, by the record's line."""
    shape, count = task_names.SHAPES[job.task.name], job.data.folds
    assert count is not None
    first = {example.line: example for example in reversed(table.examples)}
    lines = sorted(first)
    groups, what = [table.groups[line] for line in lines if table.groups], "groups"
    if not groups and shape.label in SHARED:
        side, what = SHARED[shape.label]
        groups = [getattr(first[line], side) for line in lines]
    what, several = what if groups else "rows", len(set(groups or lines))
    if several < count:
        raise UserError(
            f"data.folds: {job.data.train} has {several} {what}, and {count} folds were asked for; "
            "ask for fewer"
        )
    if groups:
        folds = tables.grouped(groups, count, job.trainer.seed)
    else:
        named = [(first[line].label or "") * (shape.label == "name") for line in lines]
        folds = tables.stratified(named, count, job.trainer.seed)
    return dict(zip(lines, folds.tolist()))


def _check_same(
    runs: Sequence[schema.Config], table: tables.Records, learned: Sequence[Sequence[int]]
) -> None:
    """UserError where a folder holds other folds, before anything of them is changed."""
    more = Path(runs[-1].output_dir).with_name(f"fold-{len(runs) + 1}")
    if more.exists():
        raise UserError(f"{more}: is of a run with more folds; remove it, or set output_dir")
    for run, lines in zip(runs, learned):
        path, trained = Path(str(run.data.train)), Path(run.output_dir) / "checkpoints"
        if run.trainer.resume == "none" or not (trained.exists() and path.exists()):
            continue
        if not tables.holds(path, tables.content(table, lines)):
            raise UserError(
                f"{path}: was divided from another table, or with another data.folds or "
                "trainer.seed; start anew with trainer.resume=none or another output_dir"
            )


def _of_fold(job: schema.Config, folder: Path, quoted: bool) -> schema.Config:
    """The run of one fold."""
    data = {
        "train": str(folder / f"train{Path(str(job.data.train)).suffix}"),
        "folds": None,
        "group_column": None,
        # A part of a table might look otherwise than the whole.
        "quoting": "minimal" if quoted else "none",
    }
    return job.model_copy(
        update={"data": job.data.model_copy(update=data), "output_dir": str(folder)}
    )


def _write_predictions(path: Path, model: answer.Model, folded: Folded) -> None:
    answers = model.task.answer.to_answers(model.answered_labels, folded.outputs, None)
    with files.writing(path), files.replacing(path) as stream:
        rows = zip(folded.table.examples, folded.folds.tolist(), answers)
        for example, fold, reply in rows:
            of_row = {"line": example.line, "fold": fold + 1, "given": example.label}
            row = {**of_row, **reply.as_json()}
            stream.write(strict_json.dumps(row, ensure_ascii=False).encode() + b"\n")


def _summary(job: schema.Config, folded: Folded, measured: Sequence[Metrics]) -> Metrics:
    """mean, standard_error: over the folds; together: of all texts, with tables by label."""
    metrics = tasks.get(job.task.name).metrics
    names = [
        name
        for name, value in measured[0].items()
        if isinstance(value, (int, float)) and all(name in fold for fold in measured)
    ]
    values = {name: [float(fold[name]) for fold in measured] for name in names if name != "n"}
    root = math.sqrt(len(measured))
    return {
        "metric": metrics.gate_metric,
        "mean": {name: float(np.mean(each)) for name, each in values.items()},
        "standard_error": {n: float(np.std(each, ddof=1)) / root for n, each in values.items()},
        "folds": [{name: fold[name] for name in names} for fold in measured],
        "together": metrics.evaluate(folded.truth, folded.outputs, folded.labels),
        "versions": versions(),
        "config": job.model_dump(mode="json"),
    }


def _in_words(summary: Metrics) -> str:
    metric, folds = summary["metric"], len(summary["folds"])
    line = f"{metric} {summary['mean'][metric]:.4f} ± {summary['standard_error'][metric]:.4f}"
    line += f" (mean and standard error of {folds} folds)"
    if "ensemble" in summary:
        line += f"; the folds' mean logits on data.dev: {summary['ensemble'][metric]:.4f}"
    return line


def _write_report(path: Path, summary: Metrics) -> None:
    config, mean, error = (summary[key] for key in ("config", "mean", "standard_error"))
    shown = [name for name in [*FIGURES, "loss"] if name in mean]
    titles = [FIGURES.get(name, name) for name in shown]
    note = f"standard error, {len(summary['folds'])} folds"
    tiles = [
        Tile(title, f"{mean[name]:.4f}", f"± {error[name]:.4f} ({note})")
        for name, title in zip(shown, titles)
    ]
    if "ensemble" in summary:
        value, note = summary["ensemble"][summary["metric"]], f"on {config['data']['dev']}"
        tiles.append(Tile(f"{summary['metric']} of the mean logits", f"{value:.4f}", note))
    rows = [
        [str(place), number(fold["n"]), *(f"{fold[name]:.4f}" for name in shown)]
        for place, fold in enumerate(summary["folds"], 1)
    ]
    total = ["mean", "", *(f"{mean[name]:.4f}" for name in shown)]
    page.write(
        path,
        title=path.parent.resolve().name,
        kind="cross-validation",
        note=f"{config['task']['name']} · {config['data']['train']}",
        sections=[
            Section("", tiles),
            Section("Folds", [Table(["fold", "texts", *titles], rows, total=total)]),
            Section(
                "Classes, each text answered by the run that did not learn it",
                classes_of(summary["together"]),
            ),
            Section("", [Text(f"{PREDICTIONS} holds the answer to each row.", "muted")]),
            page.how_it_was_made(config, "Versions", summary["versions"]),
        ],
    )

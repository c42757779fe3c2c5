"""Which texts to label next: those that a model is unsure of, and that differ from each other."""

from __future__ import annotations

import csv
import io
import logging
from pathlib import Path
from typing import Collection, Sequence

import numpy as np

from fleetbert import config, tasks
from fleetbert.core import files, locks
from fleetbert.core.errors import UserError
from fleetbert.core.quantities import number
from fleetbert.data import folds, read
from fleetbert.data.records import Example
from fleetbert.engines import answer
from fleetbert.labelling import regression, vectors
from fleetbert.labelling.checks import text_key
from fleetbert.tasks import unlabelled
from fleetbert.tasks.metrics import softmax

log = logging.getLogger(__name__)

NAME = "selected.tsv"
FOLDS = 5
UNSURE = 10  # times as many texts as are wanted: the unsure ones that are clustered
MOST = 20_000  # texts that are clustered where there are no labels yet
ROUNDS = 8  # of k-means


def choose(points: np.ndarray, doubt: np.ndarray, count: int, seed: int = 0) -> np.ndarray:
    """The numbers of `count` texts to label, int64 [count], the first of the largest cluster.

    points: float32 [texts, width] of length 1; doubt: [texts], how unsure a model is of each; ones
    where there is no model. The most doubtful texts are clustered, weighted by their doubt, and of
    each cluster the text at its centre is taken (Zhdanov 2019).
    """
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(points))
    size = UNSURE * count if np.ptp(doubt) > 0 else MOST
    among = order[np.argsort(-doubt[order], kind="stable")][: max(size, count)]
    chosen: np.ndarray = among[_clusters(points[among], doubt[among] + 1e-6, count, rng)]
    return chosen


def _clusters(
    points: np.ndarray, weights: np.ndarray, count: int, rng: np.random.Generator
) -> np.ndarray:
    """Spherical k-means that begins as k-means++; the point next to each centre, each once."""
    distances = np.full(len(points), 2.0)
    first: list[int] = []
    for _ in range(count):
        chances = np.maximum(distances, 1e-9) * weights
        chances[first] = 0
        first.append(int(rng.choice(len(points), p=chances / chances.sum())))
        distances = np.minimum(distances, 2 - 2 * points @ points[first[-1]])
    centres = points[first]
    for _ in range(ROUNDS):
        nearest = (points @ centres.T).argmax(1)
        sums = np.zeros_like(centres)
        np.add.at(sums, nearest, points * weights[:, None].astype(np.float32))
        norms = np.linalg.norm(sums, axis=1, keepdims=True)
        centres = np.where(norms > 0, sums / np.maximum(norms, 1e-9), centres)
    cosines = points @ centres.T
    chosen: list[int] = []
    for centre in np.argsort(-np.bincount(cosines.argmax(1), minlength=count), kind="stable"):
        cosines[chosen] = -2  # a text is taken once
        chosen.append(int(cosines[:, centre].argmax()))
    return np.array(chosen)


def select(
    job: config.Config,
    texts: str,
    count: int,
    labelled: str | None = None,
    bundle: str | None = None,
) -> Path:
    """Write `job.output_dir`/selected.tsv: `count` of the texts in the file `texts`, with an empty
    column `label`. labelled: the table of what has labels; bundle: as `audit` has it. UserError for
    what is wrong with the job or the files."""
    task, folder = tasks.get(job.task.name), Path(job.output_dir)
    if not task.shape.picks_label:
        raise UserError(f"task.name: {task.name} has no one label for a text, which select needs")
    examples = unlabelled.read_unlabelled(texts, task, "select", job.data)
    if named := [example for example in examples if example.label]:
        raise UserError(
            f"{texts}:{named[0].line}: has the label {named[0].label!r}; give texts without labels "
            "here, and those with labels as --labelled"
        )
    known: list[Example] = []
    if labelled is not None:
        known = read.read_as(labelled, task.labels.table_format(labelled, job.data)).examples
    seen = {text_key(example) for example in known}
    first = {text_key(example): example for example in reversed(examples)}
    pool = [example for key, example in first.items() if key not in seen]
    pool.sort(key=lambda example: example.line)
    files.check_not_read(folder / NAME, texts, labelled)
    _check_former(folder / NAME, task, seen)
    if not pool:
        raise UserError(f"{texts}: each of its texts has a label in {labelled}; give other texts")
    if not 0 < count <= len(pool):
        raise UserError(
            f"--n is {count}, but {number(len(pool))} different texts have no label yet; choose 1 "
            f"to {len(pool)} of them"
        )
    with locks.only_job(folder):
        encoder = vectors.open_encoder(bundle, job.model, folder)
        points = vectors.encode_examples(encoder, pool, task.shape.pair)
        doubt, likely = _doubts(encoder, points, known, task)
        chosen = choose(points, doubt, count, job.trainer.seed)
        path = folder / NAME
        rows = [(pool[n], float(doubt[n]), likely[n]) for n in chosen.tolist()]
        _write(path, rows, task.shape.pair)
    log.info(f"done: {path}, {number(count)} of {number(len(pool))} texts; fill its column label")
    return path


def _doubts(
    encoder: answer.Model, points: np.ndarray, known: Sequence[Example], task: tasks.Task
) -> tuple[np.ndarray, list[str]]:
    """How unsure a regression on the known texts is of each point, 0 to 1, and its likeliest label;
    1 and no label where the known texts have fewer than two labels."""
    labels = task.labels.labels_of([example.label or "" for example in known])
    if len(labels) < 2:
        if labels:
            log.warning(f"--labelled has one label, {labels[0]!r}; texts are only chosen to differ")
        return np.ones(len(points)), [""] * len(points)
    given = task.labels.targets([example.label or "" for example in known], labels)
    known_points = vectors.encode_examples(encoder, known, task.shape.pair)
    inputs = [vectors.inputs_of(each, task.shape.pair) for each in (known_points, points)]
    parts = folds.stratified([str(label) for label in given], min(FOLDS, len(given)), 0)
    _, strength = regression.out_of_sample(inputs[0], given, len(labels), parts)
    weights = regression.fit(inputs[0], given, len(labels), strength)
    probabilities = softmax(regression.logits(inputs[1], weights))
    second, best = np.sort(probabilities, axis=1)[:, -2:].T
    return 1 - (best - second), [labels[n] for n in probabilities.argmax(1)]


def _check_former(path: Path, task: tasks.Task, seen: Collection[tuple[str, str]]) -> None:
    """UserError if a former selection has labels by hand that no table has yet."""
    former = unlabelled.read_unlabelled(str(path), task, "select") if path.exists() else []
    for example in former:
        if example.label and text_key(example) not in seen:
            raise UserError(
                f"{path}:{example.line}: has the label {example.label!r}, which --labelled lacks; "
                "append these rows to that table, or move the file"
            )


def _write(path: Path, rows: Sequence[tuple[Example, float, str]], pair: bool) -> None:
    stream = io.StringIO()
    writer = csv.writer(stream, delimiter="\t", lineterminator="\n")
    writer.writerow(["line", "doubt", "likely", "label", "text_a", *["text_b"] * pair])
    for example, doubt, likely in rows:
        second = [example.text_b or ""] * pair
        writer.writerow([example.line, f"{doubt:.4f}", likely, "", example.text_a, *second])
    with files.writing(path), files.replacing(path) as target:
        target.write(stream.getvalue().encode())

"""Compression by budgets: candidates are made in turn until one is small and fast enough.

A candidate is a list of steps, each a job as users write it, on a copy of the bundle. Its accuracy
on selection.data, its time and its size are kept in search.json, so that a killed search goes on.
The gate sees the chosen candidate alone, once.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import statistics
from pathlib import Path
from typing import Callable, Mapping, NamedTuple, Sequence

import numpy as np
from pydantic import ValidationError

from fleetbert import bundle as bundles
from fleetbert import config, tasks
from fleetbert.compression import from_program, pipeline, search_report, tuning
from fleetbert.compression.candidate import Candidate, Tried
from fleetbert.compression.distill import exits
from fleetbert.compression.distill.job import distill
from fleetbert.compression.gate import Gate, Sample, in_turns
from fleetbert.compression.texts import draw
from fleetbert.core import files, locks, resumable
from fleetbert.core.errors import GateFailed, UserError, of_system
from fleetbert.core.progress import bar
from fleetbert.data.ragged import Texts
from fleetbert.engines import answer, evaluate

log = logging.getLogger(__name__)

STATE, REPORT = "search.json", "report.html"
TIMED_TEXTS, ROUNDS = 50, 5
# What the steps that prune remove, and the others.
UNPRUNED: Mapping[str, float] = {}
QUARTER = {"heads": 0.25, "feed_forward": 0.25}
THIRD = {"layers": 0.33, "heads": 0.0, "feed_forward": 0.0}
# What is chosen on selection.data comes later: a step takes whatever the methods make.
ANY_DROP = 1.0


class Made(NamedTuple):
    """A bundle and the variant of it that counts; the whole is a step's result."""

    bundle: Path
    variant: str = "float32"


class Search:
    """The job, its texts, and the folder that everything goes to."""

    def __init__(self, job: config.Compress):
        self.job, self.folder = job, Path(job.output_dir)
        self.bundle = bundles.read(job.bundle)
        tasks.get(self.bundle.task.name).check_of_texts(job.bundle, "fleetbert compress")
        if (self.folder / "bundle").resolve() == self.bundle.root.resolve():
            raise UserError(
                f"output_dir: {self.folder}/bundle is the bundle to make smaller, which stays as "
                "it is; name another folder"
            )
        bundles.check_replaceable((self.folder / "bundle").resolve())
        self.gate = Gate(self.bundle, job.gate, job.threads, columns=job.data)
        path, train = str(job.selection.data), str(job.data.train)
        known = evaluate.read_known(self.gate.model, path, job.data)
        if not self.gate.model.task.shape.pooled:  # which learn from texts without a number, too
            evaluate.read_known(self.gate.model, train, job.data)
        tables = {"data.train": train, "gate.data": self.gate.data, "selection.data": path}
        seen: dict[str, str] = {}
        for name, table in tables.items():
            other = seen.setdefault(files.sha256(table), name)
            if other != name:
                raise UserError(
                    f"{name}: {table} has the texts of {other}; candidates are trained on one "
                    "table, chosen on a second and accepted on a third: name another table"
                )
        texts = draw(len(known.truth), job.selection.texts)
        examples = [known.examples[text] for text in texts]
        self.known = evaluate.Known(examples, known.truth[texts], 0)
        self.selection = Sample(self.gate.model, path, self.known)

    # The steps: of what was made before, in a folder of their own.

    def vocabulary(self, made: Made, folder: Path) -> Made:
        job = self._quantize("vocabulary", _copied(made.bundle, folder / "whole"))
        trimming = job.vocabulary.model_copy(update={"into": str(folder / "bundle")})
        pipeline.quantize(job.model_copy(update={"vocabulary": trimming}))
        return Made(folder / "bundle")

    def exit(self, made: Made, folder: Path) -> Made:
        job = config.SelfDistill(
            bundle=str(_copied(made.bundle, folder / "bundle")),
            sources=[made.variant],
            data={**self._columns(), "train": self.job.data.train},
            gate=self._gate(self.job.gate.max_accuracy_drop),
            threads=self.job.threads,
        )
        added = exits.add_variants(job)
        if not added:
            raise UserError("no exit makes it faster")
        return Made(folder / "bundle", added[0].variant)

    def student(self, made: Made, folder: Path) -> Made:
        bundle = bundles.read(made.bundle)
        shape = from_program.open_bundle(bundle, 0.0).shape
        teacher = folder / "teacher"
        if not teacher.is_dir():
            with files.replacing_folder(teacher, ".teacher-") as new:
                from_program.save_folder(bundle, new)
        distill(
            config.Distill(
                task=tuning.task_of(bundle),
                data=self._data(bundle).model_copy(update={"dev": self.job.selection.data}),
                model={"num_hidden_layers": max(1, shape["num_hidden_layers"] // 2)},
                distill={"teacher": str(teacher)},
                optimizer={"learning_rate": 1e-4},
                **self._training(folder),
            )
        )
        return Made(folder / "run" / "bundle")

    def add(
        self, made: Made, folder: Path, method: str, removed: Mapping[str, float] = UNPRUNED
    ) -> Made:
        job = self._quantize(method, _copied(made.bundle, folder / "bundle"), removed)
        job = job.model_copy(update={"source": made.variant, **self._training(folder)})
        return Made(folder / "bundle", pipeline.quantize(job).variant)

    def _quantize(
        self, method: str, bundle: Path, removed: Mapping[str, float] = UNPRUNED
    ) -> config.Quantize:
        train = self.job.data.train
        return config.Quantize(
            bundle=str(bundle),
            method=method,
            calibration={"data": train},
            vocabulary={"data": train},
            prune=removed,
            data=self._data(bundles.read(bundle)),
            gate=self._gate(ANY_DROP),
            threads=self.job.threads,
        )

    def _gate(self, max_drop: float) -> config.Gate:
        return config.Gate(data=self.job.selection.data, max_accuracy_drop=max_drop)

    def _data(self, bundle: bundles.Bundle) -> config.Data:
        return self.job.data.model_copy(update=config.read_as(bundle.reading))

    def _columns(self) -> dict[str, object]:
        return {name: getattr(self.job.data, name) for name in config.Columns.model_fields}

    def _training(self, folder: Path) -> dict[str, object]:
        quiet = config.Callbacks(
            progress=False, visualdl=False, report=False, profiler={"enabled": False}
        )
        trainer = config.Trainer(epochs=self.job.epochs, device="cpu")
        return {"trainer": trainer, "callbacks": quiet, "output_dir": str(folder / "run")}

    # What a candidate is.

    def measured(self, name: str, made: Made) -> Candidate:
        """Its accuracy on selection.data, and the time of a text in turns with float32."""
        model = answer.load(made.bundle, made.variant, "cpu", self.gate.threads)
        sample = Sample(model, self.selection.name, self.known)
        logits = self.logits(sample)
        chosen = draw(len(self.known.truth), TIMED_TEXTS)
        runs = [_one_by_one(some, chosen) for some in (self.selection, sample)]
        float32, ms = (1e3 * statistics.median(t) / len(chosen) for t in in_turns(runs, ROUNDS)[1])
        return Candidate(
            name=name,
            bundle=str(made.bundle.relative_to(self.folder)),
            variant=made.variant,
            accuracy=self.selection.metric(logits),
            drop=self.selection.drop(logits),
            ms=ms,
            float32_ms=float32,
            mb=_megabytes(bundles.read(made.bundle), made.variant),
        )

    def float32(self, tried: Sequence[Candidate]) -> Candidate:
        """The model as it is, beside which candidates were measured."""
        times = [candidate.float32_ms for candidate in tried if not candidate.failed]
        return Candidate(
            name="float32",
            accuracy=self.selection.float32_accuracy,
            ms=statistics.median(times or [0.0]),
            mb=_megabytes(self.bundle, "float32"),
        )

    def logits(self, sample: Sample) -> np.ndarray:
        """A candidate's logits with the labels in the order of the bundle's."""
        logits = sample.logits(sample.model.engine)
        labels, candidates = list(self.gate.model.labels), list(sample.model.labels)
        if candidates == labels:
            return logits
        return logits[..., [candidates.index(label) for label in labels]]


STEPS: dict[str, Callable[[Search, Made, Path], Made]] = {
    "int8": lambda search, made, folder: search.add(made, folder, "static"),
    "prune": lambda search, made, folder: search.add(made, folder, "prune", QUARTER),
    "layers": lambda search, made, folder: search.add(made, folder, "prune", THIRD),
    "vocabulary": Search.vocabulary,
    "exit": Search.exit,
    "student": Search.student,
}


class Chosen(NamedTuple):
    """The variant of the new bundle, what it was measured with on selection.data and gate.data,
    and the report."""

    bundle: bundles.Bundle
    variant: str
    report: Path
    candidate: Candidate
    accuracy: bundles.Accuracy


def compress(job: config.Compress) -> Chosen:
    """Write `output_dir`/bundle with the first candidate that meets the budgets, or the fastest
    where there are none, if the gate accepts it.

    GateFailed where no candidate meets them, or the gate refuses the one that does; the report is
    written in either case. UserError for what is wrong with the job. `job.bundle` stays as it is.
    """
    with locks.only_job(Path(job.output_dir)):
        return _compress(Search(job))


def _compress(search: Search) -> Chosen:
    job, gate, page = search.job, search.gate, search.folder / REPORT
    tried = _candidates(search)
    made = (candidate for candidate in tried if not candidate.failed)
    # Beside float32, as the machine may have been busy with something else meanwhile.
    possible = sorted(made, key=lambda candidate: candidate.ms / candidate.float32_ms)
    fitting = [candidate for candidate in possible if candidate.excess(job) <= 1]
    if not fitting:
        nearest = min(possible, key=lambda candidate: candidate.excess(job), default=None)
        count = "no candidate" if len(tried) == 1 else f"none of {len(tried)} candidates"
        refused = f"{count} meets {search_report.limits(job)}"
        if nearest is None:
            refused += f", as each failed; the first is {tried[0].describe()}"
        else:
            refused += f"; the nearest is {nearest.describe()}"
            refused += "; allow more of what it exceeds, or train a smaller model"
        search_report.write(page, job, gate, search.float32(tried), tried, refused)
        raise GateFailed(refused)
    chosen = fitting[0]
    root = search.folder / chosen.bundle
    model = answer.load(root, chosen.variant, "cpu", gate.threads)
    accuracy = gate.accuracy(search.logits(gate.sample_of(model)))
    refusal = gate.refusal(chosen.name, accuracy, "leave it out of candidates and search again")
    verdict = refusal or (
        f"{chosen.describe()} on {job.selection.data}; on {gate.data}, which the choice did not "
        f"see, {accuracy.metric} {accuracy.accuracy:.4f} (float32 {accuracy.float32_accuracy:.4f})"
    )
    search_report.write(page, job, gate, search.float32(tried), tried, verdict)
    log.info(f"report: {page}")
    if refusal is not None:
        raise GateFailed(refusal)
    final = search.folder / "bundle"
    with bundles.replacing(final):
        _copied(root, final)
    log.info(f"{verdict}: {final}, variant {chosen.variant}")
    return Chosen(bundles.read(final), chosen.variant, page, chosen, accuracy)


def _candidates(search: Search) -> list[Candidate]:
    """What is tried, until one meets the budgets; without budgets all."""
    job, state, tried = search.job, _resume(search), []
    has_budget = job.budget != config.Budget()
    with bar(total=len(job.candidates), unit=" candidates") as shown:
        for name in job.candidates:
            shown.set_postfix_str(name)
            if name not in state.candidates:
                state.candidates[name] = _try(search, name)
                files.write_json(search.folder / STATE, state.model_dump())
            tried.append(state.candidates[name])
            log.info(tried[-1].describe())
            shown.update()
            if has_budget and tried[-1].excess(job) <= 1:
                break
    return tried


def _resume(search: Search) -> Tried:
    """What a former run of the same job has done; UserError where it was another job."""
    job, path = search.job, search.folder / STATE
    manifest = search.bundle.root / bundles.MANIFEST
    inputs = [str(job.data.train), str(job.selection.data), str(manifest)]
    now = resumable.digest(job, {"budget", "candidates", "output_dir"}, inputs)
    if not path.exists():
        return Tried(of=now)
    try:
        state = Tried.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise UserError(f"{path}: is not what a search writes; remove it") from error
    resumable.check_same(search.folder, state.of, now)
    return state


def _try(search: Search, name: str) -> Candidate:
    """Make a candidate, step by step; those that others have done before are taken."""
    made, done = Made(search.bundle.root), ""
    try:
        for step in name.split("+"):
            done = f"{done}+{step}".lstrip("+")
            folder = search.folder / "candidates" / done
            former = folder / "made.json"
            if former.exists():
                path, variant = json.loads(former.read_text(encoding="utf-8"))
                made = Made(folder / path, variant)
                continue
            log.info(f"{name}: {step}")
            folder.mkdir(parents=True, exist_ok=True)
            made = STEPS[step](search, made, folder)
            files.write_json(former, [str(made.bundle.relative_to(folder)), made.variant])
        return search.measured(name, made)
    except UserError as error:
        if of_system(error):  # the same command tries it again
            raise
        return Candidate(name=name, failed=str(error))


def _megabytes(bundle: bundles.Bundle, variant: str) -> float:
    tokenizer = sum(path.stat().st_size for path in bundle.tokenizer.files.values())
    return (bundle.variant(variant).bytes + tokenizer) / 1e6


def _one_by_one(sample: Sample, chosen: np.ndarray) -> Callable[[], None]:
    """Answers these texts, each alone."""
    texts: list[Texts] = [part for _, part in sample.rows.texts.parts(sample.rows.of(chosen))]

    def run() -> None:
        for text in texts:
            sample.model.engine.run(text)

    return run


def _copied(bundle: Path, to: Path) -> Path:
    """A copy of a bundle, whose files, which nobody changes, take no room where links can be."""

    def link(source: str, target: str) -> None:
        try:
            os.link(source, target)
        except OSError:
            shutil.copyfile(source, target)

    with files.writing(to), files.replacing_folder(to, f".{to.name}-") as new:
        shutil.copytree(
            bundle,
            new,
            copy_function=link,
            dirs_exist_ok=True,
            ignore=shutil.ignore_patterns(".*", "*.html"),
        )
    return to

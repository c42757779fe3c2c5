"""A search for the best settings: each trial is a resumable run, pruned by its evaluations.

Optuna's journal in the folder is what a search knows. Several processes may work at it; a killed
search goes on where it was, with the trials that were running.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import warnings
from pathlib import Path
from typing import Any, Mapping, NamedTuple

import optuna
import yaml
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState

from fleetbert import config, tasks
from fleetbert.compat import environment
from fleetbert.core import errors, files, locks, resumable
from fleetbert.core.errors import UserError
from fleetbert.data import read
from fleetbert.tune import space as spaces

log = logging.getLogger(__name__)

JOURNAL, BEST, REPORT = "trials.log", "best.yaml", "report.html"
FIRST = 4  # trials before any is pruned
FAILED = 3  # trials after which a search ends, if none has succeeded


class Tuned(NamedTuple):
    """best: the trial; config: best.yaml, the job with its settings."""

    best: FrozenTrial
    config: Path
    report: Path


class _Failed(Exception):
    """Of one trial; the others go on."""


def tune(job: config.Config, text: str, trials: int = 20, workers: int = 1) -> Tuned:
    """Try `trials` settings of the space `text` (`space.parse`), in `workers` processes.

    Writes best.yaml and report.html to `output_dir`. The metric is that of `trainer.best_metric` on
    `data.dev`. Calling it again goes on, with more trials where more are asked for. UserError for
    what is wrong with the job or the space, or where no trial succeeds.
    """
    folder = Path(job.output_dir)
    if trials < 1 or workers < 1:
        raise UserError("--trials and --workers have to be at least 1")
    if job.data.dev is None:
        raise UserError("data.dev: settings are compared by a dev table; name one")
    if job.data.train is None or not tasks.get(job.task.name).shape.of_texts:
        raise UserError("data.train: settings are tuned on tables of texts; name one")
    space = spaces.parse(text, job)
    for table in (job.data.train, job.data.dev):
        with read.opened(table):
            pass
    with locks.only_job(folder):
        of = resumable.digest(job, {"output_dir"}, [job.data.train, job.data.dev], str(space))
        try:
            _mend(folder)
            study = _open(folder)
        except (ValueError, LookupError, TypeError) as error:
            path = folder / JOURNAL
            raise UserError(f"{path}: is not what a search writes; remove it") from error
        if "of" in study.user_attrs:
            resumable.check_same(folder, study.user_attrs["of"], of)
        study.set_user_attr("of", of)
        _take_up(study)
        left = trials - sum(map(_is_done, study.get_trials(deepcopy=False)))
        _work_together(job, text, min(left, workers), left)
        return _finish(study, job, folder)


def _mend(folder: Path) -> None:
    """Remove what a killed search, or a full disk, may leave: Optuna's lock, and half a line.
    ValueError where the file is of another program."""
    for lock in folder.glob(f"{JOURNAL}.lock*"):
        lock.unlink()
    path = folder / JOURNAL
    if path.exists():
        with files.writing(path), path.open("r+b") as journal:
            content = journal.read()
            if content[:1] not in (b"", b"{"):
                raise ValueError
            journal.truncate(content.rfind(b"\n") + 1)


def _open(folder: Path) -> optuna.Study:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        storage = JournalStorage(JournalFileBackend(str(folder.resolve() / JOURNAL)))
        return optuna.create_study(
            study_name="tune", storage=storage, direction="maximize", load_if_exists=True
        )


def _has_succeeded(study: optuna.Study) -> bool:
    return any(trial.state == TrialState.COMPLETE for trial in study.get_trials(deepcopy=False))


def _is_done(trial: FrozenTrial) -> bool:
    failed = trial.state == TrialState.FAIL and "failed" in trial.user_attrs
    return failed or trial.state in (TrialState.COMPLETE, TrialState.PRUNED)


def _folder(trial: FrozenTrial | Trial) -> str:
    """The name of a trial's folder: its own, or that of the killed trial that it goes on with."""
    return str(trial.user_attrs.get("folder", f"trial-{trial.number + 1}"))


def _take_up(study: optuna.Study) -> None:
    """Have the trials that a killed search was running tried again first, in their folders."""
    newest = {_folder(trial): trial for trial in study.get_trials()}
    for folder, trial in newest.items():
        if _is_done(trial) or trial.state == TrialState.WAITING:
            continue
        if trial.state == TrialState.RUNNING:
            study.tell(trial.number, state=TrialState.FAIL)
        study.enqueue_trial(trial.params, user_attrs={"folder": folder})
        log.info(f"{folder}: goes on")


def _work_together(job: config.Config, text: str, workers: int, trials: int) -> None:
    if workers <= 1:
        if trials > 0:
            _work(job, text, 0, trials)
        return
    shares = [trials // workers + (worker < trials % workers) for worker in range(workers)]
    threads = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = threads or str(max(1, (os.cpu_count() or 1) // workers))
    context = multiprocessing.get_context("spawn")
    given = (os.getpid(), job.model_dump_json(), text)
    processes = [
        context.Process(target=_start, args=(*given, worker, share))
        for worker, share in enumerate(shares)
    ]
    try:
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    finally:
        for process in processes:
            if process.is_alive():
                process.terminate()  # its trial saves a checkpoint
        for process in processes:
            if process.pid is not None:
                process.join()
    codes = [process.exitcode for process in processes]
    if any(codes):
        raise UserError(
            f"--workers: a process ended with the exit code {next(filter(None, codes))}; what it "
            "printed says why; the same command goes on with its trial"
        )


def _start(parent: int, job: str, text: str, worker: int, trials: int) -> None:
    """What a process of several does."""
    from fleetbert.core import stopping

    environment.die_with_parent(parent)
    stopping.expect()
    environment.import_paddle()
    settings = config.Config.model_validate_json(job)
    errors.run(lambda _: _work(settings, text, worker, trials), [])


def _work(job: config.Config, text: str, worker: int, trials: int) -> None:
    """Try some settings, one after the other."""
    from fleetbert.tune import trial as runs  # loads Paddle, for which a process has prepared

    space, folder = spaces.parse(text, job), Path(job.output_dir)
    study = _open(folder)
    before = len(study.get_trials(deepcopy=False))
    # Another seed for each worker and each call, or a search that goes on repeats its trials.
    study.sampler = optuna.samplers.TPESampler(seed=job.trainer.seed + worker + 1000 * before)
    study.pruner = optuna.pruners.MedianPruner(n_startup_trials=FIRST)

    def objective(trial: Trial) -> float:
        values = {name: _suggest(trial, name, tried) for name, tried in space.items()}
        name = _folder(trial)
        log.info(f"{name}: {in_words(values)}")
        try:
            value = runs.run(spaces.of_trial(job, values, str(folder / name)), trial)
        except UserError as error:
            if errors.of_system(error):  # the same command tries it again
                raise
            trial.set_user_attr("failed", str(error))
            log.warning(f"{name}: {error}")
            failed = sum("failed" in each.user_attrs for each in study.get_trials(deepcopy=False))
            if failed >= FAILED and not _has_succeeded(study):
                study.stop()
            _forget_checkpoints(folder / name)
            raise _Failed from error
        except optuna.TrialPruned:
            log.info(f"{name}: pruned")
            _forget_checkpoints(folder / name)
            raise
        _forget_checkpoints(folder / name)
        return value

    # A trial's parameters and their optimizer know each other; Python frees such cycles late.
    study.optimize(objective, n_trials=trials, catch=(_Failed,), gc_after_trial=True)


def _forget_checkpoints(run: Path) -> None:
    """A trial that is over is not resumed."""
    shutil.rmtree(run / "checkpoints", ignore_errors=True)


def _suggest(trial: Trial, name: str, tried: spaces.Choices | spaces.Range) -> Any:
    if isinstance(tried, spaces.Choices):
        return trial.suggest_categorical(name, tried.values)
    if tried.is_integer:
        return trial.suggest_int(name, int(tried.low), int(tried.high), log=tried.log)
    return trial.suggest_float(name, tried.low, tried.high, log=tried.log)


def in_words(values: Mapping[str, Any]) -> str:
    shown = {n: f"{v:.3g}" if isinstance(v, float) else v for n, v in values.items()}
    return " ".join(f"{name}={value}" for name, value in shown.items())


def _finish(study: optuna.Study, job: config.Config, folder: Path) -> Tuned:
    from fleetbert.tune.report import write_report  # loads matplotlib, which workers need not

    if not _has_succeeded(study):
        reasons = [t.user_attrs["failed"] for t in study.get_trials() if "failed" in t.user_attrs]
        (folder / JOURNAL).unlink()  # the next search may have another table
        raise UserError(f"none of {len(reasons)} trials succeeded; the first says: {reasons[0]}")
    best = study.best_trial
    settings = spaces.of_trial(job, best.params, str(folder / "best"))
    path, page = folder / BEST, folder / REPORT
    with files.writing(path), files.replacing(path) as stream:
        text = yaml.safe_dump(settings.model_dump(mode="json", exclude_defaults=True))
        stream.write(text.encode())
    write_report(page, study, job)
    metric, value = best.user_attrs["metric"], best.user_attrs["value"]
    log.info(f"best: {_folder(best)}, {metric} {value:.4f}, {in_words(best.params)}")
    log.info(f"done: {page}; fleetbert train --config {path} trains with these settings")
    return Tuned(best, path, page)

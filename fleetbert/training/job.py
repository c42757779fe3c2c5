"""A training job from its config to its results: what `launch/train.py` runs."""

from __future__ import annotations

import contextlib
import logging
import math
import os
from pathlib import Path
from typing import Callable, Iterator, Mapping, NamedTuple, Sequence, TypeVar

from fleetbert import bundle as bundles
from fleetbert import config as schema
from fleetbert import tasks
from fleetbert.compat import environment, versions
from fleetbert.core import extras, files, limits, locks, task_names
from fleetbert.core.errors import Stopped, UserError
from fleetbert.export.program import export_bundle
from fleetbert.models import task_heads, weights
from fleetbert.training import checkpoint, rows
from fleetbert.training.calibration import calibrate
from fleetbert.training.callbacks import Callback, build
from fleetbert.training.callbacks.tracking import draw_graph
from fleetbert.training.few_labels import FewLabels
from fleetbert.training.loop import Metrics, Run, State, Summary
from fleetbert.training.strategies import connect
from fleetbert.training.strategies.parameter_server import server
from fleetbert.training.strategies.single import Single, Tensors
from fleetbert.training.texts import Metric, TextTask, open_task
from fleetbert.training.trainable import Trainable

log = logging.getLogger(__name__)

Job = TypeVar("Job", bound=schema.Config)


class Result(NamedTuple):
    """The files and metrics of a training job.

    report: report.html, if the job writes it. metrics:
    those of the best step on `data.dev`; empty without it. summary: the content of summary.json.
    """

    output_dir: Path
    bundle: Path
    report: Path | None
    metrics: Metrics
    summary: Summary


def train(
    job: schema.Config,
    callbacks: Sequence[Callback] = (),
    metrics: Mapping[str, Metric] | None = None,
    labels: Sequence[str] | None = None,
) -> Result:
    """Train as `job` says, from its newest checkpoint if it has one.

    `job.output_dir` then holds summary.json, metrics.jsonl, profile.json, report.html,
    visualdl/, checkpoints/, model/ (Hugging Face format) and bundle/, of the best step; of rows
    model/ as `rows.write_model` has it. `callbacks` come after the job's own.
    `metrics` are computed at each evaluation besides the task's, see `texts.Metric`. `labels`: all
    of them, in the order of the logits; None: those of the training texts, sorted.
    UserError for what is wrong with the job or its data, and while another job writes output_dir;
    Stopped after SIGTERM, with a checkpoint.
    """
    _check_version(job)
    of_texts = task_names.SHAPES[job.task.name].of_texts
    if metrics and not (of_texts and tasks.get(job.task.name).metrics.takes_metrics):
        raise UserError(f"metrics: task.name: {job.task.name} takes no metrics besides its own")
    strategy = connect(job)
    if not of_texts:
        summary = train_with(strategy, job, rows.open_rows, _write_rows, last=callbacks)
    else:

        def open_with_metrics(job: schema.Config, strategy: Single) -> TextTask:
            if labels and not tasks.get(job.task.name).shape.least_labels:
                raise UserError(f"labels: task.name: {job.task.name} has none; leave labels out")
            kind = FewLabels if job.task.few_shot else None
            task = open_task(job, strategy, kind=kind, labels=list(labels) if labels else None)
            task.metrics = metrics or {}
            return task

        summary = train_with(strategy, job, open_with_metrics, last=callbacks)
    return result(job, summary)


def result(job: schema.Config, summary: Summary) -> Result:
    folder = Path(job.output_dir)
    return Result(
        folder,
        folder / "bundle",
        folder / "report.html" if job.callbacks.report else None,
        {name: value for name, value in summary["dev"].items() if name not in ("step", "metric")},
        summary,
    )


def run(job: schema.Config) -> None:
    """Run a process of `launch/train.py`: a parameter server serves, all others train."""
    if job.strategy.name == "parameter_server" and server.is_server():
        _check_version(job)
        server.serve(job)
    else:
        train(job)


def _check_version(job: schema.Config) -> None:
    if job.strategy.name == "parameter_server":
        versions.need_paddle_2("strategy.name: parameter_server")
    if not task_names.SHAPES[job.task.name].of_texts:
        versions.need_paddle_2(f"task.name: {job.task.name}")


def train_with(
    strategy: Single,
    job: Job,
    open_trainable: Callable[[Job, Single], Trainable] = open_task,
    write_results: Callable[[Run, Summary], None] | None = None,
    first: Sequence[Callback] = (),
    last: Sequence[Callback] = (),
    save_last: bool = True,
) -> Summary:
    """Train with a connected strategy; return the summary.

    open_trainable: opens what is trained. write_results: writes the results on rank 0 when all
    steps are done. first, last: callbacks before and after all others. save_last: whether the last
    step gets a checkpoint.
    """
    if job.data.folds is not None:
        raise UserError("data.folds: is for `fleetbert train` in one process; leave it out here")
    environment.keep_large_blocks()
    allowed = limits.read()
    if strategy.rank == 0 and allowed.processors < allowed.affinity:
        log.info(f"threads: {os.environ.get('OMP_NUM_THREADS', '1')}, because of {allowed}")
    with only_writer(strategy, Path(job.output_dir)):
        task = open_trainable(job, strategy)
        if strategy.rank == 0:
            for note in task.notes():
                log.info(note)
            for warning in task.warnings():
                log.warning(warning)
        environment.give_back_memory()
        run = Run(job, strategy, task)
        run.callbacks = [*first, *build(run, save_last), *last]
        if strategy.rejoins:
            _rejoin(run)
        else:
            _resume(run)
        try:
            summary = run.train()
        except Stopped:  # all ranks, after the same step
            strategy.close()
            raise
        strategy.synchronize()
        strategy.on_first(lambda: (write_results or _write_results)(run, summary))
        strategy.close()
        return summary


@contextlib.contextmanager
def only_writer(strategy: Single, folder: Path) -> Iterator[None]:
    """Make the output folder, and lock it and its bundle, on the first rank. UserError on all ranks
    if another job has the lock, or the folder cannot be written."""
    with contextlib.ExitStack() as stack:

        def enter() -> None:
            stack.enter_context(locks.only_job(folder))
            for part in ("checkpoints", "model", "bundle"):
                if files.is_mount_point(folder / part):  # perhaps of another disk or owner
                    files.make_output_dir(folder / part)
            stack.enter_context(bundles.replacing(folder / "bundle"))

        strategy.on_first(enter)
        yield


def _resume(run: Run) -> None:
    folder = run.folder / "checkpoints"
    resume = run.job.trainer.resume
    if resume == "none":
        if run.strategy.rank == 0 and checkpoint.listed(folder):
            former = checkpoint.set_aside(folder)
            log.info(f"starting anew; the former run's checkpoints are in {former}")
    elif resume == "auto":
        newest, passed_over = checkpoint.newest_whole(folder)
        if run.strategy.rank == 0:
            for problem in passed_over:
                log.warning(f"passed over a broken checkpoint: {problem}")
        _check_same_step(run, newest)
        if newest is not None:
            run.restore(checkpoint.load(newest))
        elif passed_over:
            raise UserError(
                f"trainer.resume: none of the {len(passed_over)} checkpoints in {folder} is whole; "
                "put one back from a copy, or start anew with trainer.resume=none, which keeps "
                "them in checkpoints.former"
            )
    else:
        run.restore(checkpoint.load(Path(resume)))
    done, total = run.state.step, run.total_steps
    if done >= total and run.strategy.rank == 0:
        what = f"step {done} is done" + (f", more than this job's {total}" if done > total else "")
        log.warning(
            f"nothing is left to train: {what}; for more set trainer.epochs or trainer.max_steps "
            "higher, to start anew trainer.resume=none"
        )
    run.strategy.barrier()


def _rejoin(run: Run) -> None:
    """Resume where this rank was killed, with the optimizer of the newest checkpoint."""
    newest, _ = checkpoint.newest_whole(run.folder / "checkpoints")
    if newest is not None:
        run.restore(checkpoint.load(newest))
    run.state = State(**run.strategy.rejoin())
    run.resumed_at = run.state.step
    log.info(f"goes on at step {run.state.step}, where it was killed")


def _check_same_step(run: Run, newest: Path | None) -> None:
    """Raise UserError unless all ranks see the same newest checkpoint."""
    run.strategy.barrier()  # hashing checkpoints may take longer than `gather` waits
    steps = run.strategy.gather(None if newest is None else checkpoint.step_of(newest))
    if len(set(steps)) > 1:
        seen = ", ".join(
            f"rank {rank}: " + ("none" if step is None else f"step {step}")
            for rank, step in enumerate(steps)
        )
        raise UserError(
            f"output_dir: the ranks see different newest checkpoints in {run.folder} ({seen}); "
            "it must be one folder that all machines share"
        )


def _write_results(run: Run, summary: Summary) -> None:
    task, folder = run.task, run.folder
    assert isinstance(task, TextTask)
    # A network without the training's changes: fast CPU layers, half weights.
    tensors = best_weights(run)
    run.strategy.release()
    network = task_heads.build(run.job.task.name, task.network.network.config)
    network.set_state_dict(tensors)
    del tensors
    environment.give_back_memory()
    best = run.state.best
    summary["dev"] = dict(best)
    network.eval()
    summary["dev"].update(task.finish(network))
    thresholds = {}
    if task.held is not None:
        fitted, summary["calibration"] = calibrate(task, network, task.held)
        thresholds = fitted.thresholds
        summary["dev"].update(summary["calibration"].get("after", {}))
    model = folder / "model"
    with files.writing(model), files.replacing_folder(model, ".model-") as new:
        fields = task.task.head_fields()
        weights.save_folder(network, task.source, new, task.labels, fields)
    accuracy = []
    metric = task.task.metrics.gate_metric
    dev = summary["dev"]
    if task.dev is not None and math.isfinite(dev.get(metric, math.nan)):
        accuracy = [
            bundles.Accuracy(data=task.dev.name, n=dev["n"], metric=metric, accuracy=dev[metric])
        ]
    with files.writing(folder / "bundle"):
        export_bundle(
            folder / "bundle",
            network,
            task=run.job.task.name,
            labels=task.labels,
            max_length=run.job.data.max_length,
            tokenizer=task.source.tokenizer,
            accuracy=accuracy,
            made_from=task.source.name,
            thresholds=thresholds,
            integer_labels=bool(task.labels) and run.job.data.integer_labels,
            reading=run.job.reading,
        )
    if run.job.callbacks.visualdl and not extras.missing("tracking"):
        with files.writing(folder / "visualdl"):
            draw_graph(folder / "visualdl", network)
    write_summary(run, summary)
    log.info(f"done: {folder}/summary.json, {folder}/report.html, {folder}/bundle")


def _write_rows(run: Run, summary: Summary) -> None:
    """Write `model/` and `bundle/`, with the network and its table."""
    rows.write_model(run, best_weights(run))
    write_summary(run, summary)
    log.info(f"done: {run.folder}/summary.json, {run.folder}/report.html, {run.folder}/bundle")


def best_weights(run: Run) -> Tensors:
    """Return the network's tensors in float32, of the best step if texts were evaluated, or of the
    last step if the best ones have been lost since `Run.check_best`."""
    tensors, best = run.strategy.state(), run.state.best
    if best and best["step"] != run.state.step:
        try:
            path = checkpoint.of_step(run.folder / "checkpoints", best["step"])
            tensors = checkpoint.load(path).tensors
        except UserError as error:
            log.warning(f"{error}; model/ and bundle/ hold the weights of step {run.state.step}")
            run.state.best = {}
    return checkpoint.float32_weights(tensors)


def write_summary(run: Run, summary: Summary) -> None:
    from fleetbert.training.report import write_report  # matplotlib is for whoever writes it only

    files.write_json(run.folder / "summary.json", summary)
    if run.job.callbacks.report:
        write_report(run.folder)

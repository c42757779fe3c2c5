"""A training job from its config to its results: what `launch/train.py` runs."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any, Callable, Sequence

from fleetbert import config as schema
from fleetbert import files
from fleetbert.bundle import Accuracy
from fleetbert.compat import environment
from fleetbert.errors import Stopped, UserError
from fleetbert.train import checkpoint, ctr
from fleetbert.train.callbacks import Callback
from fleetbert.train.loop import Run, State
from fleetbert.train.strategies import connect
from fleetbert.train.strategies.parameter_server import server
from fleetbert.train.strategies.single import Single
from fleetbert.train.task import open_task

log = logging.getLogger(__name__)


def train(job: schema.Config) -> dict[str, Any]:
    """Train as `job` says, from its newest checkpoint if it has one; returns the summary.

    `job.output_dir` then holds summary.json, metrics.jsonl, profile.json, report.html,
    visualdl/, checkpoints/, model/ (Hugging Face format) and bundle/, of the best step; of clicks
    no bundle/, and model/ as `train.ctr.write_model` has it.
    A parameter server serves, and returns nothing.
    """
    if job.strategy.name == "parameter_server" and server.is_server():
        server.serve(job)
        return {}
    if job.task.name == "ctr":
        return train_with(connect(job), job, ctr.open_ctr, _write_ctr)
    return train_with(connect(job), job)


def train_with(
    strategy: Single,
    job: schema.Config,
    open_task: Callable[..., Any] = open_task,
    write_results: Callable[[Run, dict[str, Any]], None] | None = None,
    first: Sequence[Callback] = (),
) -> dict[str, Any]:
    """`train` with a strategy that is connected, and perhaps another task, what
    `open_task(job, strategy)` gives; other results, written on rank 0 when all steps are done; and
    callbacks that come before all others."""
    environment.keep_large_blocks()
    strategy.on_first(lambda: _make_folder(Path(job.output_dir)))
    task = open_task(job, strategy)
    if strategy.rank == 0:
        for note in task.notes():
            log.info(note)
    run = Run(job, strategy, task)
    run.callbacks[:0] = first
    if strategy.rejoins:
        _rejoin(run)
    else:
        _resume(run)
    try:
        summary = run.train()
    except Stopped:  # all ranks, after the same step
        strategy.close()
        raise
    strategy.settle()
    strategy.on_first(lambda: (write_results or _write_results)(run, summary))
    strategy.close()
    return summary


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        trial = folder / ".trial"
        trial.write_text("")
        trial.unlink()
    except OSError as error:
        raise UserError(f"output_dir: cannot write to {folder}: {error.strerror}") from error


def _resume(run: Run) -> None:
    folder = run.folder / "checkpoints"
    wanted = run.job.trainer.resume
    if wanted == "none":
        if run.strategy.rank == 0 and checkpoint.listed(folder):
            former = run.folder / "checkpoints.former"
            shutil.rmtree(former, ignore_errors=True)
            folder.rename(former)
            log.info(f"starting anew; the former run's checkpoints are in {former}")
    elif wanted == "auto":
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
        run.restore(checkpoint.load(Path(wanted)))
    run.strategy.barrier()


def _rejoin(run: Run) -> None:
    """Go on where this rank was killed, with the optimizer of the newest checkpoint."""
    newest, _ = checkpoint.newest_whole(run.folder / "checkpoints")
    if newest is not None:
        run.restore(checkpoint.load(newest))
    run.state = State(**run.strategy.rejoin())
    run.resumed_at = run.state.step
    log.info(f"goes on at step {run.state.step}, where it was killed")


def _check_same_step(run: Run, newest: Path | None) -> None:
    """UserError unless all ranks see the same newest checkpoint."""
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


def _write_results(run: Run, summary: dict[str, Any]) -> None:
    from fleetbert.export.program import export_bundle
    from fleetbert.models import bert, weights

    task, folder, best = run.task, run.folder, run.state.best
    # A network without the training's changes: fast CPU layers, half weights.
    network = bert.build(run.job.task.name, task.network.network.config)
    network.set_state_dict(best_weights(run))
    network.eval()
    with files.writing(folder / "model"), files.temporary_folder(folder, ".model-") as aside:
        weights.save_folder(network, task.source, aside, task.labels)
        files.sync_tree(aside)
        files.put_in_place(aside, folder / "model")
    accuracy = []
    if "accuracy" in best:
        name = task.dev.name
        accuracy = [Accuracy(data=name, n=best["n"], accuracy=best["accuracy"])]
    with files.writing(folder / "bundle"):
        export_bundle(
            folder / "bundle",
            network,
            task=run.job.task.name,
            labels=task.labels,
            max_length=run.job.data.max_length,
            vocab_path=task.source.vocab,
            lowercase=task.source.lowercase,
            accuracy=accuracy,
            made_from=task.source.name,
        )
    write_summary(run, summary)
    log.info(f"done: {folder}/summary.json, {folder}/report.html, {folder}/bundle")


def _write_ctr(run: Run, summary: dict[str, Any]) -> None:
    """A bundle is of texts and has no table, so there is none: `model/` holds both parts."""
    ctr.write_model(run, best_weights(run))
    write_summary(run, summary)
    log.info(f"done: {run.folder}/summary.json, {run.folder}/report.html, {run.folder}/model")


def best_weights(run: Run) -> dict[str, Any]:
    """The network's tensors in float32, of the best step if texts were evaluated."""
    tensors, best = run.strategy.state(), run.state.best
    if best and best["step"] != run.state.step:
        path = run.folder / "checkpoints" / f"step-{best['step']:08d}"
        tensors = checkpoint.load(path).tensors
    return checkpoint.float32_weights(tensors)


def write_summary(run: Run, summary: dict[str, Any]) -> None:
    """summary.json and report.html."""
    from fleetbert.train.report import write_report

    files.write_json(run.folder / "summary.json", summary)
    if run.job.callbacks.report:
        with files.writing(run.folder / "report.html"):
            write_report(run.folder)

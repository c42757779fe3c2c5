"""Jobs that make variants of the tiny job's bundle, killed and in ranks as well."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any, Iterator

import processes
import pytest
import tiny_bert
import tiny_job

from fleetbert import config

USUAL = {
    "qat": {"optimizer.learning_rate": 1e-4, "distill.weight": 0.5, "dropout": 0.0},
    "prune": {
        "optimizer.learning_rate": 5e-4,
        "distill.weight": 0.5,
        "dropout": 0.0,
        "prune": {"heads": 0.5, "feed_forward": 0.6, "texts": 64},
        "gate.max_accuracy_drop": 0.1,
    },
}
EACH_TASK = pytest.mark.parametrize(
    ("task", "pooling"),
    [
        pytest.param(*case, marks=() if case[0] == "regression" else pytest.mark.slow)
        for case in tiny_bert.OTHER_TASKS
    ],
)


def values(
    bundle: Path, data: Path, method: str = "static", changes: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The job as its YAML file would have it; `changes` has dotted keys. What trains takes nine
    steps, and leaves them in `run` beside the bundle."""
    wanted = {
        "bundle": str(bundle),
        "method": method,
        "gate.data": str(data / "dev.tsv"),
        "gate.max_accuracy_drop": 0.05,
        **USUAL.get(method, {}),
    }
    if method in config.CALIBRATED:
        wanted["calibration"] = {"data": str(data / "train.tsv"), "texts": 64}
    run = Path(bundle).with_name("run")
    job = tiny_job.values(data, run, {**wanted, **(changes or {})})
    return {name: value for name, value in job.items() if name not in ("task", "model")}


def job(*arguments: Any) -> config.Quantize:
    return config.Quantize.model_validate(values(*arguments))


def add_trained(settings: config.Quantize) -> Any:
    """Add a variant by a method that trains; what it trained."""
    from fleetbert.compression import pipeline

    prepare, kept = pipeline.load(settings.method), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            pipeline, "load", lambda _: lambda work: kept.append(prepare(work)) or kept[0]
        )
        pipeline.quantize(settings)
    return kept[0].write.args[1]


def rows_of(task: str, numbers: bool = True) -> list[dict]:
    """Forty texts or pairs; numbers: pairs of vectors have one."""
    if task == "regression":
        return tiny_job.number_rows(40, 3)
    if task == "ranking":
        return tiny_job.ranked_rows(7, 3)
    if task == "embedding":
        return tiny_job.vector_rows(40, 3, numbers=numbers)
    if task == "question_answering":
        return tiny_job.question_rows(40, 3)
    rows = tiny_job.label_rows(40, 3)
    if task == "token_classification":
        span = {"start": 0, "end": 5, "kind": "loc"}
        return [{"text": row["text_a"], "spans": [span]} for row in rows]
    return rows


@contextlib.contextmanager
def killed_after(steps: int) -> Iterator[None]:
    """What is trained inside, in this process, is killed after so many steps."""
    from fleetbert.training.strategies.single import Single

    step, done = Single.step, []

    def killed(strategy: Single, arrays: Any) -> Any:
        done.append(step(strategy, arrays))
        if len(done) == steps:
            raise RuntimeError("killed")
        return done[-1]

    with pytest.MonkeyPatch.context() as patch, pytest.raises(RuntimeError, match="killed"):
        patch.setattr(Single, "step", killed)
        yield


def in_two_ranks(
    folder: Path, script: Path, *jobs: dict[str, Any], words: tuple[str, ...] = (), code: int = 0
) -> str:
    """What the first of two ranks wrote that have ended with that code. folder: theirs. More jobs
    than one: where the script takes them."""
    paths = [folder / f"job-{number}.yaml" for number in range(len(jobs))]
    for path, values in zip(paths, jobs):
        path.write_text(json.dumps(values), encoding="utf-8")  # JSON is YAML
    launcher = ["--nproc_per_node", "2", "--max_restart", "2"]
    words = (*map(str, paths[1:]), *words)
    process = processes.start(folder, paths[0], *words, launcher=launcher, script=script)
    try:
        found = process.wait(timeout=processes.DEADLINE)
    finally:
        processes.kill(process)
    assert found == code, processes.said(process)
    return (folder / "log" / "workerlog.0").read_text(encoding="utf-8", errors="replace")


def content(folder: Path) -> dict[str, bytes]:
    """What is in the files below a folder, by path."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}

"""What two ranks train has the losses of one process, task by task. How ranks start, are killed and
end is in launch/test_ranks.py."""

from __future__ import annotations

import json
import shutil
from typing import Any, NamedTuple

import processes
import pytest
import several_jobs
import tiny_job

from fleetbert.compat import processor

pytestmark = pytest.mark.slow

BUFFERS = {
    "find_unused_parameters": True, "fuse_grad_size_in_MB": 1, "last_comm_group_size_MB": 0.1,
}  # fmt: skip
SHORT = {
    "model.dropout": 0.0, "trainer.epochs": 2, "trainer.max_steps": 6, "trainer.eval_every": 3,
    "strategy.fleet": BUFFERS,
}  # fmt: skip
COMPILED, EAGER = {"trainer.compile": True}, {"trainer.compile": False}
MASKED = {"task.name": "mlm", "data.train": "texts.txt", "data.dev": None}
SPANS = {"task.name": "token_classification", "data.train": "tags.conll"}
RANKED = {"task.name": "ranking", "task.negatives": 2, "data.train": "ranking.jsonl"}
ATTACKED = {
    "trainer.recompute": True, "loss.adversarial": 0.5, "loss.class_weights": {"good": 2.0},
}  # fmt: skip
# One process takes its steps in two halves: a text's words are moved in its half.
HALVES = {"optimizer.accumulate_steps": 2}


class Job(NamedTuple):
    changes: dict[str, Any]
    alone: dict[str, Any]  # what differs in one process
    near: dict[str, float]  # as pytest.approx has it


JOBS = {
    "compiled": Job(COMPILED, EAGER, {"abs": 1e-4}),
    "masked words, compiled": Job({**MASKED, **COMPILED}, EAGER, {"abs": 1e-4}),
    # Of a step's words, and of what is drawn for it, each rank has a share.
    "spans": Job(SPANS, {}, {"abs": 1e-4}),
    "ranking": Job(RANKED, {}, {"abs": 1e-4}),
    "computed twice and attacked": Job(ATTACKED, HALVES, {"abs": 1e-5}),
    # All computes in float32, and only what ranks send each other is rounded.
    "half the bytes sent": Job({"strategy.gradients": "bfloat16"}, {}, {"rel": 0.005}),
}
if processor.bfloat16():
    MIXED = {"precision.level": "O1", "precision.dtype": "bfloat16"}
    JOBS["in bfloat16"] = Job(MIXED, {}, {"rel": 0.005})

SHARDED = {
    "strategy.fleet": {"hybrid_configs": {"sharding_degree": 2}}, "optimizer.max_grad_norm": 0.05,
    "optimizer.accumulate_steps": 2, "optimizer.schedule": "constant",
}  # fmt: skip
SHARD = "a sharded optimizer"
JOBS[SHARD] = Job(SHARDED, {}, {"abs": 1e-5})


@pytest.fixture(scope="module")
def changes_of(tiny_data, tmp_path_factory):
    """changes_of(name) → that job of `JOBS`."""
    made = tmp_path_factory.mktemp("tables")
    tiny_job.write_tags(made / "tags.conll", 60, 1)
    tiny_job.write_rows(made / "ranking.jsonl", tiny_job.ranked_rows(20, 1))

    def call(name: str) -> dict[str, Any]:
        changes = {**SHORT, **JOBS[name].changes}
        if "data.train" in changes:
            (table,) = (at for at in (made, tiny_data) if (at / changes["data.train"]).exists())
            changes["data.train"] = str(table / changes["data.train"])
            changes.setdefault("data.dev", changes["data.train"])
        return changes

    return call


@pytest.fixture(scope="module")
def outputs(tiny_data, tmp_path_factory, changes_of):
    """{name: output folder} of `JOBS`, trained one after another by the same two ranks."""

    def train(folder, names, **more):
        folder.mkdir()
        paths = [
            tiny_job.write_config(
                folder / f"{number}.yaml", tiny_data, at / name, {**changes_of(name), **more}
            )
            for number, name in enumerate(names)
        ]
        ranks = {"launcher": ["--nproc_per_node", "2"], "script": several_jobs.__file__}
        processes.ended(processes.run(folder, *map(str, paths), **ranks))

    at = tmp_path_factory.mktemp("ranks")
    train(at / "first", [name for name in JOBS if name != SHARD])  # Fleet starts once
    train(at / "sharded", [SHARD], **{"trainer.max_steps": 3})
    train(at / "resumed", [SHARD])
    return {name: at / name for name in JOBS}


@pytest.mark.parametrize("name", list(JOBS))
def test_losses_are_those_of_one_process(outputs, trainer, tmp_path, changes_of, name):
    summary = trainer(tmp_path, {**changes_of(name), **JOBS[name].alone})
    found, expected = tiny_job.losses(outputs[name]), tiny_job.losses(tmp_path)
    assert len(expected) > 3
    assert found == pytest.approx(expected, **JOBS[name].near)
    if name == "half the bytes sent":
        assert found != pytest.approx(expected, rel=1e-5)
    judged = json.loads((outputs[name] / "summary.json").read_text())["dev"]
    if judged:
        figure = judged["metric"]
        assert judged[figure] == pytest.approx(summary["dev"][figure], abs=0.02)


def test_one_process_goes_on_from_a_sharded_optimizer(outputs, trainer, tmp_path, changes_of):
    """Its checkpoint has the moments of all ranks' shares."""
    more = {**changes_of(SHARD), "strategy.fleet": {}, "trainer.max_steps": 9}
    shutil.copytree(outputs[SHARD], tmp_path / "ranks")
    assert trainer(tmp_path / "ranks", more)["resumed_at"] == 6
    trainer(tmp_path / "alone", more)
    expected = pytest.approx(tiny_job.losses(tmp_path / "alone"), abs=1e-5)
    assert tiny_job.losses(tmp_path / "ranks") == expected

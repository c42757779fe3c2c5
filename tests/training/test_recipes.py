"""Runs that stop early, compute again for less memory, or go on bit for bit with all of it on."""

from __future__ import annotations

import json

import pytest
import tiny_job
from halves import needs_bfloat16

from fleetbert.core import files
from fleetbert.core.errors import UserError

ALL = {
    "loss.class_weights": "balanced", "loss.label_smoothing": 0.1, "loss.r_drop": 0.5,
    "loss.adversarial": 0.3, "trainer.recompute": True, "optimizer.name": "lamb",
    "optimizer.layer_decay": 0.9, "optimizer.schedule": "cosine", "data.batching": "pack",
    "trainer.patience": 50,
}  # fmt: skip
# A rate at which nothing is learned, and so nothing gets better.
IDLE = {
    "trainer.epochs": 9, "trainer.patience": 2, "optimizer.learning_rate": 1e-12,
    "trainer.eval_every": 3,
}  # fmt: skip


MIXED = {"precision.level": "O1", "precision.dtype": "bfloat16"}


@pytest.mark.usefixtures("no_results")
@pytest.mark.parametrize(
    "more",
    [
        {},
        pytest.param(MIXED, marks=[needs_bfloat16, pytest.mark.slow]),
        *({"optimizer.name": name, "loss.r_drop": 0} for name in ("momentum", "lars", "adagrad")),
    ],
    ids=["float32", "bfloat16", "momentum", "lars", "adagrad"],
)
def test_a_resumed_run_has_the_same_losses_bit_for_bit(trainer, tmp_path, more):
    every = {**ALL, **more}
    tiny_job.check_resume(lambda name, **more: trainer.job(tmp_path / name, {**every, **more}))


def test_checkpoints_from_before_there_was_a_choice_are_gone_on_from(trainer, tmp_path):
    trainer(tmp_path, {"trainer.max_steps": 2, "trainer.checkpoint_every": 2})
    (state,) = (tmp_path / "checkpoints").glob("step-*/state.json")
    kept = json.loads(state.read_text())
    del kept["config"]["loss"], kept["config"]["optimizer"]["layer_decay"]
    state.write_text(json.dumps(kept))
    manifest = state.with_name("manifest.json")
    listed = json.loads(manifest.read_text())
    listed["files"]["state.json"] = {"size": state.stat().st_size, "sha256": files.sha256(state)}
    manifest.write_text(json.dumps(listed))
    assert trainer(tmp_path)["resumed_at"] == 2


def test_computing_again_changes_no_loss(trainer, tmp_path):
    trainer(tmp_path / "plain", {"model.dropout": 0.2})
    trainer(tmp_path / "again", {"model.dropout": 0.2, "trainer.recompute": True})
    assert tiny_job.losses(tmp_path / "again") == tiny_job.losses(tmp_path / "plain")


class TestEarlyStopping:
    def test_ends_when_nothing_gets_better_and_stays_there(self, trainer, tmp_path, caplog):
        caplog.set_level("INFO")
        summary = trainer(tmp_path, IDLE)
        assert summary["steps"] == 9  # the first evaluation is the best, two more are not better
        assert "accuracy was not better in 2 evaluations: stops at step 9 of 90" in caplog.text
        assert (tmp_path / "checkpoints" / "step-00000009").is_dir()
        again = trainer(tmp_path, IDLE)
        assert (again["steps"], again["resumed_at"]) == (9, 9)
        assert trainer(tmp_path, {**IDLE, "trainer.patience": 3})["steps"] == 12

    def test_a_run_that_learns_goes_on(self, trainer, tmp_path):
        changes = {"trainer.epochs": 3, "trainer.patience": 1, "trainer.patience_metric": "loss"}
        assert trainer(tmp_path, changes)["steps"] == 30

    def test_a_figure_that_is_not_there_ends_the_run_after_its_checkpoint(self, trainer, tmp_path):
        changes = {"trainer.patience": 1, "trainer.patience_metric": "bleu"}
        with pytest.raises(UserError, match="bleu is no figure of an evaluation; there are n, acc"):
            trainer(tmp_path, changes)
        assert list((tmp_path / "checkpoints").glob("step-*"))

    def test_needs_texts_to_evaluate_on(self, trainer, tmp_path):
        with pytest.raises(UserError, match=r"trainer.patience: there are no texts to evaluate on"):
            trainer(tmp_path, {"trainer.patience": 1, "data.dev": None})


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"loss.adversarial": 1.0, "trainer.compile": True}, "trainer.compile: with loss.adver"),
        ({"trainer.recompute": True, "trainer.compile": True}, "trainer.compile: with trainer.rec"),
        ({"loss.class_weights": {"good": 0.0}}, "should hold weights above 0"),
        ({"optimizer.name": "adagrad", "precision.level": "O2"}, "Adagrad has no float32 master"),
    ],
)
def test_what_does_not_go_together_is_refused(trainer, tmp_path, changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        trainer.job(tmp_path, changes)

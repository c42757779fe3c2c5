"""AdamW that moves the touched rows of the words' table only: the weights of AdamW of all rows."""

from __future__ import annotations

import shutil

import numpy as np
import paddle
import pytest
import tiny_job
from numpy_adamw import NumpyAdamW, linear_rate

from fleetbert import config
from fleetbert.compat import adamw, onednn, touched_rows, training
from fleetbert.models import layers
from fleetbert.training import checkpoint, job, optimizer
from fleetbert.training.loop import Callback

pytestmark = pytest.mark.skipif(not onednn.is_there(), reason="this Paddle carries no oneDNN")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Tables of the tests count as large, and have several blocks."""
    monkeypatch.setattr(adamw, "SMALLEST", 1)
    for name, value in {"BLOCK": 8, "PIECE": 37, "MOST_DUE": 5}.items():
        monkeypatch.setattr(touched_rows, name, value)


class Table:
    """A table with its optimizer, new or with the state of another."""

    def __init__(self, settings, steps, before=None):
        self.settings, self.steps = settings, steps
        self.layer = layers.Embedding(100, 4)
        self.weight = self.layer.weight
        self.adamw, self.schedule = optimizer.build(settings, self.layer, steps)
        if before is not None:
            self.weight.set_value(before.weight)
            names = {before.weight.name: self.weight.name}
            state = training.rename_state(before.adamw.state_dict(), names)
            self.adamw.set_state_dict(state)
        self.rows = self.adamw.keep_rows(self.weight)

    def resumed(self):
        self.rows.settle()
        return Table(self.settings, self.steps, self)


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
@pytest.mark.parametrize("max_grad_norm", [0.0, 0.05])
def test_steps_are_those_of_numpy(max_grad_norm, weight_decay):
    """Each step reads random rows, never all of them; some steps read the whole table, some end the
    run, which resumes."""
    rng, steps = np.random.default_rng(0), 60
    settings = config.Optimizer(
        learning_rate=0.02, warmup_ratio=0.25, weight_decay=weight_decay, beta1=0.8, beta2=0.95,
        epsilon=1e-6, max_grad_norm=max_grad_norm,
    )  # fmt: skip
    table = Table(settings, steps)
    expected = table.weight.numpy().astype(np.float64)
    reference = NumpyAdamW(
        {"": expected}, set(), lambda n: linear_rate(n, 0.02, steps, 15), settings.model_dump()
    )
    for step in range(steps):
        gradient = np.zeros(expected.shape)
        for _ in range(rng.integers(1, 4)):
            ids = rng.integers(0, 20 + step, (2, rng.integers(1, 6)))
            words = table.rows.lookup(paddle.to_tensor(ids))
            np.testing.assert_allclose(words.numpy(), expected[ids], atol=1e-5)
            slopes = rng.normal(size=words.shape).astype(np.float32) * 0.02
            np.add.at(gradient, ids, slopes)
            (words * paddle.to_tensor(slopes)).sum().backward()
        table.adamw.step()
        table.adamw.clear_grad()
        table.schedule.step()
        reference.step({"": gradient})
        if rng.random() < 0.2:
            table.rows.settle()
            np.testing.assert_allclose(table.weight.numpy(), expected, atol=1e-5)
        if rng.random() < 0.2:
            table = table.resumed()
    assert 16 < len(table.rows.ids) < 90
    table.rows.settle()
    np.testing.assert_allclose(table.weight.numpy(), expected, atol=1e-5)


def test_a_gradient_beside_the_lookups_is_refused():
    """As of another package's head that has the words' table from elsewhere."""
    table = Table(config.Optimizer(), 1)
    words = table.rows.lookup(paddle.to_tensor([1, 2]))
    (words @ table.weight.T).sum().backward()
    with pytest.raises(AssertionError, match="has to hold it too"):
        table.adamw.step()


class Watcher(Callback):
    """Sees whether rows are kept, and the loss of other texts between two checkpoints."""

    loss = None

    def on_step(self, run):
        if run.state.step == 5 and run.task.dev is not None:
            batches = map(run.task.dev_arrays, run.task.dev_batches())
            self.loss = [run.strategy.loss(arrays) for arrays in batches]

    def on_end(self, run, summary):
        summary["watched"] = run.strategy.words is not None, self.loss


class Reader(Watcher):
    """Reads gradients, so all rows have one."""

    def on_gradients(self, run):
        pass


# All rows get weight decay; Paddle sums the squares of a table and of its rows in another order.
JOB = {
    "trainer.max_steps": 8, "trainer.checkpoint_every": 3, "trainer.keep_checkpoints": 5,
    "trainer.epochs": 8, "data.train": "few.tsv", "data.batch_size": 4,
    "optimizer.weight_decay": 0.3, "optimizer.max_grad_norm": 0,
}  # fmt: skip


@pytest.fixture
def train(trainer, tmp_path, monkeypatch, no_results):
    """train(folder, changes, callback) trains on texts that have a third of the words."""
    monkeypatch.chdir(tmp_path)
    tiny_job.write_table(tmp_path / "few.tsv", 12, 1)

    def train(folder, changes, callback=Watcher):
        described = trainer.job(tmp_path / folder, {**JOB, **changes})
        return job.train(described, callbacks=[callback()]).summary["watched"]

    return train


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"optimizer.accumulate_steps": 2, "optimizer.layer_decay": 0.5},
        {"loss.r_drop": 1.0, "loss.adversarial": 0.5},
        {"trainer.recompute": True, "data.batching": "pack"},
    ],
)
def test_a_job_has_the_weights_of_all_rows_bit_for_bit(train, tmp_path, changes):
    """So has the job when it resumes: at step 3, before decay that was due in one piece ends."""
    keeps, loss = train("rows", changes)
    assert keeps
    assert train("whole", changes, Reader) == (False, loss)
    shutil.copytree(tmp_path / "rows", tmp_path / "resumed")
    for path in checkpoint.listed(tmp_path / "resumed/checkpoints")[1:]:
        shutil.rmtree(path)
    assert train("resumed", changes) == (True, loss)
    rows, whole, resumed = (tmp_path / name for name in ("rows", "whole", "resumed"))
    assert tiny_job.losses(rows) == tiny_job.losses(whole) == tiny_job.losses(resumed)
    for file in ("model.pdparams", "optimizer.pdopt"):
        mine, others, later = (
            paddle.load(str(folder / "checkpoints/step-00000008" / file), return_numpy=True)
            for folder in (rows, whole, resumed)
        )
        assert set(mine) == set(others) == set(later)
        for name, array in mine.items():
            if isinstance(array, np.ndarray):
                np.testing.assert_array_equal(array, others[name], err_msg=name)
                np.testing.assert_array_equal(array, later[name], err_msg=name)


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer.name": "lamb"},
        {"precision.scale": 8.0},
        {"callbacks.histograms": True, "callbacks.visualdl": True},
        {"trainer.compile": True},
        {"task.name": "mlm", "data.dev": None},
    ],
)
def test_all_rows_learn_where_they_have_to(train, changes):
    keeps, _ = train("output", {**changes, "trainer.max_steps": 1})
    assert not keeps

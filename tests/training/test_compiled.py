"""trainer.compile: the same training through paddle.jit.to_static."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
import tiny_job
from paddle.static import InputSpec

from fleetbert.core.errors import UserError
from fleetbert.training import compiled

TEXTS = {"train": "texts.txt", "dev": "texts-dev.txt"}
COMPILE = {"trainer.compile": True}
RESUMED = {"trainer.checkpoint_every": 4, "trainer.eval_every": 100, "trainer.keep_checkpoints": 9}


@pytest.fixture
def programs(monkeypatch):
    """What went through to_static, in order."""
    made = []
    real = compiled._to_static

    def noted(*arguments):
        made.append(real(*arguments))
        return made[-1]

    monkeypatch.setattr(compiled, "_to_static", noted)
    return made


@pytest.mark.parametrize(
    ("task", "batching"),
    [
        ("classification", "bucket"),
        pytest.param("classification", "pack", marks=pytest.mark.slow),
        pytest.param("mlm", "pack", marks=pytest.mark.slow),
    ],
)
def test_losses_are_those_without(trainer, tiny_data, tmp_path, programs, task, batching):
    changes = {"data.batching": batching, "model.dropout": 0.0, "trainer.eval_every": 5}
    if task == "mlm":
        texts = {f"data.{part}": str(tiny_data / name) for part, name in TEXTS.items()}
        changes.update({"task.name": "mlm", **texts})
    summaries = [trainer(tmp_path / "plain", changes)]
    assert not programs
    summaries.append(trainer(tmp_path / "compiled", {**changes, **COMPILE}))
    expected = tiny_job.losses(tmp_path / "plain")
    assert len(expected) == 10
    assert tiny_job.losses(tmp_path / "compiled") == pytest.approx(expected, abs=1e-5)
    assert summaries[1]["dev"]["loss"] == pytest.approx(summaries[0]["dev"]["loss"], abs=1e-5)
    # The dimensions that differ are open after the first texts, and one program does for all.
    assert len(programs) <= 3
    assert {program.get_traced_count() for program in programs} == {1}


@pytest.mark.slow
class TestResumed:
    def test_a_compiled_run_repeats_itself(self, trainer, tmp_path):
        """With dropout, whose masks the programs draw: bit for bit, and new ones each step."""
        trainer(tmp_path, {**RESUMED, **COMPILE})
        whole = tiny_job.losses(tmp_path)
        path = tmp_path / "checkpoints" / "step-00000004"
        trainer(tmp_path, {**RESUMED, **COMPILE, "trainer.resume": str(path)})
        assert tiny_job.losses(tmp_path) == whole
        trainer(tmp_path / "none", {**RESUMED, **COMPILE, "model.dropout": 0.0})
        without = tiny_job.losses(tmp_path / "none")
        assert all(abs(whole[step] - without[step]) > 1e-6 for step in whole)

    @pytest.mark.parametrize("first", [False, True])
    def test_the_key_may_change_on_the_way(self, trainer, tmp_path, first):
        job = {**RESUMED, "model.dropout": 0.0}
        trainer(tmp_path, {**job, "trainer.compile": first})
        whole = tiny_job.losses(tmp_path)
        path = tmp_path / "checkpoints" / "step-00000004"
        trainer(tmp_path, {**job, "trainer.compile": not first, "trainer.resume": str(path)})
        assert tiny_job.losses(tmp_path) == pytest.approx(whole, abs=1e-5)
        assert len(whole) == 10


def test_cinn_is_asked_for_where_paddle_has_it(monkeypatch):
    """It wants fixed shapes, so no specification goes with it."""
    asked = []
    monkeypatch.setattr(paddle.jit, "to_static", lambda *words, **_: asked.append(words))
    for has in (True, False):
        monkeypatch.setattr(paddle, "is_compiled_with_cinn", lambda has=has: has)
        compiled._to_static(print, [InputSpec([None, 3]), None])
    (_, with_cinn, build), (_, without, plain) = asked
    assert build.build_cinn_pass and with_cinn is None
    assert not plain.build_cinn_pass
    assert without[0].shape == (-1, 3) and without[1] is None


def test_what_the_forward_leaves_out_stays_out():
    class Network(paddle.nn.Layer):
        def __init__(self):
            super().__init__()
            self.linear = paddle.nn.Linear(2, 2)

        def forward(self, x, y=None, z=None):
            out = self.linear(x)
            if z is not None:
                out = out + z
            return out if y is None else out * y

    network = Network()
    x, other = paddle.rand([3, 2]), paddle.rand([3, 2])
    calls = [{"x": x}, {"x": x, "z": other}, {"x": x, "y": other}, {"x": x[:1], "z": other[:1]}]
    expected = [network(**call).numpy() for call in calls]
    compiled.compile_training(network, "cpu")
    for call, value in zip(calls, expected):
        np.testing.assert_allclose(network(**call).numpy(), value, rtol=1e-6)


def test_a_new_program_keeps_the_gradients_of_the_micro_batches_before():
    """Tracing again between two micro-batches of one step, for the second one's shape."""
    network = paddle.nn.Linear(3, 2)
    shorter, longer = paddle.ones([1, 3]), paddle.full([2, 4, 3], 2.0)
    compiled.compile_training(network, "cpu")
    for arrays in (shorter, longer):
        network(arrays).sum().backward()
    np.testing.assert_array_equal(network.weight.grad.numpy(), np.full((3, 2), 1 + 2 * 4 * 2.0))


def test_a_device_without_programs_is_refused():
    with pytest.raises(UserError, match=r"trainer\.compile: programs were never run on npu"):
        compiled.compile_training(paddle.nn.Linear(2, 2), "npu")

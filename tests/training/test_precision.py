"""Loss scales and TF32; mixed precision on a device that has half: fp16sim."""

from __future__ import annotations

from pathlib import Path

import pytest
import tiny_job
from fp16sim import run_pytest

from fleetbert import config
from fleetbert.compat import training
from fleetbert.core.errors import UserError
from fleetbert.training import precision


@pytest.mark.slow
def test_inside(fp16sim):
    """Paddle has the device in a process of its own: on_fp16sim.py, beside this file."""
    run_pytest(Path(__file__).parent / "on_fp16sim.py", fp16sim)


class TestFixedScale:
    def test_changes_no_step_in_float32(self, trainer, tmp_path):
        """Gradients are unscaled before their norm is clipped: a power of two changes no bit."""
        changes = {"optimizer.name": "momentum", "optimizer.max_grad_norm": 0.01}
        more = {"precision.scale": 1024.0, "optimizer.accumulate_steps": 2}
        trainer(tmp_path / "plain", {**changes, "optimizer.accumulate_steps": 2})
        trainer(tmp_path / "scaled", {**changes, **more})
        assert tiny_job.losses(tmp_path / "scaled") == tiny_job.losses(tmp_path / "plain")
        assert {row.get("scale", 1024.0) for row in tiny_job.rows(tmp_path / "scaled")} == {1024.0}

    def test_that_overflows_is_named(self):
        chosen = precision.choose(config.Precision(scale=8.0), "cpu")
        assert "fixed at 8: set precision.scale lower, or leave it out" in chosen.remedy
        assert not chosen.can_back_off

    def test_stands_for_gradscalers_keys(self):
        chosen = precision.Precision(precision.fixed(config.Precision(level="O1", scale=8.0)))
        assert chosen.settings.init_loss_scaling == 8.0
        assert not chosen.settings.use_dynamic_loss_scaling


def test_tf32_is_for_gpus(monkeypatch):
    with pytest.raises(UserError, match=r"precision\.tf32: the device cpu has no TF32"):
        precision.choose(config.Precision(tf32=False), "cpu")
    switched = []
    for name in ("cublas", "cudnn"):
        switch = lambda allowed, name=name: switched.append((name, allowed))  # noqa: E731
        monkeypatch.setattr(training.core, f"set_{name}_switch", switch, raising=False)
    precision.choose(config.Precision(tf32=False), "fp16sim")  # as a GPU
    assert switched == [("cublas", False), ("cudnn", False)]

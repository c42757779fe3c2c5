"""precision.level: O1 on a CPU: jobs whose products are in bfloat16, and where there is none."""

from __future__ import annotations

import numpy as np
import paddle
import pytest
import tiny_job
from halves import needs_bfloat16

from fleetbert import config
from fleetbert.compat import onednn_primitives, processor
from fleetbert.compression.distill.theseus import Theseus
from fleetbert.core.errors import UserError
from fleetbert.models import fused
from fleetbert.models.bert import BertConfig, EncoderLayer
from fleetbert.models.fused import BFLOAT16, FLOAT32
from fleetbert.training import loop, precision

MIXED = {"precision.level": "O1", "precision.dtype": "bfloat16"}
NO_DROPOUT = {"model.dropout": 0.0}


@pytest.fixture
def has(monkeypatch):
    """has(bool): whether the processor multiplies bfloat16."""
    return lambda does: monkeypatch.setattr(processor, "bfloat16", lambda: does)


class TestChoice:
    @pytest.mark.parametrize(
        ("does", "dtype", "level"),
        [(False, "auto", "O0"), (True, "auto", "O1"), (True, "bfloat16", "O1"),
         (True, "float16", "O0")],
    )  # fmt: skip
    def test_auto_takes_it_where_it_is(self, has, does, dtype, level):
        has(does)
        chosen = precision.choose(config.Precision(level="auto", dtype=dtype), "cpu")
        assert chosen.settings.level == level
        assert chosen.functions.kind == (BFLOAT16 if level == "O1" else FLOAT32)
        assert not chosen.mixed  # Paddle's AMP, which only warns
        assert chosen.scale == 1.0

    @pytest.mark.parametrize(
        ("does", "level", "dtype", "said"),
        [
            (False, "O1", "bfloat16", "precision.level: O1 .*AMX.* choose O0, or auto"),
            (False, "O1", "float16", "precision.level: O1 .*AMX.* choose O0, or auto"),
            (False, "O2", "auto", "precision.level: O2 .*AMX.* choose O0, or auto"),
            (True, "O1", "float16", "float16 on a CPU; set precision.dtype to bfloat16 or auto"),
            (True, "O2", "bfloat16", "O2 keeps weights in half.* choose O1"),
        ],
    )
    def test_what_a_cpu_has_not(self, has, does, level, dtype, said):
        has(does)
        with pytest.raises(UserError, match=said):
            precision.choose(config.Precision(level=level, dtype=dtype), "cpu")

    def test_not_on_a_custom_device(self):
        settings = config.Precision(level="O1", dtype="bfloat16")
        with pytest.raises(UserError, match=r"bfloat16 on the device npu \(.*float16 works\)"):
            precision.choose(settings, "npu")

    def test_paddles_own_layers_train_without_onednn(self, trainer, tmp_path, monkeypatch):
        """As on ARM, whose wheels carry none."""
        changes = {**NO_DROPOUT, "trainer.max_steps": 3}
        trainer(tmp_path / "with", changes)
        monkeypatch.setattr(onednn_primitives, "LIBRARY", tmp_path / "none.so")
        monkeypatch.setattr(fused.FeedForward, "apply", None)
        trainer(tmp_path / "without", changes)
        found, exact = (tiny_job.losses(tmp_path / name) for name in ("with", "without"))
        assert found == pytest.approx(exact, abs=1e-5)

    @pytest.mark.parametrize("kind", [FLOAT32, pytest.param(BFLOAT16, marks=needs_bfloat16)])
    def test_an_evaluation_computes_as_steps_do(self, kind):
        """And needs no gradient."""
        paddle.seed(0)
        layer = EncoderLayer(BertConfig(vocab_size=8, hidden_size=64, num_attention_heads=4))
        layer.eval()
        x = paddle.randn([3, 8, 64])
        chosen = precision.Precision(config.Precision(), fused.Functions(kind))
        with paddle.no_grad():
            exact = layer(x)
            with chosen.forward():
                found = layer(x)
        error = float((found - exact).abs().max())
        assert (error < 1e-5) if kind == FLOAT32 else (1e-4 < error < 0.1)

    def test_lists_are_of_paddles_amp(self, has):
        has(True)
        settings = config.Precision(level="O1", dtype="bfloat16", custom_black_list=["gelu"])
        said = "custom_black_list: gelu is for Paddle's AMP.* leave the list out"
        with pytest.raises(UserError, match=said):
            precision.choose(settings, "cpu")

    def test_not_with_what_computes_in_float32(self, has, trainer, tmp_path):
        has(True)
        with pytest.raises(UserError, match=r"O1 does not go together with trainer\.compile"):
            trainer(tmp_path, {**MIXED, "trainer.compile": True})
        assert loop._float32(trainer.job(tmp_path), Theseus) == "distill.kind: theseus"
        settings = config.Precision(level="auto", dtype="bfloat16")
        assert precision.choose(settings, "cpu", "task.name: ctr").settings.level == "O0"

    def test_gradients_that_are_half_are_not_rounded(self, trainer, tmp_path):
        with pytest.raises(ValueError, match="O2 are half already"):
            trainer(tmp_path, {"precision.level": "O2", "strategy.gradients": "bfloat16"})

    def test_ranks_of_unlike_machines_are_told(self):
        loop._check_alike(["bfloat16, O1"] * 2)
        said = "auto is bfloat16, O1 on rank 0 and not on all others"
        with pytest.raises(UserError, match=said):
            loop._check_alike(["bfloat16, O1", "float32"])

    @needs_bfloat16
    def test_a_run_does_not_go_on_in_another_precision(self, has, trainer, tmp_path):
        """auto, on a processor that has bfloat16 and then on one that has not."""
        changes = {"precision.level": "auto", "precision.dtype": "auto", "trainer.max_steps": 2}
        trainer(tmp_path, changes)
        has(False)
        with pytest.raises(UserError, match=r"was trained in bfloat16, O1, this job .* in float32"):
            trainer(tmp_path, {**changes, "trainer.max_steps": 4})


@needs_bfloat16
@pytest.mark.slow
class TestJobs:
    def test_losses_stay_by_those_of_float32(self, trainer, tmp_path):
        """200 steps, in which the loss falls to a tenth: each tenth of them within 1 %."""
        changes = {**NO_DROPOUT, "data.batching": "pack", "trainer.epochs": 20}
        trainer(tmp_path / "float32", changes)
        assert trainer(tmp_path / "mixed", {**changes, **MIXED})["precision"] == "bfloat16, O1"
        exact, found = (
            np.array([*tiny_job.losses(tmp_path / name).values()]) for name in ("float32", "mixed")
        )
        assert len(exact) == 200
        means = [losses.reshape(10, -1).mean(1) for losses in (exact, found)]
        assert means[0][-1] < 0.2 * means[0][0]
        np.testing.assert_allclose(means[1], means[0], rtol=0.01, atol=0.001)
        assert not np.array_equal(exact, found)

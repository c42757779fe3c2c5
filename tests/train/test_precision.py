"""Mixed precision as users start it, launch/train.py, on a device that has half: fp16sim."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import paddle
import pytest
import tiny_job
from fp16sim import ROOT, run_pytest
from safetensors.numpy import load_file

from fleetbert.train import checkpoint

DEADLINE = 300
# The scale grows each eight steps, and comes nowhere near an overflow.
JOB = {
    "trainer.device": "fp16sim", "trainer.epochs": 3, "trainer.checkpoint_every": 7,
    "trainer.keep_checkpoints": 9, "model.dropout": 0.0, "precision.init_loss_scaling": 1024.0,
    "precision.incr_every_n_steps": 8, "callbacks.profiler.enabled": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def start(fp16sim, tiny_data, tmp_path_factory):
    """start(changes, output=None) → (process, output folder); what it says is in output.txt."""
    started = []

    def call(changes, output=None):
        folder = tmp_path_factory.mktemp("job")
        output = output or folder / "output"
        path = tiny_job.write_config(folder / "job.yaml", tiny_data, output, {**JOB, **changes})
        with (folder / "output.txt").open("w") as said:
            process = subprocess.Popen(
                [sys.executable, str(ROOT / "launch" / "train.py"), "--config", str(path)],
                stdout=said, stderr=subprocess.STDOUT,
                env={**fp16sim, "FP16SIM_CALLS": str(folder / "calls.txt")},
            )  # fmt: skip
        process.folder = folder
        started.append(process)
        return process, output

    yield call
    for process in started:
        process.kill()
        process.wait()


def ended(process, code=0):
    """What a process said until it ended as expected."""
    found = process.wait(timeout=DEADLINE)
    text = (process.folder / "output.txt").read_text()
    assert found == code, text
    return text


@pytest.fixture(scope="module")
def levels(start):
    """{level: (output folder, {float16 kernel: how often it ran})} of the same job."""
    done = {}
    for level in ("O0", "O1", "O2"):
        process, output = start({"precision.level": level})
        ended(process)
        lines = (process.folder / "calls.txt").read_text().splitlines()
        counts = (line.rsplit(" ", 1) for line in lines)
        done[level] = output, {kernel: int(count) for kernel, count in counts}
    return done


def stored(output, step):
    """(state, model, optimizer) of a checkpoint, as NumPy arrays."""
    folder = output / "checkpoints" / f"step-{step:08d}"
    state = json.loads((folder / "state.json").read_text())
    names = checkpoint.TENSORS.values()
    return (state, *(paddle.load(str(folder / name), return_numpy=True) for name in names))


def same(one, other):
    """Whether two trees of arrays are equal bit for bit."""
    if isinstance(one, dict):
        return set(one) == set(other) and all(same(one[name], other[name]) for name in one)
    return np.array_equal(one, other)


class TestLevels:
    @pytest.mark.parametrize("level", ["O1", "O2"])
    def test_losses_stay_by_those_of_float32(self, levels, level):
        """From the same seed: within 0.001 for ten steps, and within 0.01 for thirty, in which
        the loss falls from 0.69 to 0.44."""
        exact, found = (tiny_job.losses(levels[name][0]) for name in ("O0", level))
        assert len(exact) == 30
        assert exact[30] < 0.5
        first = {step: loss for step, loss in exact.items() if step <= 10}
        assert {step: found[step] for step in first} == pytest.approx(first, abs=0.001)
        assert found == pytest.approx(exact, abs=0.01)
        assert found != exact

    @pytest.mark.parametrize("level", ["O1", "O2"])
    def test_evaluations_too(self, levels, level):
        exact, found = (
            [row["dev.loss"] for row in tiny_job.rows(levels[name][0]) if "dev.loss" in row]
            for name in ("O0", level)
        )
        assert len(exact) == 3
        assert found == pytest.approx(exact, abs=0.01)

    def test_operators_ran_in_half(self, levels):
        """Counted by the device: what the levels' lists say, and the updates of half weights."""
        counts = {level: calls for level, (_, calls) in levels.items()}
        assert not counts["O0"]
        assert counts["O1"]["matmul"] > 0
        assert counts["O1"]["matmul_grad"] > 0
        assert not set(counts["O1"]) & {"softmax", "layer_norm", "gelu", "adamw"}
        assert set(counts["O2"]) >= {"softmax", "gelu", "matmul", "adamw"}
        assert "layer_norm" not in counts["O2"]  # its float32 weights promote it
        half = [a for a in stored(levels["O2"][0], 30)[1].values() if a.dtype == np.float16]
        assert counts["O2"]["adamw"] == 30 * len(half)

    @pytest.mark.parametrize("level", ["O1", "O2"])
    def test_scale_grows(self, levels, level):
        rows = [row for row in tiny_job.rows(levels[level][0]) if "loss" in row]
        # A row has the scale as it is after the step.
        assert [row["scale"] for row in rows] == [1024 * 2 ** (n // 8) for n in range(1, 31)]
        assert {row["skipped"] for row in rows} == {0}

    @pytest.mark.parametrize("level", ["O1", "O2"])
    def test_profiler_measures(self, levels, level):
        profile = json.loads((levels[level][0] / "profile.json").read_text())
        assert profile["together"]["texts_per_s"] > 0


class TestMasterWeights:
    def test_stand_beside_the_half_weights(self, levels):
        _, model, optimizer = stored(levels["O2"][0], 30)
        masters = optimizer["master_weights"]
        assert set(masters) == {name for name, a in model.items() if a.dtype == np.float16}
        assert {a.dtype for a in model.values()} == {np.dtype("float16"), np.dtype("float32")}
        finer = 0
        for name, master in masters.items():
            assert master.dtype == np.float32
            np.testing.assert_array_equal(master.astype(np.float16), model[name])
            finer += (master != model[name]).any()
        assert finer > len(masters) / 2

    def test_are_exported(self, levels):
        output = levels["O2"][0]
        step = json.loads((output / "summary.json").read_text())["dev"]["step"]
        masters = stored(output, step)[2]["master_weights"]
        exported = load_file(output / "model" / "model.safetensors")
        np.testing.assert_array_equal(
            exported["bert.encoder.layer.1.output.dense.weight"].T,
            masters["network.bert.encoder.layers.1.linear2.weight"],
        )


class TestResume:
    def test_a_killed_run_in_o2_ends_as_the_undisturbed_one(self, levels, start):
        """Weights, their masters, moments and the scaler, bit for bit. The kill is no multiple of
        the steps after which the scale grows."""
        whole = levels["O2"][0]
        process, output = start({"precision.level": "O2"})
        until = time.monotonic() + DEADLINE
        while not (output / "checkpoints" / "step-00000014").is_dir():
            assert process.poll() is None, (process.folder / "output.txt").read_text()
            assert time.monotonic() < until
            time.sleep(0.005)
        process.kill()
        process.wait()
        assert not (output / "summary.json").exists()
        process, _ = start({"precision.level": "O2"}, output)
        ended(process)
        assert tiny_job.losses(output) == tiny_job.losses(whole)
        (state, *tensors), (expected, *others) = stored(output, 30), stored(whole, 30)
        assert state["scaler"] == expected["scaler"]
        assert state["scaler"]["scale"] == [8192.0]
        assert state["scaler"]["incr_count"] == 6
        assert all(map(same, tensors, others))
        exported = [load_file(o / "model" / "model.safetensors") for o in (output, whole)]
        assert same(*exported)


class TestOverflow:
    @pytest.fixture(scope="class")
    def overflowed(self, start):
        """(output folder, what was said) of a run that starts with a scale of 2^40."""
        process, output = start(
            {
                "precision.level": "O2", "precision.init_loss_scaling": 2.0**40,
                "precision.incr_every_n_steps": 2000, "trainer.checkpoint_every": 1,
                "trainer.keep_checkpoints": 100, "trainer.epochs": 5, "callbacks.progress": True,
                "data.dev": None, "callbacks.profiler.enabled": False,
            }
        )  # fmt: skip
        return output, ended(process)

    def skipped(self, output):
        """(steps that were skipped, steps that were not)."""
        steps = {True: [], False: []}
        former = 0
        for row in tiny_job.rows(output):
            steps[row["skipped"] > former].append(row["step"])
            former = row["skipped"]
        return steps[True], steps[False]

    def test_skips_steps_until_the_scale_fits(self, overflowed):
        output, _ = overflowed
        skipped, done = self.skipped(output)
        assert 5 < len(skipped) < 35
        assert len(skipped) + len(done) == 50
        scale = 2.0**40
        for row in tiny_job.rows(output):
            scale *= 0.5 if row["step"] in skipped else 1
            assert row["scale"] == scale

    def test_skipped_steps_change_nothing(self, overflowed):
        """Neither weights nor optimizer, bit for bit; the others change both."""
        output, _ = overflowed
        skipped, _ = self.skipped(output)
        former = stored(output, 1)
        assert 1 in skipped
        for step in range(2, 51):
            now = stored(output, step)
            assert now[0]["skipped"] == sum(n <= step for n in skipped)
            assert same(now[1], former[1]) == (step in skipped)
            assert same(now[2], former[2]) == (step in skipped)
            former = now

    def test_schedule_waits(self, overflowed):
        """The rates of the steps that were done are those of the first steps of the schedule."""
        output, _ = overflowed
        skipped, _ = self.skipped(output)
        rows = {row["step"]: row["lr"] for row in tiny_job.rows(output)}
        for step in skipped:
            if step + 1 in rows:
                assert rows[step + 1] == rows[step]
        rates = [rate for step, rate in rows.items() if step not in skipped]
        rising = 2e-3 * np.arange(1, 51) / 5
        falling = 2e-3 * (50 - np.arange(50)) / 45
        assert rates == pytest.approx(np.minimum(2e-3, np.minimum(rising, falling))[: len(rates)])

    def test_training_recovers(self, overflowed):
        output, _ = overflowed
        losses = list(tiny_job.losses(output).values())
        assert np.isfinite(losses).all()
        assert np.mean(losses[-5:]) < 0.9 * np.mean(losses[:5])

    def test_skips_are_counted_and_shown(self, overflowed):
        output, text = overflowed
        skipped, _ = self.skipped(output)
        assert json.loads((output / "summary.json").read_text())["skipped_steps"] == len(skipped)
        assert f"skipped={len(skipped)}" in text

    def test_without_scaling_that_answers_it_stops(self, start):
        process, output = start(
            {
                "precision.level": "O1", "precision.init_loss_scaling": 2.0**40,
                "precision.use_dynamic_loss_scaling": False,
            }
        )  # fmt: skip
        text = ended(process, 2)
        assert "the loss scale is fixed at 1.09951e+12" in text
        assert "precision.use_dynamic_loss_scaling=true" in text
        assert "precision.init_loss_scaling" in text
        assert "Traceback" not in text
        assert not (output / "summary.json").exists()


def test_inside(fp16sim):
    """What has to be looked at inside of the process: on_fp16sim.py, beside this file."""
    run_pytest(Path(__file__).parent / "on_fp16sim.py", fp16sim)

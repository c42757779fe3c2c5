"""Training in half, looked into. pytest runs this in a process that has the device fp16sim: see
test_precision.py."""

from __future__ import annotations

import contextlib
import io
import json

import numpy as np
import paddle
import pytest
import tiny_job
from fp16sim import calls
from safetensors.numpy import load_file

from fleetbert import config
from fleetbert.core.errors import UserError
from fleetbert.models import task_heads
from fleetbert.models.bert import BertConfig
from fleetbert.tasks.classification.loss import CrossEntropy
from fleetbert.training import checkpoint, precision
from fleetbert.training import job as training
from fleetbert.training.callbacks import Callback
from fleetbert.training.strategies.single import Single

SHORT = {
    "model.dropout": 0.0, "data.dev": None, "trainer.max_steps": 3, "trainer.max_bad_steps": 2,
}  # fmt: skip
KERNELS = ("matmul", "matmul_grad", "softmax", "gelu", "layer_norm", "adamw")


@pytest.fixture(autouse=True)
def device():
    yield
    paddle.set_device("cpu")


@pytest.fixture(scope="module")
def train_in(tiny_data):
    """train_in(folder, changes) trains the tiny job into `folder`; returns its Run."""

    class Keeps(Callback):
        def on_start(self, run):
            self.run = run

        def on_end(self, run, summary):
            run.summary = summary

    def call(folder, changes, results=False):
        job = tiny_job.job(tiny_data, folder, {"trainer.device": "fp16sim", **changes})
        keeps = Keeps()
        with pytest.MonkeyPatch.context() as patch:
            if not results:
                patch.setattr(training, "_write_results", lambda run, summary: None)
            training.train(job, [keeps])
        return keeps.run

    return call


@pytest.fixture
def train(train_in, tmp_path):
    """train(name, changes) trains the short job into the folder `name`; returns its Run."""

    def call(name, changes=None, results=False):
        return train_in(tmp_path / name, {**SHORT, **(changes or {})}, results)

    call.folder = tmp_path
    return call


@pytest.fixture
def updates(monkeypatch):
    """A list of {place among the parameters: gradient that AdamW gets}, one for each update."""
    seen = []
    step, one = paddle.optimizer.AdamW.step, paddle.optimizer.AdamW._append_optimize_op

    def keep_step(self):
        seen.append({})
        step(self)

    def keep_gradient(self, block, pair):
        seen[-1][len(seen[-1])] = pair[1].numpy()
        return one(self, block, pair)

    monkeypatch.setattr(paddle.optimizer.AdamW, "step", keep_step)
    monkeypatch.setattr(paddle.optimizer.AdamW, "_append_optimize_op", keep_gradient)
    return seen


def flat(update):
    return np.concatenate([gradient.ravel() for gradient in update.values()])


def distance(found, expected):
    return np.linalg.norm(found - expected) / np.linalg.norm(expected)


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
    @pytest.fixture(scope="class")
    def levels(self, train_in, tmp_path_factory):
        """{level: (output folder, {float16 kernel: how often it ran})} of the same job, whose scale
        grows each eight steps, and comes nowhere near an overflow."""
        done = {}
        for level in ("O0", "O1", "O2"):
            output = tmp_path_factory.mktemp(level)
            before = {kernel: calls(kernel) for kernel in KERNELS}
            changes = {
                "precision.level": level, "trainer.epochs": 3, "model.dropout": 0.0,
                "precision.init_loss_scaling": 1024.0, "precision.incr_every_n_steps": 8,
                "precision.incr_ratio": 1.5,
                "callbacks.profiler.enabled": True,
            }  # fmt: skip
            train_in(output, changes)
            done[level] = output, {kernel: calls(kernel) - n for kernel, n in before.items()}
        return done

    @pytest.mark.parametrize("level", ["O1", "O2"])
    def test_losses_stay_by_those_of_float32(self, levels, level):
        """From the same seed: within 0.001 for ten steps, and within 0.01 for thirty, in which
        the loss falls from 0.69 to 0.44; those of the evaluations, too."""
        exact, found = (tiny_job.losses(levels[name][0]) for name in ("O0", level))
        assert len(exact) == 30
        assert exact[30] < 0.5
        first = {step: loss for step, loss in exact.items() if step <= 10}
        assert {step: found[step] for step in first} == pytest.approx(first, abs=0.001)
        assert found == pytest.approx(exact, abs=0.01)
        assert found != exact
        exact, found = (
            [row["dev.loss"] for row in tiny_job.rows(levels[name][0]) if "dev.loss" in row]
            for name in ("O0", level)
        )
        assert len(exact) == 3
        assert found == pytest.approx(exact, abs=0.01)

    def test_operators_ran_in_half(self, levels):
        """Counted by the device: what the levels' lists say, and the updates of half weights."""
        ran = {level: {k for k, n in counts.items() if n} for level, (_, counts) in levels.items()}
        assert ran["O0"] == set()
        assert ran["O1"] == {"matmul", "matmul_grad"}
        # layer_norm's float32 weights promote it.
        assert ran["O2"] == {"matmul", "matmul_grad", "softmax", "gelu", "adamw"}
        output, counts = levels["O2"]
        half = [a for a in stored(output, 30)[1].values() if a.dtype == np.float16]
        assert counts["adamw"] == 30 * len(half)

    @pytest.mark.parametrize("level", ["O1", "O2"])
    def test_scale_grows(self, levels, level):
        rows = [row for row in tiny_job.rows(levels[level][0]) if "loss" in row]
        # A row has the scale as it is after the step.
        assert [row["scale"] for row in rows] == [1024 * 1.5 ** (n // 8) for n in range(1, 31)]
        assert {row["skipped"] for row in rows} == {0}
        profile = json.loads((levels[level][0] / "profile.json").read_text())
        assert profile["together"]["texts_per_s"] > 0

    def test_master_weights_stand_beside_the_half_weights(self, levels):
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


class TestLists:
    def count(self, train, name, changes):
        kernels = ("matmul", "softmax", "gelu")
        before = [calls(kernel) for kernel in kernels]
        train(name, {"precision.level": "O1", **changes})
        return {k: calls(k) - n for k, n in zip(kernels, before)}

    def test_change_which_operators_run_in_half(self, train):
        """Counted by the device. Three steps of two layers: six matrix products a layer and two
        of the heads, and two in attention; softmax and GELU once a layer."""
        plain = self.count(train, "plain", {})
        assert plain == {"matmul": 3 * (2 * (6 + 2) + 2), "softmax": 0, "gelu": 0}
        white = self.count(train, "white", {"precision.custom_white_list": ["softmax", "gelu"]})
        assert white == {"matmul": plain["matmul"], "softmax": 3 * 2, "gelu": 3 * 2}
        black = self.count(train, "black", {"precision.custom_black_list": ["matmul_v2"]})
        assert black == {"matmul": 0, "softmax": 0, "gelu": 0}

    @pytest.mark.parametrize(
        ("lists", "sentence"),
        [
            ({"custom_black_list": ["matmul_v3"]}, r"no operator 'matmul_v3'; .* matmul_v2\?"),
            ({"custom_white_list": ["gelu"], "custom_black_list": ["gelu"]}, "gelu cannot also"),
        ],
    )
    def test_that_cannot_be_meant(self, lists, sentence):
        settings = config.Precision(level="O1", **lists)
        with pytest.raises(UserError, match=sentence):
            precision.choose(settings, "fp16sim")


class TestGradients:
    @pytest.fixture
    def first(self, train, updates):
        """first((scale, level), ...) → for each what AdamW gets in the first step, not clipped."""

        def call(*runs):
            for scale, level in runs:
                changes = {
                    "precision.level": level, "precision.init_loss_scaling": scale,
                    "optimizer.max_grad_norm": 0.0, "trainer.max_steps": 1,
                }  # fmt: skip
                train(f"{level}-{scale}", changes)
            return [flat(update) for update in updates]

        return call

    @pytest.mark.parametrize("level", ["O1", "O2"])
    def test_arrive_unscaled(self, first, level):
        """Whatever the scale, they are those of float32."""
        expected, *found = first((1.0, "O0"), (2.0**10, level), (2.0**16, level))
        for gradients in found:
            assert gradients.dtype == np.float32
            assert distance(gradients, expected) < 0.05
        assert not np.array_equal(found[0], expected)

    @pytest.mark.parametrize(
        ("level", "norm"), [("O0", 1e-3), ("O1", 1e-3), ("O2", 1e-3), ("O2", 1.0)]
    )
    def test_are_clipped_by_their_unscaled_norm(self, train, updates, level, norm):
        """It is 0.005 at first, and 2^14 times as much is 86: clipped to 0.001 and not to 1."""
        changes = {
            "precision.level": level, "precision.init_loss_scaling": 2.0**14,
            "optimizer.max_grad_norm": norm, "trainer.max_steps": 1,
        }  # fmt: skip
        train("job", changes)
        found = np.linalg.norm(flat(updates[0]))
        assert found == pytest.approx(min(norm, 0.0053), rel=0.05)

    @pytest.mark.parametrize("level", ["O1", "O2"])
    def test_too_small_for_half_are_kept_by_scaling(self, first, monkeypatch, level):
        """A loss of 2^-24 times the true one: its gradients in half are zero without scaling."""
        true = CrossEntropy.loss
        monkeypatch.setattr(CrossEntropy, "loss", lambda self, *rest: true(self, *rest) * 2.0**-24)
        expected, flushed, kept = first((1.0, "O0"), (1.0, level), (2.0**38, level))
        small = (expected != 0) & (np.abs(expected) < 2.0**-25)  # half rounds these to zero
        assert small.mean() > 0.5
        assert np.count_nonzero(flushed[small]) < 0.001 * np.count_nonzero(small)
        assert np.count_nonzero(kept[small]) > 0.99 * np.count_nonzero(small)
        assert distance(kept, expected) < 0.05

    def test_of_micro_batches_add_up_in_o2(self, train, updates):
        for parts in (1, 4):
            changes = {
                "precision.level": "O2", "trainer.max_steps": 1,
                "optimizer.accumulate_steps": parts,
            }  # fmt: skip
            train(f"parts-{parts}", changes)
        expected, found = [flat(update) for update in updates]
        assert distance(found, expected) < 0.05


class TestOverflow:
    @pytest.fixture(scope="class")
    def overflowed(self, train_in, tmp_path_factory):
        """(output folder, steps that were skipped) of a run that starts with a scale of 2^40, and
        what it said."""
        output = tmp_path_factory.mktemp("overflowed")
        changes = {
            "precision.level": "O2", "precision.init_loss_scaling": 2.0**40,
            "precision.incr_every_n_steps": 2000, "trainer.checkpoint_every": 1,
            "precision.decr_ratio": 0.25, "precision.decr_every_n_nan_or_inf": 2,
            "trainer.keep_checkpoints": 100, "trainer.epochs": 5, "callbacks.progress": True,
            "data.dev": None, "model.dropout": 0.0,
        }  # fmt: skip
        said = io.StringIO()
        with contextlib.redirect_stderr(said):
            train_in(output, changes, results=True)
        skipped, former = [], 0
        for row in tiny_job.rows(output):
            if row["skipped"] > former:
                skipped.append(row["step"])
            former = row["skipped"]
        return output, skipped, said.getvalue()

    def test_skips_steps_until_the_scale_fits(self, overflowed):
        output, skipped, said = overflowed
        assert 5 < len(skipped) < 35
        scale, in_a_row = 2.0**40, 0
        for row in tiny_job.rows(output):
            in_a_row = in_a_row + 1 if row["step"] in skipped else 0
            if in_a_row == 2:
                scale, in_a_row = scale * 0.25, 0
            assert row["scale"] == scale
        assert json.loads((output / "summary.json").read_text())["skipped_steps"] == len(skipped)
        assert f"skipped={len(skipped)}" in said

    def test_skipped_steps_change_nothing(self, overflowed):
        """Neither weights nor optimizer, bit for bit; the others change both."""
        output, skipped, _ = overflowed
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
        output, skipped, _ = overflowed
        rows = {row["step"]: row["lr"] for row in tiny_job.rows(output)}
        for step in skipped:
            if step + 1 in rows:
                assert rows[step + 1] == rows[step]
        rates = [rate for step, rate in rows.items() if step not in skipped]
        rising = 2e-3 * np.arange(1, 51) / 5
        falling = 2e-3 * (50 - np.arange(50)) / 45
        assert rates == pytest.approx(np.minimum(2e-3, np.minimum(rising, falling))[: len(rates)])

    def test_training_recovers(self, overflowed):
        losses = list(tiny_job.losses(overflowed[0]).values())
        assert np.isfinite(losses).all()
        assert np.mean(losses[-5:]) < 0.9 * np.mean(losses[:5])

    def test_a_fixed_scale_says_what_to_set(self, train):
        changes = {
            "precision.level": "O1", "precision.use_dynamic_loss_scaling": False,
            "precision.init_loss_scaling": 2.0**40,
        }  # fmt: skip
        with pytest.raises(UserError, match=r"precision\.use_dynamic_loss_scaling=true, or lower"):
            train("job", changes)

    def test_that_no_scale_answers_says_what_to_set(self, train, monkeypatch):
        """Activations overflow in the forward pass."""
        forward = task_heads.TextClassifier.forward
        monkeypatch.setattr(
            task_heads.TextClassifier, "forward", lambda *a, **k: forward(*a, **k) * 1e4 * 1e4
        )
        changes = {
            "precision.level": "O2", "precision.init_loss_scaling": 4.0, "trainer.max_steps": 10,
        }  # fmt: skip
        with pytest.raises(UserError, match=r"precision\.custom_black_list, or .*level=O0"):
            train("job", changes)


class TestState:
    def settings(self, **changes):
        return config.Precision(level="O1", init_loss_scaling=64.0, **changes)

    def test_scale_and_counts_are_restored_the_rest_is_the_jobs(self):
        paddle.set_device("fp16sim")
        former = precision.Precision(self.settings(incr_every_n_steps=5))
        state = json.loads(json.dumps({**former.state(), "scale": [2.0**-3], "incr_count": 4}))
        now = precision.Precision(self.settings(incr_every_n_steps=7))
        now.set_state(state)
        assert now.scale == 0.125
        assert now.state()["incr_count"] == 4
        assert now.state()["incr_every_n_steps"] == 7

    def test_a_fixed_scale_is_the_jobs(self):
        """Lowered after an overflow, it must not come back from the checkpoint."""
        paddle.set_device("fp16sim")
        former = precision.Precision(self.settings(use_dynamic_loss_scaling=False))
        now = precision.Precision(self.settings(use_dynamic_loss_scaling=False))
        now.set_state({**former.state(), "scale": [2.0**20]})
        assert now.scale == 64.0

    def test_a_run_that_goes_on_ends_as_the_undisturbed_one(self, train):
        """Weights, their masters, moments and the scaler, bit for bit: in a process in which the
        parameters have other names of Paddle's. The cut is no multiple of the steps after which the
        scale grows."""
        changes = {
            "precision.level": "O2", "optimizer.schedule": "constant",
            "precision.init_loss_scaling": 1024.0, "precision.incr_every_n_steps": 4,
        }  # fmt: skip
        train("whole", {**changes, "trainer.max_steps": 6})
        train("cut", {**changes, "trainer.max_steps": 3})
        train("cut", {**changes, "trainer.max_steps": 6})
        found, whole = (train.folder / name for name in ("cut", "whole"))
        assert tiny_job.losses(found) == tiny_job.losses(whole)
        (state, *tensors), (expected, *others) = stored(found, 6), stored(whole, 6)
        assert state["scaler"] == expected["scaler"]
        assert state["scaler"]["scale"] == [2048.0]
        assert state["scaler"]["incr_count"] == 2
        assert all(map(same, tensors, others))


class TestResults:
    def test_are_the_master_weights_of_the_best_step(self, train, tiny_data, tmp_path):
        """At a rate that changes no answer the first evaluation stays the best where the loss
        rises, as it does on labels that were swapped."""
        swapped = {"good": "bad", "bad": "good"}
        lines = (tiny_data / "dev.tsv").read_text(encoding="utf-8").splitlines()
        cells = [[swapped.get(cell, cell) for cell in line.split("\t")] for line in lines]
        dev = tmp_path / "swapped.tsv"
        dev.write_text("".join("\t".join(row) + "\n" for row in cells), encoding="utf-8")
        changes = {
            "precision.level": "O2", "data.dev": str(dev),
            "trainer.eval_every": 2, "trainer.max_steps": 6, "optimizer.learning_rate": 1e-6,
        }  # fmt: skip
        run = train("job", changes, results=True)
        assert run.state.best["step"] == 2
        name = "network.bert.encoder.layers.0.linear1.weight"
        saved = load_file(run.folder / "model" / "model.safetensors")
        exported = saved["bert.encoder.layer.0.intermediate.dense.weight"].T
        folder = run.folder / "checkpoints" / "step-00000002"
        optimizer = paddle.load(str(folder / "optimizer.pdopt"), return_numpy=True)
        np.testing.assert_array_equal(exported, optimizer["master_weights"][name])
        half = paddle.load(str(folder / "model.pdparams"), return_numpy=True)[name]
        assert half.dtype == np.float16
        assert (exported != half).any()
        *_, last = stored(run.folder, 6)
        assert (exported != last["master_weights"][name]).any()

    def test_are_the_last_master_weights_without_dev_texts(self, train):
        run = train("job", {"precision.level": "O2"}, results=True)
        saved = load_file(run.folder / "model" / "model.safetensors")
        *_, optimizer = stored(run.folder, run.state.step)
        np.testing.assert_array_equal(
            saved["bert.embeddings.word_embeddings.weight"],
            optimizer["master_weights"]["network.bert.embeddings.word_embeddings.weight"],
        )


class TestLoop:
    @pytest.mark.parametrize("level", ["O1", "O2"])
    def test_evaluation_runs_in_half(self, train, tiny_data, monkeypatch, level):
        counted = []
        predict = Single.predict

        def count(self, arrays):
            before = calls("matmul")
            answer = predict(self, arrays)
            counted.append(calls("matmul") - before)
            return answer

        monkeypatch.setattr(Single, "predict", count)
        train(level, {"precision.level": level, "data.dev": str(tiny_data / "dev.tsv")})
        assert counted
        assert set(counted) == {2 * (6 + 2) + 2}

    @pytest.mark.parametrize(
        ("level", "changes", "near"),
        [
            # Their head is tied to the embeddings, and the pooler is not trained.
            ("O2", {"task.name": "mlm", "optimizer.accumulate_steps": 2}, 0.005),
            ("O1", {"task.name": "token_classification"}, 0.005),
            ("O1", {"task.name": "ranking", "task.negatives": 2}, 0.005),
            ("O2", {"data.batching": "pack", "data.max_length": 32}, 0.002),
            ("O2", {"optimizer.name": "momentum", "optimizer.learning_rate": 0.05}, 0.001),
            ("O2", {"optimizer.name": "lars", "optimizer.learning_rate": 10.0}, 0.001),
            ("O1", {"optimizer.name": "adagrad", "optimizer.learning_rate": 0.002}, 0.002),
        ],
        ids=[
            "masked words",
            "spans",
            "ranking",
            "packed rows",
            "momentum",
            "lars",
            "adagrad",
        ],
    )
    def test_losses_stay_by_those_of_float32(self, train, tmp_path, level, changes, near):
        tiny_job.write_runs_of_words(tmp_path / "mlm.txt", 160, 5)
        tiny_job.write_tags(tmp_path / "token_classification.conll", 60, 1)
        tiny_job.write_rows(tmp_path / "ranking.jsonl", tiny_job.ranked_rows(20, 1))
        if "task.name" in changes:
            (table,) = tmp_path.glob(f"{changes['task.name']}.*")
            changes = {**changes, "data.train": str(table)}
        train("float32", changes)
        before = calls("matmul")
        train("half", {**changes, "precision.level": level}, results=True)
        assert calls("matmul") > before
        found = [tiny_job.losses(train.folder / name) for name in ("float32", "half")]
        assert found[1] == pytest.approx(found[0], abs=near)

    def test_counts_the_operators_that_run_in_half(self, train, caplog):
        """Paddle's own count. Without the products, which are most of them, few are left."""
        caplog.set_level("INFO", "fleetbert")
        products = 2 * (6 + 2) + 2
        counts = {}
        for name, more in (("O1", {}), ("none", {"precision.custom_black_list": ["matmul_v2"]})):
            run = train(name, {"precision.level": "O1", **more})
            counts[name] = run.summary["half_operators"]
        assert counts["none"]["half"] + products <= counts["O1"]["half"]
        assert 2 * counts["O1"]["half"] < counts["O1"]["all"] < 1000
        half, every = counts["O1"]["half"], counts["O1"]["all"]
        assert f"{half} of a step's {every} operators ran in float16, O1" in caplog.text

    def test_layers_are_paddles_own(self, train):
        """NumPy's, for a CPU, would run in float32 whatever the level."""
        network = train("job", {"precision.level": "O1"}).task.network
        assert not any("paddle_forward" in vars(layer) for layer in network.sublayers())

    def test_auto_is_o1(self):
        """In float16, which fp16sim has."""
        for dtype, level in (("float16", "O1"), ("bfloat16", "O0")):
            settings = config.Precision(level="auto", dtype=dtype)
            assert precision.choose(settings, "fp16sim").settings.level == level


class Classifier:
    """A tiny BERT for texts of up to 512 tokens in float32 and in half, with the same weights."""

    def __init__(self, level):
        paddle.set_device("fp16sim")
        paddle.seed(0)
        shape = BertConfig(
            vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=64, num_labels=2, initializer_range=0.2,
        )  # fmt: skip
        self.exact, self.network = (task_heads.build("classification", shape) for _ in range(2))
        self.network.set_state_dict(self.exact.state_dict())
        for network in (self.exact, self.network):
            network.eval()
        self.precision = precision.Precision(config.Precision(level=level))
        adamw = paddle.optimizer.AdamW(parameters=self.network.parameters())
        self.network, _ = self.precision.decorate(self.network, adamw)

    def logits(self, **inputs):
        """(float32's, half's) as float32 arrays."""
        tensors = {name: paddle.to_tensor(array) for name, array in inputs.items()}
        with paddle.no_grad():
            exact = self.exact(**tensors)
            with self.precision.forward():
                found = self.network(**tensors).astype("float32")
        return exact.numpy(), found.numpy()


@pytest.mark.parametrize("level", ["O1", "O2"])
class TestHalfSafe:
    def test_long_padding(self, level):
        """Three tokens of 512: the answers of three tokens alone."""
        ids = np.zeros((2, 512), np.int64)
        ids[:, :3] = [[2, 7, 3], [2, 9, 3]]
        network = Classifier(level)
        _, padded = network.logits(input_ids=ids, token_type_ids=np.zeros_like(ids))
        exact, alone = network.logits(
            input_ids=ids[:, :3], token_type_ids=np.zeros((2, 3), np.int64)
        )
        np.testing.assert_allclose(padded, alone, atol=2e-3)
        np.testing.assert_allclose(padded, exact, atol=0.02)

    @pytest.mark.parametrize("sign", [1, -1])
    def test_packed_rows_whose_scores_reach_the_end_of_half(self, level, sign):
        """Scores of -6e4 become -inf where the mask is added: padding must not become NaN. (It
        would in rows of seven; Paddle's CPU softmax of eight -inf is no NaN, on a GPU all are.)"""
        batch = {
            "input_ids": np.array([[2, 7, 3, 2, 3, 0, 0]]),
            "token_type_ids": np.zeros((1, 7), np.int64),
            "position_ids": np.array([[0, 1, 2, 0, 1, 0, 0]]),
            "segments": np.array([[1, 1, 1, 2, 2, 0, 0]]),
            "first": np.array([0, 3]),
        }
        network = Classifier(level)
        for one in (network.exact, network.network):
            layer = one.network.bert.encoder.layers[0].self_attn
            for part, size in ((layer.q_proj, 4.0), (layer.k_proj, sign * 6e4)):
                part.weight.set_value(paddle.zeros_like(part.weight))
                bias = np.zeros(part.bias.shape, np.float32)
                bias[::16] = size
                part.bias.set_value(paddle.to_tensor(bias).astype(part.bias.dtype))
        exact, found = network.logits(**batch)
        assert np.isfinite(found).all()
        np.testing.assert_allclose(found, exact, atol=0.02)

    def test_logits_at_the_end_of_half(self, level):
        """Loss and its gradient for logits of 6e4 beside NumPy in float64."""
        network = Classifier(level)
        head = network.network.network.classifier
        head.weight.set_value(paddle.zeros_like(head.weight))
        head.bias.set_value(paddle.to_tensor([6e4, -6e4]).astype(head.bias.dtype))
        labels = np.array([0, 1, 1])
        arrays = {
            "inputs": {
                "input_ids": paddle.to_tensor(np.array([[2, 7, 3]] * 3)),
                "token_type_ids": paddle.zeros([3, 3], "int64"),
            },
            "labels": paddle.to_tensor(labels),
            "weight": paddle.to_tensor(np.full(3, 1 / 3, np.float32)),
        }
        with network.precision.forward():
            loss = CrossEntropy().loss(network.network, arrays)
        assert loss.dtype == paddle.float32
        logits = np.array([6e4, -6e4]).astype(np.float16).astype(np.float64)
        right = logits[labels] - logits.max()
        # On the CPU Paddle's kernel takes no probability to be less than exp(-64).
        losses = [-np.maximum(right, limit).mean() for limit in (-64, -np.inf)]
        assert min(abs(loss.item() / one - 1) for one in losses) < 1e-5
        network.precision.scaler.scale(loss).backward()
        scale = network.precision.scale
        gradient = head.bias.grad.astype("float32").numpy() / scale
        np.testing.assert_allclose(gradient, [2 / 3, -2 / 3], rtol=2e-3)

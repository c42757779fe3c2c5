"""Whole runs in this process: that they learn, and what they leave behind."""

from __future__ import annotations

import json
import logging
import re

import numpy as np
import paddle
import pytest
import tiny_job

from fleetbert import bundle, config
from fleetbert.core import limits
from fleetbert.core.errors import UserError
from fleetbert.training import checkpoint
from fleetbert.training.loop import seed_step, versions

DRAWN = True  # see conftest.py

LEARNS = {"trainer.epochs": 6, "trainer.eval_every": 10}
NO_DROPOUT = {"model.dropout": 0.0}


@pytest.fixture(scope="session")
def learned(trainer, tmp_path_factory):
    """(folder, summary) of a run to the end, with everything that it writes."""
    output = tmp_path_factory.mktemp("learned") / "output"
    changes = {
        **LEARNS,
        "callbacks.profiler.enabled": True,
        "callbacks.visualdl": True,
        "callbacks.histograms": True,
        "callbacks.progress": True,
        "callbacks.report": True,
    }
    return output, trainer(output, changes, results=True)


@pytest.fixture(scope="session")
def plain(trainer, tmp_path_factory):
    """The losses of ten steps without dropout, padded."""
    output = tmp_path_factory.mktemp("plain")
    trainer(output, {**NO_DROPOUT, "data.batching": "pad"})
    return tiny_job.losses(output)


class TestLearning:
    def test_loss_falls_and_a_bag_of_words_is_learned(self, learned):
        output, summary = learned
        losses = list(tiny_job.losses(output).values())
        assert len(losses) == 60
        assert np.mean(losses[:5]) > 0.6
        assert np.mean(losses[-5:]) < 0.3
        assert summary["dev"]["accuracy"] >= 0.9

    @pytest.mark.parametrize("whole_word", [pytest.param(False, marks=pytest.mark.slow), True])
    def test_masked_words_are_learned(self, trainer, tiny_data, tmp_path, whole_word):
        changes = {
            "task.name": "mlm", "task.whole_word": whole_word, "task.mask_probability": 0.3,
            "data.train": str(tiny_data / "texts.txt"), "trainer.epochs": 3,
            "data.dev": str(tiny_data / "texts-dev.txt"),
        }  # fmt: skip
        summary = trainer(tmp_path, changes)
        losses = list(tiny_job.losses(tmp_path).values())
        assert losses[0] == pytest.approx(np.log(len(tiny_job.VOCAB)), rel=0.1)
        assert np.mean(losses[-5:]) < 0.7 * losses[0]
        assert summary["dev"]["loss"] < 0.7 * losses[0]
        assert summary["dev"]["metric"] == "loss"


class TestSameness:
    @pytest.mark.parametrize(
        ("changes", "near"),
        [
            ({"data.batching": "pad", "optimizer.accumulate_steps": 4}, 1e-5),
            ({"data.batching": "pack"}, 1e-4),
        ],
    )
    def test_neither_accumulating_nor_packing_changes_a_loss(
        self, plain, trainer, tmp_path, changes, near
    ):
        trainer(tmp_path, {**NO_DROPOUT, **changes})
        assert tiny_job.losses(tmp_path) == pytest.approx(plain, abs=near)

    def test_a_seed_is_a_run(self, plain, trainer, tmp_path):
        """With dropout, which is off in an evaluation only: evaluating changes nothing. Another
        seed is another run."""
        found = []
        for number, (seed, every) in enumerate(((0, 1), (0, 100), (4, 100))):
            changes = {
                "trainer.seed": seed, "trainer.eval_every": every, "trainer.max_steps": 4,
                "data.batching": "pad",
            }  # fmt: skip
            trainer(tmp_path / str(number), changes)
            found.append(tiny_job.losses(tmp_path / str(number)))
        assert found[0] == found[1]
        assert all(found[0][step] != found[2][step] for step in found[0])
        assert found[0][1] != pytest.approx(plain[1], abs=1e-6)

    def test_random_numbers_are_a_function_of_seed_rank_and_step(self):
        def drawn(*place):
            rng = seed_step(*place)
            return (
                *rng.integers(0, 2**32, 2).tolist(),
                *np.random.randint(0, 2**31, 2).tolist(),
                *paddle.randint(0, 2**30, [2]).numpy().tolist(),
            )

        places = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 2)]
        first = [drawn(*place) for place in places]
        assert [drawn(*place) for place in reversed(places)] == first[::-1]
        for column in zip(*first):
            assert len(set(column)) == len(places)


class TestBest:
    @pytest.fixture(scope="class")
    def spoiled(self, trainer, tmp_path_factory):
        """A run that learns, and then loses it again: its rate goes up without end."""
        output = tmp_path_factory.mktemp("spoiled")
        from fleetbert.training import optimizer

        def rising(settings, total_steps):
            return lambda step: 2e-3 if step < 30 else 0.5

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(optimizer, "rate", rising)
            summary = trainer(
                output,
                {
                    "trainer.epochs": 4, "trainer.eval_every": 5, "trainer.keep_checkpoints": 1,
                    "optimizer.max_grad_norm": 0.0, "trainer.best_metric": "loss",
                },
                results=True,
            )  # fmt: skip
        return output, summary

    def test_the_best_step_is_not_the_last_and_its_checkpoint_is_kept(self, spoiled):
        output, summary = spoiled
        judged = {row["step"]: row for row in tiny_job.rows(output) if "dev.loss" in row}
        best = min(judged, key=lambda step: judged[step]["dev.loss"])
        assert best <= 30
        assert summary["steps"] == 40
        assert judged[40]["dev.loss"] > 2 * judged[best]["dev.loss"]
        assert summary["dev"]["step"] == best
        assert summary["dev"]["loss"] == judged[best]["dev.loss"]
        assert summary["dev"]["metric"] == "loss"
        names = [path.name for path in checkpoint.listed(output / "checkpoints")]
        assert names == [f"step-{best:08d}", "step-00000040"]

    def test_bundle_answers_as_its_evaluation_did(self, spoiled, tiny_data):
        from fleetbert.engines import answer, evaluate

        output, summary = spoiled
        model = answer.load(output / "bundle", "float32", "cpu", None, None)
        found = evaluate.evaluate(model, tiny_data / "dev.tsv")
        assert found["accuracy"] == pytest.approx(summary["dev"]["accuracy"])
        assert found["loss"] == pytest.approx(summary["dev"]["loss"], abs=1e-4)


class TestFiles:
    def test_summary(self, learned, tiny_data):
        output, returned = learned
        summary = json.loads((output / "summary.json").read_text())
        assert summary == json.loads(json.dumps(returned))
        dev = summary["dev"]
        assert dev["n"] == 60
        assert 0 <= dev["accuracy"] <= 1
        assert (output / "report.html").stat().st_size > 1000
        assert dev["loss"] > 0
        assert set(dev["classes"]) == {"bad", "good"}
        assert np.sum(dev["confusion"]) == 60
        assert summary["steps"] == 60
        assert summary["skipped_steps"] == 0
        assert summary["world_size"] == 1
        assert summary["texts_per_s"] > 0
        assert summary["tokens_per_s"] > 4 * summary["texts_per_s"]
        assert 0 < summary["reader_ratio"] < 1
        assert summary["wall_s"] > 0
        assert summary["versions"] == versions()
        assert summary["versions"]["paddlepaddle"] == paddle.__version__
        assert config.Config.model_validate(summary["config"]).trainer.epochs == 6
        counts = {"truncated": 0, "skipped_lines": 0}
        assert summary["data"] == {
            "train": {"file": str(tiny_data / "train.tsv"), "texts": 160, **counts},
            "dev": {"file": str(tiny_data / "dev.tsv"), "texts": 60, **counts},
        }
        assert summary["resumed_at"] == 0
        assert 60 * 16 / summary["texts_per_s"] < summary["wall_s"]

    def test_metrics(self, learned):
        output, _ = learned
        rows = [row for row in tiny_job.rows(output) if "loss" in row]
        assert [row["step"] for row in rows] == list(range(1, 61))
        assert [row["epoch"] for row in rows[::10]] == [0, 1, 2, 3, 4, 5]
        for row in rows:
            assert set(row) >= {"step", "epoch", "loss", "lr", "scale", "ips", "reader_ratio"}
            assert row["scale"] == 1.0
            assert row["ips"] > 0
        # The rate that the step used: up over six steps, then down to almost nothing.
        rates = [row["lr"] for row in rows]
        assert rates[0] == pytest.approx(2e-3 / 6)
        assert rates[5] == pytest.approx(2e-3)
        assert rates[59] == pytest.approx(2e-3 / 54)
        judged = [row for row in tiny_job.rows(output) if "dev.loss" in row]
        assert [row["step"] for row in judged] == [10, 20, 30, 40, 50, 60]
        assert {row["dev.n"] for row in judged} == {60}

    def test_log_every(self, trainer, tmp_path):
        trainer(tmp_path, {"trainer.log_every": 4})
        assert list(tiny_job.losses(tmp_path)) == [1, 4, 8, 10]

    def test_profile(self, learned):
        output, summary = learned
        profile = json.loads((output / "profile.json").read_text())
        (rank,) = profile["ranks"]
        assert rank["rank"] == 0
        for name in ("reader_cost", "batch_cost", "reader_ratio", "texts_per_s", "tokens_per_s"):
            assert rank[name] > 0
            assert profile["together"][name] == pytest.approx(rank[name], rel=0.01), name
        assert rank["texts_per_s"] * rank["batch_cost"] == pytest.approx(16, rel=1e-6)
        assert rank["reader_ratio"] * rank["batch_cost"] == pytest.approx(rank["reader_cost"])
        assert rank["reader_cost"] < rank["batch_cost"]
        # Paddle's clock and the loop's: the same steps but the first ten.
        assert rank["texts_per_s"] == pytest.approx(summary["texts_per_s"], rel=0.9)
        assert summary["profile"] == profile["together"]
        assert (rank["ips"], rank["ips_unit"]) == (rank["texts_per_s"], "texts/s")
        for name in ("reader_cost", "batch_cost", "ips"):
            figures = rank["steps"][name]
            assert figures["average"] == rank[name]
            assert 0 < figures["minimum"] < figures["average"] < figures["maximum"]

    @pytest.mark.parametrize("steps", [10, 11])
    def test_profile_of_a_short_run(self, trainer, tmp_path, caplog, steps):
        """Paddle leaves the first ten steps out: of ten nothing is left, and the log says it."""
        caplog.set_level("INFO", "fleetbert")
        changes = {"callbacks.profiler.enabled": True, "trainer.max_steps": steps}
        trainer(tmp_path, {**changes, "trainer.epochs": 2, "data.dev": None})
        profile = json.loads((tmp_path / "profile.json").read_text())
        short = "was too short: Paddle's profiler leaves out its first ten steps"
        assert (short in profile.get("note", "")) == (short in caplog.text) == (steps == 10)
        assert ("Perf Summary" in caplog.text) == bool(profile["together"]) == (steps == 11)

    def test_visualdl_has_a_log_of_training_and_evaluation(self, learned):
        from visualdl import LogReader

        output, _ = learned
        (log,) = (output / "visualdl").glob("vdlrecords.*")
        reader = LogReader(file_path=str(log))
        found = {row.id: row.value for row in reader.get_data("scalar", "train/loss")}
        for tag, step in (("train/lr", 60), ("dev/accuracy", 60), ("dev/loss", 60)):
            assert reader.get_data("scalar", tag)[-1].id == step
        assert found == pytest.approx(tiny_job.losses(output), rel=1e-6)
        histogram = reader.get_data("histogram", "gradient/network.classifier.weight")[-1]
        assert (histogram.id, sum(histogram.histogram.hist)) == (60, 64 * 2)
        curve = reader.get_data("pr_curve", "dev/good")[-1].pr_curve
        scores = learned[1]["dev"]["classes"]["good"]
        assert curve.TP[0] == scores["support"]
        assert curve.recall[50] == pytest.approx(scores["recall"])  # the threshold 0.5
        assert curve.precision[50] == pytest.approx(scores["precision"])

    def test_visualdl_has_the_graph_of_the_network(self, learned):
        graph = json.loads((learned[0] / "visualdl" / "vdlgraph.network.log").read_text())
        # VisualDL numbers the graphs of a process: TextClassifier[model]_1.
        names = [re.sub(r"\]_\d+", "]", node["name"]) for node in graph["nodes"]]
        layer = "/TextClassifier[model]/Bert[bert]/Encoder[encoder]/EncoderLayer[1]/Linear[linear2]"
        assert any(name.startswith(layer) for name in names)

    def test_bundle_has_the_accuracy_and_the_labels(self, learned, tiny_data):
        output, summary = learned
        opened = bundle.read(output / "bundle")
        assert opened.labels == ["bad", "good"]
        (variant,) = opened.manifest.variants
        (accuracy,) = variant.accuracy
        assert accuracy.accuracy == summary["dev"]["accuracy"]
        assert accuracy.data == str(tiny_data / "dev.tsv")


@pytest.mark.parametrize("cached", ["none", "cache"])
def test_every_run_tells_its_labels_and_what_is_odd_of_them(trainer, tmp_path, caplog, cached):
    """Scores of pandas, in a column that was meant for classes."""
    labels = ["0.25", "0.5", "Pos", "pos"]
    rows = [f"{labels[number % 4]}\tword{number}" for number in range(22)]
    (tmp_path / "train.tsv").write_text("\n".join(["label\ttext_a", *rows]) + "\n")
    (tmp_path / "dev.tsv").write_text("\n".join(["label\ttext_a", *rows[:2]]) + "\n")
    changes = {
        "data.train": str(tmp_path / "train.tsv"), "data.dev": str(tmp_path / "dev.tsv"),
        "data.cache": cached if cached == "none" else str(tmp_path / "cache"),
        "trainer.max_steps": 1,
    }  # fmt: skip
    caplog.set_level("INFO", "fleetbert")
    trainer(tmp_path / "run", changes)
    assert "4 labels: '0.25' 6, '0.5' 6, 'Pos' 5, rarest 'pos' 5" in caplog.messages
    warned = [record.message for record in caplog.records if record.levelname == "WARNING"]
    for said in (
        "train.tsv: labels that differ by case or blanks only: 'Pos' 5 and 'pos' 5;",
        "train.tsv: labels that are numbers with fractions: '0.25', '0.5';",
        "train.tsv: 4 labels for 22 texts are more than one for 6 texts",
        "dev.tsv: has no text of 2 of the 4 labels: Pos, pos;",
    ):
        assert sum(said in message for message in warned) == 1, (said, warned)


@pytest.mark.parametrize(
    ("lengths", "batching", "warns"),
    [((4, 8), "bucket", True), ((4, 8), "pad", False), ((6, 6), "bucket", False)],
)
def test_labels_that_go_with_the_length_are_told(
    trainer, tmp_path, caplog, lengths, batching, warns
):
    """Batches of similar length would hold one label. The variance of the lengths is 2/3 within a
    label, and 4 between two that differ by four."""
    rng = np.random.default_rng(0)
    rows = ["label\ttext_a"]
    for number in range(60):
        label = number % 2
        words = rng.integers(0, 150, lengths[label] + number // 2 % 3 - 1)
        rows.append("\t".join([("bad", "good")[label], " ".join(f"word{n}" for n in words)]))
    (tmp_path / "train.tsv").write_text("\n".join(rows) + "\n")
    changes = {"data.train": str(tmp_path / "train.tsv"), "data.batching": batching}
    trainer(tmp_path / "run", {**changes, "data.dev": None, "trainer.max_steps": 1})
    assert ("of the texts' lengths, so that batches" in caplog.text) == warns
    assert warns == ("train.tsv: the labels explain 86%" in caplog.text)


class TestTimeline:
    @pytest.fixture(scope="class")
    def recorded(self, trainer, tmp_path_factory):
        output = tmp_path_factory.mktemp("timeline")
        summary = trainer(
            output,
            {
                "trainer.epochs": 2, "callbacks.profiler.enabled": True,
                "callbacks.profiler.timer_only": False, "callbacks.profiler.start_step": 3,
                "callbacks.profiler.record_steps": 2, "callbacks.profiler.wait_steps": 1,
                "callbacks.profiler.repeat": 2, "callbacks.profiler.memory": True,
                "callbacks.profiler.views": ["ModelView", "MemoryView"],
            },
        )  # fmt: skip
        return output, summary

    def test_trace_is_chromes_and_holds_the_steps(self, recorded):
        output, _ = recorded
        profile = json.loads((output / "profile.json").read_text())
        for first, path in zip((3, 7), profile["traces"]):
            trace = json.loads((output / path).read_text())
            events = (event for event in trace["traceEvents"] if event.get("ph") == "X")
            names = {event["name"].split("[")[0] for event in events}
            assert {"Attention", "FeedForward"} <= names
            assert any("GradNodePyLayer_Attention" in name for name in names)
            steps = {name for name in names if name.startswith("ProfileStep")}
            assert steps == {f"ProfileStep#{first}", f"ProfileStep#{first + 1}"}
            assert any(event.get("cat") == "Allocate" for event in trace["traceEvents"])
        tables = [path.read_text() for path in sorted((output / "profile").glob("*.txt"))]
        assert len(tables) == 2
        for table in tables:
            assert "Model Summary" in table
            assert "Operator Summary" not in table
        assert profile["together"]["texts_per_s"] > 0

    def test_slow_operators_are_named_slowest_first(self, recorded):
        profile = json.loads((recorded[0] / "profile.json").read_text())
        slow = profile["slow_operators"]
        times = [row["total_ms"] for row in slow]
        assert times == sorted(times, reverse=True)
        assert {"Attention", "FeedForward"} <= {row["name"] for row in slow}
        for row in slow:
            assert row["average_ms"] * row["calls"] == pytest.approx(row["total_ms"], rel=0.01)

    def test_a_run_that_ends_before_the_first_recorded_step(self, trainer, tmp_path):
        changes = {
            "trainer.max_steps": 2, "callbacks.profiler.enabled": True,
            "callbacks.profiler.timer_only": False, "callbacks.profiler.start_step": 50,
        }  # fmt: skip
        trainer(tmp_path, changes)
        profile = json.loads((tmp_path / "profile.json").read_text())
        assert profile["slow_operators"] == []
        assert "traces" not in profile


class TestRefused:
    @pytest.mark.parametrize(
        ("changes", "sentence"),
        [
            ({"data.max_length": 513}, r"data\.max_length: 513 is more than the positions"),
            ({"trainer.device": "tpu"}, r"trainer\.device: tpu is not one of"),
            ({"trainer.device": "gpu"}, r"trainer\.device: gpu: .* choose cpu or auto"),
            ({"data.train": "none.tsv"}, r"none\.tsv: no such file"),
            ({"model.vocab": "none.txt"}, r"model\.vocab: the file none\.txt does not exist"),
        ],
    )
    def test_in_the_config(self, trainer, tmp_path, changes, sentence):
        if changes.get("trainer.device") == "gpu" and paddle.is_compiled_with_cuda():
            pytest.skip("this Paddle may have a GPU")
        with pytest.raises(UserError, match=sentence):
            trainer(tmp_path, changes)


def test_threads_that_a_quota_lowers_are_told(trainer, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(limits, "read", lambda: limits.Limits(64, 2.5, None))
    caplog.set_level(logging.INFO, "fleetbert")
    trainer(tmp_path / "run", {"trainer.max_steps": 1})
    words = "because of 64 processors by affinity, 2.5 by the cgroup's quota"
    assert sum(words in message for message in caplog.messages) == 1

"""Servers and trainers in real processes, started as users do."""

from __future__ import annotations

import json
from pathlib import Path

import paddle
import pytest
import servers
import tiny_job
from servers import ended

from fleetbert.engines import answer, evaluate
from fleetbert.train import checkpoint

SERVERS = {"strategy.name": "parameter_server"}
# From weights that a plain gradient can do something with.
SGD = {
    "optimizer.name": "sgd", "optimizer.learning_rate": 0.1, "optimizer.schedule": "constant",
    "optimizer.warmup_ratio": 0.0, "model.dropout": 0.0,
}  # fmt: skip


@pytest.fixture(scope="module")
def lively(tiny_data, tmp_path_factory) -> dict[str, str]:
    """`model` keys of a folder with larger weights than BERT starts with."""
    from fleetbert.compat.paddlenlp import BertConfig
    from fleetbert.data import tokenizers
    from fleetbert.models import heads, weights

    folder = tmp_path_factory.mktemp("lively")
    shape = {**tiny_job.SHAPE, "vocab_size": len(tiny_job.VOCAB), "initializer_range": 0.2}
    paddle.seed(3)
    network = heads.build("classification", BertConfig(num_labels=2, **shape))
    source = weights.Source(
        "lively", shape, tokenizers.of_vocab(tiny_data / "vocab.txt", True), None
    )
    weights.save_folder(network, source, folder, ["bad", "good"])
    return {"model.init": str(folder), "model.vocab": None}


@pytest.fixture(scope="module")
def run(tiny_data, tmp_path_factory):
    """run(changes, servers=2, trainers=2) → output folder of a job that went well."""

    def call(changes, **counts) -> Path:
        folder = tmp_path_factory.mktemp("job")
        output = folder / "output"
        path = tiny_job.write_config(folder / "job.yaml", tiny_data, output, {**SERVERS, **changes})
        process = servers.start(folder, path, **counts)
        try:
            ended(process)
        finally:
            servers.kill(process)
        return output

    return call


def dev_rows(output: Path) -> list[dict]:
    return [row for row in tiny_job.rows(output) if "dev.accuracy" in row]


class TestAsync:
    @pytest.fixture(scope="class")
    def output(self, run):
        watched = {f"callbacks.{name}": True for name in ("visualdl", "report", "profiler.enabled")}
        return run({"trainer.epochs": 3, **watched})

    def test_learns(self, output):
        assert [row["step"] for row in dev_rows(output)] == [10, 20, 30]
        assert dev_rows(output)[-1]["dev.accuracy"] > 0.9
        losses = tiny_job.losses(output)
        assert sorted(losses) == list(range(1, 31))
        assert losses[30] < losses[1] / 2

    def test_leaves_what_every_strategy_leaves(self, output):
        names = {path.name for path in output.iterdir()}
        assert names == {
            "summary.json", "metrics.jsonl", "profile.json", "report.html", "visualdl",
            "checkpoints", "model", "bundle",
        }  # fmt: skip
        summary = json.loads((output / "summary.json").read_text())
        assert (summary["world_size"], summary["steps"], summary["dev"]["n"]) == (2, 30, 60)

    def test_the_servers_tell_of_themselves(self, output):
        told = [row for row in tiny_job.rows(output) if "servers.rows" in row]
        assert told[0]["step"] == 1
        words = len(tiny_job.VOCAB)
        counters = 2 * 2  # a trainer's are there from its first push on
        assert all(words - counters <= row["servers.rows"] <= words for row in told)
        summary = json.loads((output / "summary.json").read_text())["servers"]
        assert len(summary) == 2
        assert json.loads((output / "profile.json").read_text())["servers"] == summary
        report = (output / "report.html").read_text()
        for title in ("Requests", "Memory", "Rows of the table"):
            assert f"<figcaption>{title}" in report
        # brpc knows latencies a second after the first requests only; the run may be over then
        timed = any("servers.latency_ms" in row for row in told)
        assert ("<figcaption>Latency" in report) == timed
        each = [
            {k[9:]: v for k, v in told[0].items() if k.startswith(f"server.{n}.")} for n in (0, 1)
        ]
        for server in (*summary, *each):
            assert {"memory_mb", "pulls_per_s", "pushes_per_s"} <= set(server)
            assert min(server.values()) > 0
            assert server["memory_mb"] > 50

    def test_the_bundle_is_as_good_as_the_weights_of_the_servers(self, output, tiny_data):
        found = evaluate.evaluate(answer.load(output / "bundle"), tiny_data / "dev.tsv")
        best = json.loads((output / "summary.json").read_text())["dev"]
        assert found["accuracy"] == best["accuracy"]
        assert found["n"] == 60

    def test_words_that_were_never_seen_keep_their_rows(self, output, trainer, tmp_path):
        """word140 to word149 are in hardly any text; [MASK] is in none."""
        saved = checkpoint.load(output / "checkpoints" / "step-00000030").tensors["model"]
        job = trainer.job(tmp_path)
        from fleetbert.train.texts import open_task

        fresh = open_task(job).network.state_dict()
        (name,) = [name for name in fresh if name.endswith("word_embeddings.weight")]
        assert (saved[name][4] == fresh[name][4]).all()
        assert paddle.abs(saved[name] - fresh[name]).max() > 1e-3


class TestSync:
    @pytest.mark.endurance
    def test_one_trainer_has_the_losses_of_local_training(self, run, trainer, lively, tmp_path):
        steps = {"trainer.epochs": 10, **lively}
        output = run({**SGD, **steps, "strategy.mode": "sync"}, trainers=1)
        trainer(tmp_path / "local", {**SGD, **steps})
        expected = tiny_job.losses(tmp_path / "local")
        assert len(expected) == 100
        assert expected[100] < expected[1] / 2
        assert tiny_job.losses(output) == pytest.approx(expected, abs=1e-4)

    def test_two_trainers_average_their_gradients(self, run, trainer, lively, tmp_path):
        """Those of words too; clipping would be of each trainer's own."""
        steps = {"trainer.epochs": 2, "optimizer.max_grad_norm": 0, **lively}
        output = run({**SGD, **steps, "strategy.mode": "sync"})
        trainer(tmp_path / "local", {**SGD, **steps})
        expected = tiny_job.losses(tmp_path / "local")
        assert len(expected) == 20
        assert tiny_job.losses(output) == pytest.approx(expected, abs=1e-5)
        figures = [dev_rows(folder)[-1]["dev.loss"] for folder in (output, tmp_path / "local")]
        assert figures[0] == pytest.approx(figures[1], abs=1e-5)


def test_adamw_takes_its_steps_as_long_as_locally_also_when_resumed(
    run, trainer, tiny_data, tmp_path
):
    """With all of the job's settings, which Paddle's server-side Adam would not heed. Masked words,
    where all weights are in the servers' vector and none are pulled by words. The second start has
    weights, moments, the rate and the place in the data from the checkpoint."""
    changes = {
        "task.name": "mlm", "data.train": str(tiny_data / "texts.txt"), "data.dev": None,
        "model.dropout": 0.0, "optimizer.beta1": 0.8, "optimizer.beta2": 0.9,
        "optimizer.epsilon": 1e-4, "optimizer.weight_decay": 0.1, "trainer.max_steps": 10,
        "optimizer.learning_rate": 5e-3, "strategy.mode": "sync",
    }  # fmt: skip
    output = tmp_path / "servers"
    own = {**changes, "output_dir": str(output), "trainer.checkpoint_every": 6}
    run(own, trainers=1, servers=1)
    trainer(tmp_path / "local", changes)
    expected = tiny_job.losses(tmp_path / "local")
    assert expected[10] < expected[1] - 0.5
    assert tiny_job.losses(output) == pytest.approx(expected, abs=1e-4)
    for path in output.glob("checkpoints/step-00000010/*"):  # as if it had been killed after step 6
        path.unlink()
    run(own, trainers=1, servers=1)
    assert json.loads((output / "summary.json").read_text())["resumed_at"] == 6
    assert tiny_job.losses(output) == pytest.approx(expected, abs=1e-4)


@pytest.mark.endurance
def test_geo_learns(run):
    """In every run of clicks: test_ctr_servers.py."""
    # 30 steps are seven rounds of four and one that the last evaluation cuts short.
    output = run({"strategy.mode": "geo", "strategy.k_steps": 4, "trainer.epochs": 3}, servers=1)
    assert dev_rows(output)[-1]["dev.accuracy"] > 0.9


@pytest.mark.parametrize("task", ["token_classification", "embedding"])
def test_spans_and_vectors_take_the_same_steps(run, trainer, tmp_path, task):
    """Where weights that no loss reaches, the pooler's, are in the servers' vector too."""
    train = tmp_path / "train.jsonl"
    words = [f"word{n} word{n + 1}" for n in range(60)]
    if task == "embedding":
        rows = [{"text_a": text, "text_b": f"{text} word9"} for text in words]
    else:
        span = {"start": 0, "end": 5, "kind": "per"}
        rows = [{"text": text, "spans": [span] * (n % 2)} for n, text in enumerate(words)]
    train.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    changes = {
        **SGD, "task.name": task, "data.train": str(train), "data.dev": None,
        "trainer.epochs": 2, "optimizer.max_grad_norm": 0, "strategy.mode": "sync",
    }  # fmt: skip
    output = run(changes, trainers=1, servers=1)
    trainer(tmp_path / "local", changes)
    expected = tiny_job.losses(tmp_path / "local")
    assert len(expected) == 8
    assert tiny_job.losses(output) == pytest.approx(expected, abs=1e-4)

"""Servers and trainers in real processes, started as users do: by Paddle's launcher once, else by
`fleetbert launch`."""

from __future__ import annotations

import json
import re
import signal
import time

import launched
import paddle
import processes
import psutil
import pytest
import servers
import tiny_job
from servers import ended, said, steps_logged

from fleetbert.engines import answer, evaluate
from fleetbert.training import checkpoint
from fleetbert.training.strategies.parameter_server.figures import Servers

# From which a plain gradient moves all weights.
SGD = {
    "optimizer.name": "sgd", "optimizer.learning_rate": 0.1, "optimizer.schedule": "constant",
    "optimizer.warmup_ratio": 0.0, "optimizer.max_grad_norm": 0, "model.dropout": 0.0,
}  # fmt: skip


ATTEMPTS = 5


@pytest.fixture
def start(tiny_data, tmp_path):
    with servers.starting(tmp_path, tiny_data) as start:
        yield start


class TestAsync:
    """One job below Paddle's own launcher, and all that it leaves."""

    @pytest.fixture(scope="class")
    def output(self, tiny_data, tmp_path_factory):
        folder = tmp_path_factory.mktemp("job")
        watched = {f"callbacks.{name}": True for name in ("visualdl", "report", "profiler.enabled")}
        changes = {**servers.STRATEGY, "trainer.epochs": 3, **watched}
        path = tiny_job.write_config(folder / "job.yaml", tiny_data, folder / "output", changes)
        addresses = servers.free_addresses(4)
        launcher = ["--run_mode", "ps", "--with_gloo", "0"]
        launcher += ["--servers", ",".join(addresses[:2]), "--trainers", ",".join(addresses[2:])]
        process = processes.start(folder, path, launcher=launcher)
        try:
            processes.ended(process)
            left = [one.info["cmdline"] for one in psutil.process_iter(["cmdline"])]
            assert not [words for words in left if str(path) in (words or ())]
        finally:
            processes.kill(process)
        return folder / "output"

    def test_learns(self, output):
        rows = [row for row in tiny_job.rows(output) if "dev.accuracy" in row]
        assert [row["step"] for row in rows] == [10, 20, 30]
        assert rows[-1]["dev.accuracy"] > 0.9
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
        assert "<figcaption>Rows of the table" in (output / "report.html").read_text()
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
        from fleetbert.training.texts import open_task

        fresh = open_task(trainer.job(tmp_path)).network.state_dict()
        (name,) = [name for name in fresh if name.endswith("word_embeddings.weight")]
        assert (saved[name][4] == fresh[name][4]).all()
        assert paddle.abs(saved[name] - fresh[name]).max() > 1e-3


@pytest.fixture(scope="module")
def lively(tiny_data, tmp_path_factory) -> dict[str, str]:
    """Keys of a job on spans, from a folder with larger weights than BERT starts with."""
    from fleetbert.data import tokenizers
    from fleetbert.models import sources, task_heads, weights
    from fleetbert.models.bert import BertConfig

    folder = tmp_path_factory.mktemp("lively")
    labels = ["O", "B-loc", "I-loc", "B-per", "I-per"]
    shape = {**tiny_job.SHAPE, "vocab_size": len(tiny_job.VOCAB), "initializer_range": 0.2}
    paddle.seed(3)
    network = task_heads.build("token_classification", BertConfig(num_labels=len(labels), **shape))
    tokenizer = tokenizers.of_vocab(tiny_data / "vocab.txt", True)
    source = sources.Source("lively", shape, tokenizer, None)
    weights.save_folder(network, source, folder / "model", labels)
    for name, texts, seed in (("train", 160, 1), ("dev", 60, 2)):
        tiny_job.write_tags(folder / f"{name}.conll", texts, seed)
    return {
        "task.name": "token_classification", "data.train": str(folder / "train.conll"),
        "data.dev": str(folder / "dev.conll"), "model.init": str(folder / "model"),
        "model.vocab": None,
    }  # fmt: skip


@pytest.mark.slow
def test_two_trainers_in_sync_take_the_steps_of_one_process_also_when_stopped(
    start, trainer, lively, tmp_path
):
    """The mean of their gradients; those of words too, and none of the pooler, which no loss
    reaches. One of them is asked to stop: both do after the same step, and started again they lose
    nothing. (Clipping would be of each trainer's own.)"""
    changes = {
        **SGD, **lively, "strategy.mode": "sync", "trainer.epochs": 20,
        # Nothing else saves, however far they are when the signal comes.
        "trainer.checkpoint_every": 200, "trainer.eval_every": 200,
    }  # fmt: skip
    job = start(changes)
    job.wait_for(lambda: len(steps_logged(job)) > 3)
    job.kill("trainer.1", signal.SIGTERM)
    assert job.ended() == 143, said(job)
    found = re.search("stopped: SIGTERM: saved step ([0-9]+) of 200; the same", said(job))
    assert found, said(job)
    step = int(found[1])
    assert [path.name for path in job.output.glob("checkpoints/*")] == [f"step-{step:08d}"]
    job.wait_until_clean()

    more = {**changes, "trainer.max_steps": step + 4}
    ended(start(more, job.output))
    summary = json.loads((job.output / "summary.json").read_text())
    assert (summary["resumed_at"], summary["steps"]) == (step, step + 4)
    local = trainer(tmp_path / "local", more)
    expected = tiny_job.losses(tmp_path / "local")
    assert list(expected) == list(range(1, step + 5))
    assert tiny_job.losses(job.output) == pytest.approx(expected, abs=1e-5)
    assert summary["dev"]["loss"] == pytest.approx(local["dev"]["loss"], abs=1e-5)


@pytest.mark.slow
def test_adamw_takes_its_steps_as_long_as_locally_also_when_resumed(
    start, trainer, tiny_data, tmp_path
):
    """With all of the job's settings, which Paddle's server-side Adam would not heed. Masked words,
    where all weights are in the servers' vector and none are pulled by words. The second start has
    weights, moments, the rate and the place in the data from the checkpoint."""
    changes = {
        "task.name": "mlm", "data.train": str(tiny_data / "texts.txt"), "data.dev": None,
        "model.dropout": 0.0, "optimizer.beta1": 0.8, "optimizer.beta2": 0.9,
        "optimizer.epsilon": 1e-4, "optimizer.weight_decay": 0.1, "trainer.max_steps": 10,
        "optimizer.learning_rate": 5e-3, "strategy.mode": "sync", "trainer.checkpoint_every": 6,
    }  # fmt: skip
    job = start(changes, trainers=1, servers=1)
    ended(job)
    trainer(tmp_path / "local", changes)
    expected = tiny_job.losses(tmp_path / "local")
    assert expected[10] < expected[1] - 0.5
    assert tiny_job.losses(job.output) == pytest.approx(expected, abs=1e-4)
    for path in job.output.glob("checkpoints/step-00000010/*"):  # as if killed after step 6
        path.unlink()
    again = start(changes, job.output, trainers=1, servers=1)
    assert "passed over a broken checkpoint" in ended(again)
    assert json.loads((job.output / "summary.json").read_text())["resumed_at"] == 6
    assert tiny_job.losses(job.output) == pytest.approx(expected, abs=1e-4)


@pytest.mark.slow
def test_a_killed_server_ends_the_trainers(start):
    job = start({"trainer.epochs": 200})
    job.wait_for(lambda: len(steps_logged(job)) > 2)
    pids = [int(job.starts(f"trainer.{rank}")[0][0]) for rank in range(2)]
    trainers = [psutil.Process(pid) for pid in pids]
    addresses = trainers[0].environ()["PADDLE_PSERVERS_IP_PORT_LIST"].split(",")

    def figures() -> dict[str, float]:
        told = Servers([addresses[0]]).since_start()
        return told[0] if told else {}  # it did not answer in time

    # While it lives a server tells how long it takes, after a second or two.
    job.wait_for(lambda: {"latency_ms", "latency_99_ms"} <= set(figures()))
    # The launcher would end the trainers itself: not while it is stopped.
    job.popen.send_signal(signal.SIGSTOP)
    job.kill("server.1")
    until = time.monotonic() + launched.DEADLINE
    while any(each.status() != psutil.STATUS_ZOMBIE for each in trainers):
        assert time.monotonic() < until
        time.sleep(0.05)
    job.popen.send_signal(signal.SIGCONT)
    assert job.ended() != 0
    gone = rf"not connected: server 1 \({re.escape(addresses[1])}\) has gone: it was"
    assert len(re.findall(gone, b"\n".join(job.merged).decode())) == 2
    job.wait_until_clean()


@pytest.mark.slow
def test_a_killed_trainer_goes_on_with_the_others(start):
    """Alone, unless the others waited for it just then. `make endurance` kills any of them."""
    changes = {
        "strategy.mode": "sync", "trainer.epochs": 4, "trainer.eval_every": 100,
        "trainer.log_every": 4, "trainer.checkpoint_every": 100,
    }  # fmt: skip
    for _ in range(ATTEMPTS):
        job = start(changes, servers=1, restarts=1)
        job.wait_for(lambda job=job: len(steps_logged(job)) > 3)
        job.kill("trainer.1")
        text = ended(job)
        assert "launch: trainer 1 was killed" in job.stderr
        assert job.stderr.endswith("launch: done after restarts: 1\n")
        assert list(tiny_job.losses(job.output)) == [1, *range(4, 41, 4)]
        summary = json.loads((job.output / "summary.json").read_text())
        assert summary["steps"] == 40
        assert summary["dev"]["accuracy"] > 0.9
        if "rank 1: goes on at step" in text:
            assert len(job.starts("server.0")) == 1
            return
        assert "was killed while the others waited for it" in text
    pytest.fail(f"in none of {ATTEMPTS} attempts it went on alone")

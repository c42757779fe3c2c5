"""What workers with Paddle answer is what the command line does, at whatever speed a text asks."""

from __future__ import annotations

import asyncio
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
from light import make_texts
from running_core import running, sample, wait_for
from tiny_bert import EARLY_SPEED, LABELS, add_early_exit

from fleetbert.data.batching import SAFE_LENGTHS, round_up
from fleetbert.deploy.inference.messages import Request
from fleetbert.deploy.inference.scheduler.queue import PendingRequest, Text
from fleetbert.engines import answer as answers

MODEL, NAME = "tiny", "early-exit-float32"
LAYERS = 2  # of tests/tiny_bert.py


def test_answers_are_those_of_the_command_line_in_any_mix_of_batches(tiny_bundle, tmp_path):
    texts = make_texts(150, seed=0, longest=100)
    offline = answers.load(tiny_bundle)
    expected = answers.compute_logits(offline, texts, None)
    random = np.random.default_rng(1)
    bounds = np.sort(random.choice(np.arange(1, 150), 30, replace=False)).tolist()
    parts = list(zip([0, *bounds], [*bounds, 150]))

    def counted(name: str) -> float:
        return sample(f"fleetbert_{name}_total", model=MODEL, version="1")

    async def ask_all():
        requests = [Request(MODEL, texts=texts[start:end]) for start, end in parts]
        return await asyncio.gather(*map(core.answer, requests))

    shutil.copytree(tiny_bundle, tmp_path / MODEL / "1")
    with running(tmp_path, engine={"workers": 2}, batching={"batch_tokens": 256}) as core:
        before = counted("tokens"), counted("padding_tokens")
        replies = core.call(ask_all())
        [statistics] = core.do(core.repository.statistics, MODEL)
    logits = np.concatenate([reply.outputs["logits"] for reply in replies])
    np.testing.assert_allclose(logits, expected.values, atol=1e-4)
    assert sum(reply.truncated for reply in replies) == expected.truncated > 0
    for reply, (start, end) in zip(replies, parts):
        assert reply.outputs["label"] == [
            LABELS[best] for best in expected.values[start:end].argmax(1)
        ]
        assert reply.outputs["exit_layer"].tolist() == [LAYERS] * (end - start)
        assert reply.queue_seconds >= 0
        assert reply.compute_seconds > 0
    assert statistics["inference_stats"]["success"]["count"] == len(parts)
    batches = [
        (one["batch_size"], one["compute_infer"]["count"]) for one in statistics["batch_stats"]
    ]
    assert sum(texts * count for texts, count in batches) == 150
    assert statistics["execution_count"] < statistics["inference_count"]  # there were batches
    assert {one["compute_output"]["count"] for one in statistics["batch_stats"]} == {
        count for _, count in batches
    }
    lengths = offline.tokenizer.encode(texts, None, offline.reading.max_length).lengths
    assert counted("tokens") - before[0] == lengths.sum()
    least = sum(round_up(int(length), SAFE_LENGTHS) - int(length) for length in lengths)
    assert counted("padding_tokens") - before[1] >= least


@pytest.fixture(scope="module")
def early_bundle(tiny_bundle, tmp_path_factory) -> Path:
    """The tiny bundle with an early-exit variant, whose head is certain of some texts."""
    models = tmp_path_factory.mktemp("models")
    path = Path(shutil.copytree(tiny_bundle, models / MODEL / "1"))
    add_early_exit(path)
    return path


def test_a_text_leaves_at_the_speed_it_asks_for_whoever_shares_its_batch(early_bundle):
    texts = make_texts(60, seed=1, longest=60)
    expected = {}  # by speed
    for speed in (0.0, 0.3, None, 1.0):
        model = answers.load(early_bundle, NAME, speed=speed)
        expected[speed] = answers.compute_logits(model, texts, None)
    assert {*expected[0.0].exit_layers.tolist()} == {LAYERS}
    assert {*expected[None].exit_layers.tolist()} == {1, LAYERS}
    assert (expected[0.3].exit_layers > expected[None].exit_layers).any()
    assert {*expected[1.0].exit_layers.tolist()} == {1}
    encoded = model.tokenizer.encode(texts, None, model.reading.max_length)
    speeds = [[*expected][number % len(expected)] for number in range(len(texts))]

    async def in_one_batch():
        ids = zip(encoded.ids, encoded.first_lengths, speeds)
        batch = [
            Text(PendingRequest(1, math.inf), 0, one, first, speed) for one, first, speed in ids
        ]
        return await pool.run(pool.take_free(), batch, 1.0)

    with running(early_bundle.parents[1], default={"variant": NAME}) as core:
        version = core.do(core.repository.find, MODEL)
        assert (version.variant, version.layers) == (NAME, LAYERS)
        assert version.variants[-1].speed == EARLY_SPEED
        for speed, wanted in expected.items():
            reply = core.ask(model=MODEL, texts=texts, speed=speed)
            assert reply.outputs["exit_layer"].tolist() == wanted.exit_layers.tolist()
            np.testing.assert_allclose(reply.outputs["logits"], wanted.values, atol=1e-4)
        pool = core.scheduler(MODEL).pool
        wait_for(lambda: not pool._warmers, "warmth")  # the worker is free then
        found = core.call(in_one_batch())
    for number, speed in enumerate(speeds):
        assert found.layers[number] == expected[speed].exit_layers[number]
        wanted = expected[speed].values[number]
        np.testing.assert_allclose(found.logits[number], wanted, atol=1e-4)

"""Variants that texts leave early, answered by real workers: each at the speed it asks for."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import grpc
import numpy as np
import pytest
from grpc_stub import make_stub
from running_core import RunningCore, wait_for
from served import REAL, serving
from tiny_bert import EARLY_SPEED, LABELS, WORDS, add_early_exit

from fleetbert import client
from fleetbert.deploy.inference.protocol import inference_pb2 as pb
from fleetbert.deploy.inference.scheduler.queue import PendingRequest, Text
from fleetbert.engines import answer as answers

MODEL, NAME = "tiny", "early-exit-float32"
LAYERS = 2  # of tests/tiny_bert.py


@pytest.fixture(scope="module")
def early_bundle(tiny_bundle, tmp_path_factory) -> Path:
    """The tiny bundle with an early-exit variant, whose head is certain of some texts."""
    path = Path(shutil.copytree(tiny_bundle, tmp_path_factory.mktemp("early") / "bundle"))
    add_early_exit(path)
    return path


@pytest.fixture(scope="module")
def texts() -> list[str]:
    random = np.random.default_rng(1)
    return [" ".join(random.choice(WORDS, random.integers(1, 60))) for _ in range(60)]


@pytest.fixture(scope="module")
def expected(early_bundle, texts):
    """Logits and layers of all texts by speed, from the engine alone."""
    found = {}
    for speed in (0.0, 0.3, None, 1.0):
        model = answers.load(early_bundle, NAME, speed=speed)
        found[speed] = answers.compute_logits(model, texts, None)
    assert {*found[0.0].exit_layers.tolist()} == {LAYERS}
    assert {*found[None].exit_layers.tolist()} == {1, LAYERS}
    assert (found[0.3].exit_layers > found[None].exit_layers).any()
    assert {*found[1.0].exit_layers.tolist()} == {1}
    return found


def models_with(bundle: Path, folder: Path) -> Path:
    shutil.copytree(bundle, folder / MODEL / "1")
    return folder


def test_a_text_leaves_at_the_speed_it_asks_for_whoever_shares_its_batch(
    early_bundle, texts, expected, tmp_path
):
    core = RunningCore(
        {
            "repository": {
                "path": str(models_with(early_bundle, tmp_path / "models")),
                "poll_seconds": 0,
                "default": {"variant": NAME},
            },
            "engine": {"workers": 1, "threads": 1},
            "batching": {"timeout_ms": 120_000},
        }
    )
    try:
        core.wait_until_ready()
        version = core.do(core.repository.find, MODEL)
        assert (version.variant, version.layers) == (NAME, LAYERS)
        assert version.variants[-1].speed == EARLY_SPEED
        for speed, wanted in expected.items():
            reply = core.ask(model=MODEL, texts=texts, speed=speed)
            assert reply.outputs["exit_layer"].tolist() == wanted.exit_layers.tolist()
            np.testing.assert_allclose(reply.outputs["logits"], wanted.values, atol=1e-4)

        pool = core.scheduler(MODEL).pool
        wait_for(lambda: not pool._warmers, "warmth")  # the worker is free then
        encoded = answers.load(early_bundle).tokenizer.encode(texts, None, 64)
        speeds = [[*expected][number % len(expected)] for number in range(len(texts))]

        async def in_one_batch():
            ids = zip(encoded.ids, encoded.first_lengths, speeds)
            batch = [
                Text(PendingRequest(1, math.inf), 0, one, first, speed) for one, first, speed in ids
            ]
            return await pool.run(pool.take_free(), batch, 1.0)

        found = core.call(in_one_batch())
        for number, speed in enumerate(speeds):
            assert found.layers[number] == expected[speed].exit_layers[number]
            np.testing.assert_allclose(
                found.logits[number], expected[speed].values[number], atol=1e-4
            )
    finally:
        core.close()


def test_speed_and_exit_layer_over_http_and_grpc(early_bundle, texts, expected, tmp_path):
    models = models_with(early_bundle, tmp_path / "models")
    words = [f"repository.path={models}", f"repository.default.variant={NAME}", "engine.workers=1"]
    with serving(tmp_path, *words, command=REAL) as served:
        asked = client.Client(served.http)
        for speed, wanted in expected.items():
            found = asked.infer(MODEL, texts, speed=speed)
            assert [one.exit_layer for one in found] == wanted.exit_layers.tolist()
            assert [LABELS.index(one.label) for one in found] == wanted.values.argmax(1).tolist()
        asked.close()
        with grpc.insecure_channel(served.grpc) as channel:
            stub = make_stub(channel)
            request = pb.ModelInferRequest(model_name=MODEL)
            tensor = request.inputs.add(name="text", datatype="BYTES", shape=[len(texts)])
            tensor.contents.bytes_contents.extend(text.encode() for text in texts)
            request.outputs.add(name="exit_layer")
            for speed in (1.0, 0.0):
                request.parameters["speed"].double_param = speed
                response = stub.ModelInfer(request, timeout=120)
                layers = np.frombuffer(response.raw_output_contents[0], "<i4")
                assert layers.tolist() == expected[speed].exit_layers.tolist()

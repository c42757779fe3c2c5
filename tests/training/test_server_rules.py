"""What Paddle's servers compute by themselves: optimizers of rows, and counters that fade. Jobs use
none of it but plain addition (docs/ps.md); these tests say what of it is right."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import fleet_auc
import numpy as np
import pytest
import server_rules
from sklearn.metrics import roc_auc_score

pytestmark = pytest.mark.slow

RATE, FIRST_SUM = 0.1, 3.0


def run(script: str, *words: str, trainers: int = 1, **environ: str) -> list[str]:
    """What each trainer prints, beside one server."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(1 + trainers)]
        for taken in sockets:
            taken.bind(("127.0.0.1", 0))
        ports = [taken.getsockname()[1] for taken in sockets]
    endpoints = [f"127.0.0.1:{port}" for port in ports]
    usual = {
        "PADDLE_WITH_GLOO": "0", "PADDLE_TRAINERS_NUM": str(trainers), "POD_IP": "127.0.0.1",
        "PADDLE_PSERVERS_IP_PORT_LIST": endpoints[0], "OMP_NUM_THREADS": "1",
        "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints[1:]),
        "PYTHONPATH": str(Path(__file__).parents[2]), **environ,
    }  # fmt: skip
    started = []
    for number, port in enumerate(ports):
        role = "TRAINER" if number else "PSERVER"
        own = {"TRAINING_ROLE": role, "PADDLE_TRAINER_ID": str(max(0, number - 1))}
        started.append(
            subprocess.Popen(
                [sys.executable, script, *words],
                env={**os.environ, **usual, **own, "PADDLE_PORT": str(port)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    try:
        return [process.communicate(timeout=120)[0] for process in started[1:]]
    finally:
        for process in started:
            process.kill()
            process.wait()


def sgd(gradient: np.ndarray) -> np.ndarray:
    return RATE * gradient * np.arange(server_rules.PUSHES + 1)[:, None, None]


def adagrad(gradient: np.ndarray, shared: bool) -> np.ndarray:
    """The sum of squares of each weight, or of the mean of a row's."""
    squares = np.square(gradient)
    if shared:
        squares = squares.mean(axis=1, keepdims=True)
    moved = [np.zeros_like(gradient)]
    for number in range(server_rules.PUSHES):
        step = RATE * gradient * np.sqrt(FIRST_SUM / (FIRST_SUM + number * squares))
        moved.append(moved[-1] + step)
    return np.array(moved)


def adam(gradient: np.ndarray) -> np.ndarray:
    """Of equal gradients each step is the rate."""
    return RATE * np.sign(gradient) * np.arange(server_rules.PUSHES + 1)[:, None, None]


@pytest.mark.parametrize(
    ("accessor", "first", "others", "expected"),
    [
        (
            "SparseAccessor", "SparseNaiveSGDRule", "SparseAdaGradSGDRule",
            lambda g: np.concatenate([sgd(g[:, :1]), adagrad(g[:, 1:], shared=True)], axis=2),
        ),
        (
            "SparseAccessor", "StdAdaGradSGDRule", "SparseAdamSGDRule",
            lambda g: np.concatenate([adagrad(g[:, :1], shared=False), adam(g[:, 1:])], axis=2),
        ),
        (
            # Shows and clicks, of each push one, before the weights.
            "CtrCommonAccessor", "SparseNaiveSGDRule", "StdAdaGradSGDRule",
            lambda g: np.concatenate([sgd(g[:, :1]), adagrad(g[:, 1:2], shared=False)], axis=2),
        ),
    ],
)  # fmt: skip
def test_rules_and_counters(accessor, first, others, expected):
    (printed,) = run(server_rules.__file__, accessor, first, others)
    lines = [line for line in printed.splitlines() if line.startswith('{"pulled"')]
    assert lines, printed
    told = json.loads(lines[0])
    pulled = np.array(told["pulled"])
    pushes = server_rules.PUSHES + 1  # with the one that makes room
    counters = 2 if accessor == "CtrCommonAccessor" else 0
    weights = -pulled[:pushes, :, counters:]
    np.testing.assert_allclose(weights, expected(server_rules.GRADIENTS), rtol=0, atol=1e-4)
    if counters:
        shows = pulled[:, 0, 0].tolist()
        assert shows == [1, 2, 3, 4, 2, 1, 0]  # halved each day, and deleted below 0.8
    assert told["rows"] == [2, 2, 0]
    assert not pulled[-1].any()


def test_fleets_auc_of_all_trainers_is_scikit_learns(tmp_path):
    """Of scores in its buckets; Paddle's processes meet by Gloo."""
    gloo = {"PADDLE_WITH_GLOO": "1", "PADDLE_GLOO_RENDEZVOUS": "2"}
    folder = {"PADDLE_GLOO_FS_PATH": str(tmp_path / "gloo")}
    expected = roc_auc_score(*fleet_auc.scores())
    for printed in run(fleet_auc.__file__, trainers=2, **gloo, **folder):
        (line,) = [line for line in printed.splitlines() if line.startswith("auc ")] or [printed]
        assert float(line.split()[1]) == pytest.approx(expected, abs=1e-12), printed

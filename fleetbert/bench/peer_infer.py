"""The peer of `bench infer`: ONNX Runtime with all its optimizations, on given batches.

Runs in the peers' environment, without fleetbert: `peer_infer.py job.json`.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import worker  # type: ignore[import-not-found]  # the file beside this one


def collate(ids, first_lengths, indices, length, pad_id):
    """The texts `indices` as input_ids and token_type_ids, int64 [texts, length]."""
    input_ids = np.full((len(indices), length), pad_id, np.int64)
    token_type_ids = np.zeros_like(input_ids)
    for row, index in enumerate(indices):
        input_ids[row, : len(ids[index])] = ids[index]
        token_type_ids[row, first_lengths[index] : len(ids[index])] = 1
    return {"input_ids": input_ids, "token_type_ids": token_type_ids}


def main() -> None:
    channel = worker.Channel()
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    with np.load(job["texts"]) as file:
        ids = np.split(file["ids"], np.cumsum(file["lengths"])[:-1])
        first_lengths = file["first_lengths"]
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads = job["threads"]
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        job["model"], options, providers=["CPUExecutionProvider"]
    )
    channel.send(
        engine=f"ONNX Runtime {onnxruntime.__version__}",
        versions={"onnxruntime": onnxruntime.__version__, "numpy": np.__version__},
    )
    while True:
        command = channel.receive()
        logits = np.empty((len(ids), job["labels"]), np.float32)
        clock = worker.Clock()
        clock.start()
        for indices, length in job["batches"]:
            batch = collate(ids, first_lengths, indices, length, job["pad_id"])
            logits[indices] = session.run(["logits"], batch)[0]
        clock.stop()
        if command["save"]:
            np.save(command["save"], logits)
        channel.send(seconds=clock.seconds, cpu_seconds=clock.cpu_seconds, peak_mb=worker.peak_mb())


if __name__ == "__main__":
    with contextlib.suppress(worker.Stop):
        main()

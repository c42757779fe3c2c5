"""This project's side of `bench infer`: `python -m fleetbert.bench.ours_infer job.json`.

Commands are those of `peer_infer.py`.
"""

from __future__ import annotations

import json
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from fleetbert import bundle as bundles
from fleetbert.bench import worker
from fleetbert.data.batching import SAFE_LENGTHS, collate
from fleetbert.data.tokenizers import Encodings
from fleetbert.engines import answer, engine
from fleetbert.errors import UserError


class Tokenized:
    """Stands for the tokenizer: the texts are token ids already, as they are for the peer."""

    def __init__(self, encodings: Encodings, pad_id: int):
        self.encodings, self.pad_id = encodings, pad_id

    def encode(self, *_: Any) -> Encodings:
        return self.encodings


def main() -> None:
    channel = worker.Channel()
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    try:
        with np.load(job["texts"]) as file:
            ids = np.split(file["ids"], np.cumsum(file["lengths"])[:-1])
            encodings = Encodings(ids, file["first_lengths"], 0)
            rows = file["rows"]
        opened = {}  # by whether it is for many batches; each when it is needed first
        found = version("paddlepaddle")
        channel.send(engine=f"fleetbert (Paddle {found})", versions={"paddlepaddle": found})
        while True:
            command = channel.receive()
            streams = command.get("plan") == "sorted"
            if streams not in opened:
                opened[streams] = _open(job, encodings, streams)
            model = opened[streams]
            if "length" in command:
                run = model.engine._run
                channel.send(seconds=worker.time_shapes(run, rows, command, np.zeros_like))
                continue
            clock = worker.Clock()
            clock.start()
            times: list[float] = []
            asked = model._replace(speed=command.get("speed"))
            if command["plan"] == "sorted":
                logits = _sorted(asked)
            else:
                logits, times = _in_order(asked, job["plans"][command["plan"]])
            clock.stop()
            if command["save"]:
                np.save(command["save"], logits)
            channel.send(
                seconds=clock.seconds,
                cpu_seconds=clock.cpu_seconds,
                peak_mb=worker.peak_mb(),
                times=times,
            )
    except UserError as error:
        channel.send(error=str(error))
    except worker.Stop:
        pass


def _open(job: dict[str, Any], encodings: Encodings, streams: bool) -> answer.Model:
    variant = job.get("variant", "float32")
    model = answer.load(job["bundle"], variant, threads=job["threads"], streams=streams)
    tokenized: Any = Tokenized(encodings, model.tokenizer.pad_id)
    model = model._replace(tokenizer=tokenized)
    if not job.get("bfloat16"):
        return model
    folder = bundles.read(job["bundle"]).folder("float32")
    run = engine.open_program(folder, "cpu", job["threads"], bfloat16=True)
    return model._replace(engine=engine.Engine(run))


def _sorted(model: answer.Model) -> np.ndarray:
    """As `fleetbert predict` and `evaluate` do it."""
    texts = [""] * len(model.tokenizer.encode([], None, 0).ids)
    return answer.compute_logits(model, texts, None).values


def _in_order(
    model: answer.Model, batches: list[tuple[list[int], int]]
) -> tuple[np.ndarray, list[float]]:
    """Logits, and the seconds of each batch."""
    encodings = model.tokenizer.encode([], None, 0)
    logits = np.empty((len(encodings.ids), len(model.labels)), np.float32)
    times = []
    for indices, _ in batches:
        started = time.perf_counter()
        batch = collate(
            encodings,
            indices,
            packed=False,
            max_length=model.max_length,
            pad_id=model.tokenizer.pad_id,
            round_to=SAFE_LENGTHS,
        )
        logits[indices] = model.engine.run(batch, model.speed)
        times.append(time.perf_counter() - started)
    return logits, times


if __name__ == "__main__":
    main()

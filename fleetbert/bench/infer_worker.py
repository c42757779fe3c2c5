"""One variant of a bundle, measured: `python -m fleetbert.bench.infer_worker job.json`.

A command {"plan", "speed", "save"} answers the batches of that plan once; `save` is where the
logits go, or None.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

from fleetbert.bench import worker
from fleetbert.bench.worker import Json
from fleetbert.data.batching import SAFE_LENGTHS, collate
from fleetbert.data.tokenizers import Encodings
from fleetbert.engines import answer
from fleetbert.errors import UserError


def main() -> None:
    channel = worker.Channel()
    job: Json = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    try:
        with np.load(job["texts"]) as file:
            ids = np.split(file["ids"], np.cumsum(file["lengths"])[:-1])
            encodings = Encodings(ids, file["first_lengths"], 0)
        where, threads = (job["bundle"], job["variant"]), job["threads"]
        models = {  # by whether it is for many batches
            many: answer.load(*where, threads=threads, streams=many)
            for many in {name == "sorted" for name in job["plans"]}
        }
        channel.send()
        while True:
            command = channel.receive()
            plan = command["plan"]
            streams = plan == "sorted"
            model = models[streams]._replace(speed=command["speed"])
            clock = worker.Clock()
            times: list[float] = []
            clock.start()
            if streams:
                logits = answer_all(model, encodings)
            else:
                logits, times = answer_each(model, encodings, job["plans"][plan])
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


def answer_all(model: answer.Model, encodings: Encodings) -> np.ndarray:
    """Logits [texts, labels], as `fleetbert predict` and `evaluate` compute them."""
    logits = np.empty((len(encodings.ids), len(model.labels)), np.float32)
    batches = answer.in_batches(model, encodings)
    for part in model.engine.run_all(batches, model.speed, model.batch_tokens):
        logits[part.numbers] = part.outputs
    return logits


def answer_each(
    model: answer.Model, encodings: Encodings, batches: list[tuple[list[int], int]]
) -> tuple[np.ndarray, list[float]]:
    """Logits [texts, labels] of these batches, and the seconds of each."""
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

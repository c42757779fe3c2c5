"""One variant of a bundle, measured: `python -m fleetbert.bench.infer_worker job.json`.

A command {"plan", "speed", "save"} answers the batches of that plan once; `save` is where the
logits go, or None.
"""

from __future__ import annotations

import time

import numpy as np

from fleetbert.bench import measure, worker
from fleetbert.bench.worker import Json
from fleetbert.data.ragged import Rows, Texts
from fleetbert.engines import answer


def main(channel: worker.Channel, job: Json) -> None:
    with np.load(job["texts"]) as file:
        texts = Texts(file["ids"], file["lengths"], file["first_lengths"])
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
        if streams:  # as `fleetbert predict` and `evaluate` do
            logits, _ = answer.run_all(model, Rows(texts, None))
        else:
            logits, times = answer_each(model, texts, job["plans"][plan])
        clock.stop()
        if command["save"]:
            per_token = model.task.shape.per_token
            np.save(command["save"], np.concatenate(logits) if per_token else logits)
        used = {"seconds": clock.seconds, "cpu_seconds": clock.cpu_seconds}
        channel.send(**used, peak_mb=worker.peak_mb(), times=times)


def answer_each(
    model: answer.Model, texts: Texts, batches: list[tuple[list[int], int]]
) -> tuple[np.ndarray, list[float]]:
    """Logits [texts, labels] of these batches, and the seconds of each."""
    logits = model.task.room(len(texts.lengths), model.labels)
    times = []
    for indices, batch in texts.parts(np.asarray(part) for part, _ in batches):
        started = time.perf_counter()
        logits[indices] = model.engine.run(batch, model.speed)
        times.append(time.perf_counter() - started)
    return logits, times


if __name__ == "__main__":
    measure.work(main)

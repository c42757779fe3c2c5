"""This project's side of `bench infer`: `python -m fleetbert.bench.ours_infer job.json`."""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from fleetbert.bench import worker
from fleetbert.data.batching import SAFE_LENGTHS, collate
from fleetbert.data.tokenizer import Encodings
from fleetbert.errors import UserError
from fleetbert.infer import answer


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
        model = answer.load(job["bundle"], job.get("variant", "float32"), threads=job["threads"])
        with np.load(job["texts"]) as file:
            ids = np.split(file["ids"], np.cumsum(file["lengths"])[:-1])
            encodings = Encodings(ids, file["first_lengths"], 0)
        tokenized: Any = Tokenized(encodings, model.tokenizer.pad_id)
        model = model._replace(tokenizer=tokenized)
        found = version("paddlepaddle")
        channel.send(engine=f"fleetbert (Paddle {found})", versions={"paddlepaddle": found})
        while True:
            command = channel.receive()
            clock = worker.Clock()
            clock.start()
            logits = _sorted(model) if job["sorted"] else _in_order(model, job["batches"])
            clock.stop()
            if command["save"]:
                np.save(command["save"], logits)
            channel.send(
                seconds=clock.seconds, cpu_seconds=clock.cpu_seconds, peak_mb=worker.peak_mb()
            )
    except UserError as error:
        channel.send(error=str(error))
    except worker.Stop:
        pass


def _sorted(model: answer.Model) -> np.ndarray:
    """As `fleetbert predict` and `evaluate` do it."""
    texts = [""] * len(model.tokenizer.encode([], None, 0).ids)
    return answer.compute_logits(model, texts, None).values


def _in_order(model: answer.Model, batches: list[tuple[list[int], int]]) -> np.ndarray:
    encodings = model.tokenizer.encode([], None, 0)
    logits = np.empty((len(encodings.ids), len(model.labels)), np.float32)
    for indices, _ in batches:
        batch = collate(
            encodings,
            indices,
            packed=False,
            max_length=model.max_length,
            pad_id=model.tokenizer.pad_id,
            round_to=SAFE_LENGTHS,
        )
        logits[indices] = model.engine.run(batch)
    return logits


if __name__ == "__main__":
    main()

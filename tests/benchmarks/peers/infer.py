"""A peer's engine, measured: `infer.py job.json`, in the peers' environment, without fleetbert.

Each kind of peer is a file beside this one, `<peer>_engine.py`, that opens the model as its own
manual says. A command {"plan", "save"} answers the batches of that plan, as `infer_worker` does.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import batches
import numpy as np

# Python's standard library only, so that this environment can import it.
sys.path.append(str(Path(__file__).resolve().parents[3] / "fleetbert" / "bench"))
import worker


def open_engine(job):
    """A function of input_ids and token_type_ids → logits, and what it is, in words."""
    run, version = importlib.import_module(f"{job['peer']}_engine").open_engine(job)
    return run, f"{job['peer']} {version}"


def open_for_texts(job):
    """An engine that takes texts, as whoever has to serve a model soon writes it: tokenized, padded
    to the longest and run together."""
    from tokenizers import BertWordPieceTokenizer

    tokenizer = BertWordPieceTokenizer(job["vocab"], lowercase=job["lowercase"])
    tokenizer.enable_truncation(job["max_length"])
    tokenizer.enable_padding(pad_id=job["pad_id"])
    run, engine = open_engine(job)

    def answer(texts):
        encodings = tokenizer.encode_batch(texts)
        input_ids = np.array([encoding.ids for encoding in encodings], np.int64)
        token_type_ids = np.array([encoding.type_ids for encoding in encodings], np.int64)
        return run(input_ids, token_type_ids)

    return answer, engine


def softmax(logits):
    scores = np.exp(logits - logits.max(axis=1, keepdims=True))
    return scores / scores.sum(axis=1, keepdims=True)


def main() -> None:
    warnings.simplefilter("ignore")
    channel = worker.Channel()
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    try:
        run, engine = open_engine(job)
    except Exception as error:  # of any library: the page tells it
        channel.send(error=f"{type(error).__name__}: {error}".partition("\n")[0])
        return
    ids, first_lengths = batches.read(job["texts"])
    channel.send(engine=engine)
    while True:
        command = channel.receive()
        plan = command["plan"]
        logits = np.empty((len(ids), job["labels"]), np.float32)

        def answer(batch, logits=logits):
            indices, length = batch
            started = time.perf_counter()
            arrays = batches.collate(ids, first_lengths, indices, length, job["pad_id"])
            logits[indices] = run(*arrays)
            return time.perf_counter() - started

        clock = worker.Clock()
        clock.start()
        if job.get("callers", 1) > 1 and plan.endswith("sorted"):
            with ThreadPoolExecutor(job["callers"]) as pool:
                times = list(pool.map(answer, job["plans"][plan]))
        else:
            times = [answer(batch) for batch in job["plans"][plan]]
        clock.stop()
        if command["save"]:
            np.save(command["save"], logits)
        used = {"seconds": clock.seconds, "cpu_seconds": clock.cpu_seconds}
        channel.send(**used, peak_mb=worker.peak_mb(), times=times)


if __name__ == "__main__":
    with contextlib.suppress(worker.Stop):
        main()

"""An engine of `infer.py` behind a plain FastAPI.

What is written when a model has to be served soon: a request's texts are tokenized, padded to the
longest and run together, in FastAPI's pool of threads. Runs in the peers' environment:
`fastapi_server.py job.json`.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any, Dict, List

import infer as engines  # the file beside this one
import numpy as np
import uvicorn
from fastapi import FastAPI
from infer import worker
from pydantic import BaseModel
from tokenizers import BertWordPieceTokenizer


class Request(BaseModel):
    texts: List[str]  # noqa: UP006  read at run time, also by Python 3.8


def build(job, run):
    """The application over the engine `run`, for the tokenizer and labels of `job`."""
    tokenizer = BertWordPieceTokenizer(job["vocab"], lowercase=job["lowercase"])
    tokenizer.enable_truncation(job["max_length"])
    tokenizer.enable_padding(pad_id=job["pad_id"])
    app = FastAPI()

    @app.post("/infer")
    def infer(request: Request) -> Dict[str, Any]:  # noqa: UP006
        encodings = tokenizer.encode_batch(request.texts)
        input_ids = np.array([encoding.ids for encoding in encodings], np.int64)
        token_type_ids = np.array([encoding.type_ids for encoding in encodings], np.int64)
        logits = run(input_ids, token_type_ids)
        scores = np.exp(logits - logits.max(axis=1, keepdims=True))
        scores /= scores.sum(axis=1, keepdims=True)
        labels = [job["labels"][number] for number in logits.argmax(axis=1)]
        return {"labels": labels, "scores": scores.tolist()}

    return app


def main() -> None:
    channel = worker.Channel()
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    run, engine, version = engines.OPENERS[job["peer"]](job)
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(build(job, run), log_level="error", access_log=False, lifespan="off")
    server = uvicorn.Server(config)
    threading.Thread(target=server.run, args=([listening],), daemon=True).start()
    while not server.started:
        time.sleep(0.01)
    host, port = listening.getsockname()
    channel.send(
        address=f"{host}:{port}",
        engine=engine,
        versions={job["peer"]: version, "uvicorn": uvicorn.__version__},
    )
    while True:
        channel.receive()
        channel.send(cpu_seconds=time.process_time(), peak_mb=worker.peak_mb())


if __name__ == "__main__":
    with contextlib.suppress(worker.Stop):
        main()

"""An engine of `infer.py` behind a plain FastAPI.

What is written when a model has to be served soon: a request's texts are run together, in
FastAPI's pool of threads. Runs in the peers' environment: `fastapi_server.py job.json`.
"""

from __future__ import annotations

import base64
import contextlib
import json
import multiprocessing
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Any, Dict, List

import infer as engines  # the file beside this one
import uvicorn
from fastapi import FastAPI
from infer import worker
from pydantic import BaseModel


class Request(BaseModel):
    texts: List[str]  # noqa: UP006  read at run time, also by Python 3.8


class Question(BaseModel):
    input: List[str]  # noqa: UP006
    model: str = ""
    encoding_format: str = "float"


def build(outputs, names):
    """The application over an engine of texts, whose outputs are of the labels `names`."""
    app = FastAPI()

    @app.post("/v1/embeddings")
    def embeddings(request: Question) -> Dict[str, Any]:  # noqa: UP006
        vectors = outputs(request.input).astype("<f4")
        if request.encoding_format == "base64":
            rows = [base64.b64encode(row.tobytes()).decode() for row in vectors]
        else:
            rows = vectors.tolist()
        data = [{"object": "embedding", "index": n, "embedding": row} for n, row in enumerate(rows)]
        return {"object": "list", "model": request.model, "data": data}

    @app.post("/infer")
    def infer(request: Request) -> Dict[str, Any]:  # noqa: UP006
        logits = outputs(request.texts)
        labels = [names[number] for number in logits.argmax(axis=1)]
        return {"labels": labels, "scores": engines.softmax(logits).tolist()}

    return app


def serve(listening, job) -> uvicorn.Server:
    """A server over an engine of its own, which begins to answer in a thread."""
    answer, _ = engines.open_for_texts(job)
    config = uvicorn.Config(
        build(answer, job["labels"]), log_level="error", access_log=False, lifespan="off"
    )
    server = uvicorn.Server(config)
    threading.Thread(target=server.run, args=([listening],), daemon=True).start()
    while not server.started:
        time.sleep(0.01)
    return server


def work(listening, job, started) -> None:
    serve(listening, job)
    started.release()
    threading.Event().wait()


def main() -> None:
    """Several processes take turns at one socket, as uvicorn's --workers has it."""
    channel = worker.Channel()
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    listening = socket.create_server(("127.0.0.1", 0), backlog=256)
    started = multiprocessing.Semaphore(0)
    others = job.get("workers", 1) - 1
    for _ in range(others):
        multiprocessing.Process(target=work, args=(listening, job, started), daemon=True).start()
    serve(listening, job)
    for _ in range(others):
        started.acquire()
    host, port = listening.getsockname()
    channel.send(address=f"{host}:{port}", engine=f"uvicorn {uvicorn.__version__}")
    while True:
        channel.receive()
        channel.send(cpu_seconds=time.process_time(), peak_mb=worker.peak_mb())


if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    with contextlib.suppress(worker.Stop):
        main()

"""An engine of `infer.py` behind a plain FastAPI.

What is written when a model has to be served soon: a request's texts are tokenized, padded to the
longest and run together, in FastAPI's pool of threads. Runs in the peers' environment:
`fastapi_server.py job.json`.
"""

from __future__ import annotations

import base64
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


class Question(BaseModel):
    input: List[str]  # noqa: UP006
    model: str = ""
    encoding_format: str = "float"


def build(job, run):
    """The application over the engine `run`, for the tokenizer and labels of `job`."""
    tokenizer = BertWordPieceTokenizer(job["vocab"], lowercase=job["lowercase"])
    tokenizer.enable_truncation(job["max_length"])
    tokenizer.enable_padding(pad_id=job["pad_id"])
    app = FastAPI()

    def outputs(texts):
        encodings = tokenizer.encode_batch(texts)
        input_ids = np.array([encoding.ids for encoding in encodings], np.int64)
        token_type_ids = np.array([encoding.type_ids for encoding in encodings], np.int64)
        return run(input_ids, token_type_ids)

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

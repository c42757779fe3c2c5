"""Other servers over the same model, each with three settings, and the best of them.

FastAPI over ONNX Runtime, as whoever has to serve a model soon writes it; infinity and MLServer,
which join the texts of several requests. All answer in int8.
"""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import socket
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Callable, ContextManager, Iterator, NamedTuple, Sequence

import requests

from benchmarks import harness
from fleetbert.bench import measure, serve
from fleetbert.bench.serve import Bench, Server
from fleetbert.bench.serve_client import MODEL
from fleetbert.bench.worker import Json
from fleetbert.core.errors import UserError

QUANTIZED = "avx512_vnni"  # of sentence-transformers' files, which infinity reads


class Place(NamedTuple):
    """Where a server is started: its interpreter, a folder of its own, the job of an engine, and
    the threads that it may have."""

    python: str
    folder: Path
    job: Json
    threads: int


@contextlib.contextmanager
def open_fastapi(place: Place, setting: Json) -> Iterator[Server]:
    """workers: processes, which share the threads; callers: engines' threads in each."""
    job = {**place.job, **setting, "threads": place.threads // setting.get("workers", 1)}
    path = place.folder / "job.json"
    with harness.start_peer(place.python, "fastapi_server.py", path, job, job["threads"]) as worker:
        yield Server({"json": worker.hello["address"]}, worker.pid)


def open_infinity(place: Place, setting: Json) -> ContextManager[Server]:
    """engine and batch_size: as infinity names them."""
    files = Path(place.job["files"]) / f"sentence-{QUANTIZED}"
    if not files.is_dir():
        raise UserError(f"{files}: `python tests/benchmarks infer` makes it; run that before")
    model = place.folder / "model"
    shutil.copytree(files, model, ignore=shutil.ignore_patterns("*.onnx"))
    quantized = files / "onnx" / f"model_qint8_{QUANTIZED}.onnx"
    shutil.copy(quantized, model / "model_quantized.onnx")
    port = free_port()
    command = [
        *("env", "-C", str(model), str(Path(place.python).absolute()), "-m", "infinity_emb.cli"),
        *("v2", "--host", "127.0.0.1", "--port", str(port)),
        # By another path, infinity 0.0.78 does not find the folder's ONNX file.
        *("--model-id", ".", "--served-model-name", MODEL),
        *("--device", "cpu", "--engine", setting["engine"], "--no-bettertransformer"),
        # It warms up with texts of more than 512 tokens, which a BERT cannot answer uncut.
        *("--batch-size", str(setting["batch_size"]), "--no-model-warmup", "--log-level", "error"),
    ]
    return running(place, command, port, "classify", "/health")


def open_mlserver(place: Place, setting: Json) -> ContextManager[Server]:
    """batch_size and seconds: of a batch and of waiting for it; workers: processes, 0: none but
    the one that listens."""
    workers = setting["workers"]
    job = {**place.job, "peer": "onnxruntime", "form": "dynamic"}
    job["threads"] = place.threads // max(1, workers)
    port, other, metrics = free_port(), free_port(), free_port()
    folder = place.folder / "models"
    folder.mkdir()
    (folder / "settings.json").write_text(
        json.dumps(
            {
                "host": "127.0.0.1",
                "http_port": port,
                "grpc_port": other,
                "metrics_port": metrics,
                "parallel_workers": workers,
            }
        )
    )
    (folder / "model-settings.json").write_text(
        json.dumps(
            {
                "name": MODEL,
                "implementation": "mlserver_model.Classifier",
                "max_batch_size": setting["batch_size"],
                "max_batch_time": setting["seconds"],
                "parameters": {"extra": {"job": job}},
            }
        )
    )
    command = [str(Path(place.python).with_name("mlserver")), "start", str(folder)]
    return running(place, command, port, "tensors", f"/v2/models/{MODEL}/ready")


class Front(NamedTuple):
    """Another server: how it is opened, what its Python needs, its settings by name."""

    open: Callable[[Place, Json], ContextManager[Server]]
    needs: Sequence[str]
    settings: dict[str, Json]
    servers: bool = True  # whether it is in the environment of the servers


ORT = {"peer": "onnxruntime", "form": "dynamic"}
FRONTS = {
    "FastAPI": Front(
        open_fastapi,
        ("fastapi", "uvicorn", "tokenizers", "onnxruntime"),
        {
            "1 process": ORT,
            "1 process, 2 callers": {**ORT, "callers": 2},
            "2 processes of a thread": {**ORT, "workers": 2},
        },
        servers=False,
    ),
    "infinity": Front(
        open_infinity,
        ("infinity_emb", "optimum", "onnxruntime"),
        {
            "optimum, batches of 32": {"engine": "optimum", "batch_size": 32},
            "optimum, batches of 8": {"engine": "optimum", "batch_size": 8},
            "torch, batches of 32": {"engine": "torch", "batch_size": 32},
        },
    ),
    "MLServer": Front(
        open_mlserver,
        ("mlserver", "tokenizers", "onnxruntime"),
        {
            "1 process, batches of 32": {"workers": 0, "batch_size": 32, "seconds": 0.005},
            "2 workers, batches of 32": {"workers": 2, "batch_size": 32, "seconds": 0.005},
            "2 workers, batches of 8": {"workers": 2, "batch_size": 8, "seconds": 0.002},
        },
    ),
}


def running(
    place: Place, command: Sequence[str], port: int, protocol: str, ready: str
) -> ContextManager[Server]:
    """A server that answers `ready` with 200 when it is ready."""

    def addresses() -> dict[str, str]:
        with contextlib.suppress(requests.RequestException):
            if requests.get(f"http://127.0.0.1:{port}{ready}", timeout=5).ok:
                return {protocol: f"127.0.0.1:{port}"}
        return {}

    environ = {
        **harness.peer_environ(place.threads),
        "PYTHONPATH": str(harness.PEERS),
        "HF_HUB_OFFLINE": "1",
        "DO_NOT_TRACK": "1",
        "INFINITY_ANONYMOUS_USAGE_STATS": "0",
    }
    log = place.folder / "server.log"
    return serve.running(command, environ, log, addresses, stdout=subprocess.DEVNULL)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def open_best(
    name: str,
    job: Json,
    pythons: tuple[str, str],
    folder: Path,
    stack: ExitStack,
    press: Callable[[str, Server], list[float]],
    threads: int,
) -> tuple[str, Server, dict[str, str]]:
    """The server's fastest setting, open until the stack is closed, and what each setting does.

    pythons: interpreters of engines and of servers. press: the texts/s for each size of request;
    settings are compared by their product.
    """
    front = FRONTS[name]
    python = pythons[front.servers]
    harness.check_peer(python, front.needs)
    speeds: dict[str, list[float]] = {}
    told: dict[str, str] = {}

    def opened(setting: str, place: Path) -> ContextManager[Server]:
        place.mkdir(parents=True)
        return front.open(Place(python, place, job, threads), front.settings[setting])

    for number, setting in enumerate(front.settings):
        measure.say(f"trying {name}: {setting}")
        try:
            with opened(setting, folder / f"{name}{number}") as server:
                speeds[setting] = press(name, server)
            told[setting] = " and ".join(f"{speed:.0f}" for speed in speeds[setting])
        except UserError as error:
            told[setting] = f"failed: {str(error).splitlines()[-1][:200]}"
    if not speeds:
        raise UserError("; ".join(f"{setting} {words}" for setting, words in told.items()))
    best = max(speeds, key=lambda setting: math.prod(speeds[setting]))
    return f"{name} ({best})", stack.enter_context(opened(best, folder / name)), told


def presser(
    clients: measure.Worker, sizes: Sequence[int], connections: int, seconds: float
) -> Callable[[str, Server], list[float]]:
    """Asks a server with each size of request, once to warm it up and once measured."""

    def press(name: str, server: Server) -> list[float]:
        bench = Bench({name: server}, clients, sizes)
        for way in bench.ways():
            bench.press(way, connections, seconds)
        replies = [bench.press(way, connections, seconds) for way in bench.ways()]
        return [reply["texts"] / reply["seconds"] for reply in replies]

    return press

"""A `Core` that answers by NumPy alone, and a server of it on real sockets in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import re
import socket
import threading
import time
from typing import Any, Callable, Iterator, NamedTuple, Sequence

import numpy as np
import uvicorn

from fleetbert import tasks
from fleetbert.deploy.inference.messages import (
    Duration,
    Failure,
    Reason,
    Request,
    Response,
    State,
    Statistics,
    Version,
    too_long,
)
from fleetbert.deploy.inference.protocol import connections, grpc_service
from fleetbert.deploy.inference.protocol.http import app as http_app
from fleetbert.deploy.inference.settings import Admins, Safety
from fleetbert.tasks.metrics import softmax

MAX_LENGTH, VOCAB = 16, 100
LABELS = ("negative", "positive", "无")
OUTPUTS = tuple(tasks.get("classification").answer.tensors(LABELS, len(LABELS)))
WIDTH = 4  # of vectors
SCORES = tuple(tasks.get("pair_regression").answer.tensors((), 1))
VECTORS = tuple(tasks.get("embedding").answer.tensors((), WIDTH))
SAFETY = Safety(max_body_bytes=1 << 20, max_texts=64, max_text_bytes=4096)
DEADLINE = 120


def logits_of(texts: list[str]) -> np.ndarray:
    """float32 [texts, 3]: what the fake's models answer, from the texts' words."""
    rows = [(text.count("bad"), text.count("good") + 0.25, len(text) / 64) for text in texts]
    return np.array(rows, np.float32)


def vectors_of(texts: Sequence[str]) -> np.ndarray:
    """float32 [texts, WIDTH], of length 1."""
    numbers = np.array([[len(text), ord(text[0]), ord(text[-1]), 100] for text in texts])
    return (numbers / np.linalg.norm(numbers, axis=1, keepdims=True)).astype(np.float32)


def logits_of_rows(ids: Sequence[np.ndarray], first_lengths: Sequence[int]) -> np.ndarray:
    """float32 [texts, 3], from the sums of ids and token types."""
    rows = [(row.sum() / 100, len(row) - first, row[0]) for row, first in zip(ids, first_lengths)]
    return np.array(rows, np.float32)


def logits_of_ids(ids: np.ndarray, types: np.ndarray | None) -> np.ndarray:
    """The same of padded rows whose padding is of type 0."""
    rows = [row[: np.flatnonzero(row)[-1] + 1] for row in ids]
    sums = np.zeros(len(ids), int) if types is None else types.sum(axis=1)
    return logits_of_rows(rows, [len(row) - ones for row, ones in zip(rows, sums)])


CLS = {"id": 2, "text": "[CLS]", "special": True, "start": None, "stop": None}


def token_of(word: re.Match[str]) -> dict[str, Any]:
    start, stop = word.span()
    return {"id": len(word[0]), "text": word[0], "special": False, "start": start, "stop": stop}


class FakeCore:
    """Models `sst` (versions 1 and 2; 1 is "stable", 3 is loading), `pairs`, `vectors`, and some
    that fail:
    `full`, `late`, `broken`, `lost`; `loading` is not ready; `slow` waits until it is cancelled."""

    def __init__(self) -> None:
        self.is_ready = True
        self.requests: list[Request] = []
        self.cancelled = 0
        self.calls: list[tuple[str, str]] = []
        self.labels, self.bundle = LABELS, ""  # of all answers
        self.looked_for: list[str] = []  # models that were to be loaded, known or not
        names = ("full", "late", "broken", "lost", "slow")
        vectors = {"task": "embedding", "labels": (), "outputs": VECTORS}
        scores = {"task": "pair_regression", "labels": (), "outputs": SCORES}
        self._versions = [version(name, "1") for name in names]
        self._versions += [
            version("sst", "1", aliases=("stable",)),
            version("pairs", "1", pair=True),
            version("vectors", "1", **vectors),
            version("full-vectors", "1", **vectors),
            version("judge", "1", pair=True, **scores),
            version("sst", "2"),
            version("sst", "3", State.LOADING),
            version("loading", "1", State.LOADING),
            version("gone", "1", State.UNAVAILABLE, reason="its golden batch was wrong"),
        ]

    async def answer(self, request: Request) -> Response:
        self.requests.append(request)
        if request.model == "slow":
            try:
                await asyncio.sleep(DEADLINE)
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        await asyncio.sleep(0)
        if request.model.startswith("full"):
            raise Failure(Reason.UNAVAILABLE, "the queue of model full is full", retry_after=2.5)
        if request.model == "lost":
            raise Failure(Reason.UNAVAILABLE, "a worker was lost")
        if request.model == "late":
            raise Failure(Reason.DEADLINE, "the timeout of 10 ms has passed")
        if request.model == "broken":
            raise RuntimeError("a secret of the inside")
        texts, truncated, tokens = request.texts or [], 0, 0
        if request.model == "vectors":
            told: dict[str, Any] = {"embedding": vectors_of(texts)}
            tokens = sum(map(len, texts))
        elif request.model == "judge":
            both = zip(texts, request.texts_b or [])
            told = {"values": np.array([len({*a} & {*b}) - 2 for a, b in both], np.float32)}
        else:
            if texts:
                pairs = zip(texts, request.texts_b or [""] * request.size)
                logits = logits_of([first + second for first, second in pairs])
                truncated = sum(len(text) > MAX_LENGTH for text in texts)
            else:
                logits = logits_of_rows(request.ids, request.first_lengths)
            labels = [self.labels[row] for row in logits.argmax(axis=1)]
            told = {"label": labels, "scores": softmax(logits).astype(np.float32), "logits": logits}
        told["exit_layer"] = np.arange(1, request.size + 1, dtype=np.int32)
        long = sum(len(text) > MAX_LENGTH for text in (*texts, *(request.texts_b or ())))
        if long and not request.truncate:
            raise too_long(long, MAX_LENGTH)
        found = FakeCore.find(self, request.model, request.version)
        return Response(
            found.model, found.version, told, 0.0125, 0.25, truncated, self.bundle, tokens=tokens
        )

    async def tokenize(self, model: str, version: str | None, texts: list[str]) -> Any:
        """[CLS] and a token for each word."""
        FakeCore.find(self, model, version)
        return [[CLS, *map(token_of, re.finditer(r"\S+", text))] for text in texts]

    def live(self) -> bool:
        return True

    def ready(self) -> bool:
        return self.is_ready

    def versions(self, model: str | None = None) -> list[Version]:
        found = [version for version in self._versions if model in (None, version.model)]
        if not found:
            raise Failure(Reason.NOT_FOUND, f"there is no model {str(model)[:40]!r}")
        return sorted(found, key=lambda version: (version.model, int(version.version)))

    def find(self, model: str, version: str | None = None) -> Version:
        found = self.versions(model)
        if version is None:
            ready = [other for other in found if other.state is State.READY]
            chosen = (ready or found)[-1]
        else:
            named = [v for v in found if version == v.version or version in v.aliases]
            if not named:
                raise Failure(Reason.NOT_FOUND, f"model {model} has no version {version[:40]!r}")
            chosen = named[0]
        if chosen.state is not State.READY:
            raise Failure(Reason.UNAVAILABLE, f"version {chosen.version} of {model} is not ready")
        return chosen

    def statistics(self, model: str | None = None, version: str | None = None) -> list[Statistics]:
        found = self.versions(model)
        if version is not None:
            found = [other for other in found if other.version == version]
        if not found:
            raise Failure(Reason.NOT_FOUND, f"model {model} has no version {str(version)[:40]!r}")
        return [statistics(other) for other in found]

    async def load(self, model: str) -> None:
        self.looked_for.append(model)
        self.versions(model)
        if model == "gone":
            raise Failure(Reason.UNAVAILABLE, "version 1 of gone was refused")
        self.calls.append(("load", model))

    async def unload(self, model: str) -> None:
        self.versions(model)
        self.calls.append(("unload", model))


def statistics(version: Version) -> Statistics:
    def computed(count: int, ns: int) -> dict[str, Duration]:
        nothing: Duration = {"count": count, "ns": 0}
        infer: Duration = {"count": count, "ns": ns}
        return {"compute_input": nothing, "compute_infer": infer, "compute_output": nothing}

    return {
        "name": version.model,
        "version": version.version,
        "last_inference": 1700000000000,
        "inference_count": 7,
        "execution_count": 3,
        "inference_stats": {
            "success": {"count": 2, "ns": 100},
            "fail": {"count": 1, "ns": 50},
            "queue": {"count": 3, "ns": 70},
            **computed(3, 80),
        },
        "batch_stats": [{"batch_size": 4, **computed(2, 60)}],
    }


def version(model: str, number: str, state: State = State.READY, **rest: Any) -> Version:
    """A classifier's, unless the rest says otherwise."""
    usual = {"task": "classification", "labels": LABELS, "outputs": OUTPUTS, "layers": 2}
    usual.update(max_length=MAX_LENGTH, vocab_size=VOCAB, variant="float32")
    return Version(model, number, state, **{**usual, **rest})


class Server(NamedTuple):
    """A server of a fake core, and where it listens."""

    core: FakeCore
    http: str  # host:port
    grpc: str
    done: list[Any]  # what observers were told


@contextlib.contextmanager
def serve(safety: Safety = SAFETY, admins: Admins = "loopback") -> Iterator[Server]:
    """Both protocols on free ports of loopback, in a thread with an event loop of its own."""
    core, done = FakeCore(), []
    # asyncio turns Nagle's delays off only where the protocol is named
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    application = http_app(core, safety, admins=admins, observers=(done.append,))
    protocol = connections.protocol(safety)
    config = uvicorn.Config(application, log_level="critical", lifespan="off", http=protocol)
    http = uvicorn.Server(config)
    started: queue.Queue[int] = queue.Queue()

    async def run() -> None:
        calls = grpc_service.Server(core, safety, admins=admins, observers=(done.append,))
        grpc_port = calls.add_insecure_port("127.0.0.1:0")
        await calls.start()
        serving = asyncio.ensure_future(http.serve(sockets=[listening]))
        while not http.started:
            await asyncio.sleep(0.005)
        started.put(grpc_port)
        await serving
        await calls.stop(0)

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    try:
        grpc_port = started.get(timeout=DEADLINE)
        http_port = listening.getsockname()[1]
        yield Server(core, f"127.0.0.1:{http_port}", f"127.0.0.1:{grpc_port}", done)
    finally:
        http.should_exit = True
        thread.join(DEADLINE)
        listening.close()


def wait_for(condition: Callable[[], Any]) -> None:
    """Until it holds."""
    until = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)

"""The clients of `bench serve`: `python -m fleetbert.bench.serve_client job.json`.

One process with many connections. Each asks again when it has its answer (closed loop), or when its
turn has come (paced). Requests are made beforehand and answers are hardly looked at, so that little
processor time is taken from the servers; the process reports what it took.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
import time
from typing import Awaitable, Callable, NamedTuple, Protocol, Sequence, cast

import grpc
import numpy as np
import orjson
import uvloop

from fleetbert.bench import measure, worker
from fleetbert.bench.worker import Json
from fleetbert.client import pack
from fleetbert.core.errors import UserError
from fleetbert.deploy.inference.protocol import inference_pb2 as messages

MODEL = "bench"
METHOD = "/inference.GRPCInferenceService/ModelInfer"
OUTPUTS = ("label", "scores")
# A channel for each connection would otherwise share one socket with the others.
OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1))


class Failed(Exception):
    """A request without an answer; says what came instead."""


class Connection(Protocol):
    """One request at a time."""

    async def ask(self, request: bytes) -> bytes: ...

    async def close(self) -> None: ...


class Http(asyncio.Protocol):
    """As much of HTTP/1.1 as it takes to read answers that say their length."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._reply: asyncio.Future[bytes] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by its class

    async def ask(self, request: bytes) -> bytes:
        if self._transport.is_closing():
            raise Failed("the connection was closed")
        self._reply = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._reply

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, end, body = self._buffer.partition(b"\r\n\r\n")
        length = head.lower().partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0]
        if not end or len(body) < int(length) or self._reply is None:
            return
        self._buffer.clear()
        if head.startswith(b"HTTP/1.1 200"):
            self._reply.set_result(bytes(body))
        else:
            self._reply.set_exception(Failed(body[:200].decode(errors="replace")))

    def connection_lost(self, _: Exception | None) -> None:
        if self._reply is not None and not self._reply.done():
            self._reply.set_exception(Failed("the connection was closed"))

    async def close(self) -> None:
        self._transport.close()


class Grpc:
    """A channel of its own; requests and answers stay bytes."""

    def __init__(self, address: str):
        self._channel = grpc.aio.insecure_channel(address, options=OPTIONS)
        self._call = self._channel.unary_unary(METHOD)

    async def ask(self, request: bytes) -> bytes:
        try:
            reply: bytes = await self._call(request)
        except grpc.aio.AioRpcError as error:
            raise Failed(f"{error.code().name}: {error.details()}") from None
        return reply

    async def close(self) -> None:
        await self._channel.close()


async def _connect_http(address: str) -> Connection:
    host, _, port = address.rpartition(":")
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(Http, host, int(port))
    return connection


async def _connect_grpc(address: str) -> Connection:
    connection = Grpc(address)
    await connection._channel.channel_ready()
    return connection


class Speech(NamedTuple):
    """A protocol: how requests are made, connections opened and answers read."""

    request: Callable[[Sequence[str], str], bytes]
    connect: Callable[[str], Awaitable[Connection]]
    scores: Callable[[bytes], np.ndarray]  # → float32 [texts, labels]


def _http_request(texts: Sequence[str], address: str) -> bytes:
    """With binary tensors, as tritonclient sends them."""
    tensor = pack(texts, "text")
    described = {"name": "text", "shape": [len(texts)], "datatype": "BYTES"}
    head = orjson.dumps(
        {
            "inputs": [{**described, "parameters": {"binary_data_size": len(tensor)}}],
            "outputs": [{"name": name, "parameters": {"binary_data": True}} for name in OUTPUTS],
        }
    )
    more = f"inference-header-content-length: {len(head)}\r\n"
    return post(f"/v2/models/{MODEL}/infer", address, head + tensor, more)


def _http_scores(body: bytes) -> np.ndarray:
    """The last tensor of the body: the outputs come in the order that was asked for."""
    text = body.decode("latin-1")  # tensors are not UTF-8
    head, _ = json.JSONDecoder().raw_decode(text)
    output = head["outputs"][-1]
    size = output["parameters"]["binary_data_size"]
    return np.frombuffer(body[-size:], np.float32).reshape(output["shape"])


def _grpc_request(texts: Sequence[str], _: str) -> bytes:
    request = messages.ModelInferRequest(model_name=MODEL)
    request.inputs.add(name="text", datatype="BYTES", shape=[len(texts)])
    request.raw_input_contents.append(pack(texts, "text"))
    for name in OUTPUTS:
        request.outputs.add(name=name)
    return request.SerializeToString()


def _grpc_scores(body: bytes) -> np.ndarray:
    reply = messages.ModelInferResponse.FromString(body)
    return np.frombuffer(reply.raw_output_contents[1], np.float32).reshape(reply.outputs[1].shape)


def _json_request(texts: Sequence[str], address: str) -> bytes:
    return post("/infer", address, orjson.dumps({"texts": texts}))


def _json_scores(body: bytes) -> np.ndarray:
    reply = orjson.loads(body)
    return np.array(reply["scores"] if isinstance(reply, dict) else reply, np.float32)


def _tensors_request(texts: Sequence[str], address: str) -> bytes:
    """The Open Inference Protocol without binary tensors."""
    tensor = {"name": "text", "shape": [len(texts)], "datatype": "BYTES", "data": texts}
    return post(f"/v2/models/{MODEL}/infer", address, orjson.dumps({"inputs": [tensor]}))


def _tensors(body: bytes) -> np.ndarray:
    output = orjson.loads(body)["outputs"][-1]
    return np.array(output["data"], np.float32).reshape(output["shape"])


def _classify_request(texts: Sequence[str], address: str) -> bytes:
    return post("/classify", address, orjson.dumps({"model": MODEL, "input": texts}))


def _classify(body: bytes) -> np.ndarray:
    """Of each text the scores in the order of the labels."""
    rows = [sorted(row, key=lambda entry: entry["label"]) for row in orjson.loads(body)["data"]]
    return np.array([[entry["score"] for entry in row] for row in rows], np.float32)


def _embeddings_request(texts: Sequence[str], address: str) -> bytes:
    """As the `openai` client sends it."""
    request = {"model": MODEL, "input": texts, "encoding_format": "base64"}
    return post("/v1/embeddings", address, orjson.dumps(request))


def _embeddings(body: bytes) -> np.ndarray:
    rows = [base64.b64decode(embedding["embedding"]) for embedding in orjson.loads(body)["data"]]
    return np.stack([np.frombuffer(row, np.float32) for row in rows])


def post(path: str, address: str, body: bytes, more: str = "") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n"
    return f"{head}{more}content-length: {len(body)}\r\n\r\n".encode() + body


SPEECHES = {
    "http": Speech(_http_request, _connect_http, _http_scores),
    "grpc": Speech(_grpc_request, _connect_grpc, _grpc_scores),
    "json": Speech(_json_request, _connect_http, _json_scores),  # what other servers take
    "tensors": Speech(_tensors_request, _connect_http, _tensors),
    "classify": Speech(_classify_request, _connect_http, _classify),
    "embeddings": Speech(_embeddings_request, _connect_http, _embeddings),
}


class Load:
    """Some connections that ask one server for some seconds. All answers count, however late, and
    `seconds` is afterwards when the last of them came: a server whose requests take long would
    otherwise be judged by what it happened to finish in time."""

    def __init__(self, requests: Sequence[bytes], seconds: float, rate: float | None):
        """rate: requests a second of all connections; None: as fast as it goes."""
        self._requests, self._rate = requests, rate
        self._next = 0
        self.seconds = seconds
        self.latencies: list[float] = []
        self.answered: list[int] = []  # the number of each request that has its answer
        self.failed = 0
        self.failure = ""  # what came instead of the first answer that was none

    async def run(self, connections: Sequence[Connection]) -> None:
        self._began = time.perf_counter()  # uvloop's own time has whole milliseconds
        self._until = self._began + self.seconds
        apart = 1 / self._rate if self._rate else 0.0
        clients = (
            self._client(connection, self._began + number * apart, len(connections) * apart)
            for number, connection in enumerate(connections)
        )
        await asyncio.gather(*clients)

    async def _client(self, connection: Connection, due: float, every: float) -> None:
        """Ask from `due` on; latency counts from when a request was due, if that is over."""
        while due < self._until:
            if due > time.perf_counter():
                await asyncio.sleep(due - time.perf_counter())
            began = min(due, time.perf_counter())
            number = self._next % len(self._requests)
            self._next += 1
            try:
                await connection.ask(self._requests[number])
            except Failed as failure:
                self.failed += 1
                self.failure = self.failure or str(failure)
                return
            now = time.perf_counter()
            self.seconds = now - self._began
            self.latencies.append(now - began)
            self.answered.append(number)
            due = due + every if self._rate else now


async def _load(command: Json, texts: Sequence[str]) -> Json:
    speech = SPEECHES[command["protocol"]]
    each, address = command["texts_per_request"], command["address"]
    parts = [texts[start : start + each] for start in range(0, len(texts), each)]
    requests = [speech.request(part, address) for part in parts]
    connections = [await speech.connect(address) for _ in range(command["connections"])]
    clock = worker.Clock()
    try:
        if command.get("save"):
            bodies = [await connections[0].ask(request) for request in requests]
            np.save(command["save"], np.concatenate([speech.scores(body) for body in bodies]))
            return {}
        load = Load(requests, command["seconds"], command.get("rate"))
        clock.start()
        await load.run(connections)
        clock.stop()
    except Failed as failure:
        raise UserError(f"a server did not answer a request: {failure}") from None
    finally:
        for connection in connections:
            await connection.close()
    return {
        "texts": sum(len(parts[number]) for number in load.answered),
        "requests": len(load.answered),
        "failed": load.failed,
        "failure": load.failure,
        "seconds": load.seconds,
        "cpu_seconds": clock.cpu_seconds,
        **{f"p{percent}_ms": 1000 * percentile(load.latencies, percent) for percent in (50, 99)},
    }


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent of the values do not pass; NaN of none."""
    return float(np.percentile(values or [math.nan], percent, method="inverted_cdf"))


def main(channel: worker.Channel, job: Json) -> None:
    channel.send()
    while True:
        channel.send(**uvloop.run(_load(channel.receive(), job["texts"])))


if __name__ == "__main__":
    measure.work(main)

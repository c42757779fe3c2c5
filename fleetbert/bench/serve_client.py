"""The clients of `bench serve`: `python -m fleetbert.bench.serve_client job.json`.

One process with many connections, each of which asks again when it has its answer (closed loop) or
when its turn has come (paced). Requests are made ready beforehand and answers are hardly looked at,
so that little processor time is taken from the servers, and the process reports what it took. Its
priority is the usual one: at a low one, requests would wait in it while the processors are busy,
and a server would be measured with far fewer than the connections it was promised.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any, Awaitable, Callable, Protocol, Sequence

import numpy as np
import orjson
import uvloop

from fleetbert.bench import http2, worker
from fleetbert.errors import UserError

MODEL = "bench"
METHOD = "/inference.GRPCInferenceService/ModelInfer"
OUTPUTS = ("label", "scores")
Done = Callable[[bool], None]  # whether there was an answer


class Asker(Protocol):
    """A connection with at most one request on its way; `answer` is the last one's body."""

    answer: bytes

    def ask(self, request: bytes, done: Done) -> None: ...

    async def close(self) -> None: ...


class Http(asyncio.Protocol):
    """As much of HTTP/1.1 as it takes to read answers that say their length."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._head = self._size = -1  # bytes of the head, and of head and body
        self._done: Done | None = None
        self.answer = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def ask(self, request: bytes, done: Done) -> None:
        self._done = done
        if self._transport.is_closing():
            self.connection_lost(None)
        else:
            self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if self._size < 0:
            end = self._buffer.find(b"\r\n\r\n")
            if end < 0:
                return
            head = bytes(self._buffer[:end]).lower()
            length = head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0]
            self._head, self._size = end + 4, end + 4 + int(length)
        if len(self._buffer) < self._size:
            return
        good = self._buffer.startswith(b"HTTP/1.1 200")
        self.answer = bytes(self._buffer[self._head : self._size])
        del self._buffer[: self._size]
        self._size = -1
        self._finish(good)

    def connection_lost(self, _: Exception | None) -> None:
        if self._done is not None:
            self.answer = http2.CLOSED
        self._finish(False)

    def _finish(self, good: bool) -> None:
        done, self._done = self._done, None
        if done is not None:
            done(good)

    async def close(self) -> None:
        self._done = None
        self._transport.close()


class Speech:
    """A protocol: how requests are made, connections opened and answers read."""

    def __init__(
        self,
        request: Callable[[Sequence[str], str], bytes],
        connect: Callable[[str], Awaitable[Asker]],
        scores: Callable[[bytes], np.ndarray],
    ):
        self.request, self.connect, self.scores = request, connect, scores


def _http_request(texts: Sequence[str], address: str) -> bytes:
    """With binary tensors, as tritonclient sends them."""
    tensor = _pack(texts)
    one = {"name": "text", "shape": [len(texts)], "datatype": "BYTES"}
    head = orjson.dumps(
        {
            "inputs": [{**one, "parameters": {"binary_data_size": len(tensor)}}],
            "outputs": [{"name": name, "parameters": {"binary_data": True}} for name in OUTPUTS],
        }
    )
    more = f"inference-header-content-length: {len(head)}\r\n"
    return _post(f"/v2/models/{MODEL}/infer", address, head + tensor, more)


def _http_scores(body: bytes) -> np.ndarray:
    """The last tensor of the body: the outputs come in the order that was asked for."""
    text = body.decode("latin-1")  # tensors are not UTF-8
    head, _ = json.JSONDecoder().raw_decode(text)
    output = head["outputs"][-1]
    size = output["parameters"]["binary_data_size"]
    return np.frombuffer(body[-size:], np.float32).reshape(output["shape"])


def _json_request(texts: Sequence[str], address: str) -> bytes:
    return _post("/infer", address, orjson.dumps({"texts": texts}))


def _json_scores(body: bytes) -> np.ndarray:
    return np.array(orjson.loads(body)["scores"], np.float32)


def _grpc_request(texts: Sequence[str], _: str) -> bytes:
    from fleetbert.deploy.inference.protocol import inference_pb2 as words

    request = words.ModelInferRequest(model_name=MODEL)
    request.inputs.add(name="text", datatype="BYTES", shape=[len(texts)])
    request.raw_input_contents.append(_pack(texts))
    for name in OUTPUTS:
        request.outputs.add(name=name)
    return request.SerializeToString()


def _grpc_scores(body: bytes) -> np.ndarray:
    from fleetbert.deploy.inference.protocol import inference_pb2 as words

    reply = words.ModelInferResponse.FromString(body)
    return np.frombuffer(reply.raw_output_contents[1], np.float32).reshape(reply.outputs[1].shape)


def _pack(texts: Sequence[str]) -> bytes:
    encoded = [text.encode() for text in texts]
    return b"".join(len(text).to_bytes(4, "little") + text for text in encoded)


def _post(path: str, address: str, body: bytes, more: str = "") -> bytes:
    head = f"POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n"
    return f"{head}{more}content-length: {len(body)}\r\n\r\n".encode() + body


async def _connect_http(address: str) -> Asker:
    return await _connect(address, Http)


async def _connect_grpc(address: str) -> Asker:
    connection = await _connect(address, lambda: http2.Connection(METHOD, address))
    await connection.ready
    return connection


async def _connect(address: str, protocol: Callable[[], Any]) -> Any:
    host, _, port = address.rpartition(":")
    _, connection = await asyncio.get_running_loop().create_connection(protocol, host, int(port))
    return connection


SPEECHES = {
    "http": Speech(_http_request, _connect_http, _http_scores),
    "grpc": Speech(_grpc_request, _connect_grpc, _grpc_scores),
    "json": Speech(_json_request, _connect_http, _json_scores),
}


class Run:
    """Some connections that ask one server for some seconds. All answers count, however late, and
    `seconds` is afterwards when the last of them came: a server whose requests take long would
    otherwise be judged by what it happened to finish in time."""

    def __init__(self, requests: Sequence[bytes], seconds: float, rate: float | None):
        self._loop = asyncio.get_running_loop()
        self._requests = requests
        self.seconds = seconds
        self._rate = rate  # requests a second of all connections; None: as fast as it goes
        self._next = 0
        self.latencies: list[float] = []
        self.failed = 0
        self.answered: list[int] = []  # the number of each request that has its answer
        self.failure = ""  # what came instead of the first answer that was none

    async def go(self, askers: Sequence[Asker]) -> None:
        self._end = self._loop.create_future()
        self._began = time.perf_counter()  # uvloop's own time has whole milliseconds
        self._until = self._began + self.seconds
        self._every = len(askers) / self._rate if self._rate else 0.0
        apart = 1 / self._rate if self._rate else 0.0
        firsts = [self._began + number * apart for number in range(len(askers))]
        used = [(asker, first) for asker, first in zip(askers, firsts) if first < self._until]
        self._left = len(used)
        for asker, first in used:
            self._ask_at(asker, first)
        await self._end

    def _ask_at(self, asker: Asker, due: float) -> None:
        """Send the next request when it is due, to one or two of the loop's milliseconds."""
        self._loop.call_later(max(0.0, due - time.perf_counter()), self._ask, asker, due)

    def _ask(self, asker: Asker, due: float) -> None:
        """Send the next request now; its latency counts from when it was due, if that is over."""
        begin = min(due, time.perf_counter())
        number = self._next % len(self._requests)
        self._next += 1

        def done(good: bool) -> None:
            now = time.perf_counter()
            if good:
                self.seconds = now - self._began
                self.latencies.append(now - begin)
                self.answered.append(number)
            else:
                self.failed += 1
                self.failure = self.failure or asker.answer[:200].decode(errors="replace")
            following = now if self._rate is None else due + self._every
            if now >= self._until or following >= self._until or not good:
                self._left -= 1
                if not self._left:
                    self._end.set_result(None)
            elif self._rate is None:
                self._ask(asker, now)
            else:  # late: at once, and the delay counts
                self._ask_at(asker, following)

        asker.ask(self._requests[number], done)


async def _load(command: dict[str, Any], texts: Sequence[str]) -> dict[str, Any]:
    speech = SPEECHES[command["protocol"]]
    each, address = command["texts_per_request"], command["address"]
    parts = [texts[start : start + each] for start in range(0, len(texts), each)]
    requests = [speech.request(part, address) for part in parts]
    askers = [await speech.connect(address) for _ in range(command["connections"])]
    try:
        if command.get("save"):
            np.save(command["save"], np.concatenate(await _all(speech, askers[0], requests)))
            return {}
        run = Run(requests, command["seconds"], command.get("rate"))
        clock = worker.Clock()
        clock.start()
        await run.go(askers)
        clock.stop()
    finally:
        for asker in askers:
            await asker.close()
    return {
        "texts": sum(len(parts[number]) for number in run.answered),
        "requests": len(run.answered),
        "failed": run.failed,
        "failure": run.failure,
        "seconds": run.seconds,
        "cpu_seconds": clock.cpu_seconds,
        **{f"p{share}_ms": 1000 * percentile(run.latencies, share / 100) for share in (50, 99)},
    }


async def _all(speech: Speech, asker: Asker, requests: Sequence[bytes]) -> list[np.ndarray]:
    """The scores of every text once, one request after the other."""
    scores = []
    for request in requests:
        end: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        asker.ask(request, end.set_result)
        if not await end:
            raise UserError(f"a server did not answer a request: {asker.answer[:200]!r}")
        scores.append(speech.scores(asker.answer))
    return scores


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that `share` of the values do not pass; NaN of none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


def main() -> None:
    channel = worker.Channel()
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    channel.send(pid=os.getpid())
    try:
        while True:
            command = channel.receive()
            started = time.process_time()
            reply = uvloop.run(_load(command, job["texts"]))
            channel.send(**reply, all_cpu_seconds=time.process_time() - started)
    except UserError as error:
        channel.send(error=str(error))
    except worker.Stop:
        pass


if __name__ == "__main__":
    main()

"""A worker as the server sees it: its process, and the socket over which it is asked."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Sequence

from fleetbert.core.device import Device
from fleetbert.deploy.inference.workers import frames, priority, process

OPEN_SECONDS = 600.0  # for opening a variant
FORK_SECONDS = 60.0  # for forking a worker that has opened it
END_SECONDS = 5.0  # for a worker that was asked to end
WATCH_STEP = 1.0  # seconds between looks at a worker that computes


@dataclass(frozen=True)
class Plan:
    """What the workers of a version open, and on which processors each of them runs."""

    model: str
    bundle: Path
    variant: str
    device: Device
    threads: int
    processors: tuple[tuple[int, ...], ...]  # of each worker; empty ones are not pinned
    lengths: tuple[int, ...]  # of all rows that may come
    pad_id: int
    batch_tokens: int
    hang_seconds: float
    batches: tuple[tuple[int, int], ...] = ()  # (rows, length) that will be usual, as far as known


class Lost(Exception):
    """A worker is gone; `cause` is crash, hang or error."""

    def __init__(self, cause: str, message: str):
        super().__init__(message)
        self.cause = cause


class Refused(Exception):
    """A worker could not open the variant, or answers wrong: what it said. Its cause is an OSError
    if the machine refused."""


class Worker(asyncio.Protocol):
    """A process and the socket to it. One frame at a time."""

    def __init__(self, process: process.Process):
        self.process = process
        self.since = time.monotonic()
        self.cause = "crash"
        self._fork = asyncio.Lock()  # one at a time
        self.lost = asyncio.get_running_loop().create_future()  # done when the process has ended
        self._answer: asyncio.Future[tuple[frames.Head, bytes]] | None = None
        self._buffer = bytearray()  # of a frame that is not complete
        self._pipe: asyncio.Transport

    @classmethod
    async def start(cls, processors: Sequence[int], threads: int) -> Worker:
        return await cls._of(await process.start(processors, threads))

    async def fork(self, processors: Sequence[int]) -> Worker:
        """Another worker, forked from this one: see `batches.Worker.fork`."""

        async def ask() -> int:
            frame = frames.pack({"do": "fork", "processors": processors})
            head, _ = await self.ask(frame, FORK_SECONDS)
            return int(head["pid"])

        async with self._fork:
            started = await process.fork_from(self.process, ask)
        return await self._of(started)

    @classmethod
    async def _of(cls, started: process.Started) -> Worker:
        loop = asyncio.get_running_loop()
        try:
            _, worker = await loop.create_connection(
                lambda: cls(started.process), sock=started.socket
            )
        except BaseException:  # it was cancelled, and nobody else knows of the process
            started.process.kill()
            raise
        return worker

    async def open(self, plan: Plan, variant: str, gently: bool) -> frames.Head:
        """What it says when it has opened a variant. `gently` leaves the processors to others, from
        the start if this follows `start` at once: an interpreter that starts makes others wait."""
        may_return = gently and priority.may_return()
        with priority.lowered(self.process.pid) if may_return else contextlib.nullcontext():
            frame = _open_frame(plan, variant, gently, aside=gently and not may_return)
            head, _ = await self.ask(frame, OPEN_SECONDS)
        return head

    async def ask(self, frame: bytes, timeout: float) -> tuple[frames.Head, bytes]:
        """Head and body of the answer. Lost if the worker ends, or is killed after `timeout`
        seconds; Refused if it answers with an error.

        Time in which this process did not run (a machine that was paused or moved, a container
        that was frozen) does not count: the worker did not run then either, or has answered."""
        if self.lost.done():
            raise Lost(self.cause, f"worker {self.process.pid} has ended")
        loop = asyncio.get_running_loop()
        self._answer = loop.create_future()
        alarm: asyncio.Handle

        def wait(seconds: float) -> None:
            nonlocal alarm
            step = min(seconds, WATCH_STEP)
            if step > 0:
                alarm = loop.call_later(step, wait, seconds - step)
            else:
                self.kill("hang")

        alarm = loop.call_soon(wait, timeout)
        try:
            self._pipe.write(frame)
            head, body = await self._answer
        finally:
            alarm.cancel()
            self._answer = None
        if "error" in head:
            raise Refused(head["error"]) from (OSError() if head["of_system"] else None)
        return head, body

    def kill(self, cause: str) -> None:
        """At once, whatever it does."""
        self.cause = cause
        self.process.kill()

    async def close(self) -> None:
        """Ask the process to end, kill it if it does not, and wait until it is gone."""
        priority.lower(self.process.pid)  # giving back its memory takes a tenth of a second
        self._pipe.close()
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(None, self.process.wait, END_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill("hang")
            await loop.run_in_executor(None, self.process.wait)

    # Called by the loop.

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._pipe = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        for frame in frames.take(self._buffer):
            if self._answer is not None and not self._answer.done():
                self._answer.set_result(frame)

    def connection_lost(self, _: Exception | None) -> None:
        self.process.kill()
        if not self.lost.done():
            self.lost.set_result(None)
        if self._answer is not None and not self._answer.done():
            message = f"worker {self.process.pid} is lost ({self.cause})"
            self._answer.set_exception(Lost(self.cause, message))


def _open_frame(plan: Plan, variant: str, gently: bool, aside: bool) -> bytes:
    """The frame that makes a worker open a variant, `aside` in a thread of low priority, and run
    before the first text comes.

    With time, every length is run once, and the usual batches where that leaves the processors to
    others. Where somebody waits nothing is, and the worker is warmed when it answers (`_warm`): in
    float32 oneDNN reorders all weights for a few tokens, and once more for many, as the golden
    texts are (BERT-base: 0.2 to 1 s each). Any other new shape costs 5 to 20 ms.
    """
    lengths = plan.lengths if gently else ()
    usual = plan.batches if gently and not aside else ()
    return frames.pack(
        {
            "do": "open",
            "bundle": str(plan.bundle),
            "variant": variant,
            "device": list(plan.device),
            "threads": plan.threads,
            "pad_id": plan.pad_id,
            "batch_tokens": plan.batch_tokens,
            "batches": [*((1, length) for length in lengths), *usual],
            "aside": aside,
        }
    )

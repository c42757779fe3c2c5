"""The worker processes of one version: started, watched, replaced, ended.

Everything runs in the server's event loop. A worker that ends or takes too long for a batch is
killed and replaced, after a pause that grows while that goes on, whatever refuses another one.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Callable, NamedTuple, Sequence

import numpy as np

from fleetbert.core.device import Device
from fleetbert.deploy.inference.ops import metrics
from fleetbert.deploy.inference.workers import frames, priority, process
from fleetbert.engines import golden as goldens
from fleetbert.engines.golden import Golden

if TYPE_CHECKING:
    from fleetbert.deploy.inference.scheduler.queue import Text

log = logging.getLogger(__name__)

OPEN_SECONDS = 600.0  # for opening a variant
FORK_SECONDS = 60.0  # for forking a worker that has opened it
END_SECONDS = 5.0  # for a worker that was asked to end
LONGEST_PAUSE = 30.0  # between two starts of a worker, in seconds
LONG_LIFE = 10.0  # a worker that lived so long is replaced without a pause
# A worker hangs after so many times what its batch should take, at the earliest: models differ.
SLOWEST = 3.0
WATCH_STEP = 1.0  # seconds between looks at a worker that computes
WARM_PAUSE = 0.02  # seconds between looks whether a worker that is to be warmed is free
SAME = 1e-3  # largest difference of logits between answers to the same texts


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


class Answers(NamedTuple):
    """Of a batch: logits float32 [texts, labels], of tasks that answer each token [tokens, labels]
    of all texts, the layers that the texts left after (int32
    [texts]), the seconds in the engine, and the rows and lengths that it was laid out in."""

    logits: np.ndarray
    layers: np.ndarray
    seconds: float
    shapes: list[tuple[int, int]]


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


class Pool:
    """The workers of a version. `free` are those that may be given a batch."""

    def __init__(
        self,
        plan: Plan,
        golden: Golden,
        labels: int,
        on_free: Callable[[Worker], None],
        per_token: bool = False,
    ):
        """golden: texts that every worker answers, as the bundle says and all workers alike,
        before it is given any other. on_free(worker) is called when one becomes free."""
        self.plan = plan
        self.free: list[Worker] = []
        self.layers = 0
        self.failing = ""  # why the last start of a worker failed; empty if it did not
        self._alone_since = math.inf  # when the last worker that could answer was lost
        self._golden = golden
        self._labels, self._per_token = labels, per_token
        self._expected: np.ndarray | None = None
        self._on_free = on_free
        self._workers: dict[int, Worker] = {}
        self._keepers: list[asyncio.Task[None]] = []
        self._warmers: set[asyncio.Task[None]] = set()
        self._warming = asyncio.Lock()  # one worker at a time

    @property
    def size(self) -> int:
        return len(self.plan.processors)

    @property
    def alive(self) -> int:
        """How many workers can answer now or soon."""
        return len(self._workers)

    def seconds_alone(self) -> float:
        """For how long no worker could answer."""
        return 0.0 if self._workers else max(0.0, time.monotonic() - self._alone_since)

    async def open(self, gently: bool) -> None:
        """Start all workers; Refused or Lost if one of them cannot open the variant or answers
        the golden texts wrong. `gently` leaves the processors to others meanwhile."""
        source: Worker | None = None
        # A process that has computed with several threads computes no more when it is forked.
        if self.plan.threads == 1 and process.forking is not None:
            source = await self._start(0, gently)
        numbers = range(0 if source is None else 1, self.size)
        starts = [self._start(number, gently, source) for number in numbers]
        started = await asyncio.gather(*starts, return_exceptions=True)
        if source is not None:
            started.insert(0, source)
        for result in started:
            if isinstance(result, BaseException):
                await self.close()
                raise result
        for number, worker in enumerate(started):
            assert isinstance(worker, Worker)
            self._keepers.append(asyncio.ensure_future(self._keep(number, worker)))
            self._release(worker)
            if not gently:
                self._warm_later(worker)

    def take_free(self) -> Worker | None:
        while self.free:
            worker = self.free.pop()
            if not worker.lost.done():
                return worker
        return None

    async def run(self, worker: Worker, texts: Sequence[Text], expected: float) -> Answers:
        """The answers to a batch that should take `expected` seconds. Lost if the worker is gone;
        it is free again otherwise."""
        ids = [text.ids for text in texts]
        first_lengths = [text.first_length for text in texts]
        has_speeds = any(text.speed is not None for text in texts)
        speeds = [text.speed for text in texts] if has_speeds else None
        try:
            timeout = max(self.plan.hang_seconds, SLOWEST * expected)
            answers = await self._run(worker, ids, first_lengths, speeds, timeout)
        except Refused as error:
            # What state native code is in after an error, nobody knows.
            worker.kill("error")
            raise Lost("error", str(error)) from None
        self._release(worker)
        return answers

    async def close(self) -> None:
        """End all workers."""
        tasks = [*self._keepers, *self._warmers]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.free.clear()
        workers = list(self._workers.values())
        self._workers.clear()
        await asyncio.gather(*(worker.close() for worker in workers))

    def _release(self, worker: Worker) -> None:
        if not worker.lost.done():
            self.free.append(worker)
            self._on_free(worker)

    async def _keep(self, number: int, worker: Worker) -> None:
        """Replace the worker of this number whenever it is lost."""
        pause = 0.0
        while True:
            await asyncio.shield(worker.lost)
            del self._workers[number]
            self._alone_since = time.monotonic()
            if worker in self.free:
                self.free.remove(worker)
            with contextlib.suppress(OSError, RuntimeError):  # no descriptor or thread is left
                await worker.close()
            metrics.WORKER_RESTARTS.labels(self.plan.model, worker.cause).inc()
            log.warning(
                f"worker {worker.process.pid} of model {self.plan.model} is lost ({worker.cause}, "
                f"exit status {worker.process.returncode}); another is started"
            )
            if time.monotonic() - worker.since > LONG_LIFE:
                pause = 0.0
            while True:
                await asyncio.sleep(pause)
                pause = min(LONGEST_PAUSE, max(1.0, 2 * pause))
                try:
                    worker = await self._start(number, gently=False)
                    break
                except Exception as error:  # too little memory, descriptors, processes, ...
                    self.failing = str(error) or type(error).__name__
                    words = "a worker of model %s does not start: %s; tried again after %g s"
                    log.error(words, self.plan.model, self.failing, pause)
            self.failing = ""
            self._release(worker)
            self._warm_later(worker)

    def _warm_later(self, worker: Worker) -> None:
        task = asyncio.ensure_future(self._warm(worker))
        self._warmers.add(task)
        task.add_done_callback(self._warmers.discard)

    async def _warm(self, worker: Worker) -> None:
        """Have a worker that already answers run each length once, whenever it is free, so that
        its first texts need not wait for what oneDNN makes ready for them."""
        timeout = SLOWEST * self.plan.hang_seconds  # the first run takes longest
        async with self._warming:
            for length in self.plan.lengths:
                if not await self._take(worker):
                    return
                head = {"do": "warm", "variant": self.plan.variant, "batches": [(1, length)]}
                try:
                    await worker.ask(frames.pack(head), timeout)
                except Lost:
                    return
                except Refused as error:
                    log.error("a worker of model %s cannot be warmed: %s", self.plan.model, error)
                    worker.kill("error")
                    return
                self._release(worker)

    async def _take(self, worker: Worker) -> bool:
        """Take this worker as soon as it is free; False if it is lost, and another is started."""
        while worker not in self.free:
            if worker.lost.done():
                return False
            await asyncio.sleep(WARM_PAUSE)
        self.free.remove(worker)
        return True

    async def _start(self, number: int, gently: bool, source: Worker | None = None) -> Worker:
        """source: what forks it, else it is started anew."""
        plan, processors = self.plan, self.plan.processors[number]
        if source is None:
            worker = await Worker.start(processors, plan.threads)
        else:
            worker = await source.fork(processors)
        try:
            head = await worker.open(plan, plan.variant, gently)
            self.layers = head["layers"]
            log.debug("worker %d opened %s: %s", worker.process.pid, plan.variant, head)
            await self._check(worker)
        except BaseException:
            worker.kill("refused")
            await worker.close()
            raise
        self._workers[number] = worker
        return worker

    async def _check(self, worker: Worker) -> None:
        """Refused if the golden texts are not answered as where the variant was made, as by the
        other workers, and twice; of the first worker also if a text alone is answered otherwise."""
        ids = self._golden.ids
        is_first = self._expected is None
        for _ in range(2):
            logits = await self._golden_logits(worker, ids)
            if not np.isfinite(logits).all():
                raise Refused(
                    f"variant {self.plan.variant} answers NaN or infinity: its weights are damaged"
                )
            if self._golden.logits is not None:
                alike = logits.shape == self._golden.logits.shape
                apart = np.abs(logits - self._golden.logits).max() if alike else math.inf
                if not apart <= self._golden.bound:
                    raise Refused(
                        f"variant {self.plan.variant} answers its golden texts otherwise than "
                        f"where it was made, by {apart:.3g} in a logit (at most "
                        f"{self._golden.bound:.3g} is allowed): its files are another model's, or "
                        "this processor computes otherwise; make the variant on such a processor"
                    )
            if self._expected is None:
                self._expected = logits
            difference = float(np.abs(logits - self._expected).max())
            if difference > SAME * max(1.0, float(np.abs(self._expected).max())):
                raise Refused(
                    f"variant {self.plan.variant} answers the same texts differently, by "
                    f"{difference:.3g}, from worker to worker or from time to time"
                )
        if is_first:
            alone = np.concatenate([await self._golden_logits(worker, [row]) for row in ids])
            difference = float(np.abs(alone - logits).max())
            most = goldens.alone_share(self.plan.device)
            if not difference <= most * max(1.0, float(np.abs(logits).max())):
                raise Refused(
                    f"variant {self.plan.variant} answers a text alone and the same text among "
                    f"others differently, by {difference:.3g} in a logit: make the variant again "
                    "with this fleetbert, or name another one with `variant`"
                )

    async def _golden_logits(self, worker: Worker, ids: Sequence[np.ndarray]) -> np.ndarray:
        lengths, speeds = [len(row) for row in ids], [0.0] * len(ids)  # as they were recorded
        return (await self._run(worker, ids, lengths, speeds, OPEN_SECONDS)).logits

    async def _run(
        self,
        worker: Worker,
        ids: Sequence[np.ndarray],
        first_lengths: Sequence[int],
        speeds: Sequence[float | None] | None,
        timeout: float,
    ) -> Answers:
        head = {
            "do": "run",
            "variant": self.plan.variant,
            "batch_tokens": self.plan.batch_tokens,
            "speeds": speeds,
        }
        frame = frames.pack_texts(head, ids, first_lengths)
        answer, body = await worker.ask(frame, timeout)
        rows = sum(map(len, ids)) if self._per_token else len(ids)
        arrays = frames.unpack_answers(body, len(ids), self._labels, rows)
        if arrays is None:
            raise Refused(
                f"variant {self.plan.variant} answers {len(ids)} texts with "
                f"{len(body) // 4 - len(ids)} logits and has {self._labels} labels"
            )
        shapes = [(rows, length) for rows, length in answer["shapes"]]
        return Answers(*arrays, answer["seconds"], shapes)


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

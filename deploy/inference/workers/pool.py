"""The worker processes of one version: started, watched, replaced, ended.

Everything runs in the server's event loop. A worker that ends or takes too long for a batch is
killed and replaced, after a pause that grows while that goes on, whatever refuses another one. The
new one is forked from one that is left, and shares its weights, where workers can be forked.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from typing import TYPE_CHECKING, Callable, NamedTuple, Sequence

import numpy as np

from fleetbert.deploy.inference.ops import metrics
from fleetbert.deploy.inference.workers import frames, process
from fleetbert.deploy.inference.workers.connection import (
    OPEN_SECONDS,
    Lost,
    Plan,
    Refused,
    Worker,
)
from fleetbert.engines import golden as goldens
from fleetbert.engines.golden import Golden

if TYPE_CHECKING:
    from fleetbert.deploy.inference.scheduler.queue import Text

log = logging.getLogger(__name__)

LONGEST_PAUSE = 30.0  # between two starts of a worker, in seconds
LONG_LIFE = 10.0  # a worker that lived so long is replaced without a pause
# A worker hangs after so many times what its batch should take, at the earliest: models differ.
SLOWEST = 3.0
WARM_PAUSE = 0.02  # seconds between looks whether a worker that is to be warmed is free
SAME = 1e-3  # largest difference of logits between answers to the same texts


class Answers(NamedTuple):
    """Of a batch: logits float32 [texts, labels], of tasks that answer each token [tokens, labels]
    of all texts, the layers that the texts left after (int32
    [texts]), the seconds in the engine, and the rows and lengths that it was laid out in."""

    logits: np.ndarray
    layers: np.ndarray
    seconds: float
    shapes: list[tuple[int, int]]


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
        self._replacing = asyncio.Lock()  # likewise, so that each can be forked from the former
        self._sought: asyncio.Future[Worker | None] | None = None  # what is to fork another

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
        source = await self._start(0, gently) if self._can_fork() else None
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

    def _can_fork(self) -> bool:
        """A process that has computed with several threads computes no more when it is forked."""
        return self.plan.threads == 1 and process.forking is not None

    def _release(self, worker: Worker) -> None:
        if worker.lost.done():
            return
        if self._sought is not None and not self._sought.done():
            self._sought.set_result(worker)
            return
        self.free.append(worker)
        self._on_free(worker)

    async def _keep(self, number: int, worker: Worker) -> None:
        """Replace the worker of this number whenever it is lost."""
        pause = 0.0
        while True:
            await asyncio.shield(worker.lost)
            del self._workers[number]
            self._alone_since = time.monotonic()
            if not self._workers and self._sought is not None and not self._sought.done():
                self._sought.set_result(None)
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
            may_share = True
            while True:
                await asyncio.sleep(pause)
                pause = min(LONGEST_PAUSE, max(1.0, 2 * pause))
                try:
                    worker = await self._replace(number, may_share)
                    break
                except Exception as error:  # too little memory, descriptors, processes, ...
                    may_share = False  # what was to fork it may be at fault
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

    async def _replace(self, number: int, may_share: bool) -> Worker:
        """A new worker of this number; may_share: another one's weights."""
        if not (may_share and self._can_fork()):
            return await self._start(number, gently=False)
        async with self._replacing:
            source = await self._source()
            try:
                worker = await self._new_process(number, source)
            finally:
                if source is not None:
                    self._release(source)
            return await self._opened(number, worker, gently=False)

    async def _source(self) -> Worker | None:
        """A worker as soon as it is free, to fork another; None where none is left."""
        if not self._workers:
            return None
        if (worker := self.take_free()) is not None:
            return worker
        self._sought = asyncio.get_running_loop().create_future()
        return await self._sought

    async def _start(self, number: int, gently: bool, source: Worker | None = None) -> Worker:
        return await self._opened(number, await self._new_process(number, source), gently)

    async def _new_process(self, number: int, source: Worker | None) -> Worker:
        """source: what forks it, else it is started anew."""
        processors = self.plan.processors[number]
        if source is None:
            return await Worker.start(processors, self.plan.threads)
        return await source.fork(processors)

    async def _opened(self, number: int, worker: Worker, gently: bool) -> Worker:
        """The worker, now the one of this number: it has opened the variant and answers right."""
        plan = self.plan
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

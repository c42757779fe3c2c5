"""One version of a model in service: questions in, batches to the workers, replies out."""

from __future__ import annotations

import asyncio
import functools
import logging
import math
from collections import Counter
from typing import Any, Awaitable, Callable, Sequence

import numpy as np

from fleetbert import bundle as bundles
from fleetbert.data.batching import pack_rows
from fleetbert.data.tokenizers import Tokenizer
from fleetbert.deploy.inference.messages import Failure, Question, Reason, Reply
from fleetbert.deploy.inference.ops.counts import Counts
from fleetbert.deploy.inference.scheduler.encode import Encoded, encode
from fleetbert.deploy.inference.scheduler.queue import Queue, Text, Ticket
from fleetbert.deploy.inference.settings import Batching
from fleetbert.deploy.inference.workers.pool import Lost, Plan, Pool, Worker, go_to
from fleetbert.engines import golden as goldens
from fleetbert.engines.engine import EARLY_EXIT, LITE_EARLY_EXIT, PACKED
from fleetbert.engines.golden import Golden
from fleetbert.tasks.metrics import softmax

log = logging.getLogger(__name__)

NOTHING = np.empty(0)
MOST_LOSSES = 2  # batches that a text may be lost with
USUAL_BATCHES = 100  # that the next version runs before it takes over
# Characters that are tokenized in the event loop itself. It takes about 1 ms; handing it to a
# thread and back costs a tenth of that, and more where the processors are busy.
INLINE_CHARACTERS = 4096
FEWEST_TOKENS = 3  # of a text: [CLS], one more, [SEP]


class Answer(asyncio.Future):  # of a Reply; Python 3.8 has no Future[...]
    """A reply that is on its way; cancelling it drops what was not computed yet."""

    def __init__(self, drop: Callable[[], object], loop: asyncio.AbstractEventLoop):
        super().__init__(loop=loop)
        self._drop = drop

    def cancel(self, *args: Any, **kwargs: Any) -> bool:
        self._drop()  # nothing, if it is done
        return super().cancel(*args, **kwargs)


class Asked(Ticket):
    """A question on its way: what is known of its answer so far. `answer`: who waits for it; None
    when it is over. `cut`: how many of its texts were cut to the model's length."""

    __slots__ = (
        *("answer", "arrival", "compute_seconds", "cut", "labels", "last_begin", "layers"),
        *("logits", "missing", "scores", "texts"),
    )

    def __init__(self, texts: int, labels: int, cut: int, deadline: float, arrival: float):
        super().__init__(deadline)
        self.answer: Answer | None = None
        self.cut = cut
        self.texts = texts
        self.labels: list[str] = [""] * texts
        self.logits = self.scores = self.layers = NOTHING
        if texts > 1:  # of one text, they are parts of its batch's
            self.logits = np.empty((texts, labels), np.float32)
            self.scores = np.empty((texts, labels), np.float32)
            self.layers = np.empty(texts, np.int32)
        self.missing = texts
        self.arrival = arrival
        self.last_begin = arrival  # of the batches with its texts
        self.compute_seconds = 0.0

    def put(self, place: int, label: str, logits: Any, scores: Any, layers: Any) -> None:
        """The answer to the text at `place`: arrays [1, labels] and [1]."""
        self.labels[place] = label
        if self.texts == 1:
            self.logits, self.scores, self.layers = logits, scores, layers
        else:
            self.logits[place], self.scores[place] = logits[0], scores[0]
            self.layers[place] = layers[0]
        self.missing -= 1


class Serving:
    """Answers questions from `open` until `close`."""

    def __init__(
        self,
        model: str,
        version: str,
        bundle: bundles.Bundle,
        tokenizer: Tokenizer,
        plan: Plan,
        batching: Batching,
    ):
        self.model = model
        self.version = version
        self.bundle = bundle
        self.tokenizer = tokenizer
        self.counts = Counts(model, version)
        kind = bundle.variant(plan.variant).kind
        self.timeout = batching.timeout_ms / 1000
        golden = goldens.read(bundle, plan.variant)
        if golden is None:  # the workers have only each other to be compared with
            golden = Golden(golden_texts(tokenizer, bundle.max_length), None, math.inf)
        self.pool = Pool(plan, golden, len(bundle.labels), self._freed)
        self.queue = Queue(
            batching.batch_tokens,
            batching.queue_tokens,
            batching.max_wait_ms / 1000,
            batching.max_age_ms / 1000,
            kind in PACKED,
            self.pool.size,
        )
        self.counts.queued(lambda: self.queue.tokens)
        self._under_way: dict[Worker, list[Text]] = {}  # what workers compute
        self._labels = list(bundle.labels)
        self._encoding = (tokenizer, bundle.task.pair, bundle.max_length)
        self._early = kind in (EARLY_EXIT, LITE_EARLY_EXIT)
        self._asked = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = 0.0
        self._batches: set[asyncio.Task[None]] = set()
        self._shapes: Counter[tuple[int, int]] = Counter()  # of batches: rows, length
        self._loop = asyncio.get_running_loop()

    async def open(self, gently: bool) -> None:
        """Start the workers; pool.Refused or pool.Lost if they do not come up."""
        await self.pool.open(gently)

    def usual_batches(self) -> list[tuple[int, int]]:
        """Texts and length of the batches that come most often."""
        return [shape for shape, _ in self._shapes.most_common(USUAL_BATCHES)]

    def answer(self, question: Question) -> Awaitable[Reply]:
        """The reply, or Failure, which may be raised at once. Cancelling it drops what was not
        computed yet.

        `question.speed` is for variants with early exit and changes nothing for others.
        """
        arrival = self._loop.time()
        try:
            if self.pool.failing and not self.pool.alive:
                raise Failure(
                    Reason.UNAVAILABLE, f"model {self.model} has no worker: {self.pool.failing}"
                )
            self.queue.check(FEWEST_TOKENS * question.size)  # before tokenizing costs anything
            if question.characters > INLINE_CHARACTERS:
                return self._tokenize_and_ask(question, arrival)
            return self._ask(question, encode(question, *self._encoding), arrival)
        except Failure as failure:
            self.counts.refused(failure.reason, self._loop.time() - arrival)
            raise

    async def _tokenize_and_ask(self, question: Question, arrival: float) -> Reply:
        """The same for a question whose tokenizing takes long, in another thread."""
        self._begin()
        try:
            encoded = await self._loop.run_in_executor(None, encode, question, *self._encoding)
            answer = self._ask(question, encoded, arrival)
        except Failure as failure:
            self.counts.refused(failure.reason, self._loop.time() - arrival)
            raise
        except asyncio.CancelledError:
            self.counts.refused(Reason.CANCELLED, self._loop.time() - arrival)
            raise
        finally:
            self._end()
        return await answer

    def _ask(self, question: Question, encoded: Encoded, arrival: float) -> Answer:
        """Put it into the queue; Failure if that has no room for it."""
        self.counts.cut(encoded.cut)
        timeout = self.timeout if question.timeout is None else question.timeout
        labels = len(self._labels)
        asked = Asked(question.size, labels, encoded.cut, arrival + timeout, arrival)
        speed = question.speed if self._early else None
        self.queue.put(asked, _texts(asked, encoded, speed), self._loop.time())
        answer = asked.answer = Answer(functools.partial(self._drop, asked), self._loop)
        self._begin()
        if self.pool.free:
            self._pump()
        else:
            self._wake_at(asked.deadline)
        return answer

    def _reply(self, asked: Asked) -> None:
        """All its texts are answered, unless it is over already."""
        answer = self._take_out(asked)
        if answer is None:
            return
        reply = Reply(
            self.model,
            self.version,
            asked.labels,
            asked.logits,
            asked.scores,
            asked.layers,
            asked.last_begin - asked.arrival,
            asked.compute_seconds,
            asked.cut,
        )
        self.counts.answered(reply, self._loop.time() - asked.arrival)
        answer.set_result(reply)

    def _fail(self, asked: Ticket, failure: Failure) -> None:
        """It will not be answered, unless it is over already."""
        assert isinstance(asked, Asked)
        answer = self._drop(asked, failure.reason)
        if answer is not None:
            answer.set_exception(failure)

    def _drop(self, asked: Asked, reason: Reason = Reason.CANCELLED) -> Answer | None:
        """End a question without an answer, unless it is over already; gives who waits for it."""
        answer = self._take_out(asked)
        if answer is not None:
            self.counts.refused(reason, self._loop.time() - asked.arrival)
        return answer

    def _take_out(self, asked: Asked) -> Answer | None:
        """The same, however it ends. Until then both refer to each other."""
        answer, asked.answer = asked.answer, None
        if answer is not None:
            self.queue.finish(asked)
            self._end()
        return answer

    def _begin(self) -> None:
        self._asked += 1
        self._idle.clear()

    def _end(self) -> None:
        self._asked -= 1
        if not self._asked:
            self._idle.set()

    async def drain(self, seconds: float) -> None:
        """Wait until every question is answered, at most so long."""
        try:
            await asyncio.wait_for(self._idle.wait(), seconds)
        except asyncio.TimeoutError:
            log.warning(
                "version %s of model %s ends with %d requests unanswered",
                self.version,
                self.model,
                self._asked,
            )

    async def close(self) -> None:
        """End the workers; questions that were not answered fail."""
        for ticket in self.queue.expire(float("inf")):
            self._fail(ticket, Failure(Reason.UNAVAILABLE, f"model {self.model} is being unloaded"))
        if self._alarm is not None:
            self._alarm.cancel()
        await self.pool.close()
        await asyncio.gather(*self._batches, return_exceptions=True)
        self.counts.queued(lambda: 0)

    def _freed(self, worker: Worker) -> None:
        """Give the worker its next batch, or stay near it until there is one."""
        alone = len(self.pool.free) == 1
        self.queue.freed(self._loop.time(), self._computed(), alone)
        self._under_way.pop(worker, None)
        self._pump()
        if worker in self.pool.free:
            go_to(worker.processors)

    def _computed(self) -> int:
        """How many texts the workers have."""
        return sum(map(len, self._under_way.values()))

    def _pump(self) -> None:
        """Give batches to the workers that are free, and see to it that this is called again."""
        now = self._loop.time()
        for ticket in self.queue.expire(now):
            self._fail(ticket, Failure(Reason.DEADLINE, "the request's timeout has passed"))
        while True:
            worker = self.pool.take_free()
            if worker is None:
                break
            texts = self.queue.take(now, self._computed())
            if not texts:
                self.pool.free.append(worker)
                break
            self._under_way[worker] = texts
            task = self._loop.create_task(self._compute(worker, texts))
            self._batches.add(task)
            task.add_done_callback(self._batches.discard)
        times = [self.queue.next_deadline(), self.queue.next_batch() if self.pool.free else None]
        self._wake_at(min((time for time in times if time is not None), default=None))

    def _wake_at(self, when: float | None) -> None:
        if self._alarm is not None:
            if when is not None and self._alarm_at <= when:
                return  # it looks too early then, and sets the next one
            self._alarm.cancel()
            self._alarm = None
        if when is not None:
            self._alarm = self._loop.call_at(when, self._awake)
            self._alarm_at = when

    def _awake(self) -> None:
        self._alarm = None
        self._pump()

    async def _compute(self, worker: Worker, texts: list[Text]) -> None:
        begin = self._loop.time()
        lengths = [text.ids.size for text in texts]
        expected = self.queue.seconds(sum(lengths)) * self.pool.size
        try:
            logits, layers, seconds = await self.pool.run(worker, texts, expected)
        except Lost as lost:
            self._lose(texts, lost)
            return
        finally:
            if self._under_way.get(worker) is texts:  # it was not freed: it is lost
                del self._under_way[worker]
        if self.queue.packed:
            length, packed = pack_rows(lengths)
            rows = len(packed)
        else:
            length, rows = max(text.length for text in texts), len(texts)
        self._shapes[rows, length] += 1
        self.counts.batch(lengths, rows * length, layers.tolist(), seconds)
        self.counts.waited([begin - text.arrival for text in texts])
        self.queue.observe(sum(lengths), seconds / self.pool.size)
        finite = np.isfinite(logits).all(axis=1).tolist()
        best = logits.argmax(axis=1).tolist()
        # All at once: NumPy takes as long for one text.
        scores = softmax(np.where(np.isfinite(logits), logits, 0.0)).astype(np.float32)
        for asked in {text.ticket for text in texts}:
            assert isinstance(asked, Asked)
            asked.last_begin = max(asked.last_begin, begin)
            asked.compute_seconds += seconds
        for number, text in enumerate(texts):
            asked = text.ticket
            assert isinstance(asked, Asked)
            if not finite[number]:
                self._fail(asked, Failure(Reason.INTERNAL, "the model answers NaN or infinity"))
            one = slice(number, number + 1)
            label = self._labels[best[number]]
            asked.put(text.place, label, logits[one], scores[one], layers[one])
            if not asked.missing:
                self._reply(asked)
        if worker in self.pool.free:  # it waits for those whose answers are written now
            # Protocols make them in the loop's next turn; gRPC sends them in the one after.
            self._loop.call_soon(self._loop.call_soon, self._answered, len(self.pool.free) == 1)

    def _answered(self, alone: bool) -> None:
        self.queue.answered(self._loop.time(), alone)

    def _lose(self, texts: list[Text], lost: Lost) -> None:
        """Another worker may answer what was lost, once."""
        log.warning("a batch of %d texts of model %s is lost: %s", len(texts), self.model, lost)
        for text in texts:
            if text.losses + 1 >= MOST_LOSSES:
                self._fail(
                    text.ticket,
                    Failure(
                        Reason.UNAVAILABLE,
                        f"text {text.place} was with {MOST_LOSSES} workers that were lost "
                        f"({lost.cause}); it is not tried again",
                    ),
                )
        self.queue.put_back(texts)
        self._pump()


def golden_texts(tokenizer: Tokenizer, max_length: int) -> list[np.ndarray]:
    """Token ids of a few texts of different lengths, the same for the same vocabulary."""
    random = np.random.default_rng(0)
    longest = min(max_length, 32)
    return [
        np.array(
            [
                tokenizer.cls_id,
                *random.choice(tokenizer.ordinary_ids, length - 2),
                tokenizer.sep_id,
            ],
            np.int32,
        )
        for length in sorted({3, longest // 2 + 1, longest})
    ]


def _texts(asked: Asked, encoded: Encoded, speed: float | None) -> Sequence[Text]:
    return [
        Text(asked, place, ids, first, speed)
        for place, (ids, first) in enumerate(zip(encoded.ids, encoded.first_lengths))
    ]

"""One version of a model in service: requests in, batches to the workers, responses out."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import logging
import math
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Sequence

import numpy as np

from fleetbert import bundle as bundles
from fleetbert import tasks
from fleetbert.core.errors import UserError
from fleetbert.data import windows
from fleetbert.data.tokenizers import Encodings, Tokenizer
from fleetbert.deploy.inference.messages import (
    Failure,
    Reason,
    Request,
    Response,
    Token,
    Values,
    too_long,
)
from fleetbert.deploy.inference.ops.counts import Counts
from fleetbert.deploy.inference.scheduler.queue import Divided, PendingRequest, Queue, Text
from fleetbert.deploy.inference.scheduler.tokens import (
    golden_texts,
    parts_of,
    together,
    tokens_of,
)
from fleetbert.deploy.inference.settings import Batching
from fleetbert.deploy.inference.workers.connection import Lost, Plan, Worker
from fleetbert.deploy.inference.workers.pool import Pool
from fleetbert.engines import golden as goldens
from fleetbert.engines.engine import EARLY_EXIT, LITE_EARLY_EXIT
from fleetbert.engines.golden import Golden
from fleetbert.tasks.answer import are_finite, by_text

log = logging.getLogger(__name__)

MOST_LOSSES = 2  # batches that a text may be lost with
USUAL_BATCHES = 100  # that the next version runs before it takes over
# Characters that are tokenized in the event loop itself. It takes about 1 ms; handing it to a
# thread and back costs a tenth of that, and more where the processors are busy.
INLINE_CHARACTERS = 4096
FEWEST_TOKENS = 3  # of a text: [CLS], one more, [SEP]
# More threads than these take the processors, and Python's lock, from who listens.
TOKENIZING = ThreadPoolExecutor(2, "tokenize")
LATE = "the request's timeout has passed"


class Scheduler:
    """Answers requests from `open` until `close`."""

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
        manifest = bundle.manifest.model_dump_json().encode()
        self.bundle = hashlib.sha256(manifest).hexdigest()[:16]
        self.counts = Counts(model, version)
        self._timeout = batching.timeout_ms / 1000
        golden = goldens.read(bundle, plan.variant, plan.device)
        if golden is None:  # the workers have only each other to be compared with
            golden = Golden(golden_texts(tokenizer, bundle.max_length), None, math.inf)
        self._task = tasks.of(bundle.task)
        outputs = self._task.outputs(bundle.labels)
        tensors = self._task.answer.tensors(bundle.labels, outputs)
        self._outputs = [tensor.name for tensor in tensors]
        self.pool = Pool(plan, golden, outputs, self._freed, self._task.shape.per_token)
        self.queue = Queue(
            batching.batch_tokens,
            batching.queue_tokens,
            batching.max_wait_ms / 1000,
            self.pool.size,
        )
        self.counts.queued(lambda: self.queue.tokens)
        self._under_way: dict[Worker, list[Text]] = {}  # what workers compute
        self._labels, self._row_labels = bundle.task.answered_labels, bundle.labels
        self._tokenizer, self._reading = tokenizer, bundle.reading
        self._early = bundle.variant(plan.variant).kind in (EARLY_EXIT, LITE_EARLY_EXIT)
        self._unanswered = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = 0.0
        self._batches: set[asyncio.Task[None]] = set()
        self._shapes: Counter[tuple[int, int]] = Counter()  # of batches: rows, length
        self._loop = asyncio.get_running_loop()

    async def open(self, gently: bool) -> None:
        """Start the workers; Refused or Lost if they do not come up."""
        await self.pool.open(gently)

    def usual_batches(self) -> list[tuple[int, int]]:
        """Rows and length of the batches that come most often."""
        return [shape for shape, _ in self._shapes.most_common(USUAL_BATCHES)]

    async def answer(self, request: Request) -> Response:
        """The response, or Failure. Cancelling it drops what was not computed yet.

        `request.speed` is for variants with early exit and changes nothing for others.
        """
        arrival = self._loop.time()
        self._unanswered += 1
        self._idle.clear()
        try:
            response = await self._answer(request, arrival)
        except Failure as failure:
            self.counts.refused(failure.reason, self._loop.time() - arrival)
            raise
        except asyncio.CancelledError:
            self.counts.refused(Reason.CANCELLED, self._loop.time() - arrival)
            raise
        finally:
            self._unanswered -= 1
            if not self._unanswered:
                self._idle.set()
        self.counts.answered(response, self._loop.time() - arrival)
        return response

    async def _answer(self, request: Request, arrival: float) -> Response:
        if self.pool.failing and not self.pool.alive:
            raise Failure(
                Reason.UNAVAILABLE, f"model {self.model} has no worker: {self.pool.failing}"
            )
        self.queue.check(FEWEST_TOKENS * request.size)  # before tokenizing costs anything
        timeout = self._timeout if request.timeout is None else request.timeout
        if request.characters > INLINE_CHARACTERS:
            encoded = await self._encode_aside(request, timeout)
        else:
            encoded = self._encode(request)
        truncated, tokens = encoded.truncated, sum(map(len, encoded.ids))
        divided = windows.divide(encoded)
        rows = encoded if divided is None else divided[0]
        if truncated and not request.truncate:
            raise too_long(truncated, self._reading.max_length)
        self.counts.truncated(truncated)
        pending = PendingRequest(len(rows.ids), arrival + timeout, arrival, truncated, tokens)
        speed = request.speed if self._early else None
        texts = [
            Text(pending, place, ids, first, speed)
            for place, (ids, first) in enumerate(zip(rows.ids, rows.first_lengths.tolist()))
        ]
        spanned = request.texts_b or request.texts or ()
        if divided is not None:
            pending.divided = Divided(divided[1], spanned, encoded.words or (), {})
        elif encoded.words is not None:
            for text, characters, words in zip(texts, spanned, encoded.words):
                text.text, text.words = characters, words
        self.queue.put(pending, texts, self._loop.time())
        pending.future = self._loop.create_future()
        self._pump()
        try:
            return await pending.future
        finally:
            pending.future = None
            self.queue.finish(pending)

    async def _encode_aside(self, request: Request, timeout: float) -> Encodings:
        """In a thread, which stops when the client has gone or its time is over."""
        parts: list[Encodings] = []
        over = False

        def encode() -> None:
            for part in parts_of(request):
                if over:
                    return
                parts.append(self._encode(part))

        try:
            await asyncio.wait_for(self._loop.run_in_executor(TOKENIZING, encode), timeout)
        except asyncio.TimeoutError:
            raise Failure(Reason.DEADLINE, LATE) from None
        finally:
            over = True
        return together(parts)

    def _encode(self, request: Request) -> Encodings:
        """Failure BAD_REQUEST if a text cannot be tokenized. Safe to call in several threads."""
        if request.texts is None:
            if self._task.shape.per_token:
                words = f"model {self.model} answers with characters of texts: send input 'text'"
                raise Failure(Reason.BAD_REQUEST, words)
            return Encodings(request.ids, np.asarray(request.first_lengths), 0)
        texts = (request.texts, request.texts_b)
        try:
            return self._task.answer.encode(self._tokenizer, *texts, self._reading)
        except UserError as error:
            raise Failure(Reason.BAD_REQUEST, str(error)) from None

    async def tokenize(self, texts: list[str]) -> list[list[Token]]:
        """The tokens of whole texts. Failure BAD_REQUEST if a text cannot be tokenized."""
        return await self._loop.run_in_executor(TOKENIZING, tokens_of, self._tokenizer, texts)

    async def drain(self, seconds: float) -> None:
        """Wait until every request is answered, at most so long."""
        try:
            await asyncio.wait_for(self._idle.wait(), seconds)
        except asyncio.TimeoutError:
            words = "version %s of model %s ends with %d requests unanswered"
            log.warning(words, self.version, self.model, self._unanswered)

    async def close(self) -> None:
        """End the workers; requests that were not answered fail."""
        for pending in self.queue.expire(math.inf):
            _fail(pending, Failure(Reason.UNAVAILABLE, f"model {self.model} is being unloaded"))
        if self._alarm is not None:
            self._alarm.cancel()
        await self.pool.close()
        await asyncio.gather(*self._batches, return_exceptions=True)
        self.counts.queued(lambda: 0)

    def _freed(self, worker: Worker) -> None:
        self.queue.freed(self._computed())
        self._under_way.pop(worker, None)
        self._pump()

    def _computed(self) -> int:
        """How many texts the workers have."""
        return sum(map(len, self._under_way.values()))

    def _pump(self) -> None:
        """Give batches to the workers that are free, and see to it that this is called again."""
        now = self._loop.time()
        for pending in self.queue.expire(now):
            _fail(pending, Failure(Reason.DEADLINE, LATE))
        while (worker := self.pool.take_free()) is not None:
            texts = self.queue.take(now, self._computed())
            if not texts:
                self.pool.free.append(worker)
                break
            self._under_way[worker] = texts
            task = self._loop.create_task(self._compute(worker, texts))
            self._batches.add(task)
            task.add_done_callback(self._batches.discard)
        times = [self.queue.next_deadline()]
        if self.pool.free:
            times.append(self.queue.next_batch())
        when = min((time for time in times if time is not None), default=None)
        if self._alarm is not None:
            if when is not None and now < self._alarm_at <= when:
                return  # it looks too early then, and sets the next one
            self._alarm.cancel()
            self._alarm = None
        if when is not None:
            self._alarm = self._loop.call_at(when, self._ring)
            self._alarm_at = when

    def _ring(self) -> None:
        """The alarm is over, even where it came early: uvloop rounds to whole milliseconds."""
        self._alarm = None
        self._pump()

    async def _compute(self, worker: Worker, texts: list[Text]) -> None:
        begin = self._loop.time()
        tokens = sum([text.ids.size for text in texts])
        try:
            answers = await self.pool.run(worker, texts, self.queue.seconds(tokens))
        except Lost as lost:
            self._lose(texts, lost)
            return
        finally:
            if self._under_way.get(worker) is texts:  # it was not freed: it is lost
                del self._under_way[worker]
        self._shapes.update(answers.shapes)
        padded = sum(rows * length for rows, length in answers.shapes)
        self.counts.batch(len(texts), tokens, padded, answers.layers.tolist(), answers.seconds)
        self.counts.waited([begin - text.arrival for text in texts])
        self.queue.observe(tokens, answers.seconds)
        outputs = answers.logits
        # All at once: NumPy takes as long for one text.
        answerable = np.where(np.isfinite(outputs), outputs, np.float32(0))
        if self._task.shape.per_token:
            lengths = np.array([len(text.ids) for text in texts])
            outputs, answerable = (by_text(rows, lengths) for rows in (outputs, answerable))
        finite = are_finite(outputs).tolist()
        whole = [n for n, text in enumerate(texts) if text.request.divided is None]
        tensors: list[Values] = []
        if whole:
            words = [texts[n].words for n in whole]
            names = [texts[n].text for n in whole]
            tensors = self._tell(answerable[whole], answers.layers[whole], words, names)
        places = dict(zip(whole, itertools.count()))
        for pending in {text.request for text in texts}:
            pending.last_begin = max(pending.last_begin, begin)
            pending.compute_seconds += answers.seconds
        for number, text in enumerate(texts):
            pending = text.request
            if not finite[number]:
                _fail(pending, Failure(Reason.INTERNAL, "the model answers NaN or infinity"))
            pending.missing -= 1
            if (divided := pending.divided) is None:
                row = slice(places[number], places[number] + 1)
                pending.rows[text.place] = [values[row] for values in tensors]
            else:
                divided.outputs[text.place] = answerable[number], int(answers.layers[number])
                if not pending.missing:
                    pending.rows[0] = self._pool(divided)
            if not pending.missing and pending.future is not None and not pending.future.done():
                pending.future.set_result(self._response(pending))

    def _tell(
        self,
        outputs: np.ndarray,
        layers: np.ndarray,
        words: Sequence[np.ndarray | None],
        texts: Sequence[str],
    ) -> list[Values]:
        """The values of all output tensors, of finite outputs [texts, ...] in a task's `room`."""
        known = [places for places in words if places is not None]
        outputs = self._task.answer.of_texts(outputs, known, texts)
        return [*self._task.answer.tell(self._labels, outputs), layers]

    def _pool(self, divided: Divided) -> list[Values]:
        """The same of the texts whose windows were computed."""
        rows = [divided.outputs[place] for place in range(len(divided.outputs))]
        outputs = self._task.room(len(rows), self._row_labels)
        layers = np.array([layer for _, layer in rows], np.int32)
        for place, (output, _) in enumerate(rows):
            outputs[place] = output
        outputs = self._task.answer.pool(outputs, divided.layout)
        layers = np.maximum.reduceat(layers, divided.layout.starts)
        return self._tell(outputs, layers, divided.words, divided.texts)

    def _response(self, pending: PendingRequest) -> Response:
        rows = [pending.rows[place] for place in sorted(pending.rows)]
        return Response(
            self.model,
            self.version,
            {name: _together(values) for name, values in zip(self._outputs, zip(*rows))},
            pending.last_begin - pending.arrival,
            pending.compute_seconds,
            pending.truncated,
            self.bundle,
            pending.tokens,
        )

    def _lose(self, texts: list[Text], lost: Lost) -> None:
        """Another worker may answer what was lost, once."""
        log.warning("a batch of %d texts of model %s is lost: %s", len(texts), self.model, lost)
        for text in texts:
            if text.losses + 1 >= MOST_LOSSES:
                divided = text.request.divided
                number = text.place if divided is None else divided.layout.text[text.place]
                words = (
                    f"text {number} was with {MOST_LOSSES} workers that were lost "
                    f"({lost.cause}); it is not tried again"
                )
                self.queue.finish(text.request)
                _fail(text.request, Failure(Reason.UNAVAILABLE, words))
        self.queue.put_back(texts)
        self._pump()


def _fail(pending: PendingRequest, failure: Failure) -> None:
    """It will not be answered, unless it is over already."""
    if pending.future is not None and not pending.future.done():
        pending.future.set_exception(failure)


def _together(values: Sequence[Values]) -> Values:
    """Of all texts, of one tensor."""
    if isinstance(values[0], np.ndarray):
        return np.concatenate(values)
    return list(itertools.chain.from_iterable(values))

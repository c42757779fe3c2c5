"""The queue of one version: which texts wait, and which of them go into the next batch.

A pure data structure: it does no I/O and is told the time (seconds of any steady clock), so that
tests can drive it. It counts tokens: at most `capacity` of them wait, and a batch has at most
`batch_tokens`, unless one text alone has more. Who came first goes first; laying the texts of a
batch out in rows is the worker's.

A worker that is free waits, for at most `max_wait`, until its share of the texts that are here
waits: clients that wait for an answer before they ask again are in step with the workers then. Who
takes what is there at once takes small batches for ever.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import List, NamedTuple, Sequence

import numpy as np

from fleetbert.data.batching import CALL_TOKENS
from fleetbert.data.windows import Layout
from fleetbert.deploy.inference.messages import Failure, Reason, Response, Values

# Before the first batch was measured: BERT-base in float32 on one processor.
FIRST_GUESS = 500.0  # tokens a second
NEWEST_SHARE = 0.2  # of the newest batch in a running mean


# The answer to a text: of each output a list or an array with one entry.
Row = List[Values]


class Divided(NamedTuple):
    """Texts some of which have several windows, and of spans their words. outputs: of the windows
    that were computed, and the layers that they left after, by their numbers."""

    layout: Layout
    texts: Sequence[str]
    words: Sequence[np.ndarray]
    outputs: dict[int, tuple[np.ndarray, int]]


@dataclass(eq=False)
class PendingRequest:
    """A request in the queue, from `put` until `finish`. Windows of long texts are texts here."""

    missing: int  # texts without an answer
    deadline: float  # when it has to be answered at the latest
    arrival: float = 0.0
    truncated: int = 0  # texts that were truncated to the model's length
    tokens: int = 0  # of all texts
    waiting: dict[int, Text] = field(default_factory=dict)  # its texts that are in the queue
    rows: dict[int, Row] = field(default_factory=dict)  # answers, by the texts' places
    finished: bool = False
    future: asyncio.Future[Response] | None = None  # who waits for the answer
    last_begin: float = 0.0  # of the batches with its texts
    compute_seconds: float = 0.0
    divided: Divided | None = None  # where texts have windows


@dataclass(eq=False)
class Text:
    """One text of a request. `place`: its number there."""

    request: PendingRequest
    place: int
    ids: np.ndarray  # int32 [tokens]
    first_length: int  # tokens of segment 0
    speed: float | None = None  # of early exit; None: the variant's own
    text: str = ""  # itself, where its answer has parts of it
    words: np.ndarray | None = None  # as `Encodings.words`, where the task has them
    losses: int = 0  # batches that were lost
    arrival: float = 0.0
    number: int = 0


class Queue:
    """Texts that wait: `tokens` of them, at most `capacity` when one is taken."""

    def __init__(self, batch_tokens: int, capacity: int, max_wait: float, workers: int):
        self.batch_tokens = batch_tokens
        self.capacity = capacity
        self.max_wait = max_wait
        self.workers = workers
        self.tokens = 0
        self.speed = FIRST_GUESS  # tokens a second of all workers
        self._measured = False
        self._here = 0.0  # texts that wait or are computed, lately
        self._line: OrderedDict[int, Text] = OrderedDict()  # in the order of coming
        self._again: deque[Text] = deque()  # lost with a worker: each goes alone
        self._deadlines: list[tuple[float, int, PendingRequest]] = []
        self._finished = 0  # of those in _deadlines
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._line) + len(self._again)

    def check(self, tokens: int) -> None:
        """Failure if so many tokens more cannot be taken: TOO_LARGE if never, UNAVAILABLE (with
        the time after which there should be room) if not now."""
        if tokens > self.capacity:
            raise Failure(
                Reason.TOO_LARGE,
                f"the texts have {tokens} tokens and the server's queue holds {self.capacity}: "
                "send fewer texts at once, or shorter ones, or raise batching.queue_tokens",
            )
        excess = self.tokens + tokens - self.capacity
        if excess > 0:
            raise Failure(
                Reason.UNAVAILABLE,
                f"the queue is full ({self.tokens} of {self.capacity} tokens wait): try again",
                retry_after=excess / self.speed,
            )

    def put(self, request: PendingRequest, texts: Sequence[Text], now: float) -> None:
        """Take all texts of a request, or none (see `check`)."""
        tokens = sum([len(text.ids) for text in texts])
        self.check(tokens)
        for text in texts:
            text.arrival = now
            text.number = next(self._numbers)
            self._line[text.number] = request.waiting[text.number] = text
        self.tokens += tokens
        heapq.heappush(self._deadlines, (request.deadline, next(self._numbers), request))

    def put_back(self, texts: Sequence[Text]) -> None:
        """Texts of a lost batch, to be answered after all: before all others and one by one, so
        that a text that kills its worker takes no other with it a second time."""
        for text in texts:
            text.losses += 1
            if not text.request.finished:
                text.request.waiting[text.number] = text
                self.tokens += len(text.ids)
                self._again.append(text)

    def finish(self, request: PendingRequest) -> None:
        """Forget a request that is answered, failed or cancelled; what waits is dropped."""
        if request.finished:
            return
        self._drop(request)
        self._finished += 1
        if self._finished > 100 and self._finished * 2 > len(self._deadlines):
            self._deadlines = [entry for entry in self._deadlines if not entry[2].finished]
            heapq.heapify(self._deadlines)
            self._finished = 0

    def expire(self, now: float) -> list[PendingRequest]:
        """Requests whose deadline has passed, finished by this."""
        expired = []
        while self._deadlines and (self._deadlines[0][2].finished or self._deadlines[0][0] <= now):
            request = heapq.heappop(self._deadlines)[2]
            if request.finished:
                self._finished -= 1
            else:
                self._drop(request)
                expired.append(request)
        return expired

    def next_deadline(self) -> float | None:
        """When `expire` may have something to say (it may then turn out to have nothing)."""
        return self._deadlines[0][0] if self._deadlines else None

    def next_batch(self) -> float | None:
        """When `take` will give a batch at the latest; None if nothing waits."""
        if self._again:
            return self._again[0].arrival
        return self._oldest().arrival + self.max_wait if self._line else None

    def freed(self, computed: int) -> None:
        """Tell that a worker is free, and that with those of its batch `computed` texts were
        computed until now."""
        here = len(self) + computed
        self._here = max(here, self._here + NEWEST_SHARE * (here - self._here))

    def take(self, now: float, under_way: int = 0) -> list[Text]:
        """The next batch for a worker that is free, while the others compute `under_way` texts;
        empty if nothing waits, or if waiting for more texts is allowed and its share is not there.
        Call `expire` with the same time before."""
        if self._again:
            return [self._taken(self._again.popleft())]
        if not self._line:
            return []
        waiting = len(self._line)
        self._here = max(self._here, waiting + under_way)
        # As many texts as with a worker are with the clients, or on their way.
        enough = waiting * (self.workers + 1) >= self._here or self.tokens >= self.batch_tokens
        if not enough and now < self._oldest().arrival + self.max_wait:
            return []
        share = self.tokens / waiting * self._here / self.workers
        room = min(max(share, CALL_TOKENS), self.batch_tokens)
        texts: list[Text] = []
        for text in self._line.values():
            room -= len(text.ids)
            if room < 0 and texts:
                break
            texts.append(text)
        for text in texts:
            del self._line[text.number]
        return [self._taken(text) for text in texts]

    def seconds(self, tokens: int) -> float:
        """What so many tokens should take a worker; 0 where no batch was measured yet."""
        return tokens / self.speed * self.workers if self._measured else 0.0

    def observe(self, tokens: int, seconds: float) -> None:
        """Tell what a batch took, for `speed`."""
        if seconds > 0:
            share = NEWEST_SHARE if self._measured else 1.0
            self.speed += share * (tokens / seconds * self.workers - self.speed)
            self._measured = True

    def _oldest(self) -> Text:
        return next(iter(self._line.values()))

    def _drop(self, request: PendingRequest) -> None:
        request.finished = True
        for text in request.waiting.values():
            self.tokens -= len(text.ids)
            if text.losses:
                self._again.remove(text)
            else:
                del self._line[text.number]
        request.waiting.clear()

    def _taken(self, text: Text) -> Text:
        del text.request.waiting[text.number]
        self.tokens -= len(text.ids)
        return text

"""The queue of one version: which texts wait, and which of them go into the next batch.

A pure data structure: it does no I/O and is told the time (seconds of any steady clock), so that
tests can drive it. A batch has at most `batch_tokens` tokens, unless one text alone has more.

An engine that puts several texts into a row (`batching.pack_rows`) is given texts in the order in
which they came, but for those that are better in rows of another length (`batching.cut_by_length`),
and for a row that would be filled badly: while other workers compute, it waits for the next batch.
Each worker is given its share of what is here, and waits for about as much: clients that wait for
an answer before they ask again are in step with the workers then. Who takes what is there at once
takes small batches for ever.

For other engines texts of like length go together, as in `fleetbert.data.batching`: a batch is
padded to one of SAFE_LENGTHS, and padding counts as tokens. A worker that is free gets the batch of
which the least is lost, to padding and to the call itself, where age counts too; whoever has waited
for `max_age` seconds goes next, whatever its length.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import OrderedDict, deque
from typing import NamedTuple, Sequence

import numpy as np

from fleetbert.data.batching import (
    CALL_TOKENS,
    SAFE_LENGTHS,
    cut_by_length,
    pack_rows,
    round_up,
)
from fleetbert.deploy.inference.messages import Failure, Reason

# Before the first batch was measured: BERT-base in float32 on one processor.
FIRST_GUESS = 500.0  # tokens a second
NEWEST_SHARE = 0.2  # of the newest batch or question in a running mean
LONGEST_GAP = 10.0  # before a question that counts, times max_wait: load may come suddenly
ANY_LENGTH = 0  # the key of the line of all texts
# Of a row's tokens: a row with fewer waits for the next batch. A text of SST-2 takes a worker 4 to
# 6 % less time so, of 20 that come together (EPYC; 2 to 3 % of 31).
WORTH_A_ROW = 0.75
NEARLY = 0.9  # of its share, for which a worker waits while others compute
AGE_WEIGHT = 0.5  # of having waited for max_age, beside a batch of which nothing is lost


class Ticket:
    """A question in the queue, from `put` until `finish`: when it has to be answered at the
    latest, and which of its texts still wait."""

    __slots__ = ("deadline", "finished", "waiting")

    def __init__(self, deadline: float):
        self.deadline = deadline
        self.waiting: dict[int, Text] = {}
        self.finished = False


class Text:
    """One text of a question. `place`: its number there; `losses`: batches that were lost."""

    __slots__ = (
        *("arrival", "first_length", "ids", "losses", "number", "place", "speed", "ticket"),
    )

    def __init__(
        self,
        ticket: Ticket,
        place: int,
        ids: np.ndarray,
        first_length: int,
        speed: float | None = None,
    ):
        self.ticket = ticket
        self.place = place
        self.ids = ids  # int32 [tokens]
        self.first_length = first_length  # tokens of segment 0
        self.speed = speed  # of early exit; None: the variant's own
        self.losses = 0
        self.arrival = 0.0
        self.number = 0

    @property
    def length(self) -> int:
        """Of a row of its own."""
        return round_up(len(self.ids), SAFE_LENGTHS)


# What a call costs an engine that is not packed, in tokens. Where 64 clients were simulated, 32 to
# 48 did best.
CALL_COST = 40


class _Plan(NamedTuple):
    takes: list[tuple[int, int]]  # safe length, how many texts of it
    full: bool
    score: float


class Queue:
    """Texts that wait: `tokens` (without padding) of them, at most `capacity` when one is taken."""

    def __init__(
        self,
        batch_tokens: int,
        capacity: int,
        max_wait: float,
        max_age: float,
        packed: bool,
        workers: int,
    ):
        """packed: the engine puts several texts into a row."""
        self.batch_tokens = batch_tokens
        self.capacity = capacity
        self.max_wait = max_wait
        self.max_age = max_age
        self.packed = packed
        self.workers = workers
        self.tokens = 0
        self.speed = FIRST_GUESS
        self._measured = False
        self._here = 0.0  # texts that wait or are computed, lately
        self._begin = -math.inf  # when the worker that is free became so, or its answers were out
        self._done = -math.inf  # when a batch was done last, or its answers were out
        self._gap = 0.0  # seconds before a question, since the last one or an answer
        self._last = math.inf  # when the last one came
        # Who waits, in the order of coming: each length apart, all in one if `packed`.
        self._lines: dict[int, OrderedDict[int, Text]] = {
            length: OrderedDict() for length in ((ANY_LENGTH,) if packed else SAFE_LENGTHS)
        }
        self._again: deque[Text] = deque()  # lost with a worker: each goes alone
        self._deadlines: list[tuple[float, int, Ticket]] = []
        self._finished = 0  # of those in _deadlines
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return sum(map(len, self._lines.values())) + len(self._again)

    def check(self, tokens: int) -> None:
        """Failure if so many tokens more cannot be taken: TOO_LARGE if never, UNAVAILABLE (with
        the time after which there should be room) if not now."""
        if tokens > self.capacity:
            raise Failure(
                Reason.TOO_LARGE,
                f"the texts have {tokens} tokens and the server's queue holds {self.capacity}: "
                "send fewer texts at once",
            )
        excess = self.tokens + tokens - self.capacity
        if excess > 0:
            raise Failure(
                Reason.UNAVAILABLE,
                f"the queue is full ({self.tokens} of {self.capacity} tokens wait): try again",
                retry_after=excess / self.speed,
            )

    def put(self, ticket: Ticket, texts: Sequence[Text], now: float) -> None:
        """Take all texts of a question, or none (see `check`)."""
        tokens = sum([len(text.ids) for text in texts])
        self.check(tokens)
        # While all who ask wait for an answer, nobody can ask: that says nothing of how often.
        since = max(self._last, self._done)
        gap = min(max(now - since, 0.0), LONGEST_GAP * self.max_wait)
        self._gap += NEWEST_SHARE * (gap - self._gap)
        self._last = now
        for text in texts:
            text.arrival = now
            text.number = next(self._numbers)
            self._line(text)[text.number] = text
            ticket.waiting[text.number] = text
        self.tokens += tokens
        heapq.heappush(self._deadlines, (ticket.deadline, next(self._numbers), ticket))

    def put_back(self, texts: Sequence[Text]) -> None:
        """Texts of a lost batch, to be answered after all: before all others and one by one, so
        that a text that kills its worker takes no other with it a second time."""
        for text in texts:
            text.losses += 1
            if not text.ticket.finished:
                text.ticket.waiting[text.number] = text
                self.tokens += len(text.ids)
                self._again.append(text)

    def finish(self, ticket: Ticket) -> None:
        """Forget a question that is answered, failed or cancelled; what waits is dropped."""
        if ticket.finished:
            return
        self._drop(ticket)
        self._finished += 1
        if self._finished > 100 and self._finished * 2 > len(self._deadlines):
            self._deadlines = [entry for entry in self._deadlines if not entry[2].finished]
            heapq.heapify(self._deadlines)
            self._finished = 0

    def expire(self, now: float) -> list[Ticket]:
        """Questions whose deadline has passed, finished by this."""
        expired = []
        while self._deadlines and (self._deadlines[0][2].finished or self._deadlines[0][0] <= now):
            ticket = heapq.heappop(self._deadlines)[2]
            if ticket.finished:
                self._finished -= 1
            else:
                self._drop(ticket)
                expired.append(ticket)
        return expired

    def next_deadline(self) -> float | None:
        """When `expire` may have something to say (it may then turn out to have nothing)."""
        return self._deadlines[0][0] if self._deadlines else None

    def next_batch(self) -> float | None:
        """When `take` will give a batch at the latest; None if nothing waits."""
        if self._again:
            return self._again[0].arrival
        oldest = self._oldest()
        return None if oldest is None else self._due(oldest)

    def freed(self, now: float, under_way: int, alone: bool) -> None:
        """Tell that a worker is free, `alone` or as others are already, and that with those of its
        batch `under_way` texts were computed until now."""
        here = len(self) + under_way
        self._here = max(here, self._here + NEWEST_SHARE * (here - self._here))
        self.answered(now, alone)  # until they are, this is the time that is known

    def answered(self, now: float, alone: bool) -> None:
        """Tell that the answers of the batch after which a worker became free, `alone` or not, are
        out: whoever waits for them can ask again from now on."""
        self._done = now
        if alone:
            self._begin = now

    def take(self, now: float, under_way: int = 0) -> list[Text]:
        """The next batch for a worker that is free, while the others compute `under_way` texts;
        empty if nothing waits, or if waiting for more texts is allowed and the batch is not full.
        Call `expire` with the same time before."""
        if self._again:
            return [self._taken(self._again.popleft())]
        oldest = self._oldest()
        if oldest is None:
            return []
        due = now >= self._due(oldest)
        if self.packed:
            waiting = len(self)
            here = self._here = max(self._here, waiting + under_way)
            # As many texts as with a worker are with the clients, or on their way; while others
            # compute, the one that waits leaves its processor to whoever reads and brings them.
            parts = self.workers / NEARLY if under_way else self.workers + 1
            enough = waiting >= here / parts or waiting + under_way >= round(here)
            if not due and not enough and self.tokens < self.batch_tokens:
                return []
            if not under_way and oldest.arrival - self._done > self.max_wait:
                here = self._here = waiting  # those who were here would have asked again by now
            share = self.tokens * here / self.workers / waiting
            texts = self._in_order(min(max(share, CALL_TOKENS), self.batch_tokens))
            if under_way:  # whoever computes those comes back for what is left
                texts = _without_the_emptiest_row(texts)
        else:
            texts, full = self._alike(oldest, now)
            if not due and not full:
                return []
        for text in texts:
            del self._line(text)[text.number]
        return [self._taken(text) for text in texts]

    def seconds(self, tokens: int) -> float:
        """What so many tokens should take (divided by the number of workers); 0 where no batch was
        measured yet."""
        return tokens / self.speed if self._measured else 0.0

    def observe(self, tokens: int, seconds: float) -> None:
        """Tell what a batch took (seconds divided by the number of workers), for `speed`."""
        if seconds > 0:
            found = tokens / seconds
            share = NEWEST_SHARE if self._measured else 1.0
            self.speed += share * (found - self.speed)
            self._measured = True

    def _due(self, oldest: Text) -> float:
        """Until when a worker that is free waits for more texts: not at all where they come too
        seldom for that."""
        wait = self.max_wait if self._gap < self.max_wait else 0.0
        return (max(oldest.arrival, self._begin) if self.packed else oldest.arrival) + wait

    def _drop(self, ticket: Ticket) -> None:
        ticket.finished = True
        for text in ticket.waiting.values():
            self.tokens -= len(text.ids)
            if text.losses:
                self._again.remove(text)
            else:
                del self._line(text)[text.number]
        ticket.waiting.clear()

    def _taken(self, text: Text) -> Text:
        del text.ticket.waiting[text.number]
        self.tokens -= len(text.ids)
        return text

    def _line(self, text: Text) -> OrderedDict[int, Text]:
        return self._lines[ANY_LENGTH if self.packed else text.length]

    def _oldest(self) -> Text | None:
        fronts = [next(iter(texts.values())) for texts in self._lines.values() if texts]
        return min(fronts, key=lambda text: text.number, default=None)

    def _in_order(self, room: float) -> list[Text]:
        """Who came first, with those after it that are best in rows of the same length: of so many
        tokens at most, but one text."""
        texts: list[Text] = []
        for text in self._lines[ANY_LENGTH].values():
            room -= len(text.ids)
            if room < 0 and texts:
                break
            texts.append(text)
        parts = cut_by_length(np.array([len(text.ids) for text in texts]), CALL_TOKENS)
        first = next(part for part in parts if 0 in part)
        return [texts[number] for number in sorted(first.tolist())]

    def _alike(self, oldest: Text, now: float) -> tuple[list[Text], bool]:
        """The texts of like length of which the least is lost; whether more would be too many."""
        waiting = [
            (length, len(texts), next(iter(texts.values())).arrival)
            for length, texts in self._lines.items()
            if texts
        ]
        if now - oldest.arrival >= self.max_age:
            plan = self._plan([entry for entry in waiting if entry[0] >= oldest.length], now)
        else:
            plans = [self._plan(waiting[start:], now) for start in range(len(waiting))]
            plan = max(plans, key=lambda plan: plan.score)
        chosen = [
            text
            for length, count in plan.takes
            for text in itertools.islice(self._lines[length].values(), count)
        ]
        return chosen, plan.full

    def _plan(self, waiting: list[tuple[int, int, float]], now: float) -> _Plan:
        """The batch that begins with the first of these lengths and goes on into longer ones as
        far as is worth the padding. Of each length: how many texts wait, and since when."""
        takes: list[tuple[int, int]] = []
        end, full, best = 0, False, -1.0
        count = tokens = 0
        arrival = now
        age_weight = AGE_WEIGHT / self.max_age if self.max_age else 0.0
        for length, texts, since in waiting:
            room = max(self.batch_tokens // length, 0 if count else 1) - count
            if room <= 0:
                break
            taken = min(room, texts)
            takes.append((length, taken))
            arrival = min(arrival, since)
            count += taken
            tokens += taken * length
            padding = count * length - tokens
            lost = CALL_COST + padding
            score = tokens / (tokens + lost) + age_weight * (now - arrival)
            if score > best:
                end, full, best = len(takes), (count + 1) * length > self.batch_tokens, score
        return _Plan(takes[:end], full, best)


def _without_the_emptiest_row(texts: list[Text]) -> list[Text]:
    """Some of these texts, the first of which is the oldest: without the row that holds the fewest
    tokens, if many more would go into it and no question has to wait for it with its other texts.
    """
    lengths = [len(text.ids) for text in texts]
    length, rows = pack_rows(lengths)
    younger = [row for row in rows if 0 not in row]
    if not younger:
        return texts
    tokens, row = min((sum(lengths[number] for number in row), row) for row in younger)
    if tokens > WORTH_A_ROW * length or any(len(texts[n].ticket.waiting) > 1 for n in row):
        return texts
    return [text for number, text in enumerate(texts) if number not in row]

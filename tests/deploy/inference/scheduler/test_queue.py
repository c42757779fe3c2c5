"""The queue under any order of events, and its rules one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from fleetbert.data.batching import CALL_TOKENS
from fleetbert.deploy.inference.messages import Failure, Reason
from fleetbert.deploy.inference.scheduler.queue import PendingRequest, Queue, Text

FAR = 1e9


def make_texts(pending: PendingRequest, lengths: list[int]) -> list[Text]:
    return [
        Text(pending, place, np.ones(length, np.int32), length)
        for place, length in enumerate(lengths)
    ]


def put(
    queue: Queue, lengths: list[int], now: float = 0.0, deadline: float = FAR
) -> PendingRequest:
    pending = PendingRequest(len(lengths), deadline, now)
    queue.put(pending, make_texts(pending, lengths), now)
    return pending


def make_queue(batch_tokens=256, capacity=10_000, max_wait=0.0, workers=2) -> Queue:
    return Queue(batch_tokens, capacity, max_wait, workers)


def lengths_of(batch: list[Text]) -> list[int]:
    return [len(text.ids) for text in batch]


class AnyOrder(RuleBasedStateMachine):
    """Requests come, are cancelled, expire; batches are taken, and some of them lost."""

    requests = Bundle("requests")
    batches = Bundle("batches")

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.queue = make_queue(300, 3000, max_wait=0.01)
        self.waiting: list[Text] = []
        self.times_taken: dict[Text, int] = {}

    def drop(self, pending):
        self.waiting = [text for text in self.waiting if text.request is not pending]

    @rule(seconds=st.sampled_from([0.0, 0.001, 0.02, 0.3]))
    def wait(self, seconds):
        self.now += seconds

    @rule(
        target=requests,
        lengths=st.lists(st.integers(2, 512), min_size=1, max_size=12),
        patience=st.sampled_from([0.0, 0.005, 0.1, 5.0]),
    )
    def ask(self, lengths, patience):
        pending = PendingRequest(len(lengths), self.now + patience, self.now)
        texts = make_texts(pending, lengths)
        before = self.queue.tokens
        try:
            self.queue.put(pending, texts, self.now)
        except Failure as failure:
            assert before + sum(lengths) > self.queue.capacity
            large = sum(lengths) > self.queue.capacity
            assert failure.reason is (Reason.TOO_LARGE if large else Reason.UNAVAILABLE)
            assert large or failure.retry_after > 0
            assert self.queue.tokens == before
            pending.finished = True
            return pending
        assert before + sum(lengths) <= self.queue.capacity
        self.waiting += texts
        return pending

    @rule(pending=requests)
    def finish(self, pending):
        self.queue.finish(pending)
        self.drop(pending)

    @rule(computed=st.integers(0, 40))
    def freed(self, computed):
        self.queue.freed(computed)

    @rule(target=batches, under_way=st.integers(0, 40))
    def take(self, under_way):
        for pending in self.queue.expire(self.now):
            assert pending.deadline <= self.now
            self.drop(pending)
        assert all(text.request.deadline > self.now for text in self.waiting)
        due = self.queue.next_batch()
        batch = self.queue.take(self.now, under_way)
        if not batch:
            assert not self.waiting or self.now < due
            return multiple()
        for text in batch:  # each was there, and once
            self.waiting.remove(text)
            assert not text.request.finished
            self.times_taken[text] = self.times_taken.get(text, 0) + 1
            assert self.times_taken[text] == text.losses + 1
        assert len(batch) == 1 or sum(lengths_of(batch)) <= 300
        if any(text.losses for text in batch):
            assert len(batch) == 1  # what was lost once goes alone
        else:
            assert not any(text.losses for text in self.waiting)
            last = max(text.number for text in batch)  # who came first goes first
            assert all(text.number > last for text in self.waiting)
        return batch

    @rule(batch=batches)
    def lose(self, batch):
        # a worker loses what it was given last, and only while that is not answered
        lost = [text for text in batch if self.times_taken[text] == text.losses + 1]
        lost = [text for text in lost if text not in self.waiting]
        self.queue.put_back(lost)
        self.waiting += [text for text in lost if not text.request.finished]

    @invariant()
    def counts_are_right(self):
        assert len(self.queue) == len(self.waiting)
        assert self.queue.tokens == sum(lengths_of(self.waiting))


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=40)


def after_a_batch():
    """Of two workers that had their share of 20 texts one is free: 10 are with their clients."""
    queue = make_queue(batch_tokens=2048, max_wait=10.0)
    put(queue, [50] * 20)
    assert lengths_of(queue.take(0.0)) == [50] * 10
    assert lengths_of(queue.take(0.0, under_way=10)) == [50] * 10
    queue.freed(20)
    return queue


def test_a_worker_that_is_free_waits_for_its_share_but_only_so_long():
    queue = after_a_batch()
    put(queue, [10] * 6, now=1.0)
    assert queue.take(10.9, under_way=10) == []
    assert queue.next_batch() == 11.0
    assert lengths_of(queue.take(11.0, under_way=10)) == [10] * 6


def test_its_share_does_not_wait():
    queue = after_a_batch()
    put(queue, [50] * 6, now=5.1)
    assert queue.take(5.1, under_way=10) == []
    put(queue, [50], now=5.2)  # a third, as with the other worker and with the clients
    assert lengths_of(queue.take(5.2, under_way=10)) == [50] * 7


def test_a_full_batch_does_not_wait():
    queue = after_a_batch()
    queue.batch_tokens = 256
    put(queue, [60] * 4, now=1.0)
    assert queue.take(1.0, under_way=10) == []
    put(queue, [16], now=1.0)
    assert lengths_of(queue.take(1.0, under_way=10)) == [60, 60, 60, 60, 16]


def test_a_client_that_is_alone_never_waits():
    queue = make_queue(max_wait=10.0)
    for now in range(20):
        put(queue, [10], now=now)
        assert lengths_of(queue.take(now)) == [10]
        queue.freed(1)


def test_nobody_waits_for_those_who_have_gone():
    queue = after_a_batch()
    for _ in range(12):  # batches of a client that is alone
        put(queue, [50], now=1.0)
        queue.take(FAR)
        queue.freed(1)
    put(queue, [50], now=2.0)
    assert lengths_of(queue.take(2.0)) == [50]


def test_no_share_is_less_than_a_call_is_worth():
    queue = make_queue(batch_tokens=2048, workers=8)
    put(queue, [50] * 16)
    assert lengths_of(queue.take(0.0)) == [50] * (CALL_TOKENS // 50)


def test_texts_go_in_the_order_in_which_they_came():
    queue = make_queue(batch_tokens=200, workers=1)
    put(queue, [60, 5, 40, 16])
    put(queue, [70, 10, 60])
    assert lengths_of(queue.take(0.0)) == [60, 5, 40, 16, 70]  # 10 more would not fit
    assert lengths_of(queue.take(0.0)) == [10, 60]


def test_full_says_when_to_come_again():
    queue = make_queue(capacity=1000)
    queue.observe(100, 1.0)  # tokens, seconds of one of two workers
    put(queue, [100] * 9)
    with pytest.raises(Failure) as failure:
        put(queue, [100] * 3)
    assert failure.value.reason is Reason.UNAVAILABLE
    assert failure.value.retry_after == pytest.approx(1.0)  # 200 tokens too many
    put(queue, [100])  # one text by the same rule as many
    with pytest.raises(Failure) as failure:
        put(queue, [3])
    assert failure.value.reason is Reason.UNAVAILABLE


def test_finished_requests_are_not_remembered_until_their_deadline():
    queue = make_queue()
    for _ in range(1000):
        pending = put(queue, [10])
        queue.take(0.0)
        queue.finish(pending)
    assert len(queue._deadlines) < 500

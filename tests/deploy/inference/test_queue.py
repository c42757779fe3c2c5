"""The queue under any order of events, and its rules one by one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule

from fleetbert.data.batching import CALL_TOKENS, SAFE_LENGTHS, plan_inference, round_up
from fleetbert.deploy.inference.messages import Failure, Reason
from fleetbert.deploy.inference.scheduler.queue import CALL_COST, Queue, Text, Ticket

FAR = 1e9


def make_texts(ticket: Ticket, lengths: list[int]) -> list[Text]:
    return [
        Text(ticket, place, np.ones(length, np.int32), length)
        for place, length in enumerate(lengths)
    ]


def put(queue: Queue, lengths: list[int], now: float = 0.0, deadline: float = FAR) -> Ticket:
    ticket = Ticket(deadline)
    queue.put(ticket, make_texts(ticket, lengths), now)
    return ticket


def make_queue(
    batch_tokens=256, capacity=10_000, max_wait=0.0, max_age=1.0, packed=False, workers=2
) -> Queue:
    return Queue(batch_tokens, capacity, max_wait, max_age, packed, workers)


def lengths_of(batch: list[Text]) -> list[int]:
    return [len(text.ids) for text in batch]


class AnyOrder(RuleBasedStateMachine):
    """Questions come, are cancelled, expire; batches are taken, and some of them lost."""

    tickets = Bundle("tickets")
    batches = Bundle("batches")
    packed = False

    def __init__(self):
        super().__init__()
        self.now = 0.0
        self.queue = make_queue(128, 2000, max_wait=0.01, max_age=0.2, packed=self.packed)
        self.waiting: list[Text] = []
        self.times_taken: dict[Text, int] = {}

    def drop(self, ticket):
        self.waiting = [text for text in self.waiting if text.ticket is not ticket]

    @rule(seconds=st.sampled_from([0.0, 0.001, 0.02, 0.3]))
    def wait(self, seconds):
        self.now += seconds

    @rule(
        target=tickets,
        lengths=st.lists(st.integers(2, 512), min_size=1, max_size=12),
        patience=st.sampled_from([0.0, 0.005, 0.1, 5.0]),
    )
    def ask(self, lengths, patience):
        ticket = Ticket(self.now + patience)
        texts = make_texts(ticket, lengths)
        before = self.queue.tokens
        try:
            self.queue.put(ticket, texts, self.now)
        except Failure as failure:
            assert before + sum(lengths) > self.queue.capacity
            large = sum(lengths) > self.queue.capacity
            assert failure.reason is (Reason.TOO_LARGE if large else Reason.UNAVAILABLE)
            assert large or failure.retry_after > 0
            assert self.queue.tokens == before
            ticket.finished = True
            return ticket
        assert before + sum(lengths) <= self.queue.capacity
        self.waiting += texts
        return ticket

    @rule(ticket=tickets)
    def finish(self, ticket):
        self.queue.finish(ticket)
        self.drop(ticket)

    @rule(under_way=st.integers(0, 40), alone=st.booleans())
    def freed(self, under_way, alone):
        self.queue.freed(self.now, under_way, alone)

    @rule(alone=st.booleans())
    def answered(self, alone):
        self.queue.answered(self.now, alone)

    @rule(target=batches, under_way=st.integers(0, 40))
    def take(self, under_way):
        expired = self.queue.expire(self.now)
        for ticket in expired:
            assert ticket.deadline <= self.now
            self.drop(ticket)
        assert all(text.ticket.deadline > self.now for text in self.waiting)
        due = self.queue.next_batch()
        batch = self.queue.take(self.now, under_way)
        if not batch:
            assert not self.waiting or self.now < due
            return multiple()
        for text in batch:  # each was there, and once
            self.waiting.remove(text)
            assert not text.ticket.finished
            self.times_taken[text] = self.times_taken.get(text, 0) + 1
            assert self.times_taken[text] == text.losses + 1
        tokens = sum(lengths_of(batch))
        if not self.packed:
            tokens = len(batch) * round_up(max(lengths_of(batch)), SAFE_LENGTHS)
        assert len(batch) == 1 or tokens <= 128
        if any(text.losses for text in batch):
            assert len(batch) == 1  # what was lost once goes alone
        else:
            assert not any(text.losses for text in self.waiting)
            for text in self.waiting:  # of one length, who came first goes first
                same = [taken for taken in batch if taken.length == text.length]
                assert all(taken.arrival <= text.arrival for taken in same)
            oldest = min([*batch, *self.waiting], key=lambda text: text.arrival)
            if self.packed or self.now - oldest.arrival >= 0.2:  # nobody starves
                assert min(text.arrival for text in batch) == oldest.arrival
        return batch

    @rule(batch=batches)
    def lose(self, batch):
        # a worker loses what it was given last, and only while that is not answered
        lost = [text for text in batch if self.times_taken[text] == text.losses + 1]
        lost = [text for text in lost if text not in self.waiting]
        self.queue.put_back(lost)
        self.waiting += [text for text in lost if not text.ticket.finished]

    @invariant()
    def counts_are_right(self):
        assert len(self.queue) == len(self.waiting)
        assert self.queue.tokens == sum(lengths_of(self.waiting))


class AnyOrderPacked(AnyOrder):
    packed = True


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(max_examples=60, stateful_step_count=40)
TestAnyOrderPacked = AnyOrderPacked.TestCase
TestAnyOrderPacked.settings = settings(max_examples=60, stateful_step_count=40)


@given(st.lists(st.integers(2, 70), max_size=60), st.sampled_from([64, 128, 512]))
@settings(max_examples=200)
def test_no_batch_has_more_tokens_than_allowed(lengths, batch_tokens):
    queue = make_queue(batch_tokens=batch_tokens)
    put(queue, lengths)
    while len(queue):
        batch = lengths_of(queue.take(0.0))
        padded = round_up(max(batch), SAFE_LENGTHS)
        assert len(batch) == 1 or len(batch) * padded <= batch_tokens


@pytest.mark.parametrize("seed", range(5))
def test_what_waits_at_once_is_batched_as_offline(seed):
    """Calls and padding together cost hardly more than those of `plan_inference`."""
    lengths = np.random.default_rng(seed).integers(3, 129, 200).tolist()
    queue = make_queue(batch_tokens=1024, capacity=50_000)
    put(queue, lengths)
    batches = []
    while len(queue):
        batches.append(lengths_of(queue.take(0.0)))
    assert sorted(length for batch in batches for length in batch) == sorted(lengths)
    offline = [[lengths[index] for index in batch] for batch in plan_inference(lengths, 1024)]
    assert cost_of(batches) <= 1.03 * cost_of(offline)


def cost_of(batches):
    """In tokens of a batch: those of its rows, and what a call costs beside them."""
    return sum(CALL_COST + len(one) * round_up(max(one), SAFE_LENGTHS) for one in batches)


def test_a_worker_that_is_free_waits_for_more_only_so_long():
    queue = make_queue(max_wait=0.5)
    put(queue, [10, 12], now=1.0)
    assert queue.take(1.4) == []
    assert queue.next_batch() == 1.5
    assert lengths_of(queue.take(1.5)) == [10, 12]


def test_nobody_waits_for_others_that_hardly_ever_come():
    queue = make_queue(max_wait=0.5)
    for now in (1.0, 2.0, 3.0, 4.0, 5.0):
        put(queue, [10], now=now)
        taken = queue.take(now) or queue.take(now + 0.5)
        assert lengths_of(taken) == [10]
    put(queue, [10], now=6.0)
    assert queue.next_batch() == 6.0
    assert lengths_of(queue.take(6.0)) == [10]
    for number in range(1, 15):  # load comes
        put(queue, [10], now=6.0 + 0.01 * number)
    assert queue.take(6.2) == []
    assert queue.next_batch() == 6.01 + 0.5


def test_a_full_batch_does_not_wait():
    queue = make_queue(batch_tokens=256, max_wait=100.0)
    put(queue, [16] * 15)
    assert queue.take(0.0) == []
    put(queue, [16] * 2)
    assert len(queue.take(0.0)) == 16
    assert queue.take(0.0) == []


def test_texts_of_other_lengths_join_only_where_that_is_worth_the_padding():
    queue = make_queue(batch_tokens=2048)
    put(queue, [16] * 10 + [60] * 10)
    assert lengths_of(queue.take(0.0)) == [60] * 10  # together: 480 tokens of padding
    put(queue, [60])
    assert lengths_of(queue.take(0.0)) == [16] * 10
    put(queue, [50] * 2)  # with the 60: 24 tokens of padding, less than a call costs
    assert lengths_of(queue.take(0.0)) == [50, 50, 60]


def test_texts_that_share_rows_go_in_the_order_in_which_they_came():
    queue = make_queue(batch_tokens=200, packed=True)
    put(queue, [60, 5, 40, 16])
    put(queue, [70, 10, 60])
    assert lengths_of(queue.take(0.0)) == [60, 5, 40, 16, 70]  # 10 more would fit, 60 would not
    assert lengths_of(queue.take(0.0)) == [10, 60]


def test_long_rows_are_not_shared_by_short_texts():
    queue = make_queue(batch_tokens=4096, packed=True, workers=1)
    put(queue, [20, 512, 20, 500] + [20] * 30)
    assert lengths_of(queue.take(0.0)) == [20] * 32
    assert lengths_of(queue.take(0.0)) == [512, 500]


def test_each_worker_is_given_its_share():
    queue = make_queue(batch_tokens=2048, max_wait=100.0, packed=True)
    put(queue, [50] * 20)
    assert lengths_of(queue.take(0.0)) == [50] * 10
    assert lengths_of(queue.take(0.0, under_way=10)) == [50] * 10


def test_no_share_is_less_than_a_call_is_worth():
    queue = make_queue(batch_tokens=2048, packed=True, workers=8)
    put(queue, [50] * 16)
    assert lengths_of(queue.take(0.0)) == [50] * (CALL_TOKENS // 50)


def put_apart(queue, lengths):
    """Each in a question of its own."""
    for length in lengths:
        put(queue, [length])


def test_a_row_that_would_be_filled_badly_waits_while_others_compute():
    queue = make_queue(batch_tokens=2048, packed=True, workers=1)
    sizes = [40, 24, 32, 32, 20]  # the first four fill two rows of 64
    put_apart(queue, sizes)
    assert lengths_of(queue.take(0.0, under_way=1)) == sizes[:4]
    assert lengths_of(queue.take(0.0, under_way=1)) == [20]  # the oldest now
    put_apart(queue, sizes)
    assert lengths_of(queue.take(0.0)) == sizes  # nobody would come back for it soon
    put_apart(queue, [*sizes, 30])  # 50 of 64: full enough
    assert lengths_of(queue.take(0.0, under_way=1)) == [*sizes, 30]


def test_no_question_waits_for_a_row_with_its_other_texts():
    queue = make_queue(batch_tokens=2048, packed=True, workers=1)
    put(queue, [40, 24, 32, 32, 20])
    assert len(queue.take(0.0, under_way=1)) == 5


def make_queue_after_a_batch():
    """Of two workers that had 20 texts one has been free since 5.0: 10 are with their clients."""
    queue = make_queue(batch_tokens=2048, max_wait=10.0, packed=True)
    put(queue, [50] * 20)
    queue.take(0.0)
    queue.take(0.0, under_way=10)
    queue.freed(5.0, 20, alone=True)
    return queue


def test_a_worker_waits_for_its_share_while_there_are_others_to_come():
    queue = make_queue_after_a_batch()
    put(queue, [50] * 8, now=5.1)
    assert queue.take(5.1, under_way=10) == []
    assert queue.next_batch() == 15.1
    put(queue, [50], now=5.2)  # nine tenths of its half
    assert lengths_of(queue.take(5.2, under_way=10)) == [50] * 9


def test_a_worker_waits_for_less_while_no_other_computes():
    queue = make_queue_after_a_batch()
    put(queue, [50] * 6, now=5.1)
    assert queue.take(5.1) == []
    put(queue, [50], now=5.2)  # a third, as with the other worker and with the clients
    assert lengths_of(queue.take(5.2)) == [50] * 7


@pytest.mark.parametrize("answered, waits", [(5.0, True), (1.0, False)])
def test_only_when_somebody_could_have_asked_questions_come_seldom(answered, waits):
    """All who ask wait for an answer until `answered`."""
    queue = make_queue(batch_tokens=2048, max_wait=0.01, packed=True)
    put(queue, [50] * 20, now=0.0)
    queue.take(0.0)
    queue.take(0.0, under_way=10)
    queue.freed(answered, 20, alone=True)
    put(queue, [50], now=5.001)
    assert (queue.take(5.001, under_way=10) == []) == waits


def test_a_worker_does_not_wait_where_nobody_is_to_come():
    queue = make_queue_after_a_batch()
    put(queue, [50], now=5.1)
    assert queue.take(5.1, under_way=18) == []
    assert lengths_of(queue.take(5.1, under_way=19)) == [50]


def test_a_worker_waits_from_when_those_whom_it_answered_can_ask_again():
    queue = make_queue_after_a_batch()
    put(queue, [50], now=5.0)
    queue.answered(9.0, alone=True)
    assert queue.next_batch() == 19.0
    assert queue.take(18.9, under_way=10) == []
    assert lengths_of(queue.take(19.0, under_way=10)) == [50]


def after_many_texts(queue, done):
    """64 texts were here; the last of them were computed at `done`."""
    put(queue, [50] * 64)
    while batch := queue.take(0.0):
        queue.freed(done, len(batch), alone=True)


def test_who_comes_when_all_have_gone_is_shared_out_at_once():
    queue = make_queue(batch_tokens=2048, max_wait=0.01, packed=True)
    after_many_texts(queue, done=5.0)
    put(queue, [50] * 20, now=5.02)
    assert lengths_of(queue.take(5.03)) == [50] * 10
    assert lengths_of(queue.take(5.03, under_way=10)) == [50] * 10


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("answered", [5.0, 5.015])
def test_who_comes_after_an_answer_may_be_the_first_of_many(answered, alone):
    queue = make_queue(batch_tokens=2048, max_wait=0.01, packed=True)
    after_many_texts(queue, done=5.0)
    queue.answered(answered, alone)
    put(queue, [50] * 20, now=answered + 0.005)
    assert lengths_of(queue.take(5.03)) == [50] * 20


def test_texts_that_were_left_do_not_end_the_wait_for_others_at_once():
    queue = make_queue(batch_tokens=2048, max_wait=10.0, packed=True)
    put(queue, [50] * 31)
    queue.take(0.0)
    queue.take(0.0, under_way=16)
    put(queue, [50], now=0.0)
    queue.freed(5.0, 30, alone=True)
    assert queue.take(5.0, under_way=15) == []
    queue.freed(5.5, 15, alone=False)  # the first to be free does not wait longer for that
    assert queue.next_batch() == 15.0
    assert queue.take(14.9) == []
    assert lengths_of(queue.take(15.0)) == [50]


def test_the_fullest_batch_goes_first_until_somebody_has_waited_too_long():
    queue = make_queue(batch_tokens=256, max_age=10.0)
    put(queue, [500], now=0.0)  # alone it fills any batch
    put(queue, [100], now=0.0)
    for number in range(20):
        put(queue, [16] * 16, now=0.1 * number)
    taken = [lengths_of(queue.take(0.1 * number))[0] for number in range(20)]
    assert 100 not in taken
    assert 100 in lengths_of(queue.take(10.0))


def test_a_text_longer_than_a_batch_goes_alone():
    queue = make_queue(batch_tokens=64)
    put(queue, [300, 310])
    assert lengths_of(queue.take(0.0)) == [300]
    assert lengths_of(queue.take(0.0)) == [310]


def test_a_question_may_be_spread_over_batches():
    queue = make_queue(batch_tokens=64)
    ticket = put(queue, [30, 10, 30, 10])
    places = []
    while len(queue):
        places += [text.place for text in queue.take(0.0)]
    assert sorted(places) == [0, 1, 2, 3]
    assert not ticket.waiting


def test_full_says_when_to_come_again():
    queue = make_queue(capacity=1000)
    queue.observe(200, 1.0)  # tokens, seconds
    put(queue, [100] * 9)
    with pytest.raises(Failure) as failure:
        put(queue, [100] * 3)
    assert failure.value.reason is Reason.UNAVAILABLE
    assert failure.value.retry_after == pytest.approx(1.0)  # 200 tokens too many
    put(queue, [100])  # one text by the same rule as many
    with pytest.raises(Failure) as failure:
        put(queue, [3])
    assert failure.value.reason is Reason.UNAVAILABLE


def test_what_never_fits_is_refused_at_once():
    with pytest.raises(Failure) as failure:
        put(make_queue(capacity=1000), [500, 501])
    assert failure.value.reason is Reason.TOO_LARGE


def test_finished_questions_are_not_remembered_until_their_deadline():
    queue = make_queue()
    for _ in range(10_000):
        ticket = put(queue, [10])
        queue.take(0.0)
        queue.finish(ticket)
    assert len(queue._deadlines) < 500

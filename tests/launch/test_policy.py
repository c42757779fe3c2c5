"""What the end of a process means, and whether a job starts again."""

from __future__ import annotations

import signal

import pytest

from fleetbert.launch import policy
from fleetbert.launch.policy import Cause, Kind, Patience, Restarts, cause_of

FAILED = cause_of("rank 1", 5)


@pytest.mark.parametrize(
    ("code", "kind", "status", "text", "mendable"),
    [
        (2, Kind.ERROR, 2, "rank 1 ended with an error (exit code 2)", False),
        (3, Kind.ERROR, 3, "rank 1 ended with an error (exit code 3)", False),
        (143, Kind.ASKED, 143, "rank 1 was asked to stop (exit code 143)", False),
        (-signal.SIGTERM, Kind.ASKED, 143, "rank 1 was stopped (SIGTERM)", False),
        (-9, Kind.KILLED, 137, "rank 1 was killed (SIGKILL, by someone or for want of", True),
        (-11, Kind.CRASHED, 139, "rank 1 crashed (SIGSEGV) at 7", True),
        (-40, Kind.CRASHED, 168, "rank 1 crashed (signal 40) at 7", True),
        (75, Kind.UNCONNECTED, 75, "rank 1 could not connect to the others", True),
        (5, Kind.FAILED, 5, "rank 1 failed with exit code 5 at 7", True),
    ],
)
def test_exit_codes(code, kind, status, text, mendable):
    cause = cause_of("rank 1", code, " at 7")
    assert (cause.kind, cause.code, cause.mendable) == (kind, status, mendable)
    assert cause.text.startswith(text)
    server = cause_of("server 1", code, is_server=True)
    assert server.kind == (Kind.ERROR if kind == Kind.ERROR else Kind.SERVER)
    assert server.mendable == (kind != Kind.ERROR)


class TestPatience:
    """By a clock that stands still."""

    @pytest.fixture
    def clock(self, monkeypatch):
        now = [1000.0]
        monkeypatch.setattr(policy.time, "monotonic", lambda: now[0])
        return now

    def test_the_real_cause_may_come_later(self, clock):
        patience = Patience()
        killed = cause_of("rank 0", -9)
        assert patience.real([], False) is None
        assert patience.real([FAILED], False) is None
        clock[0] += policy.GRACE
        assert patience.real([FAILED, killed], False) is None
        clock[0] += 0.1
        assert patience.real([FAILED, killed], False) == killed

    def test_when_all_have_ended_nothing_is_waited_for(self, clock):
        assert Patience().real([FAILED], True) == FAILED

    def test_those_who_were_asked_to_stop_have_longer(self, clock):
        patience, asked = Patience(stopping=60.0), cause_of("rank 0", 143)
        assert patience.real([asked], False) is None
        clock[0] += 60
        assert patience.real([asked], False) is None
        clock[0] += 1
        assert patience.real([asked], False) == asked


class TestRestarts:
    @pytest.fixture
    def said(self):
        return []

    @pytest.fixture
    def restarts(self, said):
        return Restarts(2, "--max_restart 2 allows no more", said.append)

    def test_until_none_is_left(self, restarts, said):
        assert restarts.start_again(FAILED)
        restarts.take("trainer 1 was killed", "it alone")
        assert not restarts.start_again(FAILED)
        assert said == [
            "rank 1 failed with exit code 5; starting all again, restart 1 of 2",
            "trainer 1 was killed; starting it alone again, restart 2 of 2",
            "rank 1 failed with exit code 5; --max_restart 2 allows no more: the job ends with "
            "exit code 5",
        ]

    def test_failed_connections_do_not_count(self, restarts, said):
        unconnected = cause_of("rank 1", 75)
        for _ in range(policy.RETRIES):
            assert restarts.start_again(unconnected)
        assert restarts.used == 0
        assert restarts.start_again(FAILED)  # then they start from 0
        for _ in range(policy.RETRIES):
            assert restarts.start_again(unconnected)
        assert not restarts.start_again(unconnected)
        assert said[-1].endswith("after 5 more tries: the job ends with exit code 75")

    def test_what_cannot_be_mended_ends_the_job(self, restarts, said):
        assert not restarts.start_again(Cause(Kind.LOST, "lost it", 1, mendable=False))
        assert said == ["lost it; the job ends with exit code 1"]
        assert not restarts.start_again(cause_of("rank 1", 75)._replace(mendable=False))

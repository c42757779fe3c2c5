"""The histogram that counts when it is looked at, beside the library's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from fleetbert.deploy.inference.ops import metrics

WORDS = ("test_seconds", "Of a test", ("model",))
SECONDS = st.floats(0, 20) | st.sampled_from(metrics.SECONDS)


@given(told=st.lists(st.tuples(st.sampled_from("ab"), SECONDS), max_size=50))
@pytest.mark.parametrize("pending", [1, 7, 1000])
def test_what_is_told_is_what_the_library_would_say(told, pending):
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    histogram = metrics.SecondsHistogram(*WORDS, registry=ours, most_pending=pending)
    library = Histogram(*WORDS, buckets=metrics.SECONDS, registry=theirs)
    for model, seconds in told:
        histogram.labels(model).observe(seconds)
        library.labels(model).observe(seconds)
        assert values(ours) == values(theirs)  # however often it is looked at


def test_it_holds_no_more_than_it_may():
    series = metrics.SecondsHistogram(*WORDS, registry=None, most_pending=3).labels("a")
    for _ in range(99):
        series.observe(0.5)
        assert len(series.pending) < 3
    assert series.counts.sum() + len(series.pending) == 99


def values(registry: CollectorRegistry) -> dict[str, float]:
    """Name and labels of each series → its value."""
    lines = generate_latest(registry).decode().splitlines()
    found = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {
        name: pytest.approx(float(value)) for name, value in found.items() if "_created" not in name
    }

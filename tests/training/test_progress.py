"""What the progress bar says."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from fleetbert.training.callbacks import progress


@pytest.mark.parametrize(
    ("total", "resumed_at", "sentence"),
    [
        (9, 0, None),
        (65, 0, "60 more steps of 2 s take about 2 min 00 s here"),
        (45, 20, "20 more steps of 2 s take about 40 s here"),
        (9005, 0, "9000 more steps of 2 s take about 5 h 00 min here"),
    ],
)
def test_the_first_steps_say_how_long_it_will_take(
    monkeypatch, capsys, total, resumed_at, sentence
):
    """The very first, which takes ten times as long here, is not counted."""
    clock = SimpleNamespace(monotonic=lambda: clock.now, now=0.0)
    monkeypatch.setattr(progress, "time", clock)
    state = SimpleNamespace(step=resumed_at)
    run = SimpleNamespace(total_steps=total, resumed_at=resumed_at, state=state)
    bar = progress.Progress()
    bar.on_start(run)
    for seconds in (20, 2, 2, 2, 2, 2):
        clock.now += seconds
        state.step += 1
        bar.on_step(run)
    bar.close(run)
    lines = [line for line in capsys.readouterr().err.splitlines() if "about" in line]
    assert lines == ([] if sentence is None else [sentence])

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleetbert.data.windows import windows


@given(st.integers(0, 2000), st.integers(1, 300), st.data())
def test_windows_cover_a_text_and_overlap(length, room, data):
    stride = data.draw(st.integers(0, room - 1))
    plan = windows(length, room, stride)
    assert plan[0][0] == 0 and plan[-1][1] == length
    if length <= room:
        assert plan == [(0, length)]
        return
    assert all(end - begin == room for begin, end in plan)
    overlaps = [end - begin for (_, end), (begin, _) in zip(plan, plan[1:])]
    assert min(overlaps) >= stride and max(overlaps) < room
    assert max(overlaps) - min(overlaps) <= 1  # evenly spread
    fewer = len(plan) - 1
    assert fewer * room - (fewer - 1) * stride < length  # so many would not do


@pytest.mark.parametrize(("room", "stride"), [(10, 10), (10, 12), (10, -1), (0, 0)])
def test_a_stride_that_does_not_fit_is_refused(room, stride):
    with pytest.raises(ValueError, match="stride"):
        windows(30, room, stride)

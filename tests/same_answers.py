"""Answers beside each other: words are the same, and numbers nearly."""

from __future__ import annotations

from typing import Any, Sequence

import numpy as np


def check(found: Sequence[Any], expected: Sequence[Any], tolerance: float = 1e-5) -> None:
    """Of the same texts, whoever was asked; what the expected ones leave open may be anything."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected):
        for field, value in other._asdict().items():
            if value is not None:
                nearly(getattr(one, field), value, tolerance)


def nearly(found: Any, wanted: Any, tolerance: float) -> None:
    if isinstance(wanted, dict):
        assert list(found) == list(wanted)
        nearly(list(found.values()), list(wanted.values()), tolerance)
    elif isinstance(wanted, (list, tuple)):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted):
            nearly(one, other, tolerance)
    elif isinstance(wanted, (float, np.floating, np.ndarray)):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=tolerance)
    else:
        assert found == wanted

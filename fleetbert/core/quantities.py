"""How quantities are written for a reader."""

from __future__ import annotations


def number(value: float) -> str:
    """Four digits that count, thousands apart."""
    if isinstance(value, int) or abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"


def percent(value: float) -> str:
    return f"{100 * value:.2f} %"


def milliseconds(seconds: float) -> str:
    return f"{number(1000.0 * seconds)} ms"


def duration(seconds: float) -> str:
    """7.3 s, 2 min 05 s or 2 h 03 min."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"

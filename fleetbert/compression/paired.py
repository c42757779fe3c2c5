"""What a table says of a drop: two models' answers to the same texts, compared text by text.

Texts that both answer alike say nothing of which is better; what counts is how many answers only
the first has right (lost) and how many only the second (gained). McNemar's exact test (1947) asks
whether so uneven a split comes about by chance, Tango's interval (1998, Statistics in Medicine 17)
which drops the same score test does not rule out. Unlike the exact test's own interval it knows
that answers may change though none of these texts' did.

A metric that is no share of right answers is computed on texts drawn anew with replacement
(Efron's bootstrap, 1979).
"""

from __future__ import annotations

import math
from typing import Callable

import numpy as np

from fleetbert.bundle import Drop

Z = 1.959964  # two-sided 95 %
DRAWS = 1000  # of the bootstrap
STEPS = 60  # of halving, on an interval of width 2: beyond float64
# Of some texts' outputs, and which they are.
Metric = Callable[[np.ndarray, np.ndarray], float]


def of_answers(before: np.ndarray, after: np.ndarray) -> Drop:
    """The drop of the share of right answers; bool [texts], whether each one is right."""
    lost, gained = int((before & ~after).sum()), int((~before & after).sum())
    low, high = interval(lost, gained, len(before))
    return Drop(
        value=(lost - gained) / len(before),
        low=low,
        high=high,
        test="mcnemar",
        lost=lost,
        gained=gained,
        p_value=p_value(lost, gained),
    )


def p_value(lost: int, gained: int) -> float:
    """McNemar's exact test, two-sided: how likely so uneven a split or a more uneven one is where
    losing and gaining an answer are equally likely."""
    changed = lost + gained
    tail = sum(math.comb(changed, k) for k in range(min(lost, gained) + 1))
    return min(1.0, 2 * tail / 2**changed)


def interval(lost: float, gained: float, texts: int) -> tuple[float, float]:
    """Tango's 95 % interval of the drop, from -1 to 1."""
    drop = (lost - gained) / texts

    def edge(outside: float) -> float:
        inside = drop
        for _ in range(STEPS):
            middle = (inside + outside) / 2
            if abs(_score(middle, lost, gained, texts)) <= Z:
                inside = middle
            else:
                outside = middle
        return inside

    return edge(-1.0), edge(1.0)


def _score(drop: float, lost: float, gained: float, texts: int) -> float:
    """Standard errors between what was seen and a true drop, whose variance is that of the
    likeliest rates of losing and gaining that differ by it."""
    excess = lost - gained - texts * drop
    a, c = 2 * texts, -gained * drop * (1 - drop)
    b = -lost - gained + (2 * texts - lost + gained) * drop
    rate = (math.sqrt(max(0.0, b * b - 4 * a * c)) - b) / (2 * a)  # of gaining
    variance = texts * (2 * rate + drop * (1 - drop))
    if variance <= 0:
        return 0.0 if excess == 0 else math.copysign(math.inf, excess)
    return excess / math.sqrt(variance)


def standard_error(lost: int, gained: int, texts: int) -> float:
    """The standard error of the drop, with half an answer more in each of the four cells, so that
    no change is not taken for certainty (Agresti and Min 2005, Statistics in Medicine 24)."""
    changed, difference, n = lost + gained + 1, lost - gained, texts + 2
    return math.sqrt(changed - difference**2 / n) / n


def error_of_sums(
    figure: Callable[[np.ndarray], float], before: np.ndarray, after: np.ndarray
) -> float:
    """The standard error of the drop in a figure of sums over texts, by the delta method. before,
    after: [texts, any], what two models add to the sums."""

    def share(rows: np.ndarray) -> np.ndarray:
        """What each text adds to the figure."""
        total = rows.sum(0).astype(np.float64)
        steps = np.eye(len(total))
        slopes = [(figure(total + step) - figure(total - step)) / 2 for step in steps]
        added: np.ndarray = (rows - rows.mean(0)) @ np.array(slopes)
        return added

    return float(np.sqrt(np.square(share(before) - share(after)).sum()))


def bootstrap(metric: Metric, before: np.ndarray, after: np.ndarray) -> Drop:
    """The drop of any metric, of what two models say of each text, with the interval between the
    2.5th and the 97.5th percentile of DRAWS samples. Samples for which the metric is not defined
    are left out."""

    def drop(some: np.ndarray) -> float:
        return metric(before[some], some) - metric(after[some], some)

    texts = len(before)
    random = np.random.default_rng(0)
    drawn = [drop(random.integers(0, texts, texts)) for _ in range(DRAWS)]
    low, high = np.nanpercentile(drawn, (2.5, 97.5))
    value = drop(np.arange(texts))
    return Drop(value=value, low=float(low), high=float(high), test="bootstrap")


def texts_needed(drop: Drop, texts: int, allowed: float) -> int | None:
    """How many texts like these would tell a drop of `allowed` from none: half of the interval is
    then no wider. None where these are enough, or nothing may be lost."""
    half = (drop.high - drop.low) / 2
    if allowed <= 0 or half <= allowed:
        return None
    needed = texts * (half / allowed) ** 2
    unit = 10 ** (math.floor(math.log10(needed)) - 1)  # two digits say enough
    return math.ceil(needed / unit) * unit


def describe(drop: Drop) -> str:
    """The drop as words, in points of a hundred."""
    text = f"drop {100 * drop.value:.2f} points (95 %: {100 * drop.low:.2f} to "
    text += f"{100 * drop.high:.2f}"
    if drop.p_value is None:
        return text + ")"
    return text + f"; {drop.lost} answers lost, {drop.gained} gained, p = {drop.p_value:.2g})"

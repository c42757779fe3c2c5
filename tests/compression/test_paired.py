"""Comparisons of two models text by text, beside references that are computed otherwise."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize, stats

from fleetbert.bundle import Drop
from fleetbert.compression import paired

COUNTS = [(12, 5, 872), (0, 0, 60), (7, 0, 200), (0, 3, 44), (30, 30, 1821), (1, 0, 5)]


@pytest.mark.parametrize(("lost", "gained"), [(12, 5), (0, 0), (7, 0), (3, 3), (1, 0), (400, 350)])
def test_p_is_that_of_the_sign_test(lost, gained):
    expected = stats.binomtest(lost, lost + gained).pvalue if lost + gained else 1.0
    assert paired.p_value(lost, gained) == pytest.approx(expected)


def by_likelihood(lost, gained, texts):
    """The interval by its definition: the rates of losing and gaining that differ by a drop and
    are likeliest are looked for, not solved for, and then the drops with a score of 1.96."""
    same = texts - lost - gained

    def score(drop):
        def unlikely(gains):
            rates = np.array([gains + drop, gains, 1 - 2 * gains - drop])
            counts = np.array([lost, gained, same])
            return -(counts * np.log(np.maximum(rates, 1e-300))).sum()

        bounds = max(0.0, -drop), (1 - drop) / 2
        gains = optimize.minimize_scalar(
            unlikely, bounds=bounds, method="bounded", options={"xatol": 1e-12}
        ).x
        variance = (2 * gains + drop - drop**2) / texts
        return ((lost - gained) / texts - drop) / np.sqrt(variance)

    seen, z = (lost - gained) / texts, stats.norm.ppf(0.975)
    gap = 1e-6
    return (
        optimize.brentq(lambda drop: score(drop) - z, -1 + gap, seen - gap),
        optimize.brentq(lambda drop: score(drop) + z, seen + gap, 1 - gap),
    )


@pytest.mark.parametrize(("lost", "gained", "texts"), COUNTS)
def test_the_interval_is_what_the_likeliest_rates_do_not_rule_out(lost, gained, texts):
    expected = by_likelihood(lost, gained, texts)
    assert paired.interval(lost, gained, texts) == pytest.approx(expected, abs=2e-5)


def test_answers_are_counted():
    before = np.array([True, True, True, False, False])
    after = np.array([True, False, False, True, False])
    drop = paired.of_answers(before, after)
    assert (drop.lost, drop.gained, drop.value) == (2, 1, pytest.approx(0.2))
    assert (drop.low, drop.high) == paired.interval(2, 1, 5)
    assert "2 answers lost, 1 gained" in paired.describe(drop)


def test_the_bootstrap_draws_texts_with_both_answers():
    """Of a share its interval is known: counts of texts drawn anew are multinomial."""
    random = np.random.default_rng(1)
    before = random.random(400) < 0.9
    after = np.where(random.random(400) < 0.05, ~before, before)
    drop = paired.bootstrap(lambda answers, _: answers.mean(), before, after)
    change = before.astype(int) - after
    rates = [(change == value).mean() for value in (1, -1, 0)]
    drawn = np.random.default_rng(2).multinomial(400, rates, 20_000)
    expected = np.percentile((drawn[:, 0] - drawn[:, 1]) / 400, (2.5, 97.5))
    assert drop.value == pytest.approx(change.mean())
    assert (drop.low, drop.high) == pytest.approx(tuple(expected), abs=0.004)
    assert drop.p_value is None and "lost" not in paired.describe(drop)


def test_the_error_of_a_figure_of_sums_is_as_wide_as_the_bootstrap():
    """Of F1 by what 800 texts have: right spans, spans that are there, and spans answered."""
    random = np.random.default_rng(3)
    there, answered = random.integers(0, 3, (2, 800))
    before = np.stack([np.minimum(there, answered), there, answered], 1)
    after = before.copy()
    after[:, 0] = np.maximum(before[:, 0] - (random.random(800) < 0.1), 0)

    def f1(sums):
        return 2 * sums[0] / (sums[1] + sums[2])

    drop = paired.bootstrap(lambda rows, _: f1(rows.sum(0)), before, after)
    error = paired.error_of_sums(f1, before, after)
    assert error == pytest.approx((drop.high - drop.low) / 2 / paired.Z, rel=0.1)
    assert paired.error_of_sums(f1, before, before) == 0


def test_how_many_texts_would_do():
    """So many texts that change as often have an interval of half the width or less, and three
    quarters of them have not."""

    def half(texts):
        low, high = paired.interval(11 * texts / 872, 9 * texts / 872, texts)
        return (high - low) / 2

    low, high = paired.interval(11, 9, 872)
    drop = Drop(value=2 / 872, low=low, high=high, test="mcnemar")
    needed = paired.texts_needed(drop, 872, 0.003)
    assert half(needed) <= 0.003 < half(0.75 * needed)
    assert paired.texts_needed(drop, 872, 0.02) is None
    assert paired.texts_needed(drop, 872, -0.1) is None


def test_the_standard_error_is_that_of_counts_with_half_a_text_more():
    """By the variance of differences -1, 0 and 1, of which there are so many and a half."""
    changes = np.repeat([1.0, -1.0, 0.0], [2 * 7 + 1, 2 * 4 + 1, 2 * (300 - 11) + 2])
    expected = changes.std() / np.sqrt(302)
    assert paired.standard_error(7, 4, 300) == pytest.approx(expected)
    assert paired.standard_error(0, 0, 300) > 0

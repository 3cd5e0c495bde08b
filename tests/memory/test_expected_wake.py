"""When a session is expected to compute again: heavy tails, biased clients, and victim selection."""

from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from djinn_lab.memory.machine.wake_prediction import Gap, WakePredictor, expect, remaining_s

SECONDS = st.floats(0.1, 1e5)


@given(median=SECONDS, sigma=st.floats(0.1, 3.0), elapsed=st.floats(0.0, 1e6))
def test_bounds_lie_around_the_median(median: float, sigma: float, elapsed: float) -> None:
    expected = expect(Gap(median, sigma, 0.0), elapsed)
    assert 0.0 <= expected.from_s <= expected.after_s <= expected.until_s < math.inf


@given(median=SECONDS, sigma=st.floats(0.8, 2.5), factor=st.floats(2.0, 50.0))
def test_an_overdue_session_is_expected_later_and_later(median: float, sigma: float, factor: float) -> None:
    gap = Gap(median, sigma, 0.0)
    soon, late = remaining_s(gap, factor * median, 0.5), remaining_s(gap, 2 * factor * median, 0.5)
    assert late > soon


def test_exact_gap_past_its_end_is_due_now() -> None:
    gap = Gap(10.0, 0.0, 5.0)
    assert [remaining_s(gap, now_s, 0.5) for now_s in (5.0, 8.0, 15.0, 99.0)] == [10.0, 7.0, 0.0, 0.0]


@pytest.mark.parametrize("bias", [0.3, 1.0, 3.0])
def test_a_client_that_is_always_wrong_the_same_way_is_corrected(bias: float) -> None:
    lore, random = WakePredictor(), Random(1)
    for _ in range(200):
        gap_s = random.lognormvariate(3.0, 1.5)
        announced_s = bias * gap_s * random.lognormvariate(0.0, 0.2)
        lore.ended("s", "ann", gap_s, (announced_s, gap_s))
    assert lore.bias("ann") == pytest.approx(1 / bias, rel=0.2)
    expected = lore.gap("s", "ann", 0.0, (bias * 40.0, 0.0))
    assert expected.median_s == pytest.approx(40.0, rel=0.2)
    assert expected.sigma < 0.5


def test_a_new_client_is_taken_to_err_as_others_do_until_it_shows_otherwise() -> None:
    lore = WakePredictor()
    for number in range(50):
        lore.ended(f"s{number}", "ann", 30.0, (10.0, 30.0))
    assert lore.bias("bob") == pytest.approx(3.0, rel=0.01)
    for _ in range(50):
        lore.ended("t", "bob", 10.0, (10.0, 10.0))
    assert lore.bias("bob") == pytest.approx(1.0, rel=0.15)
    assert lore.bias("ann") == pytest.approx(3.0, rel=0.15)


def test_wild_estimates_count_less_than_a_steady_past_and_exact_ones_more() -> None:
    random = Random(2)
    wild, exact = WakePredictor(), WakePredictor()
    for _ in range(100):
        gap_s = random.uniform(5.0, 20.0)
        wild.ended("s", "ann", gap_s, (gap_s * random.lognormvariate(0.0, 2.0), gap_s))
        exact.ended("s", "ann", gap_s, (gap_s, gap_s))
    assert wild.gap("s", "ann", 0.0, (500.0, 0.0)).median_s < 25.0
    assert exact.gap("s", "ann", 0.0, (500.0, 0.0)).median_s > 100.0


def test_gap_without_an_estimate_is_learnt_from_the_session_then_from_all() -> None:
    lore = WakePredictor()
    assert not lore.gap("s", "ann", 0.0, None).known
    for _ in range(9):
        lore.ended("t", "bob", 100.0, None)
    assert lore.gap("s", "ann", 0.0, None).median_s == pytest.approx(100.0)
    lore.ended("s", "ann", 3.0, None)
    assert lore.gap("s", "ann", 0.0, None).median_s == pytest.approx(3.0)
    lore.forget("s")
    assert lore.gap("s", "ann", 0.0, None).median_s > 50.0

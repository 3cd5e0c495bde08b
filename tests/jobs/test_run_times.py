"""Predictions of run times, and how sure they are."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from djinn_lab.jobs.run_times import COMPARED_MIN, UNCOMPARED_SPREAD, RunTime, RunTimeHistory, RunTimeSpread

DEVICE, OTHER = "cpu/1", "cpu/8"
positive = st.floats(1e-6, 1e6)


def test_a_program_is_predicted_from_its_graph_then_from_its_runs() -> None:
    history = RunTimeHistory()
    before = history.predict(DEVICE, b"a", lambda: 2.0, ("mystery",))
    assert before == RunTime(2.0, UNCOMPARED_SPREAD, 0, ("mystery",))
    for seconds in (3.0, 5.0, 4.0):
        history.ended(DEVICE, b"a", before, seconds)
    after = history.predict(DEVICE, b"a", lambda: 2.0)
    assert after is not None
    assert (after.seconds, after.runs, after.unpriced) == (4.0, 3, ())
    elsewhere = history.predict(OTHER, b"a", lambda: 2.0)
    assert elsewhere is not None
    assert elsewhere.runs == 0
    assert history.predict(OTHER, b"a", lambda: None) is None


def test_the_spread_is_wide_before_any_comparison_and_narrows() -> None:
    history = RunTimeHistory()
    for _ in range(COMPARED_MIN):
        assert history.spread("graph") == UNCOMPARED_SPREAD
        history.ended(DEVICE, None, history.predict(DEVICE, None, lambda: 1.0), 1.1)
    assert history.spread("graph") == pytest.approx(1.1)
    assert history.spread("runs") == UNCOMPARED_SPREAD
    assert history.take_changes() == {"graph": (1.1,) * COMPARED_MIN}
    assert history.take_changes() == {}


def test_an_earlier_pool_s_comparisons_count() -> None:
    history = RunTimeHistory({"graph": (2.0,) * 10})
    found = history.predict(DEVICE, None, lambda: 1.0)
    assert found is not None
    assert found.spread == 2.0


@given(st.lists(positive, min_size=COMPARED_MIN, max_size=600))
def test_nine_of_ten_runs_end_within_the_spread(ratios: list[float]) -> None:
    spread = RunTimeSpread(ratios[:3])
    for ratio in ratios[3:]:
        spread.add(ratio)
    within = sum(ratio <= spread.high for ratio in spread.ratios)
    assert within >= math.floor(0.9 * len(spread.ratios))
    assert spread.high >= 1


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0])
def test_impossible_seconds_change_nothing(seconds: float) -> None:
    history = RunTimeHistory()
    with pytest.raises(ValueError, match="seconds"):
        history.ended(DEVICE, b"a", history.predict(DEVICE, b"a", lambda: 1.0), seconds)
    assert history.predict(DEVICE, b"a", lambda: None) is None
    assert history.take_changes() == {}

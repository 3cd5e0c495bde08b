"""Moments on the command line."""

from __future__ import annotations

import time
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from djinn_lab.client.moments import read_moment, shown_moment
from djinn_lab.errors import OptionError

DAY_S = 86400.0

moments = st.integers(1_500_000_000, 2_000_000_000).map(float)


@given(moments, st.integers(0, 23), st.integers(0, 59))
def test_a_time_of_day_is_the_next_one(now_s: float, hour: int, minute: int) -> None:
    found = read_moment("--from", f"{hour}:{minute:02}", now_s)
    there = time.localtime(found)
    assert (there.tm_hour, there.tm_min, there.tm_sec) == (hour, minute, 0)
    assert now_s < found <= now_s + DAY_S + 3600  # an hour more where clocks are put back


@given(moments)
def test_what_is_shown_can_be_written(at_s: float) -> None:
    shown = shown_moment(at_s)
    assert shown_moment(read_moment("--until", shown, 0.0)) == shown


@given(moments, st.integers(1, 10_000))
def test_a_time_from_now(now_s: float, minutes: int) -> None:
    assert read_moment("--until", f"+{minutes}min", now_s) == now_s + 60 * minutes
    assert read_moment("--from", " now ", now_s) == now_s


def test_a_date_with_a_zone_is_of_that_zone() -> None:
    found = read_moment("--from", "2026-11-23T14:00:00+09:00", 0.0)
    assert found == datetime.fromisoformat("2026-11-23T05:00:00+00:00").timestamp()


@pytest.mark.parametrize("text", ["", "tomorrow", "25:00", "12:60", "+", "+-1h", "2026-13-01", "9"])
def test_what_is_none_is_refused_with_what_is_accepted(text: str) -> None:
    with pytest.raises(OptionError, match=r"--until: .* is not a time") as refused:
        read_moment("--until", text, 0.0)
    assert "14:00" in str(refused.value.advice)

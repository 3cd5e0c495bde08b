"""Cells that run far beyond their forecast are reported; the usual error of forecasts is not."""

from __future__ import annotations

from djinn_lab.jobs import Job, JobState
from djinn_lab.pool.bookkeeping.overruns import SAMPLES_MIN, OverrunDetector


def running(predicted_s: float | None) -> Job:
    return Job(
        job="job",
        number=1,
        session="session",
        user="ann",
        account="ann",
        priority="NORMAL",
        arrival=1,
        state=JobState.RUNNING,
        segment=0,
        final=True,
        ops_total=10,
        submitted_at_s=0.0,
        segment_at_s=0.0,
        predicted_s=predicted_s,
        running_since_s=100.0,
    )


def learnt(*ratios: float) -> OverrunDetector:
    surprises = OverrunDetector()
    for ratio in ratios:
        surprises.ended(2.0, 2.0 * ratio)
    return surprises


def test_nothing_is_unusual_before_enough_is_known() -> None:
    surprises = learnt(*[1.0] * (SAMPLES_MIN - 1))
    assert surprises.sentence(running(1.0), 1000.0) == ""
    surprises.ended(None, 5.0)
    assert surprises.usual is None
    surprises.ended(1.0, 1.0)
    assert surprises.sentence(running(1.0), 100.5) == ""
    assert "Unusually long: 15 min 0 s so far" in surprises.sentence(running(1.0), 1000.0)


def test_usual_is_what_forecasts_are_off_by_here() -> None:
    exact, vague = learnt(*[1.0] * 100), learnt(*[1.0] * 90, *[8.0] * 10)
    cell = running(3.0)
    assert exact.sentence(cell, 100.0 + 3.0 * 1.9) == ""
    assert "99 % ended within 2.0 times" in exact.sentence(cell, 100.0 + 3.0 * 2.1)
    assert vague.sentence(cell, 100.0 + 3.0 * 7.9) == ""
    assert "within 8.0 times" in vague.sentence(cell, 100.0 + 3.0 * 8.1)


def test_a_cell_without_a_forecast_or_of_a_moment_is_not_judged() -> None:
    surprises = learnt(*[1.0] * 100)
    assert surprises.sentence(running(None), 1e6) == ""
    assert surprises.sentence(running(0.01), 101.0) == ""

"""Whether a predicted start is shown, by the error of earlier predictions."""

from __future__ import annotations

from typing import Any

import pytest

from djinn_lab.jobs.decision import Explanation, Reason, why_no_start
from djinn_lab.jobs.start_forecasts import SAMPLES_MIN, StartForecasts, StartSkill


def learnt(waits: list[tuple[int, float, float]]) -> StartForecasts:
    """Return forecasts that learnt ``waits``: rank, predicted seconds, actual seconds."""
    starts = StartForecasts()
    for number, (rank, expected_s, actual_s) in enumerate(waits):
        starts.estimated({f"j{number}": (rank, 100.0 + expected_s)}, 100.0)
        starts.started(f"j{number}", 100.0 + actual_s)
    return starts


def test_too_few_forecasts_that_could_be_checked_say_nothing() -> None:
    starts = learnt([(1, 10.0, 10.0)] * (SAMPLES_MIN - 1))
    assert starts.error is None
    assert starts.skill.forecast("next", 1, 10.0, 200.0) is None


def test_waits_that_come_later_by_the_same_factor_correct_the_next_one() -> None:
    skill = learnt([(2, 10.0, 20.0), (2, 5.0, 10.0), (2, 8.0, 17.0)] * 3).skill
    found = skill.forecast("next", 2, 10.0, 200.0)
    assert found is not None
    assert found.wait_s == pytest.approx(20.0, rel=0.1)
    assert found.reliable
    assert found.overtaken


def test_a_priority_is_corrected_by_its_own_waits() -> None:
    skill = learnt([(0, 10.0, 10.0)] * 10 + [(3, 10.0, 40.0)] * 10).skill
    urgent, patient = skill.forecast("next", 0, 10.0, 200.0), skill.forecast("next", 3, 10.0, 200.0)
    assert urgent is not None
    assert patient is not None
    assert (urgent.wait_s, patient.wait_s) == (pytest.approx(10.0), pytest.approx(40.0))


def test_waits_without_a_common_factor_cannot_be_predicted() -> None:
    found = learnt([(2, 10.0, actual_s) for actual_s in (1.0, 3.0, 10.0, 30.0, 90.0, 200.0)]).skill
    forecast = found.forecast("next", 2, 10.0, 200.0)
    assert forecast is not None
    assert not forecast.reliable


def test_start_of_a_job_that_should_have_started_cannot_be_predicted() -> None:
    starts = learnt([(2, 0.1, 0.1)] * 10)
    starts.estimated({"late": (2, 200.1)}, 200.0)
    in_time, late = (starts.skill.forecast("late", 2, 0.1, now_s) for now_s in (201.0, 202.0))
    assert in_time is not None
    assert (in_time.reliable, in_time.overtaken) == (True, False)
    assert late is not None
    assert (late.reliable, late.overtaken) == (False, True)
    assert starts.wait_s("late", 201.0) is not None
    starts.estimated({"late": (2, 202.1)}, 202.0)
    assert starts.wait_s("late", 202.0) is None
    starts.started("late", 203.0)
    assert starts.skill.forecast("late", 2, 0.1, 210.0).reliable  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"expected_s": 200.1}, "unknown: later cells may go first"),
        ({"later_than_s": 320.0}, "not within 118 s"),
        ({}, "not by itself, as things are"),
        ({"expected_s": 200.1, "brought": True}, "unknown: it waits for memory"),
        ({"reason": Reason.IMPOSSIBLE}, "never, as things are"),
    ],
)
def test_missing_start_has_a_reason_in_a_few_words(fields: dict[str, Any], words: str) -> None:
    starts = learnt([(2, 0.1, 0.1)] * 10)
    starts.estimated({"late": (2, 200.1)}, 200.0)
    given: dict[str, Any] = {"reason": Reason.BUSY, "rank": 2} | fields
    found = Explanation("late", "ann", 202.0, position=1, waiting=1, **given)
    assert why_no_start(found, starts.skill) == words


def test_missing_start_says_that_predictions_were_wrong_or_too_few() -> None:
    found = Explanation("next", "ann", 200.0, Reason.BUSY, 1, 1, expected_s=210.0, rank=2)
    vague = learnt([(2, 10.0, actual_s) for actual_s in (0.1, 0.3, 1.0, 9.0, 20.0, 30.0, 0.2)]).skill
    assert why_no_start(found, vague) == "unknown: recent predictions were wrong"
    assert why_no_start(found, StartSkill()) == "unknown: too few predictions checked"


def test_start_forecast_skill_survives_a_restart() -> None:
    starts = learnt([(1, float(seconds), 2.0 * seconds) for seconds in range(1, 20)])
    fresh = starts.take_changes()
    assert fresh is not None
    assert starts.take_changes() is None
    assert StartForecasts(fresh).skill == starts.skill
    assert StartSkill(starts.skill.samples).error == starts.skill.error


def test_a_wait_that_ended_without_a_start_teaches_nothing() -> None:
    starts = StartForecasts()
    starts.estimated({"job": (1, 105.0)}, 100.0)
    starts.left("job")
    starts.started("job", 200.0)
    assert starts.skill.samples == ()

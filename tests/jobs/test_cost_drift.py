"""Learning from sampled runs, and when a device is measured again."""

from __future__ import annotations

import math

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from djinn_lab.jobs.cost_drift import (
    DRIFTED,
    FACTOR_MAX,
    FAMILY_SAMPLES_MIN,
    REARM_RUNS,
    RUN_SAMPLES_MIN,
    CostDrift,
    FamilySums,
)


def run(ratio: float, family: str = "matmul") -> dict[str, FamilySums]:
    return {family: FamilySums(0.01, 0.01 * ratio)}


def test_a_family_that_is_steadily_off_gets_a_factor() -> None:
    drift = CostDrift()
    changed = [drift.observed(run(1.4)) for _ in range(FAMILY_SAMPLES_MIN + 3)]
    assert changed == [False] * (FAMILY_SAMPLES_MIN - 1) + [True] + [False] * 3
    assert drift.factors == {"matmul": pytest.approx(1.4)}
    [family] = drift.families()
    assert (family.family, family.runs) == ("matmul", FAMILY_SAMPLES_MIN + 3)
    assert family.ratio == family.factor == pytest.approx(1.4)
    assert not drift.wants_measurement


def test_small_deviations_change_no_factor() -> None:
    drift = CostDrift()
    for turn in range(100):
        assert not drift.observed(run(1.05 if turn % 2 else 0.96))
    assert drift.factors == {}


def test_drift_asks_for_one_measurement_and_settles() -> None:
    drift = CostDrift()
    for _ in range(RUN_SAMPLES_MIN):
        assert not drift.wants_measurement
        drift.observed(run(DRIFTED * 1.1))
    assert drift.wants_measurement
    drift.measured()
    assert (drift.state, drift.factors, drift.families()) == ("settling", {}, ())
    for _ in range(RUN_SAMPLES_MIN):
        drift.observed(run(1.1))
    assert drift.state == "watching"


def test_a_measurement_that_does_not_help_is_not_repeated_at_once() -> None:
    drift = CostDrift()
    for _ in range(RUN_SAMPLES_MIN):
        drift.observed(run(3.0))
    drift.measured()
    for _ in range(REARM_RUNS - 1):
        drift.observed(run(3.0))
        assert not drift.wants_measurement
    drift.observed(run(3.0))
    assert drift.wants_measurement


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0])
def test_impossible_seconds_change_nothing(seconds: float) -> None:
    drift = CostDrift()
    with pytest.raises(ValueError, match="seconds"):
        drift.observed({"copy": FamilySums(1.0, 1.0), "matmul": FamilySums(1.0, seconds)})
    assert drift.families() == ()


class Drifting(RuleBasedStateMachine):
    """Any runs, and measurements at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.drift = CostDrift()
        self.runs_since_measured = 0

    @rule(
        sums=st.dictionaries(
            st.sampled_from(("matmul", "copy", "sort")),
            st.builds(FamilySums, st.floats(0, 10), st.floats(0, 10)),
            min_size=1,
        )
    )
    def run(self, sums: dict[str, FamilySums]) -> None:
        before = dict(self.drift.factors)
        changed = self.drift.observed(sums)
        assert changed == (before != self.drift.factors)
        self.runs_since_measured += 1

    @rule(ratio=st.floats(0.1, 10), count=st.integers(1, 40))
    def steady(self, ratio: float, count: int) -> None:
        for _ in range(count):
            self.run({"matmul": FamilySums(1.0, ratio)})

    @precondition(lambda self: self.drift.wants_measurement)
    @rule()
    def measured(self) -> None:
        self.drift.measured()
        self.runs_since_measured = 0
        assert not self.drift.wants_measurement

    @invariant()
    def factors_stay_within_bounds(self) -> None:
        for factor in self.drift.factors.values():
            assert 1 / FACTOR_MAX <= factor <= FACTOR_MAX

    @invariant()
    def nothing_is_asked_for_without_enough_runs(self) -> None:
        if self.runs_since_measured < RUN_SAMPLES_MIN:
            assert not self.drift.wants_measurement

    @invariant()
    def spreads_are_ordered(self) -> None:
        for family in self.drift.families():
            assert 0 < family.low <= family.ratio * (1 + 1e-9)
            assert family.ratio <= family.high * (1 + 1e-9)


TestDrifting = Drifting.TestCase

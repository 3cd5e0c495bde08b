"""Progressive enablement: on after successes or under pressure, off after a regression, and remembered."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from djinn_lab.errors import OptionError, UserError
from djinn_lab.scheduler import FEATURES, DeviceProfile, ProgressiveScheduler, RunOutcome
from djinn_lab.scheduler.progress import (
    DECISIONS_KEPT,
    LADDER,
    PAUSE_S,
    SAVES_MEMORY,
    Progress,
    Thresholds,
    pinned,
    progressed,
)

DEVICES = [DeviceProfile.default()]


def scheduler(**settings: object) -> ProgressiveScheduler:
    return ProgressiveScheduler(devices=DEVICES, **settings)  # type: ignore[arg-type]


def success(at_s: float, slower: float = 1.0, peak_fraction: float = 0.1) -> RunOutcome:
    return RunOutcome("succeeded", at_s, 1.0, slower, peak_fraction)


def test_features_come_one_at_a_time_after_successes() -> None:
    made = scheduler(enable_after_success=2)
    assert made.features == ()
    made.record(success(1))
    assert made.record(success(2)) == ("At 2 s: feature workload on, on trial: 2 runs succeeded.",)
    assert made.features == ("workload",)
    made.record(success(3))
    assert made.record(success(4)) == ("At 4 s: feature workload on, it stays after 2 successes.",)
    for at_s in range(5, 30):
        made.record(success(at_s))
    assert set(made.features) == set(FEATURES)


def test_start_mode_has_its_features_from_the_beginning() -> None:
    made = scheduler(start_mode="semantic", enable_after_success=1)
    assert "order_for_memory" not in made.features
    made.record(success(1))
    assert set(made.features) == set(FEATURES)


@pytest.mark.parametrize("outcome", [RunOutcome("out of memory", 1.0), success(1, peak_fraction=0.9)])
def test_pressure_enables_what_saves_memory_at_once(outcome: RunOutcome) -> None:
    made = scheduler()
    (sentence,) = made.record(outcome)
    assert made.features == ("order_for_memory",)
    assert "order_for_memory on, on trial: " in sentence
    for _ in range(5):
        made.record(outcome)
    assert set(made.features) >= set(SAVES_MEMORY)


def test_memory_below_the_threshold_is_no_pressure() -> None:
    made = scheduler(enable_on_pressure=0.95, enable_after_success=9)
    assert made.record(success(1, peak_fraction=0.94)) == ()
    assert made.features == ()


def test_a_regression_switches_the_feature_on_trial_off_and_pauses_it() -> None:
    made = scheduler(enable_after_success=2)
    for at_s in (1, 2):
        made.record(success(at_s))
    assert made.features == ("workload",)
    assert made.record(success(3, slower=2.0)) == ()
    (sentence,) = made.record(success(4, slower=2.2))
    assert sentence == (
        "At 4 s: feature workload off, runs with it took 2.1 times as long as before; not tried again for "
        "1 h 0 min."
    )
    assert made.features == ()
    for at_s in (5, 6):
        made.record(success(at_s))
    assert made.features == ("reserve",)
    assert "Paused after they made runs worse: workload." in made.explain()


def test_a_paused_feature_is_tried_again_after_its_pause_which_doubles() -> None:
    name, limits = LADDER[0], Thresholds(enable_after_success=1)
    state = progressed(Progress(on=LADDER[1:]), limits, success(0.0))
    for number in range(3):
        assert state.trial == name
        state = progressed(state, limits, success(state.now_s, slower=9.0))
        pause = state.pauses[name]
        assert (state.on, pause.seconds) == (LADDER[1:], PAUSE_S * 2**number)
        state = progressed(state, limits, success(pause.until_s - 1))
        assert state.trial is None
        state = progressed(state, limits, success(pause.until_s))


def test_one_slow_run_or_no_prediction_is_no_regression() -> None:
    made = scheduler(enable_after_success=3)
    for at_s in (1, 2, 3):
        made.record(success(at_s))
    made.record(success(4, slower=9.0))
    for at_s in (5, 6):
        made.record(RunOutcome("succeeded", at_s))
    assert made.features == ("workload",)
    assert made.progress.trial is None


def test_a_failure_switches_only_the_feature_on_trial_off() -> None:
    made = scheduler(start_mode="semantic", enable_after_success=1)
    assert made.record(RunOutcome("failed", 1.0)) == ()
    made.record(success(2))
    (sentence,) = made.record(RunOutcome("failed", 3.0))
    assert "order_for_memory off, a run with it failed" in sentence
    assert set(made.features) == set(FEATURES) - {"order_for_memory"}


def test_all_features_are_tried_while_memory_stays_scarce() -> None:
    made = scheduler(enable_after_success=2)
    for at_s in range(1, 30):
        made.record(success(at_s, peak_fraction=0.95))
    assert set(made.features) == set(FEATURES)
    assert made.explain()[1].endswith("successes in a row, no other feature is left to try now.")


def test_what_the_user_switched_stays() -> None:
    made = scheduler(enable_after_success=1)
    made.enable_feature("order_for_memory", False)
    made.enable_feature("reserve")
    for at_s in range(1, 20):
        made.record(RunOutcome("out of memory", float(at_s)))
        made.record(RunOutcome("failed", float(at_s)))
    assert "order_for_memory" not in made.features
    assert "reserve" in made.features
    with pytest.raises(OptionError, match="did you mean 'reserve'"):
        made.enable_feature("reserv")


def test_only_the_latest_decisions_are_kept() -> None:
    made = scheduler()
    for number in range(DECISIONS_KEPT + 7):
        made.enable_feature("reserve", number % 2 == 0)
    assert len(made.progress.decisions) == DECISIONS_KEPT


def test_explain_gives_state_and_decisions() -> None:
    made = scheduler()
    assert made.explain() == (
        "Features on: none.",
        "After 0 successes in a row, workload is tried after 3 more.",
        "Paused after they made runs worse: none.",
    )
    made.record(RunOutcome("out of memory", 5.0))
    assert made.explain()[0] == "Features on: order_for_memory."
    assert made.explain()[-1] == "At 5 s: feature order_for_memory on, on trial: a run was out of memory."


def test_saved_progress_continues_as_if_it_had_never_stopped(tmp_path: Path) -> None:
    made = scheduler(enable_after_success=2, enable_on_pressure=0.5)
    for at_s in range(1, 6):
        made.record(success(at_s))
    path = made.save(tmp_path / "progress.json")
    again = ProgressiveScheduler.load(path, devices=DEVICES)
    assert (again.progress, again.thresholds, again.features) == (
        made.progress,
        made.thresholds,
        made.features,
    )
    for outcome in (success(6), success(7, peak_fraction=0.6), RunOutcome("failed", 8.0)):
        assert again.record(outcome) == made.record(outcome)
    made.save(path)
    assert (tmp_path / "progress.json.bak").exists()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "truncated"),
        ("{", "truncated"),
        ("[1]", "Expected `object`"),
        ('{"version": 2, "thresholds": {}, "progress": {}}', "version"),
        ('{"version": 1, "thresholds": {}, "progress": {"on": ["speed"]}}', "'speed' is no feature"),
        ('{"version": 1, "thresholds": {}, "progress": {"trial": "reserve"}}', "on trial and not on"),
        ('{"version": 1, "thresholds": {}, "progress": {"successes": -1}}', "out of range"),
        ('{"version": 1, "thresholds": {"enable_after_success": 0}, "progress": {}}', "at least 1"),
        (
            '{"version": 1, "thresholds": {}, "progress": {"pauses": '
            '{"reserve": {"until_s": 1, "seconds": -1}}}}',
            "a pause is out of range",
        ),
        ('{"version": 1, "thresholds": {}, "progress": {"onn": []}}', "unknown field `onn`"),
        ('{"version": 1, "thresholds": {}, "progress": {"ratios": [-1.0]}}', "out of range"),
    ],
)
def test_a_damaged_file_is_an_error_that_says_what_to_do(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "progress.json"
    path.write_text(text)
    with pytest.raises(UserError, match=problem) as error:
        ProgressiveScheduler.load(path, devices=DEVICES)
    assert str(path) in error.value.message
    assert "Remove the file" in error.value.advice


def test_files_that_are_not_there_or_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        ProgressiveScheduler.load(tmp_path / "none.json", devices=DEVICES)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        scheduler().save(tmp_path / "file" / "progress.json")


@pytest.mark.parametrize(
    "settings",
    [
        {"enable_after_success": 0},
        {"enable_on_pressure": 0.0},
        {"enable_on_pressure": 1.1},
        {"enable_after_success": "2"},
        {"enable_on_pressure": None},
        {"start_mode": "auto"},
    ],
)
def test_thresholds_and_modes_that_cannot_be_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(OptionError):
        scheduler(**settings)


@pytest.mark.parametrize("number", [-1.0, float("nan"), float("inf")])
def test_outcomes_with_impossible_numbers_are_refused(number: float) -> None:
    with pytest.raises(ValueError, match="finite numbers"):
        RunOutcome("succeeded", number)
    with pytest.raises(ValueError, match="finite numbers"):
        RunOutcome("succeeded", 1.0, 1.0, number)


def test_an_outcome_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="'done' is no way for a run to end; there are succeeded, failed"):
        RunOutcome("done", 1.0)  # type: ignore[arg-type]


numbers = st.floats(0, 1e6, allow_nan=False)


class ProgressMachine(RuleBasedStateMachine):
    """Any outcomes in any order, with clocks that may even go back."""

    def __init__(self) -> None:
        super().__init__()
        self.limits = Thresholds(2, 0.8)
        self.state = Progress()
        self.before = self.state

    def _next(self, state: Progress) -> None:
        self.before, self.state = self.state, state

    @rule(at_s=numbers, predicted_s=st.none() | numbers, measured_s=st.none() | numbers, peak=st.floats(0, 2))
    def succeed(self, at_s: float, predicted_s: float | None, measured_s: float | None, peak: float) -> None:
        outcome = RunOutcome("succeeded", at_s, predicted_s, measured_s, peak)
        self._next(progressed(self.state, self.limits, outcome))

    @rule(at_s=numbers)
    def run_out_of_memory(self, at_s: float) -> None:
        self._next(progressed(self.state, self.limits, RunOutcome("out of memory", at_s)))
        assert set(self.before.on) <= set(self.state.on)

    @rule(at_s=numbers)
    def fail(self, at_s: float) -> None:
        self._next(progressed(self.state, self.limits, RunOutcome("failed", at_s)))
        assert self.state.trial is None
        lost = set(self.before.on) - set(self.state.on)
        assert lost == ({self.before.trial} if self.before.trial else set())

    @rule(name=st.sampled_from(LADDER), on=st.booleans())
    def switch(self, name: str, on: bool) -> None:
        self._next(pinned(self.state, name, on))
        assert (name in self.state.on) == on

    @precondition(lambda self: len(self.state.pinned) < len(LADDER))
    @rule()
    def three_years_of_good_runs_enable_all_that_is_not_pinned(self) -> None:
        state = self.state
        for step in range(60):
            at_s = state.now_s + 1e8
            outcome = RunOutcome("succeeded", at_s if step < 2 else at_s + step)
            state = progressed(state, self.limits, outcome)
        assert set(LADDER) - set(state.pinned) <= set(state.on)

    @invariant()
    def state_is_valid_and_survives_a_file(self) -> None:
        encoded = msgspec.json.encode(self.state)
        assert msgspec.json.decode(encoded, type=Progress) == self.state

    @invariant()
    def time_never_goes_back_and_decisions_are_bounded(self) -> None:
        assert self.state.now_s >= self.before.now_s
        assert len(self.state.decisions) <= DECISIONS_KEPT

    @invariant()
    def each_change_is_decided_and_no_pinned_feature_changes(self) -> None:
        changed = set(self.before.on) ^ set(self.state.on)
        known = {id(decision) for decision in self.before.decisions}
        fresh = [decision for decision in self.state.decisions if id(decision) not in known]
        assert changed <= {decision.feature for decision in fresh}
        by_hand = {decision.feature for decision in fresh if decision.reason == "you switched it"}
        assert changed & set(self.before.pinned) <= by_hand

    @invariant()
    def what_is_paused_is_off(self) -> None:
        waiting = {name for name, pause in self.state.pauses.items() if self.state.now_s < pause.until_s}
        assert not (waiting - set(self.state.pinned)) & set(self.state.on)


TestProgressMachine = ProgressMachine.TestCase

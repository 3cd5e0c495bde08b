"""Forecasts of what cells take, and how far they are off."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from djinn_lab.jobs import resources
from djinn_lab.jobs.resources import (
    COMPARED_MIN,
    RUNS_MAX,
    ResourceForecast,
    ResourceHistory,
    ResourceRecords,
    ResourceUse,
    forecast_sentence,
    too_large,
)

USES = st.builds(ResourceUse, st.floats(0.001, 1e4), st.integers(1, 2**40))


@given(st.lists(USES, min_size=1, max_size=3 * RUNS_MAX))
def test_program_that_ran_before_is_predicted_from_its_latest_runs(uses: list[ResourceUse]) -> None:
    history = ResourceHistory()
    graph = history.forecast("cell", 9.0, 99)
    assert (graph.device_s, graph.peak_bytes, graph.runs) == (9.0, 99, 0)
    for use in uses:
        history.ended("cell", history.forecast("cell", 9.0, 99), use)
    found = history.forecast("cell", 9.0, 99)
    latest = uses[-RUNS_MAX:]
    assert found.runs == len(latest)
    assert found.peak_bytes == max(use.peak_bytes for use in latest)
    assert found.device_s is not None
    assert sum(use.device_s <= found.device_s + 1e-9 for use in latest) * 2 >= len(latest)
    assert history.forecast("another", None, 1).runs == 0


@given(st.integers(0, 3 * COMPARED_MIN), st.floats(1.0, 100.0), st.integers(1, 2**30))
def test_the_error_is_measured_and_said_to_be_unknown_before(
    count: int, device_s: float, peak_bytes: int
) -> None:
    history = ResourceHistory()
    for number in range(count):
        history.ended(
            str(number),
            history.forecast(str(number), device_s, peak_bytes),
            ResourceUse(2 * device_s, peak_bytes),
        )
    found = history.forecast("new", device_s, peak_bytes)
    if count < COMPARED_MIN:
        assert found.error is None
        assert "Too few" in forecast_sentence(found)
    else:
        assert found.error is not None
        assert (found.error.count, found.error.device_part, found.error.peak_part) == (count, 0.5, 0.0)
        assert (
            f"off by 50% in seconds and 0% in bytes, in the median of the last {count}"
            in forecast_sentence(found)
        )
    assert history.forecast("0", 1.0, 1).error is None, "forecasts from runs have errors of their own"


def test_cells_one_after_the_other_add_up_in_seconds_and_not_in_bytes() -> None:
    both = (
        ResourceUse(1.0, 10, "In [1]")
        .and_then(ResourceUse(2.0, 30, "In [2]"))
        .and_then(ResourceUse(4.0, 20, "In [3]"))
    )
    assert both == ResourceUse(7.0, 30, "In [2]")


def test_program_is_too_large_only_by_an_earlier_run() -> None:
    assert too_large(ResourceForecast(1.0, 2**31), "nb1", 2**30) is None
    found = too_large(ResourceForecast(1.0, 2**31, 1, "In [14]"), "nb1", 2**30)
    assert found is not None
    assert "(nb1) In [14] needed 2.0 GiB, and no device of this pool has more than 1.0 GiB" in found
    assert too_large(ResourceForecast(1.0, 2**30, 1), "nb1", 2**30) is None


@given(st.lists(st.tuples(st.sampled_from("abc"), USES, st.booleans(), st.booleans()), max_size=40))
def test_restored_resource_history_predicts_the_same(
    runs: list[tuple[str, ResourceUse, bool, bool]],
) -> None:
    """Whenever the history is saved, and however often the pool restarts."""
    always, history, kept = ResourceHistory(), ResourceHistory(), ResourceRecords()
    for program, use, saves, restarts in runs:
        for one in (always, history):
            one.ended(program, one.forecast(program, 9.0, 99), use)
        if saves or restarts:
            fresh = history.take_changes()
            kept.uses.update(fresh.uses)
            kept.errors.update(fresh.errors)
        if restarts:
            history = ResourceHistory(kept)
    for program in "abcd":
        assert history.forecast(program, 9.0, 99) == always.forecast(program, 9.0, 99)
    assert history.graph_error == always.graph_error


def test_new_resource_records_are_returned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "PROGRAMS_MAX", 3)
    history = ResourceHistory()
    for number in range(1000):
        history.ended("a", history.forecast("a", 1.0, 1), ResourceUse(float(number + 1), 1))
    fresh = history.take_changes()
    assert [use.device_s for use in fresh.uses["a"]] == [996.0, 997.0, 998.0, 999.0, 1000.0]
    assert {kind: len(errors) for kind, errors in fresh.errors.items()} == {
        "graphs": 1,
        "runs": resources.COMPARED_MAX,
    }
    assert history.take_changes() == ResourceRecords()
    for program in "bcde":
        history.ended(program, history.forecast(program, None, 1), ResourceUse(1.0, 1))
    assert history.take_changes() == ResourceRecords({program: (ResourceUse(1.0, 1),) for program in "cde"})
    assert history.forecast("a", None, 1).runs == 0

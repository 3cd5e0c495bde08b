"""What is said of samples."""

from __future__ import annotations

import pytest

from benchmarks.figures import OURS, Goal, figure, skipped
from benchmarks.samples import Summary, alternate
from benchmarks.stage_audit import AuditedCell, stage_figures


def test_a_summary_is_of_sorted_samples_with_their_count() -> None:
    summary = Summary.of([5.0, 1.0, 4.0, 2.0, 3.0])
    assert (summary.count, summary.minimum, summary.q1, summary.median, summary.q3, summary.maximum) == (
        5,
        1,
        2,
        3,
        4,
        5,
    )
    assert summary.p99 == pytest.approx(4.96)


def test_one_sample_is_every_percentile() -> None:
    summary = Summary.of([7.0])
    assert summary.q1 == summary.median == summary.p99 == 7


def test_rounds_alternate_and_begin_with_another_contender_each_time() -> None:
    calls: list[str] = []

    def contender(name: str) -> float:
        calls.append(name)
        return len(calls)

    taken = alternate({name: lambda name=name: contender(name) for name in "abc"}, 3)  # type: ignore[misc]
    assert "".join(calls) == "abc" + "abc" + "bca" + "cab"
    assert taken == {"a": [4, 9, 11], "b": [5, 7, 12], "c": [6, 8, 10]}


def test_without_a_warm_up_every_sample_counts() -> None:
    assert alternate({"a": lambda: 1.0}, 2, warm_up=False) == {"a": [1, 1]}


def test_ratios_are_of_the_same_round() -> None:
    found = figure("b", "f", "s", {OURS: [2.0, 9.0, 4.0], "eager": [1.0, 3.0, 1.0]})
    assert (found.ratios["eager"].minimum, found.ratios["eager"].median) == (2, 3)
    assert OURS not in found.ratios


@pytest.mark.parametrize(
    ("goal", "text"),
    [
        (Goal(10), "goal <= 10 ms: met"),
        (Goal(1.5), "goal <= 1.5 ms: missed (2)"),
        (Goal(3, "p99"), "goal p99 <= 3 ms: met"),
        (Goal(2, baseline="eager"), "goal <= 2x eager: met"),
        (Goal(1.1, baseline="eager"), "goal <= 1.1x eager: missed (2)"),
    ],
)
def test_goals_say_in_words_whether_they_were_met(goal: Goal, text: str) -> None:
    found = figure("b", "f", "ms", {OURS: [2.0], "eager": [1.0]}, [goal])
    assert [goal.text for goal in found.goals] == [text]
    assert found.goals[0].met == text.endswith("met")


def test_what_was_skipped_says_why() -> None:
    found = skipped("b", "f", "s", "there is no browser")
    assert found.skipped == "there is no browser"
    assert not found.series


def test_the_worst_cell_decides_whether_stages_sum_up() -> None:
    good, bad = AuditedCell("b", 1.0, 0.999), AuditedCell("b", 1.0, 1.05)
    assert stage_figures([good])[0].goals[0].met
    assert not stage_figures([good, bad])[0].goals[0].met

"""Dependencies of jobs: how they are written, and how they are met or fail in any order of events."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from djinn_lab.jobs import Terms
from djinn_lab.jobs.conditions import (
    Condition,
    DependencyResults,
    DependencyState,
    Need,
    describe,
    parse,
    same_project,
    separated,
)

JOBS = ("a", "b")
NAMES = ("one", "two")
WRITTEN = st.sampled_from(
    [f"{job}{kind}" for job in JOBS for kind in ("", ":any", ":checkpoint", ":checkpoint=one")]
    + [f"data:{name}" for name in NAMES]
)


@given(WRITTEN | st.builds("data:{}".format, st.text("xy:=/. -", min_size=1)))
def test_parsed_dependency_is_written_back_unchanged(text: str) -> None:
    if text.strip() == text and text != "data:":
        try:
            condition = parse(text)
        except ValueError:
            assert text.removeprefix("data:").strip() != text.removeprefix("data:")
            return
        assert str(condition) == text
        assert parse(str(condition)) == condition


@pytest.mark.parametrize(
    "text",
    ["", ":any", "a:soon", "a:checkpoint=", "data:", "a:checkpoint= x", "data:" + "x" * 201, "data:a\nb"],
)
def test_unknown_dependency_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no dependency"):
        parse(text)
    assert "no dependency" in str(Terms(after=(text,)).problem())


def test_commas_separate_and_the_numbers_must_fit() -> None:
    assert separated(["a, b:any", "data:x"]) == ("a", "b:any", "data:x")
    assert Terms(after=("a", "a"), after_count=2).problem() is not None
    assert Terms(after=("a", "b"), after_count=2).problem() is None
    assert Terms(after_timeout_s=5).problem() is not None


def test_a_project_shares_its_data_and_a_pool_of_strangers_does_not() -> None:
    assert same_project("ann", "ann")
    assert not same_project("ann", "bob")
    assert same_project("vision/train/ann", "vision/train/bob")
    assert not same_project("vision/train/ann", "vision/test/bob")


EVENTS = st.one_of(
    st.tuples(st.just("announce"), st.sampled_from(JOBS), st.sampled_from(NAMES)),
    st.tuples(st.just("publish"), st.just(""), st.sampled_from(NAMES)),
    st.tuples(st.just("end"), st.sampled_from(JOBS), st.sampled_from(("DONE", "FAILED", "CANCELLED"))),
)


@given(
    st.lists(WRITTEN, min_size=1, unique=True),
    st.integers(1, 10) | st.none(),
    st.lists(EVENTS, max_size=12),
)
def test_dependencies_are_met_when_enough_hold_and_fail_when_too_few_can(
    after: list[str], enough: int | None, events: list[tuple[str, str, str]]
) -> None:
    waiting = DependencyState(tuple(after), DependencyResults(enough))
    needed = len(after) if enough is None else min(enough, len(after))
    announced: dict[str, list[str]] = {job: [] for job in JOBS}
    states: dict[str, str] = {}
    published: set[str] = set()

    def is_true(one: Condition) -> bool:
        match one.need:
            case Need.SUCCESS:
                return states.get(one.job) == "DONE"
            case Need.END:
                return one.job in states
            case Need.CHECKPOINT:
                return one.name in announced[one.job] if one.name else bool(announced[one.job])
            case Need.DATA:
                return one.name in published

    for kind, job, what in events:
        if job in states:
            continue
        if kind == "announce":
            announced[job].append(what)
            waiting = waiting.checkpoint(job, what)
        elif kind == "publish":
            published.add(what)
            waiting = waiting.published(what)
        else:
            states[job] = what
            waiting = waiting.job_ended(job, f"job {job}", what, announced[job])
        conditions = [parse(text) for text in after]
        true = sum(map(is_true, conditions))
        never = sum(not is_true(one) and one.job in states for one in conditions)
        assert (not waiting.open and waiting.missing_count <= 0) == (true >= needed)
        assert (waiting.unsatisfiable is not None) == (len(after) - never < needed)
        if waiting.unsatisfiable is not None:
            assert "job " in waiting.unsatisfiable
            return
        if waiting.missing_count <= 0:
            return
        sentence = describe(waiting, str, lambda name: announced[name], None)
        assert all(parse(text).name in sentence for text in waiting.open)

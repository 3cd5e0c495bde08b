"""A figure: what was measured, beside what, against which goal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.samples import Summary

OURS = "djinn"


@dataclass(frozen=True)
class Goal:
    """An upper limit. ``statistic`` names a field of :class:`Summary`; with ``baseline`` it is that of
    the ratio to this baseline, else that of our samples."""

    limit: float
    statistic: str = "median"
    baseline: str | None = None


@dataclass(frozen=True)
class GoalResult:
    """``text`` is for people: ``"goal <= 10 ms: met"``."""

    text: str
    statistic: str
    limit: float
    value: float
    met: bool


@dataclass(frozen=True)
class Figure:
    """``series``: by contender, in ``unit``. ``ratios``: ours over the baseline's sample of the same
    round. ``skipped``: why nothing was measured."""

    benchmark: str
    name: str
    unit: str
    series: dict[str, Summary] = field(default_factory=dict)
    ratios: dict[str, Summary] = field(default_factory=dict)
    goals: list[GoalResult] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    skipped: str | None = None


def figure(
    benchmark: str,
    name: str,
    unit: str,
    taken: Mapping[str, Sequence[float]],
    goals: Sequence[Goal] = (),
    **facts: Any,
) -> Figure:
    """From samples by contender; ours are under :data:`OURS` and run parallel to the others'."""
    series = {contender: Summary.of(samples) for contender, samples in taken.items()}
    ratios = {
        contender: Summary.of([mine / theirs for mine, theirs in zip(taken[OURS], samples, strict=True)])
        for contender, samples in taken.items()
        if contender != OURS
    }
    reached = [judge(goal, unit, series[OURS], ratios) for goal in goals]
    return Figure(benchmark, name, unit, series, ratios, reached, facts)


def skipped(benchmark: str, name: str, unit: str, reason: str) -> Figure:
    return Figure(benchmark, name, unit, skipped=reason)


def judge(goal: Goal, unit: str, ours: Summary, ratios: Mapping[str, Summary]) -> GoalResult:
    summary = ours if goal.baseline is None else ratios[goal.baseline]
    value: float = getattr(summary, goal.statistic)
    what = f"{goal.limit:g} {unit}" if goal.baseline is None else f"{goal.limit:g}x {goal.baseline}"
    shown = "" if goal.statistic == "median" else f"{goal.statistic} "
    met = value <= goal.limit
    text = f"goal {shown}<= {what}: {'met' if met else f'missed ({value:.3g})'}"
    return GoalResult(text, goal.statistic, goal.limit, value, met)

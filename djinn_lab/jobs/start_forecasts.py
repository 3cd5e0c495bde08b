"""The error of start forecasts, and which of them may be given.

A forecast runs the decision forward with the jobs that wait now. Cells that come later and are backfilled
make it too early, by about the same factor for waits of one priority and length, as a priority queue's
waits grow with the load that overtakes (Cobham, Operations Research 2(1), 1954). So every forecast is
compared with what came, later ones are corrected by the median factor, and where even these would have
been off by much they are not given."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from statistics import median
from typing import NamedTuple

import msgspec

SAMPLES_MAX = 500
SAMPLES_MIN = 5
"""With fewer similar waits, no forecast is given."""
ALIKE_FACTOR = 4.0
"""Waits that differ by less are similar."""
SHORT_S = 0.25
"""Shorter waits count as this, so that their ratio says something."""
OFF_PART, OFF_S = 0.5, 1.0
"""A forecast was good that was off by less than this part of the wait, or than so many seconds."""
GOOD_SHARE = 0.8
"""So many of the similar forecasts must have been good."""
LATER_FACTOR = 1.25
"""From this factor on, later jobs are what makes forecasts wrong."""


class StartForecastError(msgspec.Struct, frozen=True):
    """The error of the latest ``count`` start forecasts that were checked: half were off by less than
    ``median_s``, nine of ten by less than ``p90_s``."""

    count: int
    median_s: float
    p90_s: float


class StartSample(NamedTuple):
    """A wait as it was forecast and as it was. ``rank``: of its priority."""

    rank: float
    expected_s: float
    actual_s: float

    @property
    def factor(self) -> float:
        return max(self.actual_s, SHORT_S) / max(self.expected_s, SHORT_S)


class StartForecast(msgspec.Struct, frozen=True):
    """The expected start of a job. ``wait_s``: corrected. ``reliable``: similar ones were good.
    ``overtaken``: they were too early, since cells that came later started before."""

    wait_s: float
    reliable: bool
    overtaken: bool


class _Judgement(NamedTuple):
    """``factor``: by which similar waits were longer than forecast; ``reliable``: most were good."""

    factor: float
    reliable: bool


@dataclass(frozen=True, slots=True)
class StartSkill:
    """The skill of forecasts at one moment, for any thread. ``first``: by job that waits, its rank, when its
    start was first forecast, and for when. Waits of one priority and length are judged once, since the pool
    asks for every job that waits."""

    samples: tuple[StartSample, ...] = ()
    first: Mapping[str, tuple[int, float, float]] = field(default_factory=dict)
    _judged: dict[tuple[int, int], _Judgement | None] = field(default_factory=dict, compare=False, repr=False)

    @property
    def error(self) -> StartForecastError | None:
        """None until enough forecasts were checked."""
        if len(self.samples) < SAMPLES_MIN:
            return None
        ordered = sorted(abs(one.actual_s - one.expected_s) for one in self.samples)
        return StartForecastError(len(ordered), median(ordered), ordered[int(0.9 * (len(ordered) - 1))])

    def forecast(self, job: str, rank: int, wait_s: float, now_s: float) -> StartForecast | None:
        """Return the corrected forecast. ``wait_s``: as the decision run forward says. None while too few
        were checked. That of a job whose first forecast is overdue is not reliable."""
        found = self._judged_wait(rank, wait_s)
        if found is None:
            return None
        overdue = self._is_overdue(job, now_s)
        overtaken = overdue or found.factor >= LATER_FACTOR
        return StartForecast(wait_s * found.factor, found.reliable and not overdue, overtaken)

    def _is_overdue(self, job: str, now_s: float) -> bool:
        """Return whether the job has waited for longer than a good forecast is off."""
        first = self.first.get(job)
        if first is None:
            return False
        rank, made_s, expected_s = first
        found = self._judged_wait(rank, max(0.0, expected_s - made_s))
        if found is None:
            return False
        wait_s = max(0.0, expected_s - made_s) * found.factor
        return now_s - made_s > wait_s + _off_s(wait_s)

    def _judged_wait(self, rank: int, wait_s: float) -> _Judgement | None:
        key = rank, round(math.log2(max(wait_s, SHORT_S)))
        if key not in self._judged:
            self._judged[key] = self._judge(rank, 2.0 ** key[1])
        return self._judged[key]

    def _judge(self, rank: int, wait_s: float) -> _Judgement | None:
        alike = self._alike(rank, wait_s)
        if alike is None:
            return None
        factor = median(one.factor for one in alike)
        good = sum(_good(one, factor) for one in alike)
        return _Judgement(factor, good >= GOOD_SHARE * len(alike))

    def _alike(self, rank: int, wait_s: float) -> Sequence[StartSample] | None:
        """Return waits as long, of the same priority where they are enough; else of all priorities; else
        all waits."""
        as_long = [
            one
            for one in self.samples
            if wait_s / ALIKE_FACTOR <= max(one.expected_s, SHORT_S) <= wait_s * ALIKE_FACTOR
        ]
        same = [one for one in as_long if one.rank == rank]
        return next((found for found in (same, as_long, self.samples) if len(found) >= SAMPLES_MIN), None)


def _good(sample: StartSample, factor: float) -> bool:
    expected_s = sample.expected_s * factor
    return abs(sample.actual_s - expected_s) <= _off_s(expected_s)


def _off_s(expected_s: float) -> float:
    """Return by how many seconds a good forecast of a wait may be off."""
    return max(OFF_S, OFF_PART * expected_s)


class StartForecasts:
    """The first forecast of a wait is the one that is checked; the latest is given. ``flat``: samples of
    an earlier pool as :meth:`take_changes` gave them."""

    def __init__(self, flat: Iterable[float] = ()) -> None:
        values = tuple(flat)
        samples = (StartSample(*values[at : at + 3]) for at in range(0, len(values) - 2, 3))
        self._samples = deque(samples, SAMPLES_MAX)
        self._first: dict[str, tuple[int, float, float]] = {}
        self._latest: dict[str, tuple[int, float]] = {}
        self._checked = False
        self._skill: StartSkill | None = None

    def estimated(self, starts: Mapping[str, tuple[int, float]], now_s: float) -> None:
        """Record the expected starts of all jobs anew: rank and time."""
        self._latest = dict(starts)
        for job, (rank, at_s) in starts.items():
            self._first.setdefault(job, (rank, now_s, at_s))

    def started(self, job: str, at_s: float) -> None:
        first = self._first.pop(job, None)
        self._latest.pop(job, None)
        if first is not None:
            rank, made_s, expected_s = first
            self._samples.append(StartSample(rank, max(0.0, expected_s - made_s), max(0.0, at_s - made_s)))
            self._checked, self._skill = True, None

    def left(self, job: str) -> None:
        """Forget a job that ended without starting."""
        self._first.pop(job, None)
        self._latest.pop(job, None)

    def take_changes(self) -> tuple[float, ...] | None:
        """Return all samples, flat, oldest first; None if none was added since the last call."""
        checked, self._checked = self._checked, False
        return tuple(chain.from_iterable(self._samples)) if checked else None

    @property
    def skill(self) -> StartSkill:
        return replace(self._current(), first=dict(self._first))

    @property
    def error(self) -> StartForecastError | None:
        return self._current().error

    def _current(self) -> StartSkill:
        """Return the skill, with what is known of waiting jobs as it changes."""
        if self._skill is None:
            self._skill = StartSkill(tuple(self._samples), self._first)
        return self._skill

    def wait_s(self, job: str, now_s: float) -> float | None:
        """Return the time until the expected start, where that may be given."""
        latest = self._latest.get(job)
        if latest is None:
            return None
        rank, at_s = latest
        found = self._current().forecast(job, rank, max(0.0, at_s - now_s), now_s)
        return found.wait_s if found is not None and found.reliable else None

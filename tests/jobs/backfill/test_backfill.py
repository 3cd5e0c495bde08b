"""Backfill never makes the head of the queue wait longer; its profile equals trying every moment."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from djinn_lab.jobs.backfill import AvailabilityProfile, Ending, Slot
from djinn_lab.jobs.placement import FreeCapacity
from djinn_lab.jobs.request import ComputeNode, Demand, Where


class Wish(NamedTuple):
    job: str
    demand: Demand
    seconds: float | None


class Backfilled(NamedTuple):
    """``starts``: jobs that start now, with their nodes. ``reserved``: others, with their promised start."""

    starts: list[tuple[str, Where]]
    reserved: list[tuple[str, float]]


def backfill(
    wishes: Iterable[Wish],
    capacity: FreeCapacity,
    endings: Iterable[Ending],
    now_s: float,
    reservations: int | None = 1,
) -> Backfilled:
    """Plan in the order of the queue; starts take from ``capacity``. ``reservations``: for how many of the
    jobs that cannot start; None: for all."""
    profile = AvailabilityProfile(capacity, endings, now_s)
    found = Backfilled([], [])
    for job, demand, seconds in wishes:
        where = profile.now(demand, seconds)
        if where is not None:
            profile.reserve(demand, Slot(now_s, sum(members for _, members in where), where), seconds)
            capacity.take(demand, where)
            found.starts.append((job, where))
        elif reservations is None or len(found.reserved) < reservations:
            slot = profile.earliest(demand, seconds)
            if slot is not None:
                profile.reserve(demand, slot, seconds)
                found.reserved.append((job, slot.start_s))
    return found


@dataclass(frozen=True)
class Job:
    """A job with its true run time ``lasts_s`` and its estimate ``estimate_s``."""

    name: str
    arrives_s: float
    demand: Demand
    lasts_s: float
    estimate_s: float


@dataclass
class Run:
    """``promised``: when each job was first at the head and waiting, and the reservation it got then."""

    started: dict[str, float]
    promised: dict[str, float]


def run(jobs: list[Job], capacity: FreeCapacity, reservations: int | None) -> Run:
    """Run jobs first come, first served with backfill; every event plans anew."""
    by_name = {job.name: job for job in jobs}
    waiting: list[Job] = []
    ends: list[tuple[float, str, Where]] = []
    events = sorted({job.arrives_s for job in jobs})
    outcome = Run({}, {})
    while events:
        now_s = heapq.heappop(events)
        for end_s, name, where in [end for end in ends if end[0] <= now_s]:
            capacity.give(by_name[name].demand, where)
            ends.remove((end_s, name, where))
        waiting += [job for job in jobs if job.arrives_s == now_s and job not in waiting]
        endings = [
            Ending(outcome.started[name] + by_name[name].estimate_s, by_name[name].demand, where)
            for _, name, where in ends
        ]
        wishes = [Wish(job.name, job.demand, job.estimate_s) for job in waiting]
        found = backfill(wishes, capacity, endings, now_s, reservations)
        for name, where in found.starts:
            outcome.started[name] = now_s
            end_s = now_s + by_name[name].lasts_s
            ends.append((end_s, name, where))
            waiting.remove(by_name[name])
            if end_s not in events:
                heapq.heappush(events, end_s)
        if waiting and found.reserved and found.reserved[0][0] == waiting[0].name:
            outcome.promised.setdefault(waiting[0].name, found.reserved[0][1])
    return outcome


def jobs_with(
    overrun: st.SearchStrategy[float], demands: st.SearchStrategy[Demand]
) -> st.SearchStrategy[list[Job]]:
    one = st.tuples(st.integers(0, 20), demands, st.integers(1, 15), overrun)
    return st.lists(one, min_size=1, max_size=14).map(
        lambda rows: [
            Job(f"j{number:02}", float(arrives), demand, float(lasts), max(1.0, lasts - over))
            for number, (arrives, demand, lasts, over) in enumerate(sorted(rows, key=lambda row: row[0]))
        ]
    )


def gang(members: int) -> Demand:
    return Demand(members=members, members_min=members)


COUNTS = st.integers(1, 8).map(gang)
MIXED = st.one_of(
    COUNTS,
    st.integers(1, 8).map(lambda n: Demand(members=n, members_min=n, together="packed")),
    st.sampled_from([Demand(device_milli=500), Demand(selector=frozenset({"x"}))]),
)


def counted() -> FreeCapacity:
    return FreeCapacity([ComputeNode("all", devices=8)])


def mixed() -> FreeCapacity:
    return FreeCapacity([ComputeNode("a", devices=4, labels=frozenset({"x"})), ComputeNode("b", devices=4)])


@settings(max_examples=150, deadline=None)
@given(jobs_with(st.integers(-10, 0).map(float), COUNTS), st.sampled_from([1, 2, None]))
def test_the_head_never_starts_later_than_reserved_when_estimates_hold(
    jobs: list[Job], reservations: int | None
) -> None:
    outcome = run(jobs, counted(), reservations)
    assert outcome.started.keys() == {job.name for job in jobs}
    assert all(outcome.started[name] <= start_s for name, start_s in outcome.promised.items())


@settings(max_examples=150, deadline=None)
@given(jobs_with(st.integers(-10, 0).map(float), MIXED), st.sampled_from([1, 2, None]))
def test_the_same_on_nodes_with_shares_labels_and_packing(jobs: list[Job], reservations: int | None) -> None:
    outcome = run(jobs, mixed(), reservations)
    assert outcome.started.keys() == {job.name for job in jobs}
    assert all(outcome.started[name] <= start_s for name, start_s in outcome.promised.items())


@settings(max_examples=150, deadline=None)
@given(jobs_with(st.integers(-6, 6).map(float), COUNTS), st.sampled_from([1, None]))
def test_when_estimates_are_too_short_it_waits_longer_by_the_worst_of_them_at_most(
    jobs: list[Job], reservations: int | None
) -> None:
    outcome = run(jobs, counted(), reservations)
    worst_s = max(0.0, *(job.lasts_s - job.estimate_s for job in jobs))
    assert all(outcome.started[name] <= start_s + worst_s for name, start_s in outcome.promised.items())


def test_a_short_job_passes_and_a_long_one_does_not() -> None:
    capacity = counted()
    capacity.take(gang(5), (("all", 5),))
    running = [Ending(100.0, gang(5), (("all", 5),))]
    wishes = [Wish("head", gang(6), 50.0), Wish("long", gang(3), 101.0), Wish("short", gang(3), 100.0)]
    found = backfill(wishes, capacity, running, 0.0)
    assert [name for name, _ in found.starts] == ["short"]
    assert found.reserved == [("head", 100.0)]


def test_a_long_job_passes_on_what_the_head_leaves() -> None:
    capacity = counted()
    capacity.take(gang(5), (("all", 5),))
    found = backfill(
        [Wish("head", gang(6), 50.0), Wish("long", gang(2), None), Wish("longer", gang(1), None)],
        capacity,
        [Ending(100.0, gang(5), (("all", 5),))],
        0.0,
    )
    assert [name for name, _ in found.starts] == ["long"]


def test_more_reservations_protect_more_requests() -> None:
    def starts(reservations: int | None) -> list[str]:
        capacity = counted()
        capacity.take(gang(6), (("all", 6),))
        wishes = [Wish("head", gang(8), 10.0), Wish("second", gang(7), 10.0), Wish("third", gang(2), 105.0)]
        running = [Ending(100.0, gang(6), (("all", 6),))]
        return [name for name, _ in backfill(wishes, capacity, running, 0.0, reservations).starts]

    assert starts(0) == ["third"]
    assert starts(1) == []


def test_job_past_its_estimate_may_end_at_any_moment() -> None:
    capacity = counted()
    capacity.take(gang(8), (("all", 8),))
    slot = AvailabilityProfile(capacity, [Ending(5.0, gang(8), (("all", 8),))], 10.0).earliest(gang(1), 1.0)
    assert slot is not None
    assert slot.start_s == math.nextafter(10.0, math.inf)


def test_an_unknown_end_is_never_waited_for() -> None:
    capacity = counted()
    capacity.take(gang(8), (("all", 8),))
    assert (
        AvailabilityProfile(capacity, [Ending(None, gang(8), (("all", 8),))], 0.0).earliest(gang(1), 1.0)
        is None
    )


def test_capacity_reserved_by_count_stays_reserved_for_packed_demands() -> None:
    capacity = mixed()
    capacity.take(gang(4), (("a", 4),))
    profile = AvailabilityProfile(capacity, [Ending(10.0, gang(4), (("a", 4),))], 0.0)
    slot = profile.earliest(gang(8), 5.0)
    assert slot is not None
    assert (slot.start_s, slot.where) == (10.0, ())
    profile.reserve(gang(8), slot, 5.0)
    packed = Demand(members=2, members_min=2, together="packed")
    assert profile.now(packed, 10.0) == (("b", 2),)
    assert profile.now(packed, 11.0) is None
    later = profile.earliest(packed, 11.0)
    assert later is not None
    assert later.start_s == 15.0


def test_an_elastic_gang_takes_what_is_free_throughout() -> None:
    capacity = counted()
    profile = AvailabilityProfile(capacity, [], 0.0)
    reserved = profile.earliest(gang(6), 10.0, after_s=20.0)
    assert reserved is not None
    profile.reserve(gang(6), reserved, 10.0)
    elastic = Demand(members=8, members_min=2)
    assert profile.now(elastic, 20.0) == (("all", 8),)
    assert profile.now(elastic, 21.0) == (("all", 2),)


USES = st.lists(
    st.tuples(st.integers(1, 4), st.integers(1, 20), st.integers(0, 20)).map(
        lambda use: (gang(use[0]), float(use[1]), float(use[2]))
    ),
    max_size=6,
)


@settings(max_examples=100, deadline=None)
@given(USES, MIXED, st.integers(1, 20))
def test_the_earliest_slot_is_the_first_moment_at_which_it_fits(
    booked: list[tuple[Demand, float, float]], demand: Demand, seconds: int
) -> None:
    profile = AvailabilityProfile(mixed(), [], 0.0)
    for other, lasts_s, after_s in booked:
        slot = profile.earliest(other, lasts_s, after_s)
        assert slot is not None
        profile.reserve(other, slot, lasts_s)
    slot = profile.earliest(demand, float(seconds))
    assert slot is not None
    assert profile.earliest(demand, float(seconds), slot.start_s) == slot
    for moment in range(int(slot.start_s)):
        later = profile.earliest(demand, float(seconds), float(moment))
        assert later is not None
        assert later.start_s == slot.start_s


def test_backfill_does_not_count_on_jobs_past_their_estimate() -> None:
    capacity = counted()
    late, later = gang(3), gang(4)
    capacity.take(late, (("all", 3),))
    capacity.take(later, (("all", 4),))
    running = [Ending(5.0, late, (("all", 3),)), Ending(6.0, later, (("all", 4),))]
    found = backfill([Wish("head", gang(4), 10.0), Wish("passer", gang(1), 1.0)], capacity, running, 7.0)
    assert found.starts == []


def test_an_anchored_gang_is_promised_the_node_where_its_state_lies() -> None:
    capacity = FreeCapacity(ComputeNode(name) for name in "abc")
    capacity.take(gang(1), (("a", 1),))
    profile = AvailabilityProfile(capacity, [Ending(30.0, gang(1), (("a", 1),))], 0.0)
    wants = Demand(members=2, members_min=2, anchor="a")
    assert profile.now(wants, 5.0) is None
    slot = profile.earliest(wants, 5.0)
    assert slot is not None
    assert (slot.start_s, slot.where) == (30.0, (("a", 1), ("b", 1)))
    profile.reserve(wants, slot, 5.0)
    assert profile.now(gang(1), 100.0) == (("c", 1),)
    alone = profile.earliest(Demand(members=3, members_min=1, anchor="c"), None)
    assert alone is not None
    assert (alone.start_s, alone.where) == (0.0, (("c", 1),))

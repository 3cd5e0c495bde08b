"""Backfill: whoever waits in front gets a reservation, and others pass only if they do not touch it.

With one reservation this is EASY (Lifka 1995), with one for everybody conservative backfilling (Mu'alem
and Feitelson, TPDS 12(6), 2001). Everything is planned anew at each event, in the order of the queue. What
holds for the request at its head, with devices as numbers:

- Estimates that are too long, or right: it never starts later than at its first reservation. Whoever runs
  ends by then, whoever passed either ends by then or leaves enough, and what comes back early only helps.
- Estimates that are too short by up to ``d`` seconds: it starts at most ``d`` after it. Whoever passed before
  that moment ends, or leaves enough, at most ``d`` after it, as do those who ran. From that moment on it only
  waits for jobs that are over their time, its reservation is for the next instant, and then nobody passes.
  (If somebody did, counting on the next of them to end, jobs with short estimates could keep it waiting for
  ever.)

The requests behind the head may get later reservations when something ends early, since those before them
then move to other places."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from djinn_lab.jobs.backfill.profile import Ending, Profile
from djinn_lab.jobs.placement import DEFAULT, Room, Scoring
from djinn_lab.jobs.request import Demand, Where


class Wish(NamedTuple):
    """``seconds``: how long it is expected to run, None when unknown."""

    job: str
    demand: Demand
    seconds: float | None
    home: str | None = None


class Reserved(NamedTuple):
    """``start_s`` is no promise to anybody but the first: see the module."""

    job: str
    start_s: float
    where: Where


class Backfilled(NamedTuple):
    starts: list[tuple[str, Where]]
    reserved: list[Reserved]


def backfill(
    wishes: Iterable[Wish],
    room: Room,
    endings: Iterable[Ending],
    now_s: float,
    reservations: int | None = 1,
    scoring: Scoring = DEFAULT,
) -> Backfilled:
    """Who starts now, in the order of the queue; they are taken in ``room``. ``reservations``: for how many
    that cannot start; None: for everybody, which is conservative backfilling."""
    profile = Profile(room, endings, now_s)
    starts: list[tuple[str, Where]] = []
    reserved: list[Reserved] = []
    for job, demand, seconds, home in wishes:
        where = profile.now(demand, seconds, scoring, home)
        if where is not None:
            profile.start(demand, where, seconds)
            starts.append((job, where))
        elif reservations is None or len(reserved) < reservations:
            slot = profile.earliest(demand, seconds, None, scoring, home)
            if slot is not None:
                profile.reserve(demand, slot, seconds)
                reserved.append(Reserved(job, slot.start_s, slot.where))
    return Backfilled(starts, reserved)

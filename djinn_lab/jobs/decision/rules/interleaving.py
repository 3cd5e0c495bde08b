"""Which brief jobs run between two ops of a longer one, in its worker process, in place of preempting it.

A preemption costs two round trips between the pool and the worker, and the device idles meanwhile. For a
job that takes less than that, the longer one stays where it is. The brief one holds no capacity. It is
started only where the policy would start it now, or would preempt the longer one for it, so order, shares
and limits are what they were; but of the policy's minimum run time it waits for no more than
:data:`BRIEF_S`, since the longer one loses nothing. Jobs of other processes do not start beside it.

A longer job gives at most half of its time: then brief jobs preempt it as all others do."""

from __future__ import annotations

from djinn_lab.jobs.decision.plan import Preemption
from djinn_lab.jobs.decision.trial import Trial
from djinn_lab.jobs.placement import Placed
from djinn_lab.jobs.request import Holding, Request

BRIEF_S = 0.02
"""A segment that is expected to run no longer may be interleaved."""
OVERDUE_S = 1.0
"""An interleaved segment that has not ended after this time is preempted."""
JOBS_MAX = 16
"""So many jobs are interleaved on one device at once."""
SHARE_MAX = 0.5
"""This part of the time of a longer job is for interleaved ones at most."""


def joins_free(trial: Trial, request: Request, placed: Placed) -> bool:
    """Return whether a brief request that could start at its home leaves the device to one that waits, and
    runs between the ops of that. With no other request waiting it starts as any other."""
    waiting = len(trial.cluster.waiting) - len(trial.starts) - len(trial.interleavings)
    if not request.brief or waiting < 2 or placed.where != ((request.home, 1),):
        return False
    return _has_room(trial, placed.where[0][0])


def longer_at_home(trial: Trial, request: Request) -> Holding | None:
    """Return the job that a brief request finds alone at its home, between whose ops it may run."""
    if not request.brief or request.home is None or request.demand.members != 1:
        return None
    running = list(trial.cluster.on_node.get(request.home, {}).values())
    return running[0] if len(running) == 1 and _may_join(trial, request, running[0], request.home) else None


def joins_running(trial: Trial, request: Request, found: Preemption) -> bool:
    """Return whether a brief request runs between two ops of the job that it could preempt."""
    if not request.brief or found.where != ((request.home, 1),) or len(found.victims) != 1:
        return False
    holding = trial.cluster.holdings[found.victims[0]]
    return found.causes[0] != "reservation" and _may_join(trial, request, holding, found.where[0][0])


def _may_join(trial: Trial, request: Request, holding: Holding, node: str) -> bool:
    same = holding.request.process == request.process
    return same and _has_room(trial, node) and _has_time(trial, holding)


def _has_room(trial: Trial, node: str) -> bool:
    running = sum(one.node == node for one in trial.cluster.interleaved.values())
    return running + sum(one.node == node for one in trial.interleavings) < JOBS_MAX


def _has_time(trial: Trial, holding: Holding) -> bool:
    return holding.interleaved_s <= SHARE_MAX * (trial.now_s - holding.started_s)

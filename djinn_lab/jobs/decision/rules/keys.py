"""Order keys, all of them: what a request is compared by, waiting or running alike.

A running job keeps the keys that it would have if it waited. That makes preemption stable: a job that was
preempted because of a key still has the worse key at that moment."""

from __future__ import annotations

import math
from bisect import bisect_right

from djinn_lab.jobs.decision.rules.policy import QueuePolicy
from djinn_lab.jobs.request import WHOLE_DEVICE_MILLI, Demand, Holding, Request, left_s, members_in

Key = tuple[float, int]


def devices_of(demand: Demand, members: int) -> float:
    """Return the devices that so many members hold."""
    return members * demand.device_milli / 1000


def estimate_s(request: Request, policy: QueuePolicy) -> float:
    return policy.unknown_s if request.estimate_s is None else request.estimate_s


def within_key(request: Request, policy: QueuePolicy) -> Key:
    """Return the key among requests of one rank and account
    (:data:`~djinn_lab.jobs.decision.rules.policy.Within`)."""
    match policy.within:
        case "arrival":
            return (0.0, request.number)
        case "remaining" | "work":
            work_s = estimate_s(request, policy) * weight(request.demand, policy)
            if policy.passing_stretch is None:
                return (work_s, request.number)
            return (request.arrived_s + policy.passing_stretch * work_s, request.number)
        case "service":
            devices = devices_of(request.demand, request.demand.members)
            return (estimate_s(request, policy) * devices, request.number)
        case "attained":
            return (float(bisect_right(policy.attained_limits_s, request.attained_s)), request.number)


def weight(demand: Demand, policy: QueuePolicy) -> float:
    """Return what a second of the request counts when jobs, waiting or running, are compared for
    shortness."""
    if policy.within != "work" or (demand.members == 1 and demand.device_milli == WHOLE_DEVICE_MILLI):
        return 1.0
    return math.sqrt(devices_of(demand, demand.members))


def steps(request: Request, policy: QueuePolicy, now_s: float) -> int:
    """Return by how many ranks age and deadline raise the request, whether it waits or runs."""
    if policy.age_step_s is None:
        return 0
    waited_s = now_s - request.arrived_s
    aged = int(waited_s / _age_step_s(request, policy)) if waited_s >= policy.age_step_s else 0
    urgent = request.deadline_s is not None and now_s >= _urgent_from(request, policy)
    return min(policy.age_ranks_max, aged + urgent)


def raised_from_s(request: Request, policy: QueuePolicy) -> float:
    """Return when :func:`steps` is above 0 at the earliest, up to rounding; infinite when never."""
    if policy.age_step_s is None:
        return math.inf
    aged_s = request.arrived_s + _age_step_s(request, policy)
    return aged_s if request.deadline_s is None else min(aged_s, _urgent_from(request, policy))


def effective_rank(request: Request, policy: QueuePolicy, now_s: float) -> int:
    """Return the rank with age and deadline; never 0 unless the request's own rank is 0."""
    if not policy.by_rank:
        return 0
    rank = request.rank
    if rank <= 1:
        return rank
    raised = rank - steps(request, policy, now_s)
    return raised if raised > 1 else 1


def next_rank_change_s(request: Request, policy: QueuePolicy, now_s: float) -> float:
    """Return when :func:`effective_rank` changes by itself, infinite when never."""
    if policy.age_step_s is None or not policy.by_rank or effective_rank(request, policy, now_s) <= 1:
        return math.inf
    if steps(request, policy, now_s) >= policy.age_ranks_max:
        return math.inf
    step_s = _age_step_s(request, policy)
    aged = int(max(0.0, now_s - request.arrived_s) / step_s)
    change_s = request.arrived_s + (aged + 1) * step_s
    while change_s <= now_s:
        change_s = math.nextafter(change_s, math.inf)
    if request.deadline_s is not None and now_s < _urgent_from(request, policy):
        change_s = min(change_s, _urgent_from(request, policy))
    return change_s


def _age_step_s(request: Request, policy: QueuePolicy) -> float:
    """Return the ageing step. A preemption does not change the total run time, so neither the rank."""
    assert policy.age_step_s is not None
    devices = devices_of(request.demand, request.demand.members)
    had_s = request.attained_s / devices if devices else 0.0
    return policy.age_step_s + policy.age_stretch * (estimate_s(request, policy) + had_s)


def _urgent_from(request: Request, policy: QueuePolicy) -> float:
    assert request.deadline_s is not None
    return request.deadline_s - estimate_s(request, policy) * request.spread - policy.deadline_slack_s


def remaining_s(holding: Holding, policy: QueuePolicy, now_s: float) -> float:
    """Return the predicted run time left."""
    estimate_s = policy.unknown_s if holding.ends_s is None else holding.ends_s - holding.started_s
    return left_s(estimate_s, now_s - holding.started_s)


def attained_queue(holding: Holding, policy: QueuePolicy, now_s: float) -> int:
    """Return the queue of a running job, as :func:`within_key` has it for waiting ones."""
    return bisect_right(policy.attained_limits_s, attained_s(holding, now_s))


def attained_s(holding: Holding, now_s: float) -> float:
    """Return the device-seconds until now."""
    members = members_in(holding.where)
    had = devices_of(holding.request.demand, members) * max(0.0, now_s - holding.started_s)
    return holding.request.attained_s + had

"""The queue in the API: pending jobs and why they wait, running jobs, usage of every account."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from djinn_lab.jobs import PENDING_STATES, Job, JobState
from djinn_lab.jobs.decision import (
    CalendarReservation,
    Change,
    Cluster,
    DecisionSnapshot,
    Explanation,
    Guarantees,
    JobQos,
    Outlook,
    QosClass,
    WhatIf,
    class_sentence,
    error_sentence,
    forecast,
    sentence,
    sentence_with_start,
    what_if,
    why_no_start,
    with_short_ids,
)
from djinn_lab.jobs.fairness import ShareTree, jain
from djinn_lab.jobs.request import devices_away
from djinn_lab.jobs.start_forecasts import StartSkill
from djinn_lab.protocol.rest.queue import (
    DecisionTimes,
    QueueView,
    RunningJob,
    WaitingJob,
    WhatIfAnswer,
    WhyAnswer,
)
from djinn_lab.units import format_seconds

EXPLAINED_MAX = 200
_NO_START = {JobState.RESTORING: "it waits for memory"} | dict.fromkeys(
    PENDING_STATES, "after its notebook’s other cells"
)
"""Why no start is predicted of jobs that do not contend, by state."""


def report(
    queue_jobs: Sequence[Job],
    snapshot: DecisionSnapshot,
    others: tuple[int, Sequence[tuple[Job, str]]],
    decisions: DecisionTimes | None,
    lag_s: float,
    skill: StartSkill,
    decided_s: float | None,
    unusual: Mapping[str, str],
    new_accounts: Collection[str] = (),
) -> QueueView:
    """Takes a while with many jobs, and reads nothing but its arguments: for another thread. ``queue_jobs``:
    those that run, and of those that contend the first. ``others``: how many wait without contending, and the
    first of them with what they wait for. ``unusual``: by running job, what is. ``new_accounts``: to list
    though no cell was ever charged to them."""
    cluster, shares = _restored(snapshot, decided_s)
    outlook = Outlook(cluster, shares, snapshot.policy, snapshot.now_s)
    known = {job.job: job for job in queue_jobs}
    explained = [outlook.explain(name, advise=False) for name in list(cluster.waiting)[:EXPLAINED_MAX]]
    explained.sort(key=lambda one: (one.position is None, one.position))
    qos_by_job = _qos_by_job(cluster, shares)
    waiting = [_waiting(known[one.job], one, skill, qos_by_job) for one in explained if one.job in known]
    now_s = snapshot.now_s
    waiting += [_plain(job, why, now_s) for job, why in others[1][: EXPLAINED_MAX - len(waiting)]]
    away = devices_away(cluster.nodes.values())
    views = shares.view(snapshot.now_s, away)
    levels = [view.level for view in views if view.rank is not None]
    if not {view.account for view in views if view.rank is not None}.issuperset(new_accounts):
        shares.register(dict.fromkeys(new_accounts).keys())
        views = shares.view(snapshot.now_s, away)
    return QueueView(
        now=snapshot.now_s,
        policy=snapshot.policy.name,
        policy_version=snapshot.policy.version,
        decided_at=decided_s,
        decisions=decisions,
        event_loop_lag_s=lag_s,
        waiting_count=len(cluster.waiting) + others[0],
        waiting=tuple(waiting),
        running=tuple(
            _running(job, cluster, unusual.get(job.job, ""), qos_by_job, now_s)
            for job in queue_jobs
            if job.state is JobState.RUNNING
        ),
        accounts=tuple(views),
        reservations=tuple(lasting(cluster.calendar.values(), snapshot.now_s)),
        cordoned=tuple(sorted(node.node for node in cluster.nodes.values() if node.cordoned)),
        jain=jain(levels) if any(levels) else None,
        estimate_error=skill.error,
    )


def lasting(entries: Iterable[CalendarReservation], now_s: float) -> list[CalendarReservation]:
    """List the reservations that are not over, by name."""
    return sorted((one for one in entries if one.ends_s > now_s), key=lambda one: one.name)


def why(
    job: Job, plain: str, snapshot: DecisionSnapshot, decided_s: float | None, skill: StartSkill
) -> WhyAnswer:
    """``plain``: what the queue says without computing anything."""
    waits = any(request.job == job.job for request in snapshot.cluster.waiting)
    guarantees = any(known.limits.devices_guaranteed for known in snapshot.shares.accounts)
    if not waits and not (guarantees and job.state is JobState.RUNNING):
        return WhyAnswer(job.job, job.state, plain, None, None)
    cluster, shares = _restored(snapshot, decided_s)
    qos = _qos_by_job(cluster, shares).get(job.job)
    by_class = "" if qos is None else f" {class_sentence(qos)}"
    if not waits:
        return WhyAnswer(job.job, job.state, plain + by_class, None, None, qos)
    outlook = Outlook(cluster, shares, snapshot.policy, snapshot.now_s, job=job.job)
    found = outlook.explain(job.job)
    if qos is not None and qos.qos_class is QosClass.GUARANTEED:
        short = shares.short_of_devices(devices_away(cluster.nodes.values()))
        by_class += f" {short}" if short else ""
    preempted = f"Preempted: {job.message}. " if job.state is JobState.PREEMPTED and job.message else ""
    text = f"{preempted}{_reason(job, found, skill)}{by_class}"
    return WhyAnswer(job.job, job.state, text, found, snapshot.digest, qos)


def changed(
    job: Job, change: Change, snapshot: DecisionSnapshot, decided_s: float | None, skill: StartSkill
) -> WhatIfAnswer:
    """Answer a what-if question. Raises ValueError for an impossible request, KeyError for a job that does
    not contend."""
    cluster, shares = _restored(snapshot, decided_s)
    found = what_if(
        cluster, shares, snapshot.policy, snapshot.now_s, job.job, **msgspec.structs.asdict(change)
    )
    now_s = snapshot.now_s
    before_s = None if found.start_s is None else max(0.0, found.start_s - now_s)
    after_s = None if found.changed_start_s is None else max(0.0, found.changed_start_s - now_s)
    refused = None
    if found.refused is not None:
        whose = f"account {found.refused.account}" if found.refused.account else "the pool"
        refused = f"{whose} has a limit of {found.refused.limit:g} ({found.refused.kind})"
    return WhatIfAnswer(
        job.job,
        before_s,
        after_s,
        refused,
        _when_memory(job)
        if cluster.waiting[job.job].stuck and refused is None
        else f"{_compare(found, before_s, after_s, refused)} {error_sentence(skill.error)}",
        skill.error,
    )


def expected_starts(snapshot: DecisionSnapshot) -> dict[str, tuple[int, float]]:
    """Rank and start of those that wait, as far as can be foreseen; seconds since the epoch. For another
    thread."""
    cluster, shares = _restored(snapshot, None)
    found = forecast(cluster, shares, snapshot.policy, snapshot.now_s)
    ranks = {request.job: request.rank for request in snapshot.cluster.waiting}
    return {job: (ranks[job], at_s) for job, (at_s, _) in found.starts.items()}


def _restored(snapshot: DecisionSnapshot, decided_s: float | None) -> tuple[Cluster, ShareTree]:
    cluster = Cluster.restored(snapshot.cluster, snapshot.now_s)
    cluster.decided_s = decided_s
    return cluster, ShareTree(snapshot.shares)


def _qos_by_job(cluster: Cluster, shares: ShareTree) -> dict[str, JobQos]:
    """Classify the jobs that contend or run; none where no account is guaranteed devices."""
    if not shares.guarantees:
        return {}
    guarantees = Guarantees(cluster, shares)
    running = (holding.request for holding in cluster.holdings.values())
    return {request.job: guarantees.qos_of(request) for request in (*cluster.waiting.values(), *running)}


def _qos(job: Job, qos_by_job: Mapping[str, JobQos]) -> str:
    found = qos_by_job.get(job.job)
    return "" if found is None else found.qos_class


def _waiting(job: Job, found: Explanation, skill: StartSkill, qos_by_job: Mapping[str, JobQos]) -> WaitingJob:
    expected_at = None
    if found.expected_s is not None:
        start = skill.forecast(found.job, found.rank, max(0.0, found.expected_s - found.now_s), found.now_s)
        expected_at = found.now_s + start.wait_s if start is not None and start.reliable else None
    row = _row(job, found.reason, _reason(job, found, skill), found.now_s, found.position, expected_at)
    why = with_short_ids(sentence(found, with_start=False, memory=job.memory_reason.rstrip(".")))
    unpredicted = why_no_start(found, skill) if expected_at is None else ""
    return msgspec.structs.replace(row, why=why, qos=_qos(job, qos_by_job), unpredicted=unpredicted)


def _reason(job: Job, found: Explanation, skill: StartSkill) -> str:
    """Say why a job waits: first what session memory says."""
    return sentence_with_start(found, skill, job.memory_reason.rstrip("."))


def _plain(job: Job, why: str, now_s: float) -> WaitingJob:
    row = _row(job, "session_order" if job.state in PENDING_STATES else job.state.lower(), why, now_s)
    return msgspec.structs.replace(
        row, unpredicted=f"unknown: {_NO_START.get(job.state, 'no device can take it yet')}"
    )


def _row(
    job: Job,
    reason: str,
    why: str,
    now_s: float,
    position: int | None = None,
    expected_at: float | None = None,
) -> WaitingJob:
    return WaitingJob(
        job=job.job,
        user=job.user,
        account=job.account,
        priority=job.priority,
        state=job.state,
        device=job.assigned_device,
        position=position,
        reason=reason,
        sentence=why,
        why=why,
        since=max(job.segment_at_s, job.preempted_at_s or 0.0),
        waited_s=max(0.0, now_s - job.submitted_at_s - job.ran_s),
        expected_at=expected_at,
    )


def _running(
    job: Job, cluster: Cluster, unusual: str, qos_by_job: Mapping[str, JobQos], now_s: float
) -> RunningJob:
    held = cluster.holdings.get(job.job)
    ends_s = held.ends_s if held is not None else None
    unpredicted = ""
    if not job.final:
        ends_s, unpredicted = None, "unknown: more of the cell may come"
    elif ends_s is not None and ends_s <= now_s:
        ends_s, unpredicted = None, "unknown: longer than predicted"
    return RunningJob(
        job=job.job,
        user=job.user,
        account=job.account,
        priority=job.priority,
        device=job.assigned_device,
        since=job.running_since_s,
        ends_at=ends_s,
        unpredicted=unpredicted,
        preempting=job.preempting and not job.cancelling,
        preemptions=job.preemptions,
        members=job.members,
        unusual=unusual,
        qos=_qos(job, qos_by_job),
        ran_s=job.ran_s,
    )


def _when_memory(job: Job) -> str:
    """Answer for a job that waits for memory, which may be freed at any moment."""
    return f"When it starts with that cannot be predicted, since it waits for memory. {job.memory_reason}"


def _compare(found: WhatIf, before_s: float | None, after_s: float | None, refused: str | None) -> str:
    if refused is not None:
        return f"That is not allowed: {refused}."
    if after_s is None:
        return "With that it would not start by itself, as things are."
    now = f"it would start in {format_seconds(after_s)}"
    if before_s is None:
        return f"With that {now}; as it is, it does not start by itself."
    if found.sooner_s > 0:
        return f"With that {now}, {format_seconds(found.sooner_s)} sooner."
    return f"With that {now}, which is no sooner than as it is."

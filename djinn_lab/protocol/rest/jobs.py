"""``/v1/jobs`` and ``/v1/usage``: cell jobs, their events, what they used."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from djinn_lab.jobs.messages import Event
from djinn_lab.jobs.resources import ResourceForecast
from djinn_lab.protocol.messages import FETCH_CELL, ErrorInfo

FINISHED_STATES = frozenset({"DONE", "FAILED", "CANCELLED"})
UNFINISHED = "UNFINISHED"
"""In a query of jobs: every state before the end."""
FIND_CHARS_MAX = 200


class JobCut(msgspec.Struct, frozen=True):
    """Say why what was recorded up to segment number ``segment`` was sent: the cause, and the cell's line.
    The segments since the cut before were sent ahead."""

    segment: int
    cause: str
    line: int


class JobView(msgspec.Struct, frozen=True):
    """Show a job. ``stages``: seconds, summed over all segments. ``checkpoints``: that it announced, in
    order. ``placed``: how its profile changed the choice of its session's first device.
    ``predicted``: its predicted use when its first segment came. ``watts``: what its device
    draws, as operators say. ``used_j``: energy used so far by that; None where the watts of a device that it
    held are unknown. ``ran_s``: seconds that devices ran it before ``running_since``, None of a pool that did
    not count them; see :meth:`run_s`."""

    job: str
    session: str = ""
    user: str = ""
    cell: str = ""
    priority: str = ""
    state: str = ""
    reason: str = ""
    device: str | None = None
    position: int | None = None
    estimate_s: float | None = None
    submitted_at: float = 0.0
    started_at: float | None = None
    finished_at: float | None = None
    segments: int = 0
    ops_done: int = 0
    ops_total: int = 0
    stages: dict[str, float] = {}
    cuts: tuple[JobCut, ...] = ()
    error: ErrorInfo | None = None
    peak_bytes: int = 0
    predicted_s: float | None = None
    predicted_spread: float | None = None
    measured_s: float | None = None
    gang: str = ""
    placed: str = ""
    checkpoints: tuple[str, ...] = ()
    predicted: ResourceForecast | None = None
    watts: float | None = None
    used_j: float | None = None
    ran_s: float | None = None
    running_since: float | None = None

    def waited_s(self, now: float) -> float | None:
        """Return the seconds in the queue, and those in which its state was restored, until it started or,
        before, until now. Those while it was preempted do not count."""
        if self.stages:
            return sum(self.stages.get(name, 0.0) for name in ("queued", "restoring"))
        if not self.submitted_at or (self.finished and self.started_at is None):
            return None
        return max(0.0, (now if self.started_at is None else self.started_at) - self.submitted_at)

    @property
    def preempted_s(self) -> float:
        """Return the seconds for which it was preempted."""
        return self.stages.get("preempted", 0.0)

    def run_s(self, now: float) -> float | None:
        """Return the seconds for which devices have run it by then; None before it first started. Time in
        the queue, preempted or restoring does not count."""
        if self.ran_s is None:
            return self.measured_s
        if self.running_since is None:
            return None if self.started_at is None else self.ran_s
        ended = now if self.finished_at is None else self.finished_at
        return self.ran_s + max(0.0, ended - self.running_since)

    @property
    def is_fetch(self) -> bool:
        """Return whether the job is no cell: it fetched values that a line between two cells asked for, or
        views of them."""
        return self.cell == FETCH_CELL

    @property
    def predicted_run_s(self) -> float | None:
        """Return the predicted device seconds of the whole cell; None where only parts of it were predicted.
        ``predicted_s`` is that of its last segment."""
        return predicted_run_s(self.predicted, self.segments, self.predicted_s)

    @property
    def grows(self) -> bool:
        """Return whether ``ops_total`` is only what a cell that is sent in parts has sent so far."""
        return self.segments > 1 and not self.finished

    @property
    def failure(self) -> ErrorInfo | None:
        """Return the error of a job that failed. That of a cancelled one only repeats its reason."""
        return self.error if self.state == "FAILED" else None

    @property
    def finished(self) -> bool:
        return self.state in FINISHED_STATES

    @property
    def short_id(self) -> str:
        return self.job[:8]


def predicted_run_s(
    predicted: ResourceForecast | None, segments: int, last_segment_s: float | None
) -> float | None:
    """Return the predicted device seconds of a whole cell. ``predicted``: when its first segment came, from
    earlier runs of the whole cell, or from the graph of that segment. ``last_segment_s``: of its last one."""
    if predicted is not None and predicted.device_s is not None and (predicted.runs or segments <= 1):
        return predicted.device_s
    return last_segment_s if segments == 1 else None


def matches_text(job: JobView, text: str, notebooks: Mapping[str, str]) -> bool:
    """Return whether the user, cell, notebook or id of a job has a text in it, of capital or small letters.
    ``notebooks``: names by session."""
    wanted = text.strip().lower()
    parts = (job.user, job.cell, job.job, notebooks.get(job.session, ""))
    return not wanted or any(wanted in part.lower() for part in parts)


class JobPage(msgspec.Struct, frozen=True):
    """Show one part of the jobs that match a query. ``jobs``: that part, newest first; ``newer``: how many
    that match are newer; ``matching``: how many match in all. Where the query names no state, these are jobs
    that have ended, and ``unfinished`` has the newest of the others, of which ``unfinished_matching``
    match."""

    jobs: tuple[JobView, ...]
    matching: int
    newer: int = 0
    unfinished: tuple[JobView, ...] = ()
    unfinished_matching: int = 0

    @property
    def older(self) -> int:
        """Return how many jobs that match are older than this part."""
        return max(0, self.matching - self.newer - len(self.jobs))


class JobEvent(msgspec.Struct, frozen=True):
    """Show an event that the queue handled for a job. ``detail``: its fields, as in
    :mod:`djinn_lab.jobs.messages`."""

    at: float
    event: str
    detail: dict[str, Any] = {}


def job_events(job: str, story: Iterable[Event]) -> tuple[JobEvent, ...]:
    """Show the events of a job's story, without those of other jobs that changed something for it: they name
    sessions of other users."""
    return tuple(
        JobEvent(event.at_s, type(event).__name__, msgspec.to_builtins(event))
        for event in story
        if getattr(event, "job", job) == job
    )


class JobDetail(JobView, frozen=True):
    """Show a job with the cell's source, for its owner, and its events while the pool remembers them."""

    code: str = ""
    events: tuple[JobEvent, ...] = ()


class JobUsage(msgspec.Struct, frozen=True):
    """Show what an ended job used. ``run_s``: on devices, over all its stretches there. ``stretches``: more
    than its segments when it was preempted. ``predicted_s``: of the whole cell, None where only parts of it
    were predicted. ``used_j``: energy, estimated from what operators say that devices draw; None where they
    say nothing."""

    job: str
    user: str
    account: str
    priority: str
    submitted_at: float
    run_s: float
    stretches: int
    memory_byte_s: float
    transfer_bytes: float
    predicted_s: float | None = None
    used_j: float | None = None

"""The states of a job, and the table of every transition.

Theory of operation
-------------------
A *job* is one cell. Its client sends it as 1..n *segments*; each is answered before the next is sent. Only a
segment holds a device: between segments the job is WAITING and the device serves other jobs.

A *session* is bound to a device at its first segment, because its values live there. The device is the one
with the fewest bound sessions and queued jobs; ties go by name. Losing the device unbinds the session, and
its values are lost. A decision may bind the session to another device, and its state moves there.

A device runs one segment at a time. :func:`djinn_lab.jobs.decision.decide` chooses which one is next,
where, and which victims are preempted for it, among one job of each session
(:mod:`djinn_lab.jobs.machine.dispatcher`). Within a session segments run in the order of arrival, whatever
their priorities, since later ones read what earlier ones made. A job keeps its queue position with its next
segment, so that a cell with many cuts does not start over.

A running segment can be *preempted*. It stops between two ops, keeps its results among its session's
values, and is PREEMPTED: pending again, behind its preemptor. Where and when it starts again, it resumes
from that op. If it ends before it saw the request, nothing happened.

A segment may have to wait for session memory (:mod:`djinn_lab.memory`): its session's state lies on the
host, or the device's memory is full. Such a job is RESTORING, not pending, and other jobs may start before
it.

A job of an earlier run of the pool, which was killed, returns as WAITING: its client sends the segment again
that was not answered.

Nothing here reads a clock: every event carries its own time. An event that the table does not allow raises
:class:`IllegalEvent` and changes nothing.

::


                                           RESTORING ◄─────────────┐
                                        defer ▲ │ grant             │ defer
                    submit            bind    │ ▼          start    │  preempt
      (new) ───────────────► SUBMITTED ─────► QUEUED ──────► RUNNING ──────► PREEMPTED
                                 ▲  ◄──────────┘                │  ◄───────────┘
                        submit   │    unbind                    │ more   start
                                 └────────── WAITING ◄──────────┘
      every state but the last three ── finish, fail, cancel ──► DONE, FAILED, CANCELLED"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class JobState(StrEnum):
    SUBMITTED = "SUBMITTED"
    """Accepted; no device can take the job yet."""
    RESTORING = "RESTORING"
    """The session's state is being restored to the device, or the job waits for a memory grant there. A pool
    shows it as QUEUED where there is nothing to restore."""
    QUEUED = "QUEUED"
    """Pending in a device's queue."""
    RUNNING = "RUNNING"
    PREEMPTED = "PREEMPTED"
    """Stopped between two ops; pending in a device's queue, or about to ask for memory again."""
    WAITING = "WAITING"
    """Waiting for the client's next segment."""
    DONE = "DONE"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class Priority(StrEnum):
    """Highest first."""

    CRITICAL = "CRITICAL"
    HIGH = "HIGH"
    NORMAL = "NORMAL"
    LOW = "LOW"
    SCAVENGER = "SCAVENGER"


class JobTransition(StrEnum):
    """A transition of a job; one event may cause several."""

    SUBMIT = "submit"
    BIND = "bind"
    UNBIND = "unbind"
    DEFER = "defer"
    GRANT = "grant"
    START = "start"
    PREEMPT = "preempt"
    MORE = "more"
    ASK_STOP = "ask_stop"
    FINISH = "finish"
    FAIL = "fail"
    CANCEL = "cancel"
    RETURN = "return"
    """The job is one of an earlier run of the pool, which was killed."""


TRANSITIONS: Mapping[tuple[JobState | None, JobTransition], JobState] = {
    (None, JobTransition.SUBMIT): JobState.SUBMITTED,
    (None, JobTransition.FAIL): JobState.FAILED,
    (None, JobTransition.MORE): JobState.WAITING,
    (None, JobTransition.RETURN): JobState.WAITING,
    (JobState.SUBMITTED, JobTransition.BIND): JobState.QUEUED,
    (JobState.SUBMITTED, JobTransition.FAIL): JobState.FAILED,
    (JobState.SUBMITTED, JobTransition.CANCEL): JobState.CANCELLED,
    (JobState.QUEUED, JobTransition.DEFER): JobState.RESTORING,
    (JobState.RESTORING, JobTransition.GRANT): JobState.QUEUED,
    (JobState.RESTORING, JobTransition.UNBIND): JobState.SUBMITTED,
    (JobState.RESTORING, JobTransition.MORE): JobState.WAITING,
    (JobState.RESTORING, JobTransition.FAIL): JobState.FAILED,
    (JobState.RESTORING, JobTransition.CANCEL): JobState.CANCELLED,
    (JobState.QUEUED, JobTransition.START): JobState.RUNNING,
    (JobState.QUEUED, JobTransition.UNBIND): JobState.SUBMITTED,
    (JobState.QUEUED, JobTransition.FAIL): JobState.FAILED,
    (JobState.QUEUED, JobTransition.CANCEL): JobState.CANCELLED,
    (JobState.RUNNING, JobTransition.MORE): JobState.WAITING,
    (JobState.RUNNING, JobTransition.ASK_STOP): JobState.RUNNING,
    (JobState.RUNNING, JobTransition.PREEMPT): JobState.PREEMPTED,
    (JobState.PREEMPTED, JobTransition.DEFER): JobState.RESTORING,
    (JobState.PREEMPTED, JobTransition.START): JobState.RUNNING,
    (JobState.PREEMPTED, JobTransition.UNBIND): JobState.SUBMITTED,
    (JobState.PREEMPTED, JobTransition.MORE): JobState.WAITING,
    (JobState.PREEMPTED, JobTransition.FAIL): JobState.FAILED,
    (JobState.PREEMPTED, JobTransition.CANCEL): JobState.CANCELLED,
    (JobState.RUNNING, JobTransition.FINISH): JobState.DONE,
    (JobState.RUNNING, JobTransition.FAIL): JobState.FAILED,
    (JobState.RUNNING, JobTransition.CANCEL): JobState.CANCELLED,
    (JobState.WAITING, JobTransition.SUBMIT): JobState.SUBMITTED,
    (JobState.WAITING, JobTransition.MORE): JobState.WAITING,
    (JobState.WAITING, JobTransition.FINISH): JobState.DONE,
    (JobState.WAITING, JobTransition.FAIL): JobState.FAILED,
    (JobState.WAITING, JobTransition.CANCEL): JobState.CANCELLED,
}
"""Next state by state and transition; a missing pair is illegal."""

PENDING_STATES = (JobState.QUEUED, JobState.PREEMPTED)
"""States in which a job has a position in a device's queue. A tuple, since the order of a set differs from
process to process, and a replay would decide differently."""
CONTENDING = (*PENDING_STATES, JobState.RESTORING)
"""States in which a job is assigned to a device and wants to run there."""
FINISHED = frozenset({JobState.DONE, JobState.FAILED, JobState.CANCELLED})
RANKS: Mapping[str, int] = {priority: rank for rank, priority in enumerate(Priority)}

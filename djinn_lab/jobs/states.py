"""The states of a job, and the table of every transition.

Theory of operation
-------------------
A *job* is one cell. Its client sends it as 1..n *segments*; each is answered before the next is sent. Only a
segment holds a device: between segments the job is WAITING and the device serves others.

A *session* is bound to a device at its first segment, because its values live there: the device with the
fewest bound sessions and queued jobs, ties by name. Losing the device unbinds it (the values are gone too).
A decision may bind it to another, and its state moves.

A device runs one segment at a time. Which one is next, where, and who moves aside for it, is decided by
:func:`djinn_lab.jobs.decision.decide` among one job of each session (:mod:`djinn_lab.jobs.contest`): within a
session segments run in the order they came, whatever their priorities, since later ones read what earlier
ones made. A job keeps its place with its next segment, so that a cell with many cuts does not start over.

A running segment can be asked to *move aside*. It stops between two ops, keeps what it computed among its
session's values, and is PREEMPTED: in line again, behind whom it made room for. Where and when it starts
again it goes on from that op. If it ends before it saw the request, nothing happened.

A segment may have to wait for session memory (:mod:`djinn_lab.memory`): its session's state lies on the
host, or the device has no room. It is RESTORING then, outside the line, and others pass it.

Nothing here knows a clock: every event carries its own time. An event that the table does not allow raises
:class:`IllegalEvent` and changes nothing.

::

                                           RESTORING ◄─────────────┐
                                         hold ▲ │ grant             │ hold
                    submit            bind    │ ▼          start    │  preempt
      (new) ───────────────► SUBMITTED ─────► QUEUED ──────► RUNNING ──────► PREEMPTED
                                 ▲  ◄──────────┘                │  ◄───────────┘
                        submit   │    unbind                    │ more   start
                                 └────────── WAITING ◄──────────┘
      every state but the last three ── finish, fail, cancel ──► DONE, FAILED, CANCELLED
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class JobState(StrEnum):
    SUBMITTED = "SUBMITTED"
    """Accepted; no device can take it yet."""
    RESTORING = "RESTORING"
    """Its session's state is brought to the device, or it waits for room there."""
    QUEUED = "QUEUED"
    """In a device's line."""
    RUNNING = "RUNNING"
    PREEMPTED = "PREEMPTED"
    """Stopped between two ops; in a device's line, or about to ask for memory again."""
    WAITING = "WAITING"
    """For the client's next segment."""
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


class Move(StrEnum):
    """A step of a job; one event may cause several."""

    SUBMIT = "submit"
    BIND = "bind"
    UNBIND = "unbind"
    HOLD = "hold"
    GRANT = "grant"
    START = "start"
    PREEMPT = "preempt"
    MORE = "more"
    ASK_STOP = "ask_stop"
    FINISH = "finish"
    FAIL = "fail"
    CANCEL = "cancel"


TRANSITIONS: Mapping[tuple[JobState | None, Move], JobState] = {
    (None, Move.SUBMIT): JobState.SUBMITTED,
    (None, Move.FAIL): JobState.FAILED,
    (None, Move.MORE): JobState.WAITING,
    (JobState.SUBMITTED, Move.BIND): JobState.QUEUED,
    (JobState.SUBMITTED, Move.FAIL): JobState.FAILED,
    (JobState.SUBMITTED, Move.CANCEL): JobState.CANCELLED,
    (JobState.QUEUED, Move.HOLD): JobState.RESTORING,
    (JobState.RESTORING, Move.GRANT): JobState.QUEUED,
    (JobState.RESTORING, Move.UNBIND): JobState.SUBMITTED,
    (JobState.RESTORING, Move.MORE): JobState.WAITING,
    (JobState.RESTORING, Move.FAIL): JobState.FAILED,
    (JobState.RESTORING, Move.CANCEL): JobState.CANCELLED,
    (JobState.QUEUED, Move.START): JobState.RUNNING,
    (JobState.QUEUED, Move.UNBIND): JobState.SUBMITTED,
    (JobState.QUEUED, Move.FAIL): JobState.FAILED,
    (JobState.QUEUED, Move.CANCEL): JobState.CANCELLED,
    (JobState.RUNNING, Move.MORE): JobState.WAITING,
    (JobState.RUNNING, Move.ASK_STOP): JobState.RUNNING,
    (JobState.RUNNING, Move.PREEMPT): JobState.PREEMPTED,
    (JobState.PREEMPTED, Move.HOLD): JobState.RESTORING,
    (JobState.PREEMPTED, Move.START): JobState.RUNNING,
    (JobState.PREEMPTED, Move.UNBIND): JobState.SUBMITTED,
    (JobState.PREEMPTED, Move.MORE): JobState.WAITING,
    (JobState.PREEMPTED, Move.FAIL): JobState.FAILED,
    (JobState.PREEMPTED, Move.CANCEL): JobState.CANCELLED,
    (JobState.RUNNING, Move.FINISH): JobState.DONE,
    (JobState.RUNNING, Move.FAIL): JobState.FAILED,
    (JobState.RUNNING, Move.CANCEL): JobState.CANCELLED,
    (JobState.WAITING, Move.SUBMIT): JobState.SUBMITTED,
    (JobState.WAITING, Move.MORE): JobState.WAITING,
    (JobState.WAITING, Move.FINISH): JobState.DONE,
    (JobState.WAITING, Move.FAIL): JobState.FAILED,
    (JobState.WAITING, Move.CANCEL): JobState.CANCELLED,
}
"""State and move to next state; a missing pair is illegal."""

IN_LINE = (JobState.QUEUED, JobState.PREEMPTED)
"""States in which a job stands in a device's line. In order: the order of a set differs from process to
process, and with it what a replay would decide."""
CONTENDING = (*IN_LINE, JobState.RESTORING)
"""States in which a job is on a device and wants to run there."""
FINISHED = frozenset({JobState.DONE, JobState.FAILED, JobState.CANCELLED})
RANKS: Mapping[str, int] = {priority: rank for rank, priority in enumerate(Priority)}


class IllegalEvent(Exception):
    """An event that cannot happen in this state. ``fault``: ``"client"`` when a client's message can
    cause it, ``"pool"`` when only a bug of the pool or a worker can."""

    def __init__(self, message: str, fault: str) -> None:
        super().__init__(message)
        self.fault = fault

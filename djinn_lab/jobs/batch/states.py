"""The states of a notebook that runs as a batch job, and the table of every transition.

Theory of operation
-------------------
A *notebook* is run from its first cell to its last by a process of its own, the *runner*; each run is an
*attempt*. A pool has a number of *slots*, and each runner takes one. Who gets the next free slot is decided
by priority, then by whose user has the fewest running, then by whose user got a slot longest ago, then by
arrival. A notebook that comes ``after`` jobs which have not ended is not in that line yet.

How an attempt ends, the runner says; whether another follows, the notebook's restart policy
(:mod:`djinn_lab.jobs.batch.restarts`). Between two attempts it is BACKING_OFF, without a slot.

Cancelling, and a time limit, ask the runner to stop; the notebook is RUNNING and keeps its slot until the
runner is gone, so that never more runners live than there are slots. A runner that was through before it saw
the request has ended as it has ended.

When the server dies, its runners end with it. A server that starts finds the notebooks as they were stored:
those that wait go on waiting; one that was RUNNING has ended if its runner left word of it, and otherwise
it is run again, unless its policy is ``never``: so none of those runs twice.

::

                                 start            finish ───► DONE
       (new) ──────► QUEUED ──────────────► RUNNING ─ fail ──► FAILED
                       ▲  ◄────────────────    │
                       │       requeue         │ back_off
                       │                       ▼
                       └───────────────── BACKING_OFF
                              due
       every state but the last ones ── cancel ──► CANCELLED
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class NotebookState(StrEnum):
    QUEUED = "QUEUED"
    """Waits for a slot, or for jobs that it comes after."""
    RUNNING = "RUNNING"
    """Its runner is there, or is being started."""
    BACKING_OFF = "BACKING_OFF"
    """It ended and will run again after a while."""
    DONE = "DONE"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class Move(StrEnum):
    START = "start"
    FINISH = "finish"
    FAIL = "fail"
    BACK_OFF = "back_off"
    DUE = "due"
    REQUEUE = "requeue"
    """The server died while it ran."""
    CANCEL = "cancel"


OVER = frozenset({NotebookState.DONE, NotebookState.FAILED, NotebookState.CANCELLED})

_S = NotebookState
TRANSITIONS: Mapping[tuple[NotebookState, Move], NotebookState] = {
    (_S.QUEUED, Move.START): _S.RUNNING,
    (_S.RUNNING, Move.FINISH): _S.DONE,
    (_S.RUNNING, Move.FAIL): _S.FAILED,
    (_S.RUNNING, Move.BACK_OFF): _S.BACKING_OFF,
    (_S.RUNNING, Move.REQUEUE): _S.QUEUED,
    (_S.BACKING_OFF, Move.DUE): _S.QUEUED,
    (_S.QUEUED, Move.CANCEL): _S.CANCELLED,
    (_S.RUNNING, Move.CANCEL): _S.CANCELLED,
    (_S.BACKING_OFF, Move.CANCEL): _S.CANCELLED,
}
"""What is not here cannot happen."""

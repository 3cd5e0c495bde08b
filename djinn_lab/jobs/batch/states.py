"""The states of a notebook that runs as a batch job, and the table of every transition.

Theory of operation
-------------------
A *notebook* is run from its first cell to its last by a process of its own, the *runner*; each run is an
*attempt*. A pool has a number of *slots*, and each runner takes one. The next free slot goes to the best
priority, then to the user with the fewest running, then to the user who got a slot longest ago, then to the
first to arrive. A notebook with open dependencies is not in that queue yet.

The runner reports how an attempt ends; the notebook's restart policy
(:mod:`djinn_lab.jobs.batch.restarts`) decides whether another follows. Between two attempts it is
BACKING_OFF, without a slot.

Cancelling, and a time limit, ask the runner to stop. The notebook is RUNNING and keeps its slot until the
runner is gone, so that never more runners live than there are slots. A runner that finished before it saw
the request has ended as it has ended.

When the server dies, its runners end with it. A server that starts finds the notebooks as they were
stored. Pending notebooks stay pending. One that was RUNNING has ended if its runner recorded that;
otherwise it is run again, unless its policy is ``never``: so none of those runs twice.

::

                                 start            finish ───► DONE
       (new) ──────► QUEUED ──────────────► RUNNING ─ fail ──► FAILED
                       ▲  ◄────────────────    │
                       │       requeue         │ back_off
                       │                       ▼
                       └───────────────── BACKING_OFF
                              due
       every state but the last ones ── cancel ──► CANCELLED"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class NotebookState(StrEnum):
    QUEUED = "QUEUED"
    """Waits for a slot, or for its dependencies."""
    RUNNING = "RUNNING"
    """Its runner is there, or is being started."""
    BACKING_OFF = "BACKING_OFF"
    """Ended, and will run again after a pause."""
    DONE = "DONE"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class NotebookTransition(StrEnum):
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
TRANSITIONS: Mapping[tuple[NotebookState, NotebookTransition], NotebookState] = {
    (_S.QUEUED, NotebookTransition.START): _S.RUNNING,
    (_S.RUNNING, NotebookTransition.FINISH): _S.DONE,
    (_S.RUNNING, NotebookTransition.FAIL): _S.FAILED,
    (_S.RUNNING, NotebookTransition.BACK_OFF): _S.BACKING_OFF,
    (_S.RUNNING, NotebookTransition.REQUEUE): _S.QUEUED,
    (_S.BACKING_OFF, NotebookTransition.DUE): _S.QUEUED,
    (_S.QUEUED, NotebookTransition.CANCEL): _S.CANCELLED,
    (_S.RUNNING, NotebookTransition.CANCEL): _S.CANCELLED,
    (_S.BACKING_OFF, NotebookTransition.CANCEL): _S.CANCELLED,
}
"""Next state by state and transition; a missing pair cannot happen."""

"""One notebook as the core knows it."""

from __future__ import annotations

from typing import Any

import msgspec

from djinn_lab.jobs.batch.restarts import RestartRules
from djinn_lab.jobs.batch.states import OVER, NotebookState
from djinn_lab.jobs.conditions import Waited, Waiting
from djinn_lab.jobs.resources import Foretold, Use
from djinn_lab.jobs.states import RANKS


class Stopping(msgspec.Struct, frozen=True):
    """Why its runner was asked to stop. ``cancelled``: by a person, else by its time limit."""

    cancelled: bool
    message: str


class Notebook(msgspec.Struct, frozen=True):
    """``number``: order of arrival. ``priority``: one of :class:`djinn_lab.jobs.Priority`. ``waits_for``:
    what it comes after and that is not there yet (see :mod:`djinn_lab.jobs.conditions`), ``waited``: what
    became of the rest, ``after_timeout_s``: it waits so long. ``checkpoints``: that it announced, in this
    order, in any attempt. ``account``: the user's leaf of the share tree. ``timeout_s``: of run time, for
    each attempt.
    ``deadline_s``: when it should be done; handed to its cells, kills nothing. ``failures``: in a row.
    ``cell``: of ``cells`` code cells, the one that runs, ran last or failed (0: none yet). Times in seconds
    since the epoch."""

    job: str
    number: int
    user: str
    name: str
    submitted_at_s: float
    priority: str = "NORMAL"
    waits_for: tuple[str, ...] = ()
    restart: RestartRules = RestartRules()
    timeout_s: float | None = None
    deadline_s: float | None = None
    state: NotebookState = NotebookState.QUEUED
    reason: str = ""
    attempts: int = 0
    failures: int = 0
    started_at_s: float | None = None
    finished_at_s: float | None = None
    retry_at_s: float | None = None
    cell: int = 0
    cells: int = 0
    stopping: Stopping | None = None
    account: str = ""
    waited: Waited = Waited()
    after_timeout_s: float | None = None
    checkpoints: tuple[str, ...] = ()
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)
    """That it was given."""
    content: str = ""
    """Equal for those with the same code and parameters."""
    foretold: Foretold | None = None
    """What it was likely to take when it came; None where none like it ran before."""
    use: Use | None = None
    """What its last attempt took."""
    target: str | None = None
    """Where its cells run unless they say otherwise."""
    tolerates: tuple[str, ...] = ()
    """Taints of devices on which its cells run nevertheless."""

    @property
    def waiting(self) -> Waiting:
        """For what it comes after."""
        return Waiting(self.waits_for, self.waited)

    @property
    def gives_up_at_s(self) -> float | None:
        """When it has waited long enough for what it comes after."""
        waits = self.state is NotebookState.QUEUED and self.waits_for
        return self.submitted_at_s + self.after_timeout_s if waits and self.after_timeout_s else None

    @property
    def over(self) -> bool:
        return self.state in OVER

    @property
    def rank(self) -> int:
        """0 is CRITICAL."""
        return RANKS[self.priority]

    @property
    def ends_at_s(self) -> float | None:
        """When its time limit ends this attempt."""
        if self.timeout_s is None or self.started_at_s is None or self.state is not NotebookState.RUNNING:
            return None
        return self.started_at_s + self.timeout_s

"""Events and commands of the core of batch notebooks. Times in seconds since the epoch."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from djinn_lab.jobs.batch.notebook import BatchNotebook
from djinn_lab.jobs.batch.restarts import RestartRules
from djinn_lab.jobs.messages import CheckpointAnnounced, DataPublished
from djinn_lab.jobs.resources import ResourceUse
from djinn_lab.jobs.states import RANKS
from djinn_lab.jobs.terms import Terms


class AttemptOutcome(StrEnum):
    """How an attempt ended."""

    DONE = "done"
    FAILED = "failed"
    """A cell raised, or the kernel died."""
    STOPPED = "stopped"
    """The runner stopped as it was asked."""
    LOST = "lost"
    """The runner died, or could not be started."""


class Message(msgspec.Struct, frozen=True, tag=True):
    pass


class CellJobEnded(Message, frozen=True, tag=True):
    """A cell's job that a notebook may depend on has ended. ``checkpoints``: that it announced."""

    at_s: float
    job: str
    done: bool
    state: str
    checkpoints: tuple[str, ...] = ()


class Submission(Message, frozen=True, tag=True):
    """A user's request. ``after``: with whole ids, as :mod:`djinn_lab.jobs.conditions` has it; ``met``:
    conditions of it that are met and are about no notebook. ``cells``: the cells in it that have not
    ended, ``ended``: those that have. ``account``: the user's leaf of the share tree. ``deadline_s``: in
    seconds from now; ``after_timeout_s``: how long it waits for its dependencies. ``content``: equal for
    the same code and parameters. ``memory_bytes``: of the largest device; a notebook that needed more
    before is refused; None: it runs anyway. ``target`` and ``tolerates``: of its cells, where they do not
    say otherwise, as :class:`~djinn_lab.jobs.terms.Terms` has them."""

    at_s: float
    job: str
    user: str
    name: str
    priority: str = "NORMAL"
    after: tuple[str, ...] = ()
    cells: tuple[str, ...] = ()
    restart: RestartRules = RestartRules()
    timeout_s: float | None = None
    deadline_s: float | None = None
    met: tuple[str, ...] = ()
    ended: tuple[CellJobEnded, ...] = ()
    account: str = ""
    after_count: int | None = None
    after_timeout_s: float | None = None
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)
    content: str = ""
    memory_bytes: int | None = None
    target: str | None = None
    tolerates: tuple[str, ...] = ()

    def problem(self) -> str | None:
        """Return why no notebook can ask for this, None when one can."""
        if self.priority not in RANKS:
            return f"priority {self.priority!r} is none of {', '.join(RANKS)}"
        terms = Terms(
            after=self.after,
            deadline_s=self.deadline_s,
            timeout_s=self.timeout_s,
            after_count=self.after_count,
            after_timeout_s=self.after_timeout_s,
            target=self.target,
            tolerates=self.tolerates,
        )
        problem = terms.problem() or self.restart.problem()
        return None if problem is None else f"it asks for {problem}"


class NotebookAccepted(Message, frozen=True, tag=True):
    """The notebook was admitted, and is in the database. ``met``: conditions of its dependencies that are
    met by now and are about no notebook."""

    at_s: float
    notebook: BatchNotebook
    met: tuple[str, ...] = ()


class NotebookProgressed(Message, frozen=True, tag=True):
    """``cell`` of ``cells`` begins."""

    at_s: float
    job: str
    attempt: int
    cell: int
    cells: int


class NotebookEnded(Message, frozen=True, tag=True):
    """An attempt ended. ``message``: what went wrong, as the middle of a sentence. ``cell`` of ``cells``:
    the one that failed or was the last, None if none began. ``use``: of devices."""

    at_s: float
    job: str
    attempt: int
    outcome: AttemptOutcome
    message: str = ""
    cell: int | None = None
    cells: int | None = None
    use: ResourceUse | None = None


class CancelAsked(Message, frozen=True, tag=True):
    at_s: float
    job: str
    message: str


class TimePassed(Message, frozen=True, tag=True):
    at_s: float


class ServerStarted(Message, frozen=True, tag=True):
    """``notebooks``: as they were stored. ``ended``: of the attempts that were running then, those whose
    runners recorded how they ended."""

    at_s: float
    notebooks: tuple[BatchNotebook, ...]
    ended: tuple[NotebookEnded, ...] = ()


Event = (
    NotebookAccepted
    | NotebookProgressed
    | NotebookEnded
    | CellJobEnded
    | CheckpointAnnounced
    | DataPublished
    | CancelAsked
    | TimePassed
    | ServerStarted
)


class SaveNotebook(Message, frozen=True, tag=True):
    """Store the notebook before any later command is carried out."""

    notebook: BatchNotebook


class ForgetNotebook(Message, frozen=True, tag=True):
    """Drop the notebook: it has been over for longer than all that are kept."""

    job: str


class StartNotebook(Message, frozen=True, tag=True):
    job: str
    attempt: int


class StopNotebook(Message, frozen=True, tag=True):
    """Stop the runner, which answers with NotebookEnded."""

    job: str
    attempt: int


Command = SaveNotebook | ForgetNotebook | StartNotebook | StopNotebook

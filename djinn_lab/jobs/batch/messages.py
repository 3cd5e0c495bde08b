"""What the core of batch notebooks is told, and what it tells to do. Times in seconds since the epoch."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from djinn_lab.jobs.batch.notebook import Notebook
from djinn_lab.jobs.batch.restarts import RestartRules
from djinn_lab.jobs.resources import Use
from djinn_lab.jobs.states import RANKS
from djinn_lab.jobs.terms import Terms


class Outcome(StrEnum):
    """How an attempt ended."""

    DONE = "done"
    FAILED = "failed"
    """A cell raised, or the kernel died."""
    STOPPED = "stopped"
    """The runner did what it was asked."""
    LOST = "lost"
    """The runner died, or could not be started."""


class Message(msgspec.Struct, frozen=True, tag=True):
    pass


class CellEnded(Message, frozen=True, tag=True):
    """A cell's job that a notebook may wait for. ``checkpoints``: that it announced."""

    at_s: float
    job: str
    done: bool
    state: str
    checkpoints: tuple[str, ...] = ()


class Submission(Message, frozen=True, tag=True):
    """What a user asks for. ``after``: with whole ids, as :mod:`djinn_lab.jobs.conditions` has it; ``met``:
    those of it that are met and are about no notebook. ``cells``: the cells in it that have not ended,
    ``ended``: those that have. ``account``: the user's leaf of the share tree. ``deadline_s``: in seconds
    from now; ``after_timeout_s``: it waits so long for what it comes after. ``content``: equal for
    the same code and parameters. ``memory_bytes``: of the largest device; one that needed more before is
    refused; None: it runs anyway. ``target`` and ``tolerates``: of its cells, where they do not say
    otherwise, as :class:`~djinn_lab.jobs.terms.Terms` has them."""

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
    ended: tuple[CellEnded, ...] = ()
    account: str = ""
    after_count: int | None = None
    after_timeout_s: float | None = None
    parameters: dict[str, Any] = msgspec.field(default_factory=dict)
    content: str = ""
    memory_bytes: int | None = None
    target: str | None = None
    tolerates: tuple[str, ...] = ()

    def problem(self) -> str | None:
        """Why no notebook can ask for this, None when one can."""
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
    """It was admitted, and is in the database. ``met``: of what it comes after, what is met by now and is
    about no notebook."""

    at_s: float
    notebook: Notebook
    met: tuple[str, ...] = ()


class NotebookProgressed(Message, frozen=True, tag=True):
    """``cell`` of ``cells`` begins."""

    at_s: float
    job: str
    attempt: int
    cell: int
    cells: int


class NotebookEnded(Message, frozen=True, tag=True):
    """``message``: what went wrong, as the middle of a sentence. ``cell`` of
    ``cells``: that failed or was the last, None if none began. ``use``: what it took on devices."""

    at_s: float
    job: str
    attempt: int
    outcome: Outcome
    message: str = ""
    cell: int | None = None
    cells: int | None = None
    use: Use | None = None


class CheckpointAnnounced(Message, frozen=True, tag=True):
    """By a notebook that runs, or by a cell that notebooks may wait for."""

    at_s: float
    job: str
    name: str


class DataPublished(Message, frozen=True, tag=True):
    """``account``: the leaf of the share tree of who published data called ``name``."""

    at_s: float
    account: str
    name: str


class CancelAsked(Message, frozen=True, tag=True):
    at_s: float
    job: str
    message: str


class TimePassed(Message, frozen=True, tag=True):
    at_s: float


class ServerStarted(Message, frozen=True, tag=True):
    """``notebooks``: as they were stored. ``ended``: of the attempts that were running then, those whose
    runners left word how they ended."""

    at_s: float
    notebooks: tuple[Notebook, ...]
    ended: tuple[NotebookEnded, ...] = ()


Event = (
    NotebookAccepted
    | NotebookProgressed
    | NotebookEnded
    | CellEnded
    | CheckpointAnnounced
    | DataPublished
    | CancelAsked
    | TimePassed
    | ServerStarted
)


class SaveNotebook(Message, frozen=True, tag=True):
    """To the database, before anything that follows is done."""

    notebook: Notebook


class ForgetNotebook(Message, frozen=True, tag=True):
    """It has been over for longer than all that are kept."""

    job: str


class StartNotebook(Message, frozen=True, tag=True):
    job: str
    attempt: int


class StopNotebook(Message, frozen=True, tag=True):
    """Its runner answers with NotebookEnded."""

    job: str
    attempt: int


Command = SaveNotebook | ForgetNotebook | StartNotebook | StopNotebook

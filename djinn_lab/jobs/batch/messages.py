"""What the core of batch notebooks is told, and what it tells to do. Times in seconds since the epoch."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from djinn_lab.jobs.batch.notebook import Notebook
from djinn_lab.jobs.batch.restarts import RestartRules


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


class Submission(Message, frozen=True, tag=True):
    """What a user asks for. ``after``: whole ids. ``cells``: those of them that are cells which have not
    ended. ``deadline_s``: in seconds from now."""

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


class NotebookAccepted(Message, frozen=True, tag=True):
    """It was admitted, and is in the database."""

    at_s: float
    notebook: Notebook


class NotebookProgressed(Message, frozen=True, tag=True):
    """``cell`` of ``cells`` begins."""

    at_s: float
    job: str
    attempt: int
    cell: int
    cells: int


class NotebookEnded(Message, frozen=True, tag=True):
    """``message``: what went wrong, as the middle of a sentence. ``cell`` of
    ``cells``: that failed or was the last, None if none began."""

    at_s: float
    job: str
    attempt: int
    outcome: Outcome
    message: str = ""
    cell: int | None = None
    cells: int | None = None


class CellEnded(Message, frozen=True, tag=True):
    """A cell's job that a notebook may wait for."""

    at_s: float
    job: str
    done: bool
    state: str


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
    | CancelAsked
    | TimePassed
    | ServerStarted
)


class SaveNotebook(Message, frozen=True, tag=True):
    """To the database, before anything that follows is done."""

    notebook: Notebook


class ForgetNotebook(Message, frozen=True, tag=True):
    """It has been over for long."""

    job: str


class StartNotebook(Message, frozen=True, tag=True):
    job: str
    attempt: int


class StopNotebook(Message, frozen=True, tag=True):
    """Its runner answers with NotebookEnded."""

    job: str
    attempt: int


Command = SaveNotebook | ForgetNotebook | StartNotebook | StopNotebook

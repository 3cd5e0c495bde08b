"""Notebooks that run as a whole, without anybody at them: in which order, how often, and what ends them.

:class:`Notebooks` is the core: ``handle(event) -> commands``, with the time in each event. What the states
are and which moves there are stands in :mod:`djinn_lab.jobs.batch.states`.
"""

from djinn_lab.jobs.batch.messages import (
    CancelAsked,
    CellEnded,
    CheckpointAnnounced,
    Command,
    DataPublished,
    Event,
    ForgetNotebook,
    NotebookAccepted,
    NotebookEnded,
    NotebookProgressed,
    Outcome,
    SaveNotebook,
    ServerStarted,
    StartNotebook,
    StopNotebook,
    Submission,
    TimePassed,
)
from djinn_lab.jobs.batch.notebook import Notebook, Stopping
from djinn_lab.jobs.batch.notebooks import WAITING_MAX, Notebooks
from djinn_lab.jobs.batch.restarts import Restart, RestartRules
from djinn_lab.jobs.batch.states import OVER, TRANSITIONS, Move, NotebookState
from djinn_lab.jobs.batch.telling import Telling

__all__ = [
    "OVER",
    "TRANSITIONS",
    "WAITING_MAX",
    "CancelAsked",
    "CellEnded",
    "CheckpointAnnounced",
    "Command",
    "DataPublished",
    "Event",
    "ForgetNotebook",
    "Move",
    "Notebook",
    "NotebookAccepted",
    "NotebookEnded",
    "NotebookProgressed",
    "NotebookState",
    "Notebooks",
    "Outcome",
    "Restart",
    "RestartRules",
    "SaveNotebook",
    "ServerStarted",
    "StartNotebook",
    "StopNotebook",
    "Stopping",
    "Submission",
    "Telling",
    "TimePassed",
]

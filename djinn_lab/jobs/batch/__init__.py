"""Notebooks that run as a whole, unattended: in which order, how often, and what ends them.

:class:`Notebooks` is the core: ``handle(event) -> commands``, with the time in each event. Its states and
transitions: :mod:`djinn_lab.jobs.batch.states`."""

from djinn_lab.jobs.batch.explain import NotebookExplainer
from djinn_lab.jobs.batch.messages import (
    AttemptOutcome,
    CancelAsked,
    CellJobEnded,
    Command,
    Event,
    ForgetNotebook,
    NotebookAccepted,
    NotebookEnded,
    NotebookProgressed,
    SaveNotebook,
    ServerStarted,
    StartNotebook,
    StopNotebook,
    Submission,
    TimePassed,
)
from djinn_lab.jobs.batch.notebook import BatchNotebook, Stopping
from djinn_lab.jobs.batch.notebooks import WAITING_MAX, Notebooks
from djinn_lab.jobs.batch.restarts import Restart, RestartRules
from djinn_lab.jobs.batch.states import OVER, TRANSITIONS, NotebookState, NotebookTransition
from djinn_lab.jobs.messages import CheckpointAnnounced, DataPublished

__all__ = [
    "OVER",
    "TRANSITIONS",
    "WAITING_MAX",
    "AttemptOutcome",
    "BatchNotebook",
    "CancelAsked",
    "CellJobEnded",
    "CheckpointAnnounced",
    "Command",
    "DataPublished",
    "Event",
    "ForgetNotebook",
    "NotebookAccepted",
    "NotebookEnded",
    "NotebookExplainer",
    "NotebookProgressed",
    "NotebookState",
    "NotebookTransition",
    "Notebooks",
    "Restart",
    "RestartRules",
    "SaveNotebook",
    "ServerStarted",
    "StartNotebook",
    "StopNotebook",
    "Stopping",
    "Submission",
    "TimePassed",
]

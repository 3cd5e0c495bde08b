"""Messages between a pool and the runner of a batch notebook.

The task lies in the runner's directory, the messages are lines of JSON on the runner's standard output. When
its standard input ends, the runner stops: the pool closed it, or died. The outcome is also left in the
directory, for the next server.
"""

from __future__ import annotations

import msgspec

from djinn_lab.jobs.batch import AttemptOutcome

TASK_FILE = "task.json"
SOURCE_FILE = "notebook.ipynb"
EXECUTED_FILE = "executed.ipynb"
OUTCOME_FILE = "outcome.json"
SESSION_FILE = "session.json"
LOG_FILE = "runner.log"
LOCK_FILE = "runner.lock"
"""Held, with the process's id in it, as long as the runner lives."""
LINE_BYTES_MAX = 64 * 2**10


class Task(msgspec.Struct, frozen=True):
    """``folder``: where the notebook runs. ``umask``: of the files that it writes there."""

    job: str
    attempt: int
    folder: str
    umask: int


class RunnerMessage(msgspec.Struct, frozen=True, tag=True):
    pass


class KernelStarted(RunnerMessage, frozen=True, tag=True):
    """``process``: its id, which is also that of its group."""

    process: int


class CellBegins(RunnerMessage, frozen=True, tag=True):
    """Report that code cell number ``cell`` (from 1) of ``cells`` begins."""

    cell: int
    cells: int


class AttemptEnded(RunnerMessage, frozen=True, tag=True):
    """``message``: what went wrong. ``cell`` of ``cells``: the one that failed or was the last."""

    attempt: int
    outcome: AttemptOutcome
    message: str = ""
    cell: int | None = None
    cells: int | None = None


FromRunner = KernelStarted | CellBegins | AttemptEnded

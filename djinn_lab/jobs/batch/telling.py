"""Why a notebook is where it is, in one sentence with numbers."""

from __future__ import annotations

import math
from collections.abc import Callable

from djinn_lab.jobs.batch.notebook import Notebook
from djinn_lab.jobs.batch.notebooks import Notebooks
from djinn_lab.jobs.batch.states import NotebookState
from djinn_lab.jobs.explain import ordinal
from djinn_lab.units import format_seconds

NAMED_MAX = 3


def sentence(notebooks: Notebooks, job: str, now_s: float, clock_time: Callable[[float], str]) -> str:
    """``clock_time``: a moment (seconds since the epoch) as people read it, such as ``"14:03"``."""
    notebook = notebooks.get(job)
    assert notebook is not None
    match notebook.state:
        case NotebookState.QUEUED:
            return _queued(notebooks, notebook)
        case NotebookState.RUNNING:
            return _running(notebook, now_s)
        case NotebookState.BACKING_OFF:
            return _backing_off(notebook, clock_time)
        case NotebookState.DONE:
            return f"Done: all {_cells(notebook.cells)} ran{_after_attempts(notebook)}."
        case NotebookState.FAILED:
            return f"Failed: {_unpunctuated(notebook.reason)}{_after_attempts(notebook)}."
        case NotebookState.CANCELLED:
            reason = _unpunctuated(notebook.reason)
            return f"{reason[:1].upper()}{reason[1:]}."


def _queued(notebooks: Notebooks, notebook: Notebook) -> str:
    if notebook.waits_for:
        return f"It comes after {_listed(list(map(_named(notebooks), notebook.waits_for)))}."
    again = f" It runs again because {_unpunctuated(notebook.reason)}." if notebook.reason else ""
    line = notebooks.line()
    place = next(n for n, one in enumerate(line, 1) if one.job == notebook.job)
    running = notebooks.running
    taken = _listed([f"{one.name} ({one.user}, {_where(one)})" for one in running])
    slots = {1: "the one slot is taken by", 2: "both slots are taken by"}.get(
        notebooks.slots, f"all {notebooks.slots} slots are taken by"
    )
    waiting = f"{ordinal(place)} of {len(line)} waiting notebook{'s' if len(line) > 1 else ''}"
    if len(running) < notebooks.slots:
        return f"{waiting}; a slot is free.{again}"
    return f"{waiting}; {slots} {taken}.{again}"


def _named(notebooks: Notebooks) -> Callable[[str], str]:
    def named(job: str) -> str:
        other = notebooks.get(job)
        if other is None:
            return f"cell {job[:8]}"
        return f"{other.name} ({other.job}, {other.state})"

    return named


def _running(notebook: Notebook, now_s: float) -> str:
    since_s = 0.0 if notebook.started_at_s is None else now_s - notebook.started_at_s
    if notebook.stopping is not None:
        told = notebook.stopping.message
        return f"Its kernel is being stopped: {'cancelled ' if notebook.stopping.cancelled else ''}{told}."
    attempt = f", attempt {_of_attempts(notebook)}" if notebook.attempts > 1 else ""
    if since_s < 1:
        return f"Running: {_where(notebook)}{attempt}."
    return f"Running for {format_seconds(since_s)}: {_where(notebook)}{attempt}."


def _backing_off(notebook: Notebook, clock_time: Callable[[float], str]) -> str:
    until = clock_time(notebook.retry_at_s or 0.0)
    how = _unpunctuated(notebook.reason) or "it went well"
    return f"Backing off until {until} after attempt {_of_attempts(notebook)}: {how}."


def _unpunctuated(text: str) -> str:
    """Errors end with a full stop or not."""
    return text.rstrip(". ")


def _where(notebook: Notebook) -> str:
    if notebook.cell == 0:
        return "starting its kernel"
    return f"cell {notebook.cell} of {notebook.cells}"


def _cells(count: int) -> str:
    return f"{count} cell{'' if count == 1 else 's'}"


def _of_attempts(notebook: Notebook) -> str:
    most = notebook.restart.attempts_max
    return f"{notebook.attempts}" if math.isinf(most) else f"{notebook.attempts} of {most:.0f}"


def _after_attempts(notebook: Notebook) -> str:
    return f" (attempt {_of_attempts(notebook)})" if notebook.attempts > 1 else ""


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    shown = names[:NAMED_MAX]
    if not more and len(shown) > 1:
        return f"{', '.join(shown[:-1])} and {shown[-1]}"
    return ", ".join(shown) + more

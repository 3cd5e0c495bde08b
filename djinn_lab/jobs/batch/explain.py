"""Explain where a notebook is, in one sentence with numbers."""

from __future__ import annotations

import math
from collections.abc import Callable

from djinn_lab.jobs import conditions, resources
from djinn_lab.jobs.batch.notebook import BatchNotebook
from djinn_lab.jobs.batch.notebooks import Notebooks
from djinn_lab.jobs.batch.states import NotebookState
from djinn_lab.jobs.machine.explain import ordinal
from djinn_lab.units import format_seconds

NAMED_MAX = 3


class NotebookExplainer:
    """Explains all notebooks at one moment; the queue is put in order once. ``clock_time``: a moment
    (seconds since the epoch) as people read it, such as ``"14:03"``."""

    def __init__(self, notebooks: Notebooks, now_s: float, clock_time: Callable[[float], str]) -> None:
        self._notebooks = notebooks
        self._now_s = now_s
        self._clock_time = clock_time
        self._running = notebooks.running
        self.positions = {one.job: place for place, one in enumerate(notebooks.queue(), 1)}
        """Positions of the notebooks that wait for a slot; 1 is next."""

    def sentence(self, job: str) -> str:
        """Say why the notebook is where it is."""
        notebook = self._notebooks.get(job)
        assert notebook is not None
        match notebook.state:
            case NotebookState.QUEUED:
                likely = (
                    ""
                    if notebook.predicted is None
                    else f" {resources.forecast_sentence(notebook.predicted)}"
                )
                return f"{self._queued(notebook)}{likely}"
            case NotebookState.RUNNING:
                return _running(notebook, self._now_s)
            case NotebookState.BACKING_OFF:
                return _backing_off(notebook, self._clock_time)
            case NotebookState.DONE:
                return f"Done: {_all_cells(notebook.cells)} ran{_after_attempts(notebook)}."
            case NotebookState.FAILED:
                return f"Failed: {_unpunctuated(notebook.reason)}{_after_attempts(notebook)}."
            case NotebookState.CANCELLED:
                reason = _unpunctuated(notebook.reason)
                return f"{reason[:1].upper()}{reason[1:]}."

    def _queued(self, notebook: BatchNotebook) -> str:
        if notebook.waits_for:
            limit_s = notebook.after_timeout_s
            return conditions.describe(notebook.waiting, self._named, self._notebooks.checkpoints, limit_s)
        again = f" It runs again because {_unpunctuated(notebook.reason)}." if notebook.reason else ""
        count, slots = len(self.positions), self._notebooks.slots
        place = ordinal(self.positions[notebook.job])
        waiting = f"{place} of {count} waiting notebook{'s' if count > 1 else ''}"
        if len(self._running) < slots:
            return f"{waiting}; a slot is free.{again}"
        those = {1: "the one slot is", 2: "both slots are"}.get(slots, f"all {slots} slots are")
        by = _listed([f"{one.name} ({one.user}, {_where(one)})" for one in self._running])
        return f"{waiting}; {those} taken by {by}.{again}"

    def _named(self, job: str) -> str:
        other = self._notebooks.get(job)
        return f"cell {job[:8]}" if other is None else f"{other.name} ({other.job}, {other.state})"


def _running(notebook: BatchNotebook, now_s: float) -> str:
    since_s = 0.0 if notebook.started_at_s is None else now_s - notebook.started_at_s
    if notebook.stopping is not None:
        reason = notebook.stopping.message
        return f"Its kernel is being stopped: {'cancelled ' if notebook.stopping.cancelled else ''}{reason}."
    attempt = f", attempt {_of_attempts(notebook)}" if notebook.attempts > 1 else ""
    if since_s < 1:
        return f"Running: {_where(notebook)}{attempt}."
    return f"Running for {format_seconds(since_s)}: {_where(notebook)}{attempt}."


def _backing_off(notebook: BatchNotebook, clock_time: Callable[[float], str]) -> str:
    until = clock_time(notebook.retry_at_s or 0.0)
    how = _unpunctuated(notebook.reason) or "it went well"
    return f"Backing off until {until} after attempt {_of_attempts(notebook)}: {how}."


def _unpunctuated(text: str) -> str:
    """Return the text without a full stop, which only some errors have."""
    return text.rstrip(". ")


def _where(notebook: BatchNotebook) -> str:
    if notebook.cell == 0:
        return "starting its kernel"
    return f"cell {notebook.cell} of {notebook.cells}"


def _all_cells(count: int) -> str:
    return "its one cell" if count == 1 else f"all {count} cells"


def _of_attempts(notebook: BatchNotebook) -> str:
    most = notebook.restart.attempts_max
    return f"{notebook.attempts}" if math.isinf(most) else f"{notebook.attempts} of {most:.0f}"


def _after_attempts(notebook: BatchNotebook) -> str:
    return f" (attempt {_of_attempts(notebook)})" if notebook.attempts > 1 else ""


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    shown = names[:NAMED_MAX]
    if not more and len(shown) > 1:
        return f"{', '.join(shown[:-1])} and {shown[-1]}"
    return ", ".join(shown) + more

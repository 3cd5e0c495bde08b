"""The tables of cells, on the pages Overview and Jobs, and of batch notebooks, on the page Jobs: a column for
each field, a row for each cell or notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from djinn_lab.dashboard.widgets.table_cells import columns, number_cell, time_cell
from djinn_lab.dashboard.widgets.theme import STATE_COLOURS
from djinn_lab.protocol.rest.jobs import JobView
from djinn_lab.protocol.rest.notebooks import NotebookView
from djinn_lab.units import format_clock, format_seconds, whole_seconds

_FIELDS = {
    "submitted": ("submitted", "Submitted", "number"),
    "state": ("state", "State", "pill"),
    "cell": ("cell", "Cell", "mono"),
    "notebook": ("notebook", "Notebook", "short"),
    "user": ("user", "User", "short"),
    "priority": ("priority", "Priority", "short"),
    "device": ("device", "Device", "short"),
    "progress": ("progress", "Ops done", "progress"),
    "position": ("position", "Queue position", "number"),
    "starts": ("starts", "Predicted start", "number"),
    "waited": ("waited", "Wait", "number"),
    "took": ("took", "Run time", "number"),
    "preempted": ("preempted", "Preempted", "number"),
    "why": ("reason", "Reason", "text"),
    "how": ("reason", "Reason", "text"),
    "job": ("job", "Job", "mono"),
}
"""Key in the row, heading, kind."""
NOTEBOOKS_MAX = 12
NOTEBOOK_COLUMNS = columns(
    ("submitted", "Submitted", "number"),
    ("state", "State", "pill"),
    ("name", "Notebook", "mono"),
    ("user", "User", "short"),
    ("priority", "Priority", "short"),
    ("cells", "Cells", "progress"),
    ("attempt", "Attempt", "short"),
    ("took", "Run time", "number"),
    ("reason", "Reason", "text"),
    ("job", "Job", "mono"),
)
_NOTEBOOK_COLOURS = {**STATE_COLOURS, "BACKING_OFF": STATE_COLOURS["PREEMPTED"]}


def job_columns(*names: str) -> list[dict[str, str]]:
    """Return columns of a :class:`~djinn_lab.dashboard.widgets.components.LiveTable`, in this order."""
    return columns(*(_FIELDS[name] for name in names))


def job_row(job: JobView, now: float, notebooks: Mapping[str, str]) -> dict[str, object]:
    """Return a cell as a row of the table; ``now`` is the pool's clock. ``notebooks``: names by session."""
    return {
        "id": job.job,
        "job": {"text": job.short_id, "title": job.job},
        "state": {"text": job.state.lower(), "colour": STATE_COLOURS.get(job.state, "#7F8C99")},
        "cell": job.cell,
        "notebook": notebooks.get(job.session),
        "user": job.user,
        "device": job.device,
        "priority": job.priority.lower(),
        "position": job.position,
        "starts": number_cell(job.estimate_s if job.position is not None else None, whole_seconds),
        "reason": job.failure.message if job.failure else job.reason,
        "progress": {
            "done": job.ops_done,
            "total": None if job.grows else job.ops_total,
            "text": f"{job.ops_done} / {job.ops_total}" + (" so far" if job.grows else ""),
        }
        if job.ops_total
        else None,
        "took": time_cell(job.run_s(now), grows=not job.finished),
    }


def listed_notebooks(notebooks: Sequence[NotebookView]) -> list[NotebookView]:
    """List running notebooks first, then pending ones, then those that are over, each newest first as the
    pool lists them; few enough for a page that has another table."""
    return sorted(notebooks, key=lambda one: (one.over, one.state != "RUNNING"))[:NOTEBOOKS_MAX]


def notebook_row(one: NotebookView, now: float) -> dict[str, object]:
    """Return a notebook as a row of the table; ``now`` is the pool's clock."""
    began, ended = one.started_at, one.finished_at
    if ended is None and one.state == "RUNNING":
        ended = float(int(now))
    took_s = None if began is None or ended is None else max(0.0, ended - began)
    most = "" if one.attempts_max in (None, 1) else f" of {one.attempts_max}"
    clock = format_clock(one.submitted_at)
    return {
        "id": one.job,
        "job": one.job,
        "submitted": {"text": clock, "sort": one.submitted_at},
        "state": {
            "text": one.state.lower().replace("_", " "),
            "colour": _NOTEBOOK_COLOURS.get(one.state, "#7F8C99"),
        },
        "name": one.name,
        "user": one.user,
        "priority": one.priority.lower(),
        "cells": {"done": one.cell, "total": one.cells, "text": f"{one.cell} / {one.cells}"}
        if one.cells
        else None,
        "attempt": f"{one.attempts}{most}" if one.attempts else None,
        "took": number_cell(took_s, lambda seconds: format_seconds(seconds) if seconds >= 1 else "< 1 s"),
        "reason": one.reason,
    }

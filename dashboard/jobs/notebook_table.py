"""The table of batch notebooks on the page Jobs."""

from __future__ import annotations

import time
from collections.abc import Sequence

from djinn_lab.dashboard.widgets.table_cells import columns, number_cell
from djinn_lab.dashboard.widgets.theme import STATE_COLOURS
from djinn_lab.protocol.rest.notebooks import NotebookView
from djinn_lab.units import format_seconds

ROWS_MAX = 12
COLUMNS = columns(
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
_COLOURS = {**STATE_COLOURS, "BACKING_OFF": STATE_COLOURS["PREEMPTED"]}


def listed(notebooks: Sequence[NotebookView]) -> list[NotebookView]:
    """List running notebooks first, then pending ones, then those that are over, each newest first as the
    pool lists them; few enough for a page that has another table."""
    return sorted(notebooks, key=lambda one: (one.over, one.state != "RUNNING"))[:ROWS_MAX]


def notebook_row(one: NotebookView, now: float) -> dict[str, object]:
    """``now`` is the pool's clock."""
    began, ended = one.started_at, one.finished_at
    if ended is None and one.state == "RUNNING":
        ended = float(int(now))
    took_s = None if began is None or ended is None else max(0.0, ended - began)
    most = "" if one.attempts_max in (None, 1) else f" of {one.attempts_max}"
    clock = time.strftime("%H:%M:%S", time.localtime(one.submitted_at))
    return {
        "id": one.job,
        "job": one.job,
        "submitted": {"text": clock, "sort": one.submitted_at},
        "state": {
            "text": one.state.lower().replace("_", " "),
            "colour": _COLOURS.get(one.state, "#7F8C99"),
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

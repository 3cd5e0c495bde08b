"""Cells of notebooks, as a closed loop: a session submits its next cell so long after the one before has
ended as it did in the trace.

The cells of a production platform (Adobe, June 2021), from the artifact of NotebookOS (Carver et al., ASPLOS
2026)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from djinn_lab.jobs.request import Demand
from djinn_lab.simulator.queue.workload import Follower, Trace, TraceJob
from djinn_lab.simulator.traces.lines import LeftOut, Row, collect, positive, rows

MINUTE_S = 60.0
GIB = 2**30
CELLS, SESSIONS = "cells.csv", "sessions.csv"
CELL_COLUMNS = ("session", "start_min", "duration_min", "gpus", "vram_gb")
SESSION_COLUMNS = ("session", "start_min", "stop_min", "gpus")


def load_cells(path: Path) -> Trace:
    """``session,start_min,duration_min,gpus,vram_gb``. Cells without devices are left out: they wait for
    nothing, and count as time in which their session thinks. A cell runs on one node. Its account is its
    session, whose state has ``vram_gb``."""
    recorded = collect("notebook cells", rows(path, CELL_COLUMNS), _cell)
    sessions: defaultdict[str, list[TraceJob]] = defaultdict(list)
    for cell in recorded.jobs:
        sessions[cell.account].append(cell)
    first = sorted((cells[0] for cells in sessions.values()), key=lambda cell: cell.submit_s)
    followers = dict(pair for cells in sessions.values() for pair in _followers(cells))
    return Trace(recorded.name, tuple(first), {}, recorded.broken, recorded.left_out, followers)


def _cell(row: Row, before: int) -> TraceJob:
    devices = int(row["gpus"])
    if not devices:
        raise LeftOut
    return TraceJob(
        job=str(before),
        submit_s=MINUTE_S * positive(row["start_min"], "start_min"),
        run_s=MINUTE_S * positive(row["duration_min"], "duration_min"),
        demand=Demand(members=devices, members_min=devices, together="one_node"),
        account=f"session {row['session']}",
        state_bytes=int(GIB * positive(row["vram_gb"], "vram_gb")),
    )


def _followers(cells: Sequence[TraceJob]) -> Iterator[tuple[str, Follower]]:
    for cell, following in pairwise(cells):
        think_s = max(0.0, following.submit_s - cell.submit_s - cell.run_s)
        yield cell.job, Follower(think_s, following)


def load_reservations(path: Path) -> Trace:
    """``session,start_min,stop_min,gpus``: each notebook holds its devices for its whole life, from
    whenever it gets them. Notebooks without devices are left out."""

    def notebook(row: Row, before: int) -> TraceJob:
        devices = int(row["gpus"])
        if not devices:
            raise LeftOut
        start_s = MINUTE_S * positive(row["start_min"], "start_min")
        return TraceJob(
            job=str(before),
            submit_s=start_s,
            run_s=MINUTE_S * positive(row["stop_min"], "stop_min") - start_s,
            demand=Demand(members=devices, members_min=devices, together="one_node"),
            account=f"session {row['session']}",
        )

    return collect("notebooks with reserved devices", rows(path, SESSION_COLUMNS), notebook)

"""The job and segment that a page shows, kept in the address."""

from __future__ import annotations

from typing import Final, Literal

import panel as pn

from djinn_lab.dashboard.board import Board
from djinn_lab.dashboard.hub import Snapshot
from djinn_lab.dashboard.widgets.controls import control_bar, select
from djinn_lab.protocol.rest.jobs import JobCut, JobView

LARGEST = "largest"
WHOLE: Final = "all"
CellPart = int | Literal["all"] | None
"""A part of a cell by one of its segments, all parts, or None for the largest part."""


class JobChooser:
    """Choose the job and the segment that a page shows. ``wanted`` is the job of the address, else the newest
    cell that is done and has ops, else the newest one with ops."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._filling = False
        self.job = select("Cell", {}, sizing_mode="stretch_width", max_width=420)
        self.segment = select("Part of the cell", {"largest": LARGEST}, width=170)
        self.view = control_bar(self.job, self.segment)
        self.job.param.watch(lambda event: self._job_chosen(event.new), "value")
        self.segment.param.watch(lambda event: self._segment_chosen(event.new), "value")

    def wanted(self, snapshot: Snapshot) -> tuple[JobView, CellPart] | None:
        """Return the job to show and the part of its cell; None when there is none."""
        name = self._board.route.get("job")
        found = snapshot.job(name) if name else None
        if found is None and name:
            found = next((job for job in snapshot.jobs if job.job.startswith(name)), JobView(name))
        if found is None:
            cells = [job for job in snapshot.jobs if job.ops_total and not job.is_fetch]
            found = next((job for job in cells if job.state == "DONE"), cells[0] if cells else None)
        whole = self._board.route.get("segment") == WHOLE
        return (found, WHOLE if whole else self._board.route.number("segment")) if found else None

    def update(self, snapshot: Snapshot) -> None:
        """Bring the choices up to date."""
        chosen = self.wanted(snapshot)
        if chosen is None:
            return
        job, segment = chosen
        jobs = [found for found in snapshot.jobs if found.ops_total or found.job == job.job]
        if job not in jobs:
            jobs.insert(0, job)
        labels: dict[str, object] = {job_label(found): found.job for found in jobs}
        parts: dict[str, object] = {"largest": LARGEST}
        if len(job.cuts) > 1 or segment == WHOLE:
            parts["whole cell"] = WHOLE
        parts |= {part_name(cut): str(cut.segment) for cut in job.cuts}
        self._fill(self.job, labels, job.job)
        wanted = LARGEST if segment is None else str(segment)
        self._fill(self.segment, parts, wanted if wanted in parts.values() else LARGEST)

    def _fill(self, widget: pn.widgets.Select, options: dict[str, object], value: str) -> None:
        self._filling = True
        if widget.options != options:
            widget.param.update(options=options, value=value)
        elif widget.value != value:
            widget.value = value
        self._filling = False

    def _job_chosen(self, job: str | None) -> None:
        if not self._filling and job:
            diff = "previous" if self._board.route.get("diff") else None
            self._board.route.update(job=job, segment=None, open=None, item=None, diff=diff)

    def _segment_chosen(self, segment: str) -> None:
        if not self._filling:
            number = None if segment == LARGEST else segment
            self._board.route.update(segment=number, open=None, item=None)


def graph_version(job: JobView, part: CellPart) -> int:
    """Number the states of a job's graph to read: of a whole cell that grows, only those after twice as many
    parts as the last."""
    if part != WHOLE or job.finished:
        return job.segments
    return 1 << max(job.segments.bit_length() - 1, 0)


def part_name(cut: JobCut) -> str:
    line = f", line {cut.line}" if cut.line else ""
    return f"up to {cut.cause}{line} (#{cut.segment + 1})"


def job_label(job: JobView) -> str:
    """Describe a job in one line, without changing figures, so that the list stays as it is while a job
    runs."""
    cell = job.cell if len(job.cell) <= 40 else f"{job.cell[:39]}…"
    return " · ".join(part for part in (cell, job.user, job.state.lower(), job.short_id) if part)

"""The other run that the page Graph compares a cell with, kept in the address."""

from __future__ import annotations

import re
from collections.abc import Sequence

import panel as pn

from djinn_lab.dashboard.board import Board
from djinn_lab.dashboard.graph.changes import ItemChanges
from djinn_lab.dashboard.graph.folding import Tree
from djinn_lab.dashboard.graph.store import GraphStore
from djinn_lab.dashboard.hub import Snapshot
from djinn_lab.dashboard.widgets.chooser import CellPart, job_label
from djinn_lab.dashboard.widgets.controls import select, toggle
from djinn_lab.errors import PoolError
from djinn_lab.protocol.rest.jobs import JobView

_NUMBERED = re.compile(r"In \[\d+\]|cell \d+")
"""Notebooks and sessions number cells without a name anew at every run."""
PREVIOUS = "previous"
_UNLIKE = 3


class RunComparer:
    """Choose the run to compare with: the job of the address (``diff``), at first the previous run of the
    cell."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._filling = False
        self._previous: JobView | None = None
        self.compare = toggle("Compare runs", align="end")
        self.other = select("Compare with", {}, sizing_mode="stretch_width", max_width=420, visible=False)
        self.compare.param.watch(lambda event: self._toggled(event.new), "value")
        self.other.param.watch(lambda event: self._chosen(event.new), "value")

    @property
    def active(self) -> bool:
        """Return whether the address asks for a comparison."""
        return bool(self._board.route.get("diff"))

    def update(self, snapshot: Snapshot, job: JobView) -> None:
        """Bring the choices up to date: jobs of the same user, the most probable earlier run first."""
        candidates = other_runs(snapshot.jobs, job)
        wanted = self._board.route.get("diff")
        chosen = next((one for one in candidates if wanted and one.job.startswith(wanted)), None)
        self._previous = previous_run(snapshot.jobs, job)
        if wanted == PREVIOUS:
            chosen = self._previous
        options: dict[str, object] = {job_label(one): one.job for one in candidates}
        if wanted and chosen is None:
            options = {"choose a run" if wanted == PREVIOUS else f"job {wanted[:8]}": wanted} | options
        self._filling = True
        self.compare.value = self.active
        self.other.visible = self.active
        value = wanted if chosen is None else chosen.job
        if self.active and (self.other.options != options or self.other.value != value):
            self.other.param.update(options=options, value=value)
        self._filling = False

    def _toggled(self, on: bool) -> None:
        if not self._filling:
            previous = PREVIOUS if self._previous is None else self._previous.job
            self._board.route.update(diff=previous if on else None)

    def _chosen(self, job: str | None) -> None:
        if not self._filling and job:
            self._board.route.update(diff=job)

    def read(
        self, store: GraphStore, snapshot: Snapshot, job: JobView, segment: CellPart, tree: Tree
    ) -> ItemChanges:
        """Compare the job's ``tree`` with the same part of the other run. Waits for the pool; raises
        DjinnError where there is no such run, or it may not be seen."""
        reader = self._board.hub.reader()
        other = self._other_job(snapshot, job)
        if other.job == job.job:
            raise PoolError("A run cannot be compared with itself", "Choose another run")
        figures = store.figures(reader, job, segment, tree)
        other_tree = store.tree(reader, other.job, segment, other.segments)
        other_figures = store.figures(reader, other, segment, other_tree)
        return ItemChanges((other_tree.srg, other_figures), (tree.srg, figures), job_label(other))

    def _other_job(self, snapshot: Snapshot, job: JobView) -> JobView:
        wanted = self._board.route.get("diff")
        if wanted == PREVIOUS:
            previous = previous_run(snapshot.jobs, job)
            if previous is None:
                raise PoolError("No earlier run of this cell is known", "Choose another run, or run it again")
            return previous
        found = next((one for one in snapshot.jobs if one.job.startswith(wanted)), None)
        return found or self._board.hub.reader().job(wanted)

    @property
    def view(self) -> list[pn.viewable.Viewable]:
        """Return the widgets, for a page's bar."""
        return [self.compare, self.other]


def other_runs(jobs: Sequence[JobView], job: JobView) -> list[JobView]:
    """Return the jobs of the same user to compare a job with, the most probable previous run of its cell
    first.

    Those before it come first, and of these, runs of the same name. A notebook's ``In [5]`` is ``In [6]`` at
    the next run: of cells with such names, those with as many ops come first. ``jobs``: newest first.
    """
    found = [one for one in jobs if one.job != job.job and one.user == job.user and one.ops_total]

    def rank(one: JobView) -> tuple[bool, int, bool]:
        return one.submitted_at > job.submitted_at, _unlikeness(one, job), one.session != job.session

    return sorted(found, key=rank)


def previous_run(jobs: Sequence[JobView], job: JobView) -> JobView | None:
    """Return the most probable previous run of a job's cell; None where no earlier job is like it."""
    best = next(iter(other_runs(jobs, job)), None)
    if best is None or best.submitted_at > job.submitted_at or _unlikeness(best, job) == _UNLIKE:
        return None
    return best


def _unlikeness(one: JobView, job: JobView) -> int:
    """Return 0 for a job that is most probably of the same cell, up to 3 for one with neither the name nor
    the number of ops."""
    name, size = one.cell == job.cell, one.ops_total == job.ops_total
    if name and (size or not _NUMBERED.fullmatch(job.cell)):
        return 0
    if size:
        return 1
    return 2 if name else _UNLIKE

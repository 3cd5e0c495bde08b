"""Which jobs the page Jobs lists: the cells that run and wait, and one part of those that have ended.

Without a filter the newest come from the snapshot that all pages have. What a filter chooses, and older
parts, the pool is asked for: each is one answer, in which a job is once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from djinn_lab.dashboard.board import Board
from djinn_lab.dashboard.hub import JOBS_MAX, Snapshot
from djinn_lab.dashboard.jobs.job_pages import AGAIN_S, JobPages, JobsWanted
from djinn_lab.dashboard.widgets.controls import button
from djinn_lab.dashboard.widgets.panes import notice
from djinn_lab.errors import DjinnError
from djinn_lab.protocol.rest.jobs import FIND_CHARS_MAX, UNFINISHED, JobPage, JobView
from djinn_lab.units import counted

STATES = {"unfinished": UNFINISHED, "failed": "FAILED"}
"""By the value of the filter."""


class Listed(NamedTuple):
    """``sentence``: how many match, and which part is listed. ``problem``: HTML, why there is none.
    ``behind``: the job that the next older part begins behind, empty without one."""

    jobs: Sequence[JobView]
    sentence: str
    problem: str = ""
    behind: str = ""


class Failure(NamedTuple):
    """``until_s``: when to ask again, monotonic seconds."""

    wanted: JobsWanted
    error: DjinnError
    until_s: float


class JobListing:
    """``changed``: called when the pool has answered. State: the address holds the job behind which the part
    begins, as ``before``."""

    def __init__(self, board: Board, changed: Callable[[], None]) -> None:
        self._board, self._changed = board, changed
        self._pages = board.hub.keep("job-pages", JobPages)
        self._asked: JobsWanted | None = None
        self._failure: Failure | None = None
        self._behind = ""
        self._parts: list[str] = []
        self.newer = button("Newer", disabled=True, align="end")
        self.older = button("Older", disabled=True, align="end")
        self.newer.on_click(lambda event: board.background.soon(self._go_newer))
        self.older.on_click(lambda event: board.background.soon(self._go_older))

    def of(self, snapshot: Snapshot, shown: str, mine: bool, find: str) -> Listed:
        """Return what is listed now, and ask the pool for what is not known or old."""
        text, before = find.strip(), self._board.route.get("before")
        wanted = JobsWanted(STATES.get(shown), snapshot.user if mine else None, text, before or None)
        page = None
        if len(text) > FIND_CHARS_MAX:
            words = notice(f"Look for a text of at most {FIND_CHARS_MAX} characters.", "", "bad")
            listed = Listed((), "No cell is listed.", words)
        else:
            page = self._page(wanted)
            listed = self._listed(snapshot, wanted, page)
        if not before:
            self._parts.clear()
        self.newer.disabled, self.older.disabled = not before, not listed.behind
        self._behind = listed.behind
        return listed

    def _listed(self, snapshot: Snapshot, wanted: JobsWanted, page: JobPage | None) -> Listed:
        if wanted == JobsWanted():
            return newest(snapshot, page)
        if self._failure is not None and self._failure.wanted == wanted:
            error = self._failure.error
            return Listed((), "No cell is listed.", notice(error.message, error.advice, "bad"))
        if page is None:
            return Listed((), "Looking through all cells that the pool knows.")
        behind = page.jobs[-1].job if page.older else ""
        return Listed([*page.unfinished, *page.jobs], sentence(page), "", behind)

    def _page(self, wanted: JobsWanted) -> JobPage | None:
        """Return the newest answer, and ask again when that is due."""
        known, failure = self._pages.known(wanted), self._failure
        waits = failure is not None and failure.wanted == wanted and failure.until_s > time.monotonic()
        if self._asked != wanted and not waits and (known is None or known.is_old()):
            self._asked = wanted
            hub, pages = self._board.hub, self._pages
            self._board.background.run(
                "job page",
                lambda: pages.read(hub.reader(), wanted),
                lambda answered: self._answered(None),
                lambda error: self._answered(Failure(wanted, error, time.monotonic() + AGAIN_S)),
            )
        return None if known is None else known.page

    def _answered(self, failure: Failure | None) -> None:
        self._asked, self._failure = None, failure
        self._changed()

    def _go_older(self) -> None:
        if self._behind:
            self._parts.append(self._board.route.get("before"))
            self._board.route.update(before=self._behind)

    def _go_newer(self) -> None:
        """Go back, or to the newest part where the visit began with an older one."""
        self._board.route.update(before=self._parts.pop() if self._parts else None)


def newest(snapshot: Snapshot, page: JobPage | None) -> Listed:
    """List what every page knows, cells that run or wait first, with older ones that still do."""
    known = {job.job for job in snapshot.jobs}
    still = [] if page is None else [job for job in page.unfinished if job.job not in known]
    jobs = sorted([*snapshot.jobs, *still], key=lambda job: job.finished)
    if page is None or not snapshot.jobs:
        return Listed(jobs, f"The newest {len(jobs)} are listed.")
    total = max(len(jobs), page.matching + page.unfinished_matching)
    behind = snapshot.jobs[-1].job if total > len(jobs) and len(snapshot.jobs) >= JOBS_MAX else ""
    listed = f"; the newest {len(jobs)} are listed." if total > len(jobs) else "."
    return Listed(jobs, f"{counted(total, 'cell')}{listed}", "", behind)


def sentence(page: JobPage) -> str:
    """Say how many jobs match, and which part is listed."""
    total = page.matching + page.unfinished_matching
    if not total:
        return "0 cells match."
    said = "1 cell matches" if total == 1 else f"{total:,} cells match"
    if total == len(page.jobs) + len(page.unfinished):
        return f"{said}."
    first, last = page.newer + 1, page.newer + len(page.jobs)
    part = f"{first:,} to {last:,} are listed, newest first." if page.jobs else "no older one is listed."
    if not page.unfinished:
        return f"{said}; {part}"
    live = f"{page.unfinished_matching:,} run or wait"
    if page.unfinished_matching > len(page.unfinished):
        live += f" (the newest {len(page.unfinished)} are listed)"
    return f"{said}: {live}; of {page.matching:,} that have ended {part}"

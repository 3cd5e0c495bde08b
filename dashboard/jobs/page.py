"""Jobs: what ran, when and how it went, and for one of them the whole trace of decisions about it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from html import escape

import panel as pn

from djinn_lab.dashboard.board import Board
from djinn_lab.dashboard.hub import Snapshot
from djinn_lab.dashboard.jobs.details import job_details_html
from djinn_lab.dashboard.jobs.listing import JobListing
from djinn_lab.dashboard.jobs.tables import (
    NOTEBOOK_COLUMNS,
    job_columns,
    job_row,
    listed_notebooks,
    notebook_row,
)
from djinn_lab.dashboard.jobs.trace import trace_rows
from djinn_lab.dashboard.widgets.components import LiveTable
from djinn_lab.dashboard.widgets.controls import choice_bar, control_bar, text_input, whose_bar
from djinn_lab.dashboard.widgets.panes import NO_JOBS, heading, html_pane, notice, show_html, show_known
from djinn_lab.dashboard.widgets.table_cells import columns, time_cell
from djinn_lab.errors import DjinnError
from djinn_lab.protocol.rest.jobs import JobDetail, JobView
from djinn_lab.protocol.rest.queue import WhyAnswer

COLUMNS = job_columns(
    "submitted",
    "state",
    "cell",
    "notebook",
    "user",
    "priority",
    "device",
    "waited",
    "took",
    "preempted",
    "how",
    "job",
)
TRACE_COLUMNS = columns(
    ("at", "At", "number"),
    ("after", "After", "number"),
    ("what", "Event", "text"),
    ("detail", "Details", "text"),
)


class JobsPage:
    """State: the address holds the chosen job, the filter and the text that is looked for."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._snapshot = Snapshot()
        self._detailed: JobView | None = None
        shown = board.route.get("jobs")
        self.filter = choice_bar(
            {"All": "all", "Unfinished": "unfinished", "Failed": "failed"},
            shown if shown in ("unfinished", "failed") else "all",
            align="end",
        )
        self.whose = whose_bar(board.route.get("whose") == "mine")
        self.search = text_input("User, cell, notebook or job", value=board.route.get("find"), width=220)
        self.jobs = LiveTable(
            columns=COLUMNS,
            label="Jobs",
            empty="No job matches",
            selectable=True,
            sizing_mode="stretch_width",
            styles={"--table-height": "max(26rem, 62vh)"},
        )
        self.why = html_pane(margin=(10, 0, 4, 0))
        self.details = html_pane(margin=(4, 0, 8, 0))
        self.trace = LiveTable(
            columns=TRACE_COLUMNS, label="Decision trace", visible=False, sizing_mode="stretch_width"
        )
        self._trace_heading = html_pane(margin=(4, 0, 4, 0))
        self.notebooks = LiveTable(
            columns=NOTEBOOK_COLUMNS,
            label="Batch notebooks",
            visible=False,
            margin=(0, 0, 18, 0),
            sizing_mode="stretch_width",
        )
        self._notebooks_heading = html_pane(margin=(4, 0, 8, 0), visible=False)
        full: dict[str, object] = {"sizing_mode": "stretch_width", "margin": 0}
        self._heading = html_pane(margin=(0, 0, 8, 0))
        self._problem = html_pane(margin=(0, 0, 8, 0))
        self.gone = html_pane(margin=(0, 0, 8, 0))
        self.listing = JobListing(board, lambda: self.update(self._snapshot))
        self._first_steps = html_pane(NO_JOBS, visible=False)
        bar = control_bar(self.filter, self.whose, self.search, self.listing.newer, self.listing.older)
        parts = [
            self._notebooks_heading,
            self.notebooks,
            self._heading,
            bar,
            self._problem,
            self.gone,
            self.jobs,
            self.why,
            self.details,
        ]
        parts += [self._trace_heading, self.trace]
        self._live = pn.Column(*parts, self._first_steps, visible=False, **full)
        self._missing = html_pane()
        self.view = pn.Column(self._missing, self._live, **full)
        self.filter.param.watch(lambda event: board.background.soon(self._choices_changed), "value")
        self.whose.param.watch(lambda event: board.background.soon(self._choices_changed), "value")
        self.search.param.watch(lambda event: board.background.soon(self._choices_changed), "value")
        self.jobs.param.watch(lambda event: self._chosen(), "selected")

    def enter(self) -> None:
        """Called when the page is shown: follow the address."""
        self.jobs.selected = self._board.route.get("job")

    def update(self, snapshot: Snapshot) -> None:
        """Bring the page up to the snapshot, sending only what changed."""
        self._board.hub.want_notebooks()
        self._snapshot = snapshot
        if not show_known(self._live, self._missing, snapshot, snapshot.status):
            return
        assert snapshot.status is not None
        self._show_notebooks(snapshot, snapshot.status.now)
        notebooks = snapshot.notebooks_by_session()
        listed = self.listing.of(snapshot, self.filter.value, self.whose.value, self.search.value)
        self.jobs.show([history_row(job, snapshot.status.now, notebooks) for job in listed.jobs])
        show_html(self._heading, heading("Jobs", listed.sentence))
        show_html(self._problem, listed.problem)
        self._first_steps.visible = not snapshot.jobs
        chosen = self.jobs.selected
        job = next((job for job in listed.jobs if job.job == chosen), None)
        if job is None and chosen and self._detailed is None:
            job = JobView(chosen)  # not among the listed ones: the pool says whether it knows it
        if job is not None and (self._detailed is None or _changed(self._detailed, job)):
            self._read_details(job)

    def _show_notebooks(self, snapshot: Snapshot, now: float) -> None:
        known = snapshot.notebooks
        rows = listed_notebooks(known)
        self.notebooks.visible = self._notebooks_heading.visible = bool(known)
        self.notebooks.show([notebook_row(one, now) for one in rows])
        words = f"{sum(not one.over for one in known)} wait or run; {len(rows)} of {len(known)} are listed."
        show_html(self._notebooks_heading, heading("Batch notebooks", words))

    def _choices_changed(self) -> None:
        shown = None if self.filter.value == "all" else self.filter.value
        whose = "mine" if self.whose.value else None
        self._board.route.update(jobs=shown, whose=whose, find=self.search.value, before=None)
        self.update(self._snapshot)

    def _chosen(self) -> None:
        self._board.route.update(job=self.jobs.selected)
        self._detailed = None
        self.trace.visible = False
        for pane in (self.why, self.details, self._trace_heading, self.gone):
            show_html(pane, "")
        self.update(self._snapshot)

    def _read_details(self, job: JobView) -> None:
        """Ask for what the list does not hold: why, code and events."""
        self._detailed = job
        hub = self._board.hub

        def read() -> tuple[JobDetail, WhyAnswer]:
            reader = hub.reader()
            return reader.job(job.job), reader.why(job.job)

        def done(answers: tuple[JobDetail, WhyAnswer]) -> None:
            more, why = answers
            show_html(self.gone, "")
            title = f"Why is {more.short_id} {more.state.lower()}?"
            show_html(self.why, f"<h2>{escape(title)}</h2><p>{escape(why.sentence)}</p>")
            show_html(self.details, job_details_html(more, more.code, more.events, _qos(why)))
            rows = trace_rows(more.events)
            self.trace.visible = bool(rows)
            text = "Every event that the queue handled for this cell." if rows else ""
            show_html(self._trace_heading, heading("Decision trace", text) if rows else "")
            self.trace.show(rows)

        def failed(error: DjinnError) -> None:
            show_html(self.gone, notice(f"No details: {error.message}", error.advice))

        self._board.background.run("job", read, done, failed)


def _qos(why: WhyAnswer) -> str:
    """Name the class of service of a cell that waits or runs, where an account is guaranteed devices."""
    return "" if why.qos is None else why.qos.qos_class


def _changed(before: JobView, now: JobView) -> bool:
    return (before.job, before.state, before.segments, before.device) != (
        now.job,
        now.state,
        now.segments,
        now.device,
    )


def history_row(job: JobView, now: float, notebooks: Mapping[str, str]) -> dict[str, object]:
    """Return a job as a row of its history. ``notebooks``: names by session."""
    row = job_row(job, now, notebooks)
    submitted = job.submitted_at or 0.0
    return {
        **row,
        "submitted": {"text": _clock(submitted, now), "sort": submitted},
        "waited": time_cell(job.waited_s(now), grows=job.started_at is None and not job.finished),
        "preempted": time_cell(job.preempted_s or None, grows=job.state == "PREEMPTED"),
    }


def _clock(at_s: float, now: float) -> str:
    """Return the time of a day, with the day where that is not today; empty for an unknown time."""
    if not at_s:
        return ""
    then, today = time.localtime(at_s), time.localtime(now)
    same_day = (then.tm_year, then.tm_yday) == (today.tm_year, today.tm_yday)
    return time.strftime("%H:%M:%S" if same_day else "%d %b %H:%M:%S", then)

"""Cells and batch notebooks of all users that run or wait: preempt, cancel."""

from __future__ import annotations

from collections.abc import Mapping

from djinn_lab.dashboard.admin.section import stack, table
from djinn_lab.dashboard.board import Board
from djinn_lab.dashboard.hub import Snapshot
from djinn_lab.dashboard.jobs.tables import NOTEBOOK_COLUMNS, job_columns, job_row, notebook_row
from djinn_lab.dashboard.overview import visible_jobs
from djinn_lab.dashboard.widgets.changes import Changes
from djinn_lab.dashboard.widgets.components import LiveTable
from djinn_lab.dashboard.widgets.controls import button, control_bar, text_input
from djinn_lab.dashboard.widgets.panes import heading, html_pane, show_html
from djinn_lab.protocol.rest.jobs import JobView, matches_text
from djinn_lab.protocol.rest.queue import QueueView

COLUMNS = job_columns(
    "state", "cell", "notebook", "user", "device", "progress", "position", "why", "priority", "took", "job"
)


class JobsSection:
    """Choose a cell or a batch notebook, then preempt or cancel it."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._snapshot = Snapshot()
        self._jobs: dict[str, JobView] = {}
        self.search = text_input("User, cell, notebook or job", width=220)
        self.jobs = table(COLUMNS, "Unfinished cells", empty="No cell runs or waits")
        self.notebooks = table(NOTEBOOK_COLUMNS, "Unfinished batch notebooks")
        self.preempt = button("Preempt", disabled=True)
        self.cancel = button("Cancel", color="danger", disabled=True)
        self.changes = Changes(board.background, "job")
        self._heading = html_pane(margin=(0, 0, 6, 0))
        self._notebooks_heading = html_pane(margin=(14, 0, 6, 0))
        self.view = stack(
            self._heading,
            control_bar(self.search),
            self.jobs,
            self._notebooks_heading,
            self.notebooks,
            self.changes.bar(self.preempt, self.cancel, margin=(10, 0, 0, 0)),
            self.changes.view,
        )
        self.search.param.watch(
            lambda event: board.background.soon(lambda: self.update(self._snapshot)), "value"
        )
        self.jobs.param.watch(lambda event: self._chosen(self.jobs.selected, self.notebooks), "selected")
        self.notebooks.param.watch(lambda event: self._chosen(self.notebooks.selected, self.jobs), "selected")
        self.preempt.on_click(lambda event: self.preempt_job())
        self.cancel.on_click(lambda event: self.ask_cancel())

    def update(self, snapshot: Snapshot) -> None:
        """Bring the section up to the snapshot."""
        self._snapshot = snapshot
        self._board.hub.want_queue()
        self._board.hub.want_notebooks()
        if snapshot.status is None:
            return
        names, now = snapshot.notebooks_by_session(), snapshot.status.now
        unfinished = unfinished_jobs(snapshot.jobs, snapshot.queue)
        self._jobs = {job.job: job for job in unfinished}
        listed = visible_jobs(unfinished, "active")
        shown = [job for job in listed if matches_text(job, self.search.value, names)]
        self.jobs.show([job_row(job, now, names) for job in shown])
        show_html(self._heading, heading("Cells", f"{len(unfinished)} run or wait; {len(shown)} are listed."))
        notebooks = [one for one in snapshot.notebooks if not one.over]
        self.notebooks.visible = bool(notebooks)
        words = f"{len(notebooks)} run or wait."
        show_html(self._notebooks_heading, heading("Batch notebooks", words) if notebooks else "")
        self.notebooks.show([notebook_row(one, now) for one in notebooks])
        self._show_buttons()

    def _show_buttons(self) -> None:
        job = self._jobs.get(self.jobs.selected)
        notebook = any(row["id"] == self.notebooks.selected for row in self.notebooks.rows)
        self.preempt.disabled = job is None or job.state != "RUNNING"
        self.cancel.disabled = job is None and not notebook

    def preempt_job(self) -> None:
        """Preempt the chosen cell: it resumes behind all cells that are pending now."""
        job = self._jobs.get(self.jobs.selected)
        if job is not None:
            self.changes.run(
                f"Preempting {job.short_id}.",
                lambda: self._board.hub.reader().preempt(job.job),
                lambda answer: f"Cell {job.short_id} of {job.user} is preempted after its current op.",
            )

    def ask_cancel(self) -> None:
        """Say what is lost, and cancel the chosen cell or batch notebook once that is confirmed."""
        chosen = self.jobs.selected or self.notebooks.selected
        if not chosen:
            return
        question = cancel_question(self._jobs.get(chosen), self._notebook_name(chosen))
        self.changes.ask(question, "cancel it", lambda: self._cancel(chosen))

    def _cancel(self, chosen: str) -> None:
        self.changes.run(
            f"Cancelling {chosen[:8]}.",
            lambda: self._board.hub.reader().cancel(chosen),
            lambda answer: f"{answer.job[:8]} is {answer.state.lower()}: the pool accepted the cancel.",
        )

    def _notebook_name(self, chosen: str) -> str:
        found = (f"{one.name} of {one.user}" for one in self._snapshot.notebooks if one.job == chosen)
        return next(found, chosen[:8])

    def _chosen(self, selected: str, other: LiveTable) -> None:
        """Choose in one table at a time."""
        self.changes.clear()
        if selected:
            other.selected = ""
        self._show_buttons()


def unfinished_jobs(jobs: tuple[JobView, ...], queue: QueueView | None) -> tuple[JobView, ...]:
    """Return the jobs that run or wait. The newest are known in full; those that are older and still run or
    wait, by what the queue says of them."""
    found = {job.job: job for job in jobs if not job.finished}
    over = {job.job for job in jobs if job.finished}
    for known in _of_queue(queue).values():
        if known.job not in over:
            found.setdefault(known.job, known)
    return tuple(found.values())


def _of_queue(queue: QueueView | None) -> Mapping[str, JobView]:
    if queue is None:
        return {}
    running = {
        one.job: JobView(
            one.job,
            user=one.user,
            priority=one.priority,
            state="RUNNING",
            device=one.device,
            started_at=one.since,
            ran_s=one.ran_s,
            running_since=one.since,
        )
        for one in queue.running
    }
    waiting = {
        one.job: JobView(
            one.job,
            user=one.user,
            priority=one.priority,
            state=one.state,
            reason=one.sentence,
            device=one.device,
            position=one.position,
            submitted_at=one.since,
        )
        for one in queue.waiting
    }
    return {**waiting, **running}


def cancel_question(job: JobView | None, notebook: str) -> str:
    """Say what a cancel loses. ``notebook``: name of the batch notebook, where ``job`` is None."""
    if job is None:
        return f"Cancel the batch notebook {notebook}? What it has executed is kept, and it is not restarted."
    name = f"{job.cell or job.short_id} of {job.user}"
    if job.state == "RUNNING":
        return (
            f"Cancel {name}? It stops before its next op, and what it has computed is lost. The variables "
            "that the notebook had before stay."
        )
    return f"Cancel {name}? It never starts, and the notebook's next cells do not run. Its variables stay."

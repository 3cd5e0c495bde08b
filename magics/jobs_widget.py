"""``%djinn jobs`` as a widget: the table, a button that looks again, and one that stops a cell."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from html import escape

import ipywidgets as widgets

from djinn_lab.client.rest import PoolClient
from djinn_lab.errors import DjinnError
from djinn_lab.magics.jobs_command import HEADINGS, describe_jobs, job_row
from djinn_lab.magics.text_table import html_table
from djinn_lab.protocol.rest.jobs import JobView

JOBS_SHOWN = 15


class JobTable(widgets.VBox):  # type: ignore[misc]
    """The latest jobs of all users; with ``find``, the latest that have this text in user, cell, notebook or
    id. Where no widgets can be shown (a saved notebook), its text says what it held last. Raises what
    :meth:`~djinn_lab.client.rest.PoolClient.jobs` raises."""

    def __init__(self, pool: PoolClient, find: str = "") -> None:
        self._pool, self._find = pool, find
        self.table, self.said = widgets.HTML(), widgets.HTML()
        self.active = widgets.Dropdown(description="Cell", options=[])
        self.stop = widgets.Button(description="Stop", button_style="warning")
        self.again = widgets.Button(description="Look again")
        self._show(self._listed())
        self.again.on_click(lambda button: self._told(self._look))
        self.stop.on_click(lambda button: self._told(self._stop))
        super().__init__([self.table, widgets.HBox([self.active, self.stop, self.again]), self.said])

    def _listed(self) -> Sequence[JobView]:
        if not self._find:
            return self._pool.jobs(limit=JOBS_SHOWN)
        page = self._pool.job_page(find=self._find, limit=JOBS_SHOWN)
        return [*page.unfinished, *page.jobs][:JOBS_SHOWN]

    def _show(self, jobs: Sequence[JobView]) -> None:
        now_s = time.time()
        self._text = describe_jobs(jobs, now_s, self._find)
        self.table.value = (
            html_table(HEADINGS, [job_row(job, now_s) for job in jobs]) if jobs else escape(self._text)
        )
        active = {job.job: job for job in jobs if not job.finished}
        chosen = self.active.value
        self.active.options = [
            (f"{job.cell} of {job.user} ({job.short_id})", name) for name, job in active.items()
        ]
        self.active.value = chosen if chosen in active else next(iter(active), None)
        self.active.disabled = self.stop.disabled = not active

    def _look(self) -> str:
        self._show(self._listed())
        return ""

    def _stop(self) -> str:
        job = self.active.value
        if job is None:
            return ""
        self._pool.cancel(job)
        self._look()
        return f"Job {job[:8]} stops after its current op."

    def _told(self, action: Callable[[], str]) -> None:
        """Do something, and say below the table what came of it."""
        try:
            said = action()
        except DjinnError as error:
            said = f"{error.message} {error.advice}"
        self.said.value = escape(said)

    def __repr__(self) -> str:
        return self._text

    def _repr_mimebundle_(self, **options: object) -> object:
        bundle = super()._repr_mimebundle_(**options)
        data = bundle[0] if isinstance(bundle, tuple) else bundle
        if data is not None:
            data["text/plain"] = self._text
        return bundle

"""Queue and fairness: pending jobs, why they wait and what would help; each account's usage of the pool."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

import panel as pn

from djinn_lab.dashboard.board import Board
from djinn_lab.dashboard.hub import Snapshot
from djinn_lab.dashboard.queueing.fairness_chart import FairnessChart
from djinn_lab.dashboard.queueing.tables import (
    ACCOUNT_COLUMNS,
    RESERVATION_COLUMNS,
    RUNNING_COLUMNS,
    WAITING_COLUMNS,
    account_rows,
    fairness_sentence,
    queue_sentence,
    reservation_rows,
    running_rows,
    stall_sentence,
    waiting_rows,
)
from djinn_lab.dashboard.widgets.components import LiveTable
from djinn_lab.dashboard.widgets.controls import button, control_bar, select
from djinn_lab.dashboard.widgets.panes import heading, html_pane, notice, show_html, show_known
from djinn_lab.errors import DjinnError
from djinn_lab.jobs import RANKS
from djinn_lab.protocol.rest.jobs import JobView
from djinn_lab.protocol.rest.queue import QueueView

SAME = "as it is"


class QueuePage:
    """State: the address holds the chosen cell."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._snapshot = Snapshot()
        self.chart = FairnessChart(board.look)
        self.accounts = LiveTable(
            columns=ACCOUNT_COLUMNS,
            label="Accounts",
            empty="No cell has run yet",
            sizing_mode="stretch_width",
        )
        self.waiting = LiveTable(
            columns=WAITING_COLUMNS,
            label="Pending cells",
            empty="No cell is pending",
            selectable=True,
            sizing_mode="stretch_width",
        )
        self.running = LiveTable(
            columns=RUNNING_COLUMNS,
            label="Running cells",
            empty="No cell is running",
            sizing_mode="stretch_width",
        )
        self.reserved = LiveTable(
            columns=RESERVATION_COLUMNS,
            label="Reserved devices",
            empty="No device is reserved",
            sizing_mode="stretch_width",
        )
        self.priority = select("Priority", [SAME, *RANKS], width=150)
        self.gang = select("Devices", [SAME, "1"], width=110)
        self.anywhere = select("Device", {SAME: False, "on any device": True}, width=140)
        self.ask = button("When would it start?")
        self.answer = html_pane(margin=(0, 0, 8, 0))
        self.why = html_pane(margin=(10, 0, 8, 0))
        self._build_view()
        self.waiting.param.watch(lambda event: self._chosen(), "selected")
        self.ask.on_click(lambda event: self.what_if())

    def _build_view(self) -> None:
        full: dict[str, Any] = {"sizing_mode": "stretch_width", "margin": 0}
        self._heading = html_pane(margin=(0, 0, 8, 0))
        self._stall = html_pane(margin=(0, 0, 8, 0))
        self._fairness = html_pane(margin=(18, 0, 6, 0))
        self._running_heading = html_pane(heading("Running now"), margin=(16, 0, 6, 0))
        self._reserved_heading = html_pane(heading("Reserved devices"), margin=(16, 0, 6, 0))
        self._what_if = control_bar(
            self.priority, self.gang, self.anywhere, self.ask, visible=False, margin=(4, 0, 0, 0)
        )
        self._live = pn.Column(
            self._heading,
            self._stall,
            self.waiting,
            self.why,
            self._what_if,
            self.answer,
            self._running_heading,
            self.running,
            self._reserved_heading,
            self.reserved,
            self._fairness,
            self.accounts,
            self.chart.view,
            visible=False,
            **full,
        )
        self._missing = html_pane()
        self.view = pn.Column(self._missing, self._live, **full)

    def enter(self) -> None:
        """Called when the page is shown: follow the address."""
        self.waiting.selected = self._board.route.get("waiting")

    def update(self, snapshot: Snapshot) -> None:
        """Bring the page up to the snapshot, sending only what changed."""
        self._snapshot = snapshot
        self._board.hub.want_queue()
        queue = snapshot.queue
        waiting = heading("Queue", "Asking the pool.")
        if not show_known(self._live, self._missing, snapshot, queue, waiting):
            return
        assert queue is not None
        show_html(self._heading, heading("Queue", queue_sentence(queue)))
        show_html(self._stall, _stall_notice(queue))
        notebooks = snapshot.notebooks_by_session()
        names = {job.job: _name(job, notebooks) for job in snapshot.jobs}
        rows = waiting_rows(queue, names)
        note = f"The first {len(rows)} of {queue.waiting_count}" if queue.waiting_count > len(rows) else ""
        self.waiting.show(rows, note)
        self.running.show(running_rows(queue, names))
        reserved = reservation_rows(queue)
        self._reserved_heading.visible = self.reserved.visible = bool(reserved)
        self.reserved.show(reserved)
        self.accounts.show(account_rows(queue))
        show_html(self._fairness, heading("Fairness", fairness_sentence(queue)))
        recent = self._board.hub.queue_history.recent()
        self.chart.view.visible = any(devices > 0 for use in recent for devices in use.devices.values())
        self.chart.update(recent)
        self._show_chosen(queue)

    def _show_chosen(self, queue: QueueView) -> None:
        chosen = self.waiting.selected
        cell = queue.find(chosen) if chosen else None
        self._what_if.visible = cell is not None
        if cell is None:
            gone = "This cell is not pending any more." if chosen else ""
            show_html(self.why, notice(gone) if gone else "")
            if not chosen:
                show_html(self.answer, "")
            return
        title = f"Why {cell.user}’s cell {cell.job[:8]} waits"
        show_html(self.why, f"<h2>{escape(title)}</h2><p>{escape(cell.sentence)}</p>")

    def _chosen(self) -> None:
        self._board.route.update(waiting=self.waiting.selected)
        show_html(self.answer, "")
        if self._snapshot.queue is not None:
            self._show_chosen(self._snapshot.queue)

    def what_if(self) -> None:
        """Ask the scheduler about the chosen cell with what was chosen here."""
        job = self.waiting.selected
        changes: dict[str, Any] = {}
        if self.priority.value != SAME:
            changes["priority"] = self.priority.value
        if self.gang.value != SAME:
            changes["members"] = int(self.gang.value)
        if self.anywhere.value:
            changes["anywhere"] = True
        if not job or not changes:
            show_html(self.answer, notice("Choose another priority, number of devices or device first."))
            return
        self._board.background.run(
            "what-if",
            lambda: self._board.hub.reader().what_if(job, **changes),
            lambda answer: show_html(self.answer, notice(answer.sentence, tone="good")),
            self._failed,
        )

    def _failed(self, error: DjinnError) -> None:
        show_html(self.answer, notice(error.message, error.advice, "bad"))


def _name(job: JobView, notebooks: Mapping[str, str]) -> str:
    """Name a cell, with its notebook where that is known."""
    notebook = notebooks.get(job.session)
    return job.cell if notebook is None else f"{job.cell} · {notebook}"


def _stall_notice(queue: QueueView) -> str:
    if queue.stall is None:
        return ""
    advice = "Report it, with the pool's database. Cancelling the cell lets others start."
    return notice(stall_sentence(queue.stall, queue.now), advice, "bad")

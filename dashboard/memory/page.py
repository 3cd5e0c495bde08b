"""Memory and KV: memory by tier, transfers, wake-ups, and what each session did."""

from __future__ import annotations

import time
from io import BytesIO
from typing import Any

import panel as pn

from djinn_lab.dashboard.board import Board
from djinn_lab.dashboard.hub import Snapshot
from djinn_lab.dashboard.memory.cards import device_cards, figures, sentence
from djinn_lab.dashboard.memory.history import KEPT_S
from djinn_lab.dashboard.memory.lanes import LANES_MAX, MemoryLanes, lanes_legend
from djinn_lab.dashboard.memory.tables import (
    DEFERRED_COLUMNS,
    HAPPENING_COLUMNS,
    SESSION_COLUMNS,
    deferred_rows,
    happening_rows,
    happenings_csv,
    session_facts,
    session_rows,
    sessions_csv,
)
from djinn_lab.dashboard.memory.wake_chart import WakeChart, wake_sentence
from djinn_lab.dashboard.widgets.components import LiveTable
from djinn_lab.dashboard.widgets.controls import choice_bar, control_bar, download
from djinn_lab.dashboard.widgets.panes import empty_state, heading, html_pane, notice, show_html, show_known
from djinn_lab.protocol.rest.sessions import MemoryView

HAPPENINGS_SHOWN_MAX = 60
WINDOWS = {"1 min": 60, "3 min": 180, "10 min": 600}
_STACKED = "@media (max-width: 900px) { :host { display: flex !important; flex-direction: column; } }"
"""Side by side, but not on a narrow screen."""
NO_SESSIONS = empty_state(
    "No session holds anything yet",
    "Paste this into a notebook. Its tensors stay on a device between cells, and are parked when others need "
    "the memory:",
    "%load_ext djinn_lab\n\n%%djinn\nimport torch\nweights = torch.randn(2000, 2000)",
)


class MemoryPage:
    """State: the address holds the chosen session, the filter and the window."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._snapshot = Snapshot()
        self._tabled: int | None = None
        self.devices = html_pane()
        self.figures = html_pane()
        self.wakes = WakeChart(board.look)
        self.lanes = MemoryLanes(board.look)
        self.deferred = LiveTable(
            columns=DEFERRED_COLUMNS, label="Cells that wait for memory", sizing_mode="stretch_width"
        )
        self.sessions = LiveTable(
            columns=SESSION_COLUMNS, selectable=True, label="Sessions in memory", sizing_mode="stretch_width"
        )
        self.facts = html_pane(margin=(12, 0, 8, 0))
        self.story = LiveTable(
            columns=HAPPENING_COLUMNS,
            label="What happened to the session",
            visible=False,
            sizing_mode="stretch_width",
        )
        self._build_controls()
        self._build_view()

    def _build_controls(self) -> None:
        route = self._board.route
        shown = route.get("show") if route.get("show") in ("device", "parked") else "all"
        self.filter = choice_bar({"All": "all", "On devices": "device", "Parked": "parked"}, shown)
        window = route.number("window") or 180
        self.window = choice_bar(WINDOWS, window if window in WINDOWS.values() else 180)
        self.csv = download("CSV of sessions", "memory-sessions.csv", self._sessions_csv)
        self.events_csv = download("CSV of events", "memory-events.csv", self._events_csv)
        self.filter.param.watch(lambda event: self._board.background.soon(self._choices_changed), "value")
        self.window.param.watch(lambda event: self._board.background.soon(self._choices_changed), "value")
        self.sessions.param.watch(lambda event: self._session_chosen(), "selected")

    def _build_view(self) -> None:
        full: dict[str, Any] = {"sizing_mode": "stretch_width", "margin": 0}
        self._heading = html_pane(margin=(0, 0, 10, 0))
        self._wakes_heading = html_pane(margin=(0, 0, 2, 0))
        self._deferred_heading = html_pane(margin=(0, 0, 6, 0))
        self._lanes_heading = html_pane(margin=0)
        self._sessions_heading = html_pane(margin=(18, 0, 6, 0))
        self._no_sessions = html_pane(NO_SESSIONS, visible=False)
        beside: dict[str, Any] = {"sizing_mode": "stretch_width", "margin": (14, 16, 0, 0)}
        wakes = pn.Column(self._wakes_heading, self.wakes.view, **beside)
        deferred = pn.Column(
            self._deferred_heading, self.deferred, sizing_mode="stretch_width", margin=(14, 0, 0, 0)
        )
        self._pair = pn.GridBox(wakes, deferred, ncols=2, stylesheets=[_STACKED], **full)
        lanes_bar = pn.Row(
            self._lanes_heading, self.window, sizing_mode="stretch_width", margin=(18, 0, 0, 0)
        )
        self._sessions_part = pn.Column(
            lanes_bar,
            html_pane(lanes_legend(), margin=(0, 0, 4, 0)),
            self.lanes.view,
            self._sessions_heading,
            control_bar(self.filter, self.csv, self.events_csv),
            self.sessions,
            self.facts,
            self.story,
            **full,
        )
        self._live = pn.Column(
            self._heading,
            self.devices,
            self.figures,
            self._pair,
            self._no_sessions,
            self._sessions_part,
            visible=False,
            **full,
        )
        self._missing = html_pane()
        self.view = pn.Column(self._missing, self._live, **full)

    def enter(self) -> None:
        """Called when the page is shown: follow the address."""
        wanted = self._board.route.get("session")
        memory = self._snapshot.memory or self._board.hub.snapshot().memory
        found = memory.session(wanted) if memory is not None and wanted else None
        self.sessions.selected = found.session if found is not None else wanted
        self._tabled = None

    def update(self, snapshot: Snapshot) -> None:
        """Bring the page up to the snapshot, sending only what changed."""
        self._snapshot = snapshot
        memory = snapshot.memory
        if not show_known(self._live, self._missing, snapshot, memory):
            return
        assert memory is not None
        show_html(self._heading, heading("Session memory", sentence(memory)))
        show_html(self.devices, device_cards(memory, snapshot.connection != "live"))
        show_html(self.figures, figures(memory))
        self.wakes.update(memory.wake_ups)
        show_html(self._wakes_heading, heading("Wake-ups", wake_sentence(memory.wake_ups)))
        self._no_sessions.visible = not memory.sessions
        self._sessions_part.visible = bool(memory.sessions)
        if memory.sessions:
            self._draw_lanes(memory)
        if snapshot.version != self._tabled:
            self._tabled = snapshot.version
            self._fill_tables(memory)

    def _draw_lanes(self, memory: MemoryView) -> None:
        history = self._board.hub.session_memory
        self.lanes.update(memory, history, float(self.window.value), self.sessions.selected)
        listed = len(memory.sessions)
        part = f"; the {LANES_MAX} most active of {listed} are drawn" if listed > LANES_MAX else ""
        since = history.watched_since_s
        watched = ""
        if since is not None and since > memory.now - self.window.value:
            watched = f"; watched since {time.strftime('%H:%M:%S', time.localtime(since))}"
        older = f"; {self.lanes.left_out:,} older moments are left out" if self.lanes.left_out else ""
        text = f"Where each session’s state was, newest at the right{watched}{part}{older}."
        show_html(self._lanes_heading, heading("What happened", text))

    def _fill_tables(self, memory: MemoryView) -> None:
        rows, note = session_rows(memory, self.filter.value)
        self.sessions.empty = "No session is there now"
        self.sessions.show(rows, note)
        words = "Choose one to see what happened to it."
        show_html(self._sessions_heading, heading("Sessions", words))
        self.deferred.empty = "No cell waits for memory"
        self.deferred.show(deferred_rows(memory))
        waiting = sum(cell.release.of_other_sessions for cell in memory.deferred)
        text = (
            f"{len(memory.deferred)} wait, {waiting} of them for other sessions to leave."
            if memory.deferred
            else (
                "A cell waits here while its session’s state is restored, or when device and host are full."
            )
        )
        show_html(self._deferred_heading, heading("Cells that wait for memory", text))
        self._show_session(memory)

    def _show_session(self, memory: MemoryView) -> None:
        chosen = self.sessions.selected
        session = memory.session(chosen) if chosen else None
        self.story.visible = session is not None
        if session is None:
            gone = notice(f"There is no session {chosen[:12]} any more") if chosen else ""
            show_html(self.facts, gone)
            return
        history = self._board.hub.session_memory
        show_html(
            self.facts, session_facts(session, memory.now, memory.readable(history.reason(session.session)))
        )
        happenings = history.happenings(memory.now - KEPT_S, session.session)
        left_out = len(happenings) - HAPPENINGS_SHOWN_MAX
        note = f"{left_out} earlier ones are left out" if left_out > 0 else ""
        self.story.empty = "Nothing happened to it in the last quarter of an hour"
        self.story.show(happening_rows(happenings, HAPPENINGS_SHOWN_MAX, memory), note)

    def _session_chosen(self) -> None:
        self._board.route.update(session=self.sessions.selected)
        if self._snapshot.memory is not None:
            self._show_session(self._snapshot.memory)

    def _choices_changed(self) -> None:
        show = None if self.filter.value == "all" else self.filter.value
        window = None if self.window.value == 180 else self.window.value
        self._board.route.update(show=show, window=window)
        self._tabled = None
        self.update(self._snapshot)

    def _sessions_csv(self) -> BytesIO:
        return BytesIO(sessions_csv(self._snapshot.memory).encode())

    def _events_csv(self) -> BytesIO:
        memory = self._snapshot.memory
        since_s = memory.now - KEPT_S if memory is not None else 0.0
        return BytesIO(happenings_csv(self._board.hub.session_memory.happenings(since_s)).encode())

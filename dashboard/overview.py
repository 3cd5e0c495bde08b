"""Overview: devices, running and waiting cells with the reason they wait, sessions, memory over time."""

from __future__ import annotations

from collections import Counter
from html import escape
from itertools import groupby

import panel as pn

from djinn_lab.dashboard.board import Board
from djinn_lab.dashboard.devices.tables import HOST_STATE_WORDS
from djinn_lab.dashboard.hub import JOBS_MAX, Snapshot
from djinn_lab.dashboard.jobs.details import job_details_html
from djinn_lab.dashboard.jobs.tables import job_columns, job_row
from djinn_lab.dashboard.memory.used_chart import MemoryChart
from djinn_lab.dashboard.widgets.components import LiveTable
from djinn_lab.dashboard.widgets.controls import button, choice_bar, control_bar, whose_bar
from djinn_lab.dashboard.widgets.panes import NO_JOBS, heading, html_pane, notice, show_html, show_known
from djinn_lab.dashboard.widgets.table_cells import columns
from djinn_lab.dashboard.widgets.theme import DEVICE_STATE_COLOURS
from djinn_lab.errors import DjinnError
from djinn_lab.protocol.rest.jobs import JobDetail, JobView
from djinn_lab.protocol.rest.sessions import SessionView
from djinn_lab.protocol.rest.status import DeviceView, HostView, PoolStatus
from djinn_lab.units import format_bytes, whole_seconds

JOB_COLUMNS = job_columns(
    *("state", "cell", "notebook", "user", "device", "progress", "position", "starts", "why"),
    *("priority", "took", "job"),
)
SESSION_COLUMNS = columns(
    ("name", "Notebook", "text"),
    ("user", "User", "short"),
    ("state", "State", "pill"),
    ("phase", "Phase", "short"),
    ("device", "Device", "short"),
    ("used", "Memory", "number"),
    ("jobs", "Cells", "number"),
    ("seen", "Last message", "number"),
)
_RUNNING_FIRST = ("RUNNING", "RESTORING", "PREEMPTED", "QUEUED", "SUBMITTED", "WAITING")


class Overview:
    """Show the pool's devices, cells and sessions, with used memory over time."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self.memory = MemoryChart(board.look)
        self.devices = html_pane()
        self.jobs = LiveTable(
            columns=JOB_COLUMNS,
            selectable=True,
            label="Cells",
            sizing_mode="stretch_width",
            margin=(0, 0, 6, 0),
        )
        self.sessions = LiveTable(
            columns=SESSION_COLUMNS,
            label="Sessions",
            empty="No notebook is connected",
            sizing_mode="stretch_width",
        )
        shown = "all" if board.route.get("show") == "all" else "active"
        self.filter = choice_bar({"Running and pending": "active", "All recent": "all"}, shown)
        self.whose = whose_bar(board.route.get("whose") == "mine")
        self.cancel = button("Cancel cell", color="danger", disabled=True)
        self.graph = button("Show graph", disabled=True)
        self.schedule = button("Show schedule", disabled=True)
        self.result = html_pane(margin=(0, 0, 8, 0))
        self._jobs_heading = html_pane(margin=(14, 0, 6, 0))
        self._sessions_heading = html_pane(margin=(18, 0, 6, 0))
        self._first_steps = html_pane(NO_JOBS, visible=False)
        self.details = html_pane(margin=(8, 0, 0, 0))
        self._detailed: JobView | None = None
        self._snapshot = Snapshot()
        self._live = self._build_live()
        self._missing = html_pane()
        self.view = pn.Column(self._missing, self._live, sizing_mode="stretch_width", margin=0)
        self._wire()

    def _build_live(self) -> pn.Column:
        bar = control_bar(self.filter, self.whose, self.graph, self.schedule, self.cancel)
        parts = [
            self.devices,
            self._jobs_heading,
            bar,
            self.result,
            self.jobs,
            self.details,
            self._first_steps,
            self.memory.view,
            self._sessions_heading,
            self.sessions,
        ]
        return pn.Column(*parts, sizing_mode="stretch_width", margin=0, visible=False)

    def _wire(self) -> None:
        self.filter.param.watch(lambda event: self._board.background.soon(self._filter_changed), "value")
        self.whose.param.watch(lambda event: self._board.background.soon(self._filter_changed), "value")
        self.jobs.param.watch(lambda event: self._selection_changed(), "selected")
        self.cancel.on_click(lambda event: self.cancel_selected())
        self.graph.on_click(lambda event: self._open("srg"))
        self.schedule.on_click(lambda event: self._open("schedule"))

    def enter(self) -> None:
        """Called when the page is shown: follow the address."""
        self.jobs.selected = self._board.route.get("job")

    def update(self, snapshot: Snapshot) -> None:
        """Bring the page up to the snapshot, sending only what changed."""
        self._snapshot = snapshot
        if not show_known(self._live, self._missing, snapshot, snapshot.status):
            return
        assert snapshot.status is not None
        stale = snapshot.connection != "live"
        show_html(self.devices, devices_html(snapshot.status, snapshot.jobs, stale))
        self._show_jobs(snapshot)
        sessions = sorted(
            snapshot.sessions, key=lambda item: (item.state != "connected", -(item.last_seen or 0))
        )
        self.sessions.show([session_row(item, snapshot.status.now) for item in sessions])
        show_html(self._sessions_heading, heading("Sessions", sessions_sentence(snapshot)))
        self.memory.update(snapshot.status, self._board.hub.memory_after(self.memory.version))

    def _show_jobs(self, snapshot: Snapshot) -> None:
        assert snapshot.status is not None
        seen = tuple(job for job in snapshot.jobs if not self.whose.value or job.user == snapshot.user)
        shown = visible_jobs(seen, self.filter.value)
        notebooks = snapshot.notebooks_by_session()
        now = snapshot.status.now
        listed = len(snapshot.jobs)
        note = f"The newest {listed} cells are listed" if shown and listed >= JOBS_MAX else ""
        self.jobs.empty = "No cell is running or pending. Choose “All recent” for finished cells."
        self.jobs.show([job_row(job, now, notebooks) for job in shown], note)
        show_html(self._jobs_heading, heading("Cells", jobs_sentence(snapshot.jobs)))
        self._first_steps.visible = not snapshot.jobs
        self.jobs.visible = bool(snapshot.jobs)
        self._show_buttons()

    def _show_buttons(self) -> None:
        job = self._snapshot.job(self.jobs.selected) if self.jobs.selected else None
        self.cancel.disabled = job is None or job.finished
        self.graph.disabled = self.schedule.disabled = job is None
        if job is not None and self._detailed is not None and job.state != self._detailed.state:
            self._read_details()

    def _filter_changed(self) -> None:
        self._board.route.update(show=self.filter.value, whose="mine" if self.whose.value else None)
        self.update(self._snapshot)

    def _selection_changed(self) -> None:
        self._board.route.update(job=self.jobs.selected)
        show_html(self.result, "")
        show_html(self.details, "")
        self._show_buttons()
        self._read_details()

    def _read_details(self) -> None:
        """Ask for what the list does not hold: code and events."""
        chosen = self.jobs.selected
        self._detailed = self._snapshot.job(chosen)
        if not chosen:
            return
        hub = self._board.hub

        def done(answer: JobDetail) -> None:
            if self.jobs.selected == chosen:
                show_html(self.details, job_details_html(answer, answer.code, answer.events))

        def failed(error: DjinnError) -> None:
            if self.jobs.selected == chosen:
                show_html(self.result, notice(f"No details: {error.message}", error.advice))

        self._board.background.run("details", lambda: hub.reader().job(chosen), done, failed)

    def _open(self, page: str) -> None:
        self._board.route.update(page=page, job=self.jobs.selected, segment=None)

    def cancel_selected(self) -> None:
        """Ask the pool to cancel the selected cell and show its answer."""
        job = self.jobs.selected
        if not job:
            return
        self.cancel.disabled = True
        show_html(self.result, notice(f"Cancelling cell {job[:8]}"))

        def done(answer: object) -> None:
            show_html(self.result, notice(f"Cell {job[:8]}: the pool accepted the cancel", "", "good"))

        def failed(error: DjinnError) -> None:
            show_html(self.result, notice(f"Not cancelled: {error.message}", error.advice, "bad"))

        hub = self._board.hub
        self._board.background.run("cancel", lambda: hub.reader().cancel(job), done, failed)


def devices_html(status: PoolStatus, jobs: tuple[JobView, ...], stale: bool) -> str:
    """Return a card for each device, by host where there are several."""
    cells = {job.job: job.cell or job.short_id for job in jobs}
    if not status.devices:
        return "<p class='muted'>The pool has no devices yet; they are starting.</p>"
    parts = []
    for host, devices in groupby(status.devices, key=lambda device: device.host):
        cards = "".join(_device_card(device, cells) for device in devices)
        if host:
            parts.append(_host_heading(host, next((one for one in status.hosts if one.host == host), None)))
        parts.append(f"<div class='cards{' stale' if stale else ''}'>{cards}</div>")
    return "".join(parts)


def _host_heading(name: str, host: HostView | None) -> str:
    words = []
    if host is not None and host.state != "serves":
        words.append(HOST_STATE_WORDS[host.state])
    if host is not None and host.link_bytes_per_s is not None:
        words.append(f"link {format_bytes(int(host.link_bytes_per_s))}/s")
    said = f" <span class='muted'>{escape(', '.join(words))}</span>" if words else ""
    return f"<h3>{escape(name)}{said}</h3>"


def _device_card(device: DeviceView, cells: dict[str, str]) -> str:
    share = device.used_bytes / device.memory_bytes if device.memory_bytes else 0.0
    running = escape(cells.get(device.job, device.job[:8])) if device.job else "nothing"
    threads = f"{device.threads} thread{'s' if device.threads != 1 else ''}"
    restarts = f", restarted {device.restarts} x" if device.restarts else ""
    sessions = len([count for count in device.session_bytes.values() if count])
    speed = f"{device.flops_per_s / 1e9:.0f} GFLOP/s" if device.flops_per_s else "not measured yet"
    rows = [
        ("Running", f"<code>{running}</code>" if device.job else "<span class='muted'>nothing</span>"),
        *([("Reserved for it", format_bytes(device.reserved_bytes))] if device.reserved_bytes else []),
        ("Pending", f"{device.queue_length}"),
        ("Holds tensors of", f"{sessions} session{'s' if sessions != 1 else ''}"),
        ("Speed", f"<span class='muted'>{speed}, {threads}{restarts}</span>"),
    ]
    body = "".join(
        f"<div class='row'><span class='muted'>{label}</span><span>{text}</span></div>"
        for label, text in rows
    )
    used = f"{format_bytes(device.used_bytes)} of {format_bytes(device.memory_bytes)}"
    tone = DEVICE_STATE_COLOURS.get(device.state, "#7F8C99")
    return (
        f"<section class='card' aria-label='Device {escape(device.device)}'><div class='head'>"
        f"<b>{escape(device.device)}</b>"
        f"<span class='name' title='{escape(device.name)}'>{escape(device.name)}</span>"
        f"<span class='pill' style='--pill:{tone}'>{escape(device.state)}</span></div>"
        f"<div class='meter' role='meter' aria-valuenow='{share:.0%}' aria-label='Memory used'>"
        f"<i class='{'high' if share > 0.9 else ''}' style='width:{min(1.0, share):.1%}'></i></div>"
        f"<div class='row'><span>{used}</span><span class='muted'>{share:.0%}</span></div>{body}</section>"
    )


def visible_jobs(jobs: tuple[JobView, ...], show: str) -> list[JobView]:
    """Return running jobs first, then pending ones by queue position, then finished ones, newest first."""
    chosen = [job for job in jobs if show == "all" or not job.finished]

    def rank(job: JobView) -> tuple[int, int]:
        order = _RUNNING_FIRST.index(job.state) if job.state in _RUNNING_FIRST else len(_RUNNING_FIRST)
        return order, job.position or 0

    return sorted(chosen, key=rank)


def session_row(session: SessionView, now: float) -> dict[str, object]:
    """Return a session as a row of the table."""
    colour = "#009E73" if session.state == "connected" else "#E69F00"
    seen = max(0.0, now - session.last_seen) if session.last_seen is not None else None
    return {
        "id": session.session,
        "name": session.name or session.session[:8],
        "user": session.user,
        "state": {"text": session.state, "colour": colour},
        "phase": (session.phase or "").lower().replace("_", " "),
        "device": session.device,
        "used": {"text": format_bytes(session.used_bytes), "sort": session.used_bytes},
        "jobs": session.jobs,
        "seen": None if seen is None else {"text": _ago(seen), "sort": seen},
    }


def _ago(seconds: float) -> str:
    return "now" if seconds < 15 else f"{whole_seconds(int(seconds / 15) * 15)} ago"


def jobs_sentence(jobs: tuple[JobView, ...]) -> str:
    """Summarise running and pending cells in one sentence."""
    running = sum(job.state == "RUNNING" for job in jobs)
    restoring = sum(job.state == "RESTORING" for job in jobs)
    waiting = sum(job.state in ("QUEUED", "SUBMITTED", "PREEMPTED") for job in jobs)
    between = sum(job.state == "WAITING" for job in jobs)
    failed = sum(job.state == "FAILED" for job in jobs)
    sentence = f"{running} running"
    sentence += f", {restoring} restoring" if restoring else ""
    sentence += f", {waiting} pending"
    sentence += f", {between} waiting for their notebook" if between else ""
    return sentence + (f"; {failed} of the recent ones failed" if failed else "") + "."


def sessions_sentence(snapshot: Snapshot) -> str:
    """Summarise the sessions in one sentence."""
    count = Counter(session.state for session in snapshot.sessions)
    held = sum(session.used_bytes for session in snapshot.sessions)
    away = f", {count['away']} away" if count["away"] else ""
    return (
        f"{count['connected']} connected{away}, {count['detached']} detached; "
        f"together they hold {format_bytes(held)}."
    )

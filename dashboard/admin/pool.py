"""The pool itself: what it is, and stopping it."""

from __future__ import annotations

from html import escape

from djinn_lab.client.moments import shown_moment
from djinn_lab.dashboard.admin.section import stack
from djinn_lab.dashboard.board import Board
from djinn_lab.dashboard.hub import Snapshot
from djinn_lab.dashboard.widgets.changes import Changes
from djinn_lab.dashboard.widgets.controls import button
from djinn_lab.dashboard.widgets.panes import heading, html_pane, show_html
from djinn_lab.protocol.rest.status import PoolStatus
from djinn_lab.units import counted, format_bytes, format_seconds, whole_seconds


class PoolSection:
    """Show the pool's facts, and stop it."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._snapshot = Snapshot()
        self.facts = html_pane(margin=(0, 0, 8, 0))
        self.stop = button("Stop the pool", color="danger")
        self.changes = Changes(board.background, "pool")
        words = "Settings take effect at its next start: djinn-lab pool start, or the page Wizard."
        self.view = stack(
            html_pane(heading("Pool", words), margin=(0, 0, 6, 0)),
            self.facts,
            self.changes.bar(self.stop),
            self.changes.view,
        )
        self.stop.on_click(lambda event: self.ask_stop())

    def update(self, snapshot: Snapshot) -> None:
        """Bring the section up to the snapshot."""
        self._snapshot = snapshot
        if snapshot.status is not None:
            show_html(self.facts, facts_html(snapshot.status))

    def ask_stop(self) -> None:
        """Say what a stop loses, and stop the pool once that is confirmed."""
        if self._snapshot.status is not None:
            self.changes.ask(stop_question(self._snapshot.status), "stop the pool", self._stop)

    def _stop(self) -> None:
        self.changes.run(
            "Stopping the pool.",
            lambda: self._board.hub.reader().shutdown(),
            lambda answer: "The pool stops. Start another one with: djinn-lab pool start",
        )


def facts_html(status: PoolStatus) -> str:
    """Return what the pool says of itself, as a table."""
    jobs = ", ".join(f"{count} {state.lower()}" for state, count in status.jobs.items() if count)
    cache = status.plan_cache
    lag_s = status.event_loop_lag_s
    rows = [
        ("Pool", status.pool),
        ("Version", f"{status.version}, protocol {status.protocol_version}"),
        ("Started", f"{shown_moment(status.started_at)}, {whole_seconds(status.uptime_s)} ago"),
        ("Devices", ", ".join(device.device for device in status.devices) or "none yet"),
        ("Users", str(status.users)),
        ("Sessions", str(status.sessions)),
        ("Jobs", jobs or "none yet"),
        ("Uploaded tensors", f"{status.blobs.count}, {format_bytes(status.blobs.bytes)}"),
        ("Graphs known", f"{cache.hits} of {cache.hits + cache.misses}"),
        ("Event loop delay", "unknown" if lag_s is None else f"{format_seconds(lag_s)} at worst lately"),
    ]
    body = "".join(f"<tr><th scope='row'>{label}</th><td>{escape(text)}</td></tr>" for label, text in rows)
    return f"<div class='card'><table class='facts'>{body}</table></div>"


def stop_question(status: PoolStatus) -> str:
    """Say what a stop of the pool loses."""
    running = status.jobs.get("RUNNING", 0)
    return (
        f"Stop the pool? {counted(running, 'running cell')} cancelled, everything on the devices freed: "
        f"{counted(status.sessions, 'session')} lose what is only on the pool. It is not started again."
    )

"""Sessions of all users: what they hold, and closing one."""

from __future__ import annotations

from djinn_lab.dashboard.admin.section import stack, table
from djinn_lab.dashboard.board import Board
from djinn_lab.dashboard.hub import Snapshot
from djinn_lab.dashboard.overview import SESSION_COLUMNS, session_row, sessions_sentence
from djinn_lab.dashboard.widgets.changes import Changes
from djinn_lab.dashboard.widgets.controls import button
from djinn_lab.dashboard.widgets.panes import heading, html_pane, show_html
from djinn_lab.dashboard.widgets.table_cells import columns, number_cell
from djinn_lab.protocol.rest.sessions import SessionView
from djinn_lab.units import format_bytes, whole_seconds

COLUMNS = [*SESSION_COLUMNS, *columns(("ends", "Closed in", "number"), ("session", "Session", "mono"))]


class SessionsSection:
    """Choose a session, then close it."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._snapshot = Snapshot()
        self.sessions = table(COLUMNS, "Sessions", empty="No notebook is connected")
        self.close = button("Close session", color="danger", disabled=True)
        self.changes = Changes(board.background, "session")
        self._heading = html_pane(margin=(0, 0, 6, 0))
        self.view = stack(
            self._heading, self.sessions, self.changes.bar(self.close, margin=(8, 0, 0, 0)), self.changes.view
        )
        self.sessions.param.watch(lambda event: self._chosen(), "selected")
        self.close.on_click(lambda event: self.ask_close())

    def update(self, snapshot: Snapshot) -> None:
        """Bring the section up to the snapshot."""
        self._snapshot = snapshot
        if snapshot.status is None:
            return
        now = snapshot.status.now
        most_first = sorted(snapshot.sessions, key=lambda one: -one.used_bytes)
        self.sessions.show([_row(session, now) for session in most_first])
        show_html(self._heading, heading("Sessions", sessions_sentence(snapshot)))
        self.close.disabled = self._session() is None

    def ask_close(self) -> None:
        """Say what is lost, and close the chosen session once that is confirmed."""
        session = self._session()
        if session is None:
            return
        self.changes.ask(
            close_question(session), "close it", lambda: self._close(session.session, label(session))
        )

    def _close(self, session: str, name: str) -> None:
        self.changes.run(
            f"Closing {name}.",
            lambda: self._board.hub.reader().close_session(session),
            lambda answer: f"The session {name} is closed.",
        )

    def _session(self) -> SessionView | None:
        chosen = self.sessions.selected
        return next((one for one in self._snapshot.sessions if one.session == chosen), None)

    def _chosen(self) -> None:
        self.close.disabled = self._session() is None
        self.changes.clear()


def _row(session: SessionView, now: float) -> dict[str, object]:
    left_s = None if session.ends_at is None else max(0.0, session.ends_at - now)
    return {
        **session_row(session, now),
        "ends": number_cell(left_s, whole_seconds),
        "session": {"text": session.session[:8], "title": session.session},
    }


def label(session: SessionView) -> str:
    return f"{session.name or session.session[:8]} of {session.user}"


def close_question(session: SessionView) -> str:
    """Say what is lost when a session is closed."""
    connected = session.state == "connected"
    there = " Its notebook is connected, and loses what is only on the pool." if connected else ""
    freed = format_bytes(session.used_bytes)
    return f"Close the session {label(session)}? Its cells are cancelled, and {freed} are freed.{there}"

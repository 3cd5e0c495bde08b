"""The audit: changes, refusals and failures, newest first, by user, action and time."""

from __future__ import annotations

import time
from typing import Any

from djinn_lab.client.audit_chain import checked_chain, read_head, rows_of_pool
from djinn_lab.client.moments import read_past_moment, shown_moment
from djinn_lab.client.rest import PoolClient
from djinn_lab.dashboard.admin.section import PoolReading, stack, table
from djinn_lab.dashboard.board import Board
from djinn_lab.dashboard.hub import Snapshot
from djinn_lab.dashboard.widgets.changes import Changes
from djinn_lab.dashboard.widgets.controls import button, text_input, toggle
from djinn_lab.dashboard.widgets.forms import Form
from djinn_lab.dashboard.widgets.panes import heading, html_pane, show_html
from djinn_lab.dashboard.widgets.table_cells import columns
from djinn_lab.errors import OptionError
from djinn_lab.protocol.rest.audit import AuditRow

ROWS_MAX = 200
AUDIT_COLUMNS = columns(
    ("row", "Row", "number"),
    ("at", "When", "number"),
    ("user", "User", "mono"),
    ("action", "Action", "mono"),
    ("status", "Status", "pill"),
    ("body", "Details", "text"),
)
DONE_COLOUR, REFUSED_COLOUR = "#009E73", "#D55E00"


class AuditSection:
    """Show the newest rows that the filters let through."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._filters: dict[str, Any] = {}
        self.rows = table(
            AUDIT_COLUMNS,
            "Audit",
            empty="Asking the pool",
            selectable=False,
            styles={"--table-height": "max(26rem, 62vh)"},
        )
        self.form = Form(
            {
                "user": text_input("User", placeholder="all", width=150),
                "action": text_input("Action", placeholder="/v1/users", width=190),
                "since": text_input("Since", placeholder="14:00, 2026-11-23 14:00", width=190),
            }
        )
        self.refused = toggle("Only refusals and faults", align="end")
        self._reading = PoolReading(board, "audit", self._ask, self._show)
        self._heading = html_pane(heading("Audit", "Asking the pool."), margin=(0, 0, 6, 0))
        head = text_input("Head noted earlier (optional)", placeholder="ROW:HASH", width=330)
        self.chain = Form({"head": head})
        self.check = button("Check the chain")
        self.checking = Changes(board.background, "audit-chain")
        words = "Each row has a hash of the row before it. The check finds the first row that does not fit."
        self.view = stack(
            self._heading,
            self.form.view,
            self.refused,
            self._reading.problem,
            self.rows,
            html_pane(heading("Check", words), margin=(14, 0, 6, 0)),
            self.chain.view,
            self.check,
            self.checking.view,
        )
        self.check.on_click(lambda event: self.check_chain())
        for field in (*self.form.fields.values(), self.refused):
            field.param.watch(lambda event: board.background.soon(self._filtered), "value")

    def update(self, snapshot: Snapshot) -> None:
        """Ask for new rows now and then."""
        self._reading.update()

    def check_chain(self) -> None:
        """Check that no row was altered, removed or put in between, and show the head to note."""
        self.chain.clear_notes()
        text, noted = self.chain.text("head"), None
        if text:
            try:
                noted = read_head("Head", text)
            except OptionError as error:
                self.chain.refused("head", f"{error.message} {error.advice}")
                return
        hub = self._board.hub
        self.checking.run(
            "Reading all rows.",
            lambda: checked_chain(*rows_of_pool(hub.reader()), noted),
            lambda found: f"{found[0]:,} rows fit one another. Note the head elsewhere: {found[1]}",
        )

    def _filtered(self) -> None:
        """Ask with what was typed."""
        self.form.clear_notes()
        text, since_s = self.form.text("since"), None
        if text:
            try:
                since_s = read_past_moment("Since", text, time.time())
            except OptionError as error:
                self.form.refused("since", f"{error.message} {error.advice}")
                return
        self._filters = {
            "user": self.form.text("user") or None,
            "action": self.form.text("action") or None,
            "refused": bool(self.refused.value),
            "since": since_s,
        }
        self._reading.again()

    def _ask(self, reader: PoolClient) -> list[AuditRow]:
        return reader.audit(ROWS_MAX, **self._filters)

    def _show(self, found: list[AuditRow]) -> None:
        self.rows.empty = "Nothing like that was done"
        more = f"The newest {ROWS_MAX} are listed; narrow them by the filters"
        self.rows.show([audit_row(row) for row in found], more if len(found) == ROWS_MAX else "")
        words = f"{len(found)} rows, the newest first. The pool notes each change and each refusal."
        show_html(self._heading, heading("Audit", words))


def audit_row(row: AuditRow) -> dict[str, object]:
    colour = DONE_COLOUR if row.status < 400 else REFUSED_COLOUR
    return {
        "id": str(row.row),
        "row": row.row,
        "at": {"text": shown_moment(row.at), "sort": row.at},
        "user": row.user,
        "action": row.action,
        "status": {"text": str(row.status), "colour": colour},
        "body": row.body,
    }

"""Shares and limits of accounts: choose one, edit its targets, see what changes, apply it."""

from __future__ import annotations

from djinn_lab.dashboard.admin.section import stack, table
from djinn_lab.dashboard.admin.targets import (
    ANY_PRIORITY,
    BEST,
    FIELDS,
    LABELS,
    Targets,
    changes_between,
    read_targets,
    targets_of,
    typed_text,
)
from djinn_lab.dashboard.board import Board
from djinn_lab.dashboard.hub import Snapshot
from djinn_lab.dashboard.queueing.tables import ACCOUNT_COLUMNS, account_rows, limits_text
from djinn_lab.dashboard.widgets.changes import Changes
from djinn_lab.dashboard.widgets.controls import button, select, text_input
from djinn_lab.dashboard.widgets.forms import Form
from djinn_lab.dashboard.widgets.panes import heading, html_pane, show_html
from djinn_lab.errors import DjinnError, OptionError
from djinn_lab.jobs import RANKS
from djinn_lab.jobs.fairness import AccountView
from djinn_lab.protocol.rest.queue import QueueView

HINT = (
    "Choose an account above, or type another one, such as a project (vision/train). An empty field is no "
    "limit. Nothing changes before you have seen and applied it."
)


class AccountsSection:
    """Edit the weight and the limits of one account at a time."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._queue: QueueView | None = None
        self.accounts = table(ACCOUNT_COLUMNS, "Accounts", empty="No account has used anything yet")
        limits = {name: text_input(LABELS[name], placeholder="none", width=210) for name in FIELDS[1:]}
        self.form = Form(
            {
                "account": text_input("Account", placeholder="vision/train/ann", width=210),
                "weight": text_input(LABELS["weight"], placeholder="1", width=210),
                **limits,
                "rank_min": select(BEST, [ANY_PRIORITY, *list(RANKS)[1:]], value=ANY_PRIORITY, width=210),
            }
        )
        self._filled = self._typed()
        self.preview = button("Show what changes", color="primary")
        self.changes = Changes(board.background, "account")
        self._heading = html_pane(heading("Accounts", "Asking the pool."), margin=(0, 0, 6, 0))
        self.view = stack(
            self._heading,
            self.accounts,
            html_pane(heading("Shares and limits", HINT), margin=(14, 0, 6, 0)),
            self.form.view,
            self.preview,
            self.changes.view,
        )
        self.accounts.param.watch(lambda event: self._chosen(), "selected")
        self.form.fields["account"].param.watch(lambda event: self._account_typed(), "value")
        self.preview.on_click(lambda event: self.show_changes())

    def update(self, snapshot: Snapshot) -> None:
        """Bring the table up to the snapshot; the form stays as it is."""
        self._board.hub.want_queue()
        queue = self._queue = snapshot.queue
        if queue is None:
            return
        words = "Shares by weight, usage and limits; the account that is served next is first."
        show_html(self._heading, heading("Accounts", words))
        self.accounts.show(account_rows(queue))

    def show_changes(self) -> None:
        """Say what would change, and apply it once that is confirmed."""
        form = self.form
        form.clear_notes()
        self.changes.clear()
        try:
            account = form.required("account", "an account's path").strip("/")
            wanted = read_targets(form)
        except OptionError:
            return
        known = self._known(account)
        differences = changes_between(targets_of(known), wanted)
        if not differences:
            self.changes.say(f"Nothing would change: {account} has these targets already.")
            return
        self.changes.ask(
            change_question(account, known, differences),
            "apply it",
            lambda: self._apply(account, targets_of(known), wanted),
        )

    def _apply(self, account: str, before: Targets, wanted: Targets) -> None:
        weight = None if wanted.weight == before.weight else wanted.weight
        limits = None if wanted.limits == before.limits else wanted.limits
        hub = self._board.hub
        self.changes.run(
            f"Changing {account}.",
            lambda: hub.reader().set_targets(account, weight=weight, limits=limits),
            self._applied,
            self._refused,
        )

    def _applied(self, changed: AccountView) -> str:
        self._filled = self._typed()
        limits = limits_text(changed).rstrip(".") or "no limits"
        return f"{changed.account} has weight {changed.weight:g}, a share of {changed.share:.1%}; {limits}."

    def _refused(self, error: DjinnError) -> None:
        """Show the pool's words beside the field that they are about."""
        words = error.message.lower()
        field = "weight" if "weight" in words else "account"
        self.form.refused("devices_guaranteed" if "guarantee" in words else field, error.message)

    def _known(self, account: str) -> AccountView | None:
        accounts = () if self._queue is None else self._queue.accounts
        return next((one for one in accounts if one.account == account), None)

    def _chosen(self) -> None:
        chosen = self.accounts.selected
        if chosen:
            self.changes.clear()
            self.form.fields["account"].value = chosen
            self._fill(self._known(chosen))

    def _account_typed(self) -> None:
        """Fill in the targets of the account, unless others have been typed already."""
        typed = self._typed()
        known = self._known(self.form.text("account"))
        if known is not None and typed == self._filled:
            self._fill(known)

    def _fill(self, account: AccountView | None) -> None:
        self.form.clear_notes()
        texts = typed_text(targets_of(account))
        for name, text in texts.items():
            self.form.fields[name].value = text
        self._filled = self._typed()

    def _typed(self) -> dict[str, object]:
        return {name: self.form.value(name) for name in (*FIELDS, "rank_min")}


def change_question(account: str, known: AccountView | None, differences: list[str]) -> str:
    """Say what changes for an account, and that it counts at once."""
    new = "" if known is not None else " No cell has run as this account yet."
    return f"Change {account}? {'; '.join(differences)}.{new} It counts from the next decision of the queue."

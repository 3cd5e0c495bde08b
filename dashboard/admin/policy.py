"""The queue's policy: which one decides, what the others do, and a switch to another."""

from __future__ import annotations

from djinn_lab.dashboard.admin.section import stack, table
from djinn_lab.dashboard.board import Board
from djinn_lab.dashboard.hub import Snapshot
from djinn_lab.dashboard.widgets.changes import Changes
from djinn_lab.dashboard.widgets.controls import button, file_input
from djinn_lab.dashboard.widgets.panes import heading, html_pane, show_html
from djinn_lab.dashboard.widgets.table_cells import columns
from djinn_lab.errors import OptionError
from djinn_lab.jobs.decision import POLICIES, QueuePolicy
from djinn_lab.pool.policy_file import parse_policy

POLICY_COLUMNS = columns(
    ("name", "Policy", "mono"),
    ("now", "In use", "pill"),
    ("order", "Order of pending cells", "text"),
    ("backfill", "Backfill", "short"),
    ("preempts", "Preempts for", "text"),
)
IN_USE_COLOUR = "#009E73"
FROM_FILE = "Or a policy from a file that djinn-lab simulate --tune wrote."
_WITHIN = {
    "arrival": "arrival",
    "remaining": "shortest remaining time",
    "work": "least work",
    "service": "least predicted service",
    "attained": "least attained service",
}


class PolicySection:
    """Choose a policy, then switch to it."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._current = ""
        self.policies = table(POLICY_COLUMNS, "Queue policies")
        self.switch = button("Switch", color="danger", disabled=True)
        self.file = file_input("Policy from a file", accept=".json")
        self.changes = Changes(board.background, "policy")
        self._heading = html_pane(heading("Queue policy", "Asking the pool."), margin=(0, 0, 6, 0))
        self.view = stack(
            self._heading,
            self.policies,
            self.changes.bar(self.switch, margin=(8, 0, 0, 0)),
            self.changes.view,
            html_pane(f"<p class='muted'>{FROM_FILE}</p>", margin=(8, 0, 4, 0)),
            self.file,
        )
        self.file.param.watch(lambda event: self._opened(), "value")
        self.policies.param.watch(lambda event: self._chosen(), "selected")
        self.switch.on_click(lambda event: self.ask_switch())

    def update(self, snapshot: Snapshot) -> None:
        """Bring the section up to the snapshot."""
        self._board.hub.want_queue()
        queue = snapshot.queue
        if queue is None:
            return
        self._current = queue.policy
        own = "" if queue.policy in POLICIES else " It came from a file, and is not in the table."
        words = f"The queue decides by the policy {queue.policy}.{own}"
        show_html(self._heading, heading("Queue policy", words))
        self.policies.show([policy_row(policy, queue.policy) for policy in POLICIES.values()])
        self._show_button()

    def ask_switch(self) -> None:
        """Switch to the chosen policy once that is confirmed."""
        if self.policies.selected:
            self._ask(self.policies.selected, self.policies.selected)

    def _opened(self) -> None:
        """Switch to the policy of a file once that is confirmed."""
        content, name = self.file.value, self.file.filename or "The file"
        if not content:
            return
        try:
            policy = parse_policy(content, name)
        except OptionError as error:
            self.changes.clear()
            self.changes.say(error.message, error.advice, "bad")
            return
        self._ask(policy, policy.name)

    def _ask(self, policy: str | QueuePolicy, name: str) -> None:
        self.changes.ask(
            f"Decide by {name} in place of {self._current}? Pending cells are ordered anew at once, and "
            "running cells may be preempted. It lasts until the pool stops.",
            f"switch to {name}",
            lambda: self._switch(policy, name),
        )

    def _switch(self, policy: str | QueuePolicy, name: str) -> None:
        self.changes.run(
            f"Switching to {name}.",
            lambda: self._board.hub.reader().set_policy(policy),
            lambda answer: f"The queue decides by the policy {name}.",
        )

    def _chosen(self) -> None:
        self._show_button()
        self.changes.clear()

    def _show_button(self) -> None:
        self.switch.disabled = self.policies.selected in ("", self._current)


def policy_row(policy: QueuePolicy, current: str) -> dict[str, object]:
    """Return a policy as a row; ``current``: the name of the one in use."""
    first = [words for on, words in ((policy.by_rank, "priority"), (policy.by_fairness, "fair share")) if on]
    return {
        "id": policy.name,
        "name": policy.name,
        "now": {"text": "in use", "colour": IN_USE_COLOUR} if policy.name == current else None,
        "order": ", then ".join((*first, _WITHIN[policy.within])),
        "backfill": policy.backfill,
        "preempts": ", ".join(policy.preempts) or "nothing",
    }

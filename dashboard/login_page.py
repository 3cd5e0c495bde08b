"""The page of a browser that has to log in."""

from __future__ import annotations

import panel as pn

from djinn_lab.dashboard.background import Background
from djinn_lab.dashboard.gate import Gate
from djinn_lab.dashboard.widgets.controls import button, control_bar, password_input
from djinn_lab.dashboard.widgets.panes import empty_state, html_pane, notice, show_html
from djinn_lab.errors import AuthenticationError, DjinnError
from djinn_lab.protocol.dashboard_login import PARAMETER

TOO_LONG = 16_384
TITLE = "Log in"
SENTENCE = (
    "This pool has several users, or this dashboard listens for other machines. Give your token of the pool; "
    "the user of the dashboard command opens the address that it prints."
)

LATE = "Each works once, within ten minutes. Run djinn-lab dashboard again, or give your token."
REFUSED = "Is it whole, and still valid? An admin makes another one with: djinn-lab users token add NAME"


class LoginPage:
    """Ask for a token, and come back with a code in the address. ``late``: the browser came with a code that
    lets no one in any more."""

    def __init__(self, gate: Gate, background: Background, late: bool = False) -> None:
        self._gate = gate
        self._background = background
        self.token = password_input("Token", sizing_mode="stretch_width", max_width=420)
        self.enter = button("Log in", align="end")
        self.answer = html_pane()
        if late:
            show_html(self.answer, notice("This address does not let you in any more.", LATE, "bad"))
        self.enter.on_click(lambda event: background.soon(self._asked))
        self.token.param.watch(lambda event: background.soon(self._asked), "value")
        self.view = pn.Column(
            html_pane(empty_state(TITLE, SENTENCE)),
            control_bar(self.token, self.enter),
            self.answer,
            sizing_mode="stretch_width",
            max_width=640,
        )

    def _asked(self) -> None:
        token = self.token.value.strip()
        if not token or len(token) > TOO_LONG or not token.isascii():
            return
        self.enter.disabled = True
        self._background.run("login", lambda: self._gate.log_in(token), self._admitted, self._refused)

    def _admitted(self, code: str) -> None:
        location = pn.state.location
        location.reload = True
        location.search = f"?{PARAMETER}={code}"

    def _refused(self, error: DjinnError) -> None:
        self.enter.disabled = False
        refused = isinstance(error, AuthenticationError)
        text = "The pool refused this token." if refused else error.message
        show_html(self.answer, notice(text, REFUSED if refused else error.advice, "bad"))

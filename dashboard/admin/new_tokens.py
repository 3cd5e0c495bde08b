"""New tokens, which the pool shows once: they stay on the page until the visitor hides them."""

from __future__ import annotations

from html import escape

import panel as pn

from djinn_lab.dashboard.widgets.controls import button
from djinn_lab.dashboard.widgets.panes import html_pane, show_html


class NewTokens:
    """Show the lines that set shells up with new tokens."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self.pane = html_pane(margin=(0, 0, 4, 0))
        self.hide = button("Hide the token")
        self.view = pn.Column(
            self.pane, self.hide, visible=False, sizing_mode="stretch_width", margin=(0, 0, 10, 0)
        )
        self.hide.on_click(lambda event: self.forget())

    def show(self, sentence: str, line: str) -> None:
        """Show a sentence about a token, and the line that sets a shell up with it, above earlier ones."""
        block = f"<pre class='secret' tabindex='0'>{escape(line)}</pre>"
        self._lines.insert(0, f"<p>{escape(sentence)}</p>{block}")
        lines = "".join(self._lines)
        show_html(self.pane, f"<div class='notice good' role='status'>{lines}</div>")
        self.hide.label = "Hide the token" if len(self._lines) == 1 else "Hide these tokens"
        self.view.visible = True

    def forget(self) -> None:
        """Take the tokens off the page."""
        self._lines = []
        show_html(self.pane, "")
        self.view.visible = False

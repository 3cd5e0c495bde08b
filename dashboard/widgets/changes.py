"""One change of the pool at a time: ask once more where it is dangerous, carry it out, say what was done."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import panel as pn

from djinn_lab.dashboard.background import Background
from djinn_lab.dashboard.widgets.controls import button, control_bar
from djinn_lab.dashboard.widgets.panes import html_pane, notice, show_html
from djinn_lab.errors import DjinnError

Result = TypeVar("Result")
NOTHING = "Nothing was changed."


class Changes:
    """Carry out what buttons of one part of a page ask for. ``name``: of the part, distinct on the page.

    The question and the answer stand in ``view``, below the buttons; those in :meth:`bar` are hidden while a
    question waits for its answer. A change that fails says so in the
    pool's own words, and what was typed stays."""

    def __init__(self, background: Background, name: str) -> None:
        self._background = background
        self._name = name
        self._confirmed: Callable[[], None] | None = None
        self._under_way = False
        self.question = html_pane(visible=False, margin=(0, 0, 8, 0))
        self.yes = button("", color="danger")
        self.no = button("Keep it as it is")
        self.answer = html_pane(margin=(0, 0, 8, 0))
        self._choice = control_bar(self.yes, self.no, visible=False)
        self._bars: list[pn.FlexBox] = []
        self.yes.on_click(lambda event: self.confirm())
        self.no.on_click(lambda event: self._decline())
        self.view = pn.Column(
            self.question, self._choice, self.answer, sizing_mode="stretch_width", margin=(4, 0, 0, 0)
        )

    @property
    def asking(self) -> bool:
        """Return whether a question waits for its answer."""
        return self._confirmed is not None

    def bar(self, *buttons: pn.widgets.Button, **options: object) -> pn.FlexBox:
        """Put the buttons that ask side by side, hidden while a question waits for its answer."""
        made = control_bar(*buttons, **options)
        self._bars.append(made)
        return made

    def ask(self, consequence: str, action: str, act: Callable[[], None]) -> None:
        """Say the consequence of a change, and call ``act`` once it is confirmed. ``action``: what follows
        "Yes," on the button that confirms."""
        self._confirmed = act
        self.yes.label = f"Yes, {action}"
        show_html(self.answer, "")
        show_html(self.question, notice(consequence, tone="bad"))
        self._show_question(True)

    def confirm(self) -> None:
        """Carry out the change that was asked about."""
        act = self._confirmed
        self._close()
        if act is not None:
            act()

    def run(
        self,
        under_way: str,
        work: Callable[[], Result],
        done: Callable[[Result], str],
        failed: Callable[[DjinnError], None] | None = None,
    ) -> None:
        """Carry out a change in the background. ``done``: what was done, from the pool's answer. ``failed``:
        shows the error beside the field that caused it, in place of below the buttons. A second click while
        a change is under way does nothing, so that no answer gets lost."""
        if self._under_way:
            return

        def succeeded(result: Result) -> None:
            self._under_way = False
            self.say(done(result), tone="good")

        def refused(error: DjinnError) -> None:
            self._under_way = False
            if failed is None:
                self.say(error.message, error.advice, "bad")
            else:
                show_html(self.answer, "")
                failed(error)

        self._close()
        self._under_way = True
        self.say(under_way)
        self._background.run(f"change-{self._name}", work, succeeded, refused)

    def say(self, text: str, advice: str = "", tone: str = "") -> None:
        """Show a sentence in place of the last answer."""
        show_html(self.answer, notice(text, advice, tone))

    def clear(self) -> None:
        """Forget question and answer: another row was chosen."""
        self._close()
        show_html(self.answer, "")

    def _decline(self) -> None:
        self._close()
        self.say(NOTHING)

    def _close(self) -> None:
        self._confirmed = None
        self._show_question(False)

    def _show_question(self, shown: bool) -> None:
        self.question.visible = self._choice.visible = shown
        for one in self._bars:
            one.visible = not shown

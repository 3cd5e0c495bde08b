"""What the sections of the page Admin have in common."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

import panel as pn

from djinn_lab.client.rest import PoolClient
from djinn_lab.dashboard.board import Board
from djinn_lab.dashboard.hub import Snapshot
from djinn_lab.dashboard.widgets.components import LiveTable
from djinn_lab.dashboard.widgets.panes import html_pane, notice, show_html
from djinn_lab.errors import DjinnError, Refused

Answer = TypeVar("Answer")
ASK_AGAIN_S = 5.0


class Section(Protocol):
    """A section builds its view once; ``update`` is called a few times a second while it is shown."""

    @property
    def view(self) -> pn.viewable.Viewable: ...

    def update(self, snapshot: Snapshot) -> None: ...


class PoolReading(Generic[Answer]):
    """Ask the pool what its snapshots do not hold, again every few seconds while a section is shown.
    ``name``: distinct among the readings of the page. ``problem`` shows why there is no answer. A pool that
    refuses is not asked again by itself, for it notes each refusal in its audit."""

    def __init__(
        self,
        board: Board,
        name: str,
        ask: Callable[[PoolClient], Answer],
        answered: Callable[[Answer], None],
    ) -> None:
        self._board = board
        self._name = name
        self._ask = ask
        self._show = answered
        self.problem = html_pane(margin=0)
        self._asked_at: float | None = None
        self._refused = False

    def update(self) -> None:
        """Ask, if the last time is long enough ago."""
        now = time.monotonic()
        due = self._asked_at is None or now - self._asked_at > ASK_AGAIN_S
        if due and not self._refused:
            self.again()

    def again(self) -> None:
        """Ask now: something was changed."""
        self._asked_at = time.monotonic()
        self._refused = False
        self._board.background.run(
            f"ask-{self._name}",
            lambda: self._ask(self._board.hub.reader()),
            self._answered,
            self._not_answered,
        )

    def _answered(self, answer: Answer) -> None:
        show_html(self.problem, "")
        self._show(answer)

    def _not_answered(self, error: DjinnError) -> None:
        self._refused = isinstance(error, Refused)
        show_html(self.problem, notice(error.message, error.advice, "bad"))


def table(columns: list[dict[str, str]], label: str, **options: Any) -> LiveTable:
    """Make a table over the full width, in which a row can be chosen unless ``selectable`` is False."""
    settings = {"selectable": True, "sizing_mode": "stretch_width", **options}
    return LiveTable(columns=columns, label=label, **settings)


def stack(*parts: pn.viewable.Viewable, **options: Any) -> pn.Column:
    """Put parts below each other over the full width."""
    return pn.Column(*parts, sizing_mode="stretch_width", margin=0, **options)

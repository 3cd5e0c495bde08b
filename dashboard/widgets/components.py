"""The dashboard's own browser components: a live table and the page navigation."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import msgspec
import param
from panel.custom import JSComponent

STATIC = Path(__file__).parent.parent / "static"


class LiveTable(JSComponent):  # type: ignore[misc]
    """A table that is updated while it is shown. ``columns``: dicts with ``key``, ``label`` and ``kind``
    (text, mono, short, number, pill or progress).

    ``rows``: dicts with an ``id`` and one entry per column; ``selected`` is the chosen row's id.
    All text is shown as text, never as HTML. The browser gets the rows as one string, ``data``: Bokeh would
    walk through each cell of a list several times, which is most of what an update costs.
    """

    columns = param.List(default=[])
    data = param.String(default="[]")
    selected = param.String(default="")
    selectable = param.Boolean(default=False)
    toggle = param.Boolean(default=True)
    empty = param.String(default="Nothing to show")
    note = param.String(default="")
    label = param.String(default="")

    _esm: ClassVar[Any] = STATIC / "live_table.js"
    _stylesheets: ClassVar[list[Any]] = [(STATIC / "live_table.css").read_text()]

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.rows: list[dict[str, object]] = []

    def show(self, rows: list[dict[str, object]], note: str = "") -> None:
        """Send rows, when they differ from those on the page."""
        if rows != self.rows:
            self.rows = rows
            self.data = msgspec.json.encode(rows).decode()
        if note != self.note:
            self.note = note


class Navigation(JSComponent):  # type: ignore[misc]
    """Page tabs and the freshness badge. ``beat`` changes with every sign of life from the server."""

    pages = param.List(default=[])
    active = param.String(default="")
    status = param.String(default="Connecting")
    detail = param.String(default="")
    tone = param.String(default="warn")
    dark = param.Boolean(default=False)
    beat = param.Integer(default=0)

    _esm: ClassVar[Any] = STATIC / "navigation.js"
    _stylesheets: ClassVar[list[Any]] = [(STATIC / "navigation.css").read_text()]


class SectionTabs(JSComponent):  # type: ignore[misc]
    """Tabs of the sections of one page. ``sections``: pairs of name and label. ``label``: of the whole row,
    for screen readers."""

    sections = param.List(default=[])
    active = param.String(default="")
    label = param.String(default="")

    _esm: ClassVar[Any] = STATIC / "section_tabs.js"
    _stylesheets: ClassVar[list[Any]] = [(STATIC / "section_tabs.css").read_text()]

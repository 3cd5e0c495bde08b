"""The parts of the wizard that compare its values with the stored profile and with the machine."""

from __future__ import annotations

from collections.abc import Callable

import panel as pn

from djinn_lab.config.wizard import Draft
from djinn_lab.dashboard.widgets.components import LiveTable
from djinn_lab.dashboard.widgets.controls import button
from djinn_lab.dashboard.widgets.panes import html_pane, show_html
from djinn_lab.dashboard.widgets.table_cells import columns
from djinn_lab.dashboard.wizard.tables import (
    change_table_rows,
    changes_html,
    difference_table_rows,
    issues_html,
    stored_html,
)


class StoredPart:
    """Shows which stored profile the wizard began with, and which of its values would be recommended
    otherwise today. ``refresh``: called to take these, except those that the user chose.

    ``problem``: HTML that says why the file could not be read, empty where it could."""

    def __init__(self, refresh: Callable[[], None]) -> None:
        self.problem = ""
        self._text = html_pane(margin=(16, 0, 6, 0))
        self.differences = LiveTable(
            columns=columns(
                ("setting", "Setting", "short"),
                ("stored", "Stored", "short"),
                ("recommended", "Recommended", "short"),
                ("why", "Why", "text"),
            ),
            label="Stored settings that would be recommended otherwise today",
            sizing_mode="stretch_width",
        )
        self.refresh = button("Take these values, except where you chose", margin=(10, 8, 8, 0))
        self.refresh.on_click(lambda event: refresh())
        self.view = pn.Column(
            self._text, self.differences, self.refresh, sizing_mode="stretch_width", margin=0
        )

    def show(self, draft: Draft) -> None:
        """Bring the part up to the draft."""
        text = self.problem or stored_html(draft)
        show_html(self._text, text)
        self.view.visible = bool(text)
        self.differences.visible = bool(draft.differences)
        self.differences.show(difference_table_rows(draft))
        self.refresh.visible = any(not one.chosen for one in draft.differences)


class CheckPart:
    """Shows which settings were changed, what these come to, and whether all of them fit the machine."""

    def __init__(self) -> None:
        self.issues = html_pane(margin=(16, 0, 0, 0))
        self.compared = html_pane(margin=(0, 0, 6, 0))
        self.changes = LiveTable(
            columns=columns(
                ("setting", "Setting", "short"),
                ("before", "Before", "short"),
                ("now", "Now", "short"),
                ("effect", "Effect", "text"),
            ),
            label="Changed settings",
            sizing_mode="stretch_width",
        )
        self.view = pn.Column(self.compared, self.changes, self.issues, sizing_mode="stretch_width", margin=0)

    def show(self, draft: Draft) -> None:
        """Bring the part up to the draft."""
        show_html(self.compared, changes_html(draft))
        self.changes.visible = bool(draft.changed)
        self.changes.show(change_table_rows(draft))
        show_html(self.issues, issues_html(draft))

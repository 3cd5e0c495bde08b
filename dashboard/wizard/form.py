"""One row for each setting: the value, where it came from, why, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any

import panel as pn

from djinn_lab.config.fields import FIELDS, Field
from djinn_lab.config.wizard import Draft
from djinn_lab.dashboard.widgets.controls import button, select, text_input
from djinn_lab.dashboard.widgets.panes import html_pane, notice, show_html


class SettingsForm:
    """``typed`` is called with a path and text, ``reset`` with a path."""

    def __init__(self, typed: Callable[[str, str], None], reset: Callable[[str], None]) -> None:
        self.inputs: dict[str, Any] = {}
        self.notes: dict[str, Any] = {}
        self.resets: dict[str, Any] = {}
        rows = [self._row(field, typed, reset) for field in FIELDS]
        self.view = pn.Column(*rows, sizing_mode="stretch_width", margin=0)

    def _row(self, field: Field, typed: Callable[[str, str], None], reset: Callable[[str], None]) -> Any:
        path = field.path
        if field.choices:
            widget = select(field.label, list(field.choices), width=210)
        else:
            widget = text_input(field.label, width=210)
        widget.param.watch(lambda event: typed(path, event.new), "value")
        undo = button("Recommended", align="end", visible=False)
        undo.on_click(lambda event: reset(path))
        note = html_pane(margin=(14, 0, 8, 12))
        self.inputs[path], self.notes[path], self.resets[path] = widget, note, undo
        return pn.Row(widget, note, undo, sizing_mode="stretch_width", margin=0)

    def show(self, draft: Draft) -> None:
        """Bring the rows up to the draft; refused text stays where it was typed."""
        issues = {issue.path: issue for issue in reversed(draft.issues)}
        for field in FIELDS:
            path, origin = field.path, draft.profile.origin(field.path)
            if path not in draft.refused:
                self.inputs[path].value = draft.profile.text(path)
            self.resets[path].visible = origin == "you" or path in draft.refused
            text = (
                f"<p><span class='badge {origin}'>{origin}</span> {escape(draft.reason(path))}</p>"
                f"<p class='muted'>{escape(field.help)}. Accepted: {escape(field.accepted)}.</p>"
            )
            issue = issues.get(path)
            if issue is not None:
                text += notice(issue.message, issue.fix, "bad" if issue.severity == "error" else "")
            show_html(self.notes[path], text)

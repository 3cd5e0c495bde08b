"""The settings of a profile, one row each, and the way to a field that is wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from html import escape
from typing import Any

import panel as pn

from djinn_lab.config.comparison import sentences
from djinn_lab.config.fields import FIELDS, Field, Issue
from djinn_lab.config.wizard import Draft
from djinn_lab.dashboard.widgets.controls import button, select, text_input
from djinn_lab.dashboard.widgets.panes import html_pane, show_html
from djinn_lab.dashboard.wizard.tables import issue_html
from djinn_lab.units import capitalised


class SettingsForm:
    """Show a row for each setting: the value, its origin, the reason, its effect, and what is wrong with it.

    ``typed`` is called with a path and text, ``reset`` with a path."""

    def __init__(self, typed: Callable[[str, str], None], reset: Callable[[str], None]) -> None:
        self.inputs: dict[str, Any] = {}
        self.notes: dict[str, Any] = {}
        self.resets: dict[str, Any] = {}
        rows = [self._row(field, typed, reset) for field in FIELDS]
        self.view = pn.Column(*rows, sizing_mode="stretch_width", margin=0)

    def _row(
        self, field: Field, typed: Callable[[str, str], None], reset: Callable[[str], None]
    ) -> pn.FlexBox:
        path = field.path
        if field.choices:
            widget = select(field.label, list(field.choices), width=210, tags=[path])
        else:
            widget = text_input(field.label, width=210, tags=[path])
        widget.param.watch(lambda event: typed(path, event.new), "value")
        usual = button("Recommended", visible=False)
        usual.on_click(lambda event: reset(path))
        note = html_pane(margin=0, sizing_mode=None, styles={"flex": "1 1 300px", "min-width": "0"})
        self.inputs[path], self.notes[path], self.resets[path] = widget, note, usual
        return pn.FlexBox(
            widget,
            note,
            usual,
            align_items="center",
            gap="0 12px",
            margin=(0, 0, 10, 0),
            sizing_mode="stretch_width",
        )

    def show(self, draft: Draft) -> None:
        """Bring the rows up to the draft; refused text stays where it was typed."""
        issues = {issue.path: issue for issue in reversed(draft.issues)}
        for field in FIELDS:
            path, origin = field.path, draft.profile.origin(field.path)
            if path not in draft.refused:
                self.inputs[path].value = draft.profile.text(path)
            usual = draft.recommendation.profile.value(path)
            self.resets[path].visible = draft.profile.value(path) != usual or path in draft.refused
            text = f"<p><span class='badge {origin}'>{origin}</span> {_sentences(draft, path)}</p>"
            issue = issues.get(path)
            if issue is not None:
                text += issue_html(issue)
            if path not in draft.refused:  # there the message says what is accepted
                about = f"{capitalised(field.help)}. Accepted: {field.accepted}."
                text += f"<p class='muted'>{escape(about)}</p>"
            show_html(self.notes[path], text)


def _sentences(draft: Draft, path: str) -> str:
    """Return why the setting has its value, what it comes to, and which one is stored where that differs."""
    if path in draft.refused:
        return f"{escape(draft.profile.text(path))} stays until your text is accepted."
    return escape(" ".join(f"{capitalised(sentence)}." for sentence in sentences(draft, path)))


_FOCUS = """
const path = cb_obj.value.split("|")[0];
let tries = 0;
const focus = () => {
  const views = [...cb_obj.document._all_models.values()]
    .filter(model => model.tags.includes(path))
    .map(model => Bokeh.index.find_one_by_id(model.id));
  const view = views.find(found => found && found.input_el && found.input_el.isConnected);
  if (view) {
    view.el.scrollIntoView({block: "center"});
    view.input_el.focus();
  } else if (tries++ < 100) {
    setTimeout(focus, 50);  // the step is still being drawn
  }
};
focus();
"""


class WrongFields:
    """Lists what keeps the draft from being saved, each with a button that leads to its field.

    ``inputs``: the fields by path, in their order on the page, each tagged with its path. ``lead``: called
    with a path, to show the step that has its field."""

    def __init__(self, inputs: Mapping[str, Any], lead: Callable[[str], None]) -> None:
        self._inputs = inputs
        self._lead = lead
        self._requests = 0
        self._request = pn.widgets.TextInput(visible=False)
        self._request.jscallback(value=_FOCUS)
        self._rows = pn.Column(sizing_mode="stretch_width", margin=0)
        self._shown: list[Issue] = []
        self.paths: list[str] = []
        self.buttons: dict[str, Any] = {}
        self.view = pn.Column(self._rows, self._request, sizing_mode="stretch_width", margin=0)

    @property
    def asked(self) -> str:
        """Return the path of the field that the browser was last asked to focus; empty before."""
        return str(self._request.value).partition("|")[0]

    def show(self, draft: Draft) -> None:
        """Bring the list up to the draft."""
        order = list(self._inputs)
        errors = sorted(draft.errors, key=lambda issue: order.index(issue.path))
        if errors == self._shown:
            return
        self._shown = errors
        self.paths = [issue.path for issue in errors]
        self.buttons = {}
        self._rows.objects = [self._row(issue) for issue in errors]

    def _row(self, issue: Issue) -> pn.Row:
        path, label = issue.path, self._inputs[issue.path].label
        go = button("Go to the field", align="center", margin=(0, 0, 12, 8))
        go.on_click(lambda event: self.lead_to(path))
        self.buttons[path] = go
        note = html_pane(issue_html(issue, label))
        return pn.Row(note, go, sizing_mode="stretch_width", margin=0)

    def lead_to(self, path: str) -> None:
        """Show the field of a setting, and put the cursor there."""
        self._lead(path)
        self._requests += 1
        self._request.value = f"{path}|{self._requests}"

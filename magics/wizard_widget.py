"""The setup wizard in a notebook, with ipywidgets: the same drafts as on the dashboard."""

from __future__ import annotations

from html import escape
from typing import Any

import ipywidgets as widgets

from djinn_lab.config.detection import Facts, detect
from djinn_lab.config.effects import EFFECT_HEADINGS, OwnWork, effect_rows, effect_sentence
from djinn_lab.config.facts_text import facts_rows
from djinn_lab.config.fields import FIELDS, Field
from djinn_lab.config.profiles import WORKLOADS
from djinn_lab.config.store import read_text
from djinn_lab.config.wizard import Draft, begin, equivalent_command, preview, save, set_text, use_recommended
from djinn_lab.errors import DjinnError
from djinn_lab.magics.text_table import html_table

_LABEL = {"description_width": "190px"}
_TONES = {"error": "#b4460a", "warning": "#8a6100", "good": "#00775a"}


def wizard_widget(
    facts: Facts | None = None,
    source: str | None = None,
    work: OwnWork | None = None,
) -> WizardWidget:
    """The wizard for this machine. ``source``: code, to recognise its workload. ``work``: the user's own
    graphs, on which settings are compared."""
    return WizardWidget(begin(facts or detect(), source, work=work))


class WizardWidget(widgets.VBox):  # type: ignore[misc]
    """Shows a draft; where no widgets can be shown (a saved notebook), its text says what it held."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft
        self._filling = False
        self.inputs: dict[str, Any] = {}
        self.notes: dict[str, Any] = {}
        rows = [self._row(field) for field in FIELDS]
        self.workload = widgets.Dropdown(
            options=list(WORKLOADS), value=draft.profile.workload, description="Workload", style=_LABEL
        )
        self.name = widgets.Text(description="Name of the profile", style=_LABEL, continuous_update=False)
        self.default = widgets.Checkbox(
            value=True, description="Use it when no profile is named", indent=False
        )
        self.recommended = widgets.Button(description="Use recommended")
        self.save = widgets.Button(description="Save", button_style="primary")
        self.issues, self.saving, self.result = widgets.HTML(), widgets.HTML(), widgets.HTML()
        self.evidence, self.effects = widgets.HTML(), widgets.HTML()
        super().__init__(
            [
                widgets.HTML(_facts_html(draft.facts)),
                self.evidence,
                self.workload,
                self.name,
                *rows,
                self.effects,
                self.issues,
                self.saving,
                widgets.HBox([self.save, self.recommended, self.default]),
                self.result,
            ]
        )
        self._wire()
        self._show()

    def _row(self, field: Field) -> widgets.HBox:
        path = field.path
        if field.choices:
            control = widgets.Dropdown(options=list(field.choices), description=field.label, style=_LABEL)
        else:
            control = widgets.Text(description=field.label, style=_LABEL, continuous_update=False)
        control.observe(lambda change: self._typed(path, change["new"]), "value")
        self.inputs[path] = control
        self.notes[path] = widgets.HTML()
        return widgets.HBox([control, self.notes[path]])

    def _wire(self) -> None:
        self.workload.observe(lambda change: self._typed("workload", change["new"]), "value")
        self.name.observe(lambda change: self._typed("name", change["new"]), "value")
        self.default.observe(lambda change: self._show(), "value")
        self.recommended.on_click(lambda clicked: self._use_recommended())
        self.save.on_click(lambda clicked: self._save())

    def _typed(self, path: str, text: str) -> None:
        if not self._filling:
            self.draft = set_text(self.draft, path, text)
            self._show()

    def _use_recommended(self) -> None:
        self.draft = use_recommended(self.draft)
        self._show()

    def _save(self) -> None:
        try:
            path = save(self.draft, make_default=self.default.value)
        except DjinnError as error:
            self.result.value = _tinted(f"{error.message} {error.advice}", "error")
            return
        self._show()
        self.result.value = _tinted(f"Saved profile {self.draft.profile.name} in {path}", "good")

    def _show(self) -> None:
        draft = self.draft
        self._filling = True
        for field in FIELDS:
            if field.path not in draft.refused:
                self.inputs[field.path].value = draft.profile.text(field.path)
            origin = draft.profile.origin(field.path)
            self.notes[field.path].value = f"<b>{origin}</b> · {escape(draft.reason(field.path))}"
        self.workload.value = draft.profile.workload
        if "name" not in draft.refused:
            self.name.value = draft.profile.name
        self._filling = False
        self.evidence.value = f"{escape(draft.guess.evidence)}."
        self.effects.value = _effects_html(draft)
        self.issues.value = "<br>".join(_tinted(issue.sentence(), issue.severity) for issue in draft.issues)
        self.save.disabled = not draft.can_save
        self.saving.value = self._saving_html()

    def _saving_html(self) -> str:
        try:
            diff = preview(self.draft, read_text(), make_default=self.default.value)
        except DjinnError as error:
            self.save.disabled = True
            return _tinted(f"{error.message} {error.advice}", "error")
        command = equivalent_command(self.draft.profile, make_default=self.default.value)
        return (
            f"<b>Change to the file</b><pre>{escape(diff) or 'none'}</pre>"
            f"<b>The same in a terminal</b><pre style='white-space:pre-wrap'>{escape(command)}</pre>"
        )

    def __repr__(self) -> str:
        profile = self.draft.profile
        lines = [f"Djinn Lab wizard: profile {profile.name} for {profile.workload}"]
        lines += [f"  {item.path} = {item.value}  ({item.origin})" for item in profile.explain()]
        lines += [f"  {issue.severity}: {issue.sentence()}" for issue in self.draft.issues]
        work = self.draft.work
        lines.append(f"  {effect_sentence(work)}")
        if work is not None:
            lines += [f"    {', '.join(row)}" for row in (EFFECT_HEADINGS, *effect_rows(work, profile))]
        return "\n".join([*lines, f"  {equivalent_command(profile)}"])

    def _repr_mimebundle_(self, **options: object) -> object:
        bundle = super()._repr_mimebundle_(**options)
        data = bundle[0] if isinstance(bundle, tuple) else bundle
        if data is not None:
            data["text/plain"] = repr(self)
        return bundle


def _facts_html(facts: Facts) -> str:
    rows = "".join(
        f"<tr><td>{label}&emsp;</td><td>{escape(text)}</td></tr>" for label, text in facts_rows(facts)
    )
    return f"<b>This machine</b><table>{rows}</table>"


def _effects_html(draft: Draft) -> str:
    """Return what the settings, and those of each built-in profile, are predicted to come to."""
    title = f"<b>Predicted effect</b><br>{escape(effect_sentence(draft.work))}."
    if draft.work is None:
        return title
    return title + html_table(EFFECT_HEADINGS, effect_rows(draft.work, draft.profile))


def _tinted(text: str, tone: str) -> str:
    return f"<span style='color:{_TONES[tone]}'>{escape(text)}</span>"

"""The setup wizard in a notebook, with ipywidgets: the same drafts as on the dashboard."""

from __future__ import annotations

from html import escape
from typing import Any

import ipywidgets as widgets

from djinn_lab.config.comparison import (
    CHANGE_HEADINGS,
    DIFFERENCE_HEADINGS,
    change_rows,
    changes_sentence,
    difference_rows,
    sentences,
    stored_sentence,
    stored_title,
)
from djinn_lab.config.detection import Facts, detect
from djinn_lab.config.effects import EFFECT_HEADINGS, OwnWork, effect_rows, effect_sentence
from djinn_lab.config.facts_text import facts_rows
from djinn_lab.config.fields import FIELDS, Field, Issue
from djinn_lab.config.profiles import WORKLOADS
from djinn_lab.config.store import can_undo, read_text, undo
from djinn_lab.config.wizard import (
    Draft,
    begin,
    begin_again,
    compare_with_file,
    equivalent_command,
    preview,
    refresh,
    save,
    set_text,
    use_recommended,
)
from djinn_lab.errors import DjinnError
from djinn_lab.magics.text_table import html_table
from djinn_lab.units import capitalised

_LABEL = {"description_width": "190px"}
_FIELD = {"width": "380px"}
_WRAPPED = {"flex_flow": "row wrap"}
_TONES = {"error": "#b4460a", "warning": "#8a6100", "good": "#00775a"}


def wizard_widget(
    facts: Facts | None = None,
    source: str | None = None,
    work: OwnWork | None = None,
) -> WizardWidget:
    """Make the wizard for this machine, which begins with the stored profile. ``source``: code, to recognise
    its workload. ``work``: the user's own graphs, on which settings are compared."""
    facts = facts or detect()
    try:
        return WizardWidget(begin_again(facts, source, work))
    except DjinnError as error:  # said here, and again beside the change that cannot be saved
        return WizardWidget(begin(facts, source, work=work), f"{error.message} {error.advice}")


class WizardWidget(widgets.VBox):  # type: ignore[misc]
    """Shows a draft; where no widgets can be shown (a saved notebook), its text says what it held.
    ``problem``: why the file with the profiles could not be read."""

    def __init__(self, draft: Draft, problem: str = "") -> None:
        self.draft = draft
        self._problem = problem
        self._filling = False
        self.inputs: dict[str, Any] = {}
        self.notes: dict[str, Any] = {}
        self._build()
        rows = [self._row(field) for field in FIELDS]
        super().__init__(
            [
                widgets.HTML(_facts_html(draft.facts)),
                self.stored,
                self.refresh,
                self.evidence,
                self.workload,
                widgets.HBox([self.name, self.name_note], layout=_WRAPPED),
                *rows,
                self.effects,
                self.changes,
                self.issues,
                self.saving,
                widgets.HBox([self.save, self.undo, self.recommended, self.default], layout=_WRAPPED),
                self.result,
            ]
        )
        self._wire()
        self._show()

    def _build(self) -> None:
        self.workload = widgets.Dropdown(
            options=list(WORKLOADS),
            value=self.draft.profile.workload,
            description="Workload",
            style=_LABEL,
            layout=_FIELD,
        )
        self.name = widgets.Text(
            description="Name of the profile", style=_LABEL, layout=_FIELD, continuous_update=False
        )
        self.default = widgets.Checkbox(
            value=True, description="Use it when no profile is named", indent=False
        )
        self.refresh = _button("Take these values, except where you chose")
        self.recommended = _button("Use all recommended values")
        self.save = _button("Save", button_style="primary")
        self.undo = _button("Undo the last change to the file")
        self.stored, self.evidence, self.effects = widgets.HTML(), widgets.HTML(), widgets.HTML()
        self.changes, self.issues, self.saving = widgets.HTML(), widgets.HTML(), widgets.HTML()
        self.name_note, self.result = widgets.HTML(), widgets.HTML()

    def _row(self, field: Field) -> widgets.HBox:
        path = field.path
        if field.choices:
            control = widgets.Dropdown(
                options=list(field.choices), description=field.label, style=_LABEL, layout=_FIELD
            )
        else:
            control = widgets.Text(
                description=field.label, style=_LABEL, layout=_FIELD, continuous_update=False
            )
        control.observe(lambda change: self._typed(path, change["new"]), "value")
        self.inputs[path] = control
        self.notes[path] = widgets.HTML(layout=widgets.Layout(flex="1 1 260px", min_width="0"))
        return widgets.HBox([control, self.notes[path]], layout=_WRAPPED)

    def _wire(self) -> None:
        self.workload.observe(lambda change: self._typed("workload", change["new"]), "value")
        self.name.observe(lambda change: self._typed("name", change["new"]), "value")
        self.default.observe(lambda change: self._show(), "value")
        self.refresh.on_click(lambda clicked: self._change(refresh(self.draft)))
        self.recommended.on_click(lambda clicked: self._change(use_recommended(self.draft)))
        self.save.on_click(lambda clicked: self._save())
        self.undo.on_click(lambda clicked: self._undo())

    def _typed(self, path: str, text: str) -> None:
        if not self._filling:
            self._change(set_text(self.draft, path, text))

    def _change(self, draft: Draft) -> None:
        self.draft = draft
        self.result.value = ""
        self._show()

    def _save(self) -> None:
        wrong = {issue.path: issue for issue in reversed(self.draft.errors)}
        first = next((path for path in ("name", *self.inputs) if path in wrong), None)
        if first is not None:
            self.result.value = _tinted(f"Not saved: {wrong[first].sentence()}", "error")
            (self.name if first == "name" else self.inputs[first]).focus()
            return
        try:
            path = save(self.draft, make_default=self.default.value)
            self.draft = compare_with_file(self.draft)
        except DjinnError as error:
            self.result.value = _tinted(f"{error.message} {error.advice}", "error")
            return
        self._show()
        self.result.value = _tinted(f"Saved profile {self.draft.profile.name} in {path}", "good")

    def _undo(self) -> None:
        try:
            change = undo()
            self.draft = compare_with_file(self.draft)
        except DjinnError as error:
            self.result.value = _tinted(f"{error.message} {error.advice}", "error")
            return
        self._problem = ""
        self._show()
        said = f"Restored {change.path} as it was. Your values stay here. Undo again brings the change back."
        self.result.value = _tinted(said, "good")

    def _show(self) -> None:
        draft = self.draft
        errors = {issue.path: issue for issue in reversed(draft.errors)}
        self._filling = True
        for field in FIELDS:
            if field.path not in draft.refused:
                self.inputs[field.path].value = draft.profile.text(field.path)
            self.notes[field.path].value = _note_html(draft, field.path, errors.get(field.path))
        self.workload.value = draft.profile.workload
        if "name" not in draft.refused:
            self.name.value = draft.profile.name
        self._filling = False
        refused = errors.get("name")
        self.name_note.value = "" if refused is None else _tinted(refused.sentence(), "error")
        self.stored.value = _tinted(self._problem, "error") if self._problem else _stored_html(draft)
        self.refresh.layout.display = None if any(not one.chosen for one in draft.differences) else "none"
        self.evidence.value = f"{escape(draft.guess.evidence)}."
        self.effects.value = _effects_html(draft)
        self.changes.value = _changes_html(draft)
        self.issues.value = "<br>".join(_tinted(issue.sentence(), issue.severity) for issue in draft.issues)
        self.undo.layout.display = None if can_undo() else "none"
        self.saving.value = self._saving_html()

    def _saving_html(self) -> str:
        try:
            diff = preview(self.draft, read_text(), make_default=self.default.value)
        except DjinnError as error:
            self.save.disabled = True
            return _tinted(f"{error.message} {error.advice}", "error")
        self.save.disabled = False
        command = equivalent_command(self.draft.profile, make_default=self.default.value)
        return (
            f"<b>Change to the file</b><pre style='white-space:pre-wrap'>{escape(diff) or 'none'}</pre>"
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
        lines += [f"  {self._problem}"] if self._problem else []
        lines.append("Where no widgets show, a terminal asks the same: djinn-lab wizard. Or take this one:")
        return "\n".join([*lines, f"  {equivalent_command(profile)}"])

    def _repr_mimebundle_(self, **options: object) -> object:
        bundle = super()._repr_mimebundle_(**options)
        data = bundle[0] if isinstance(bundle, tuple) else bundle
        if data is not None:
            data["text/plain"] = repr(self)
        return bundle


def _button(text: str, **options: str) -> widgets.Button:
    return widgets.Button(description=text, layout=widgets.Layout(width="auto"), **options)


def _note_html(draft: Draft, path: str, issue: Issue | None) -> str:
    if path in draft.refused:
        stays = f"{draft.profile.text(path)} stays until your text is accepted."
        return f"{_tinted(draft.refused[path].sentence(), 'error')} {escape(stays)}"
    said = " ".join(f"{capitalised(sentence)}." for sentence in sentences(draft, path))
    note = f"<b>{draft.profile.origin(path)}</b> · {escape(said)}"
    return note if issue is None else f"{note} {_tinted(issue.sentence(), 'error')}"


def _stored_html(draft: Draft) -> str:
    title = stored_title(draft)
    if not title:
        return ""
    text = f"<b>{escape(title)}</b><br>{stored_sentence(draft)}"
    return text + html_table(DIFFERENCE_HEADINGS, difference_rows(draft)) if draft.differences else text


def _changes_html(draft: Draft) -> str:
    text = f"<b>Changes</b><br>{escape(changes_sentence(draft))}"
    return text + html_table(CHANGE_HEADINGS, change_rows(draft)) if draft.changed else text


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
    """Colour a text, mixed with that of the page's, so that it is read on a dark one, too."""
    colour = _TONES[tone]
    mixed = f"color-mix(in srgb, {colour} 60%, var(--jp-ui-font-color1, currentColor))"
    return f"<span style='color:{colour};color:{mixed}'>{escape(text)}</span>"

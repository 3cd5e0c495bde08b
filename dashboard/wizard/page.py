"""Wizard: look at the machine, recommend a profile with reasons, customise, check, preview and save."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any

import panel as pn

from djinn_lab.client.own_work import own_work
from djinn_lab.config import profiles_path
from djinn_lab.config.detection import Facts, RunningPool, detect
from djinn_lab.config.effects import EFFECT_HEADINGS, OwnWork, effect_rows, effect_sentence
from djinn_lab.config.facts_text import facts_rows
from djinn_lab.config.fields import FIELDS, Field
from djinn_lab.config.profiles import WORKLOADS
from djinn_lab.config.store import read_text
from djinn_lab.config.wizard import (
    Draft,
    begin,
    choose_workload,
    equivalent_command,
    preview,
    save,
    set_text,
    use_recommended,
)
from djinn_lab.config.workload import detect_workload
from djinn_lab.dashboard.board import Board
from djinn_lab.dashboard.hub import Snapshot
from djinn_lab.dashboard.widgets.components import LiveTable
from djinn_lab.dashboard.widgets.controls import button, choice_bar, select, text_area, text_input
from djinn_lab.dashboard.widgets.panes import empty_state, heading, html_pane, notice, show_html
from djinn_lab.dashboard.widgets.table_cells import columns
from djinn_lab.errors import DjinnError


class SettingsForm:
    """Show a row for each setting: the value, its origin, the reason, and what is wrong with it.

    ``typed`` is called with a path and text, ``reset`` with a path."""

    def __init__(self, typed: Callable[[str, str], None], reset: Callable[[str], None]) -> None:
        self.inputs: dict[str, Any] = {}
        self.notes: dict[str, Any] = {}
        self.resets: dict[str, Any] = {}
        rows = [self._row(field, typed, reset) for field in FIELDS]
        self.view = pn.Column(*rows, sizing_mode="stretch_width", margin=0)

    def _row(
        self, field: Field, typed: Callable[[str, str], None], reset: Callable[[str], None]
    ) -> pn.Column:
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


STEPS = {
    "1 Machine": "machine",
    "2 Workload": "workload",
    "3 Settings": "settings",
    "4 Check": "check",
    "5 Save": "save",
}
_TITLES = {
    "basic_inference": "Basic inference: forward passes",
    "llm_serving": "LLM serving: text generation",
    "research_training": "Research training: loops with gradients",
}
_SAMPLE = "Paste a cell here to recognise its workload, for example\nloss.backward()\noptimizer.step()"


class WizardPage:
    """A view over one :class:`~djinn_lab.config.wizard.Draft`; the address holds the step."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._filling = False
        self._looked = False
        self.draft: Draft | None = None
        self._pool = RunningPool("unknown", "not looked for yet")
        self.form = SettingsForm(self._typed, self._take_recommended)
        self._build_controls()
        self._parts = {
            "machine": pn.Column(self._facts, self.again, **_STRETCH),
            "workload": pn.Column(self._evidence, self.workload, self.code, self.recognise, **_STRETCH),
            "settings": pn.Column(
                self._effects,
                self.effects,
                html_pane(heading("Settings", _SETTINGS_HINT)),
                self.form.view,
                **_STRETCH,
            ),
            "check": pn.Column(self._issues, **_STRETCH),
            "save": pn.Column(
                pn.Row(self.name, self.description, margin=0),
                self.default,
                self._diff,
                self._command,
                self.save,
                self.result,
                **_STRETCH,
            ),
        }
        self._body = pn.Column(sizing_mode="stretch_width", margin=0, styles=_SURFACE)
        self._live = pn.Column(
            pn.Row(self.steps, margin=0),
            self._body,
            pn.Row(self.back, self.next, self.skip, margin=(14, 0, 0, 0)),
            visible=False,
            **_STRETCH,
        )
        self._missing = html_pane(
            empty_state("Looking at this machine", "Cores, memory, CUDA devices, packages.")
        )
        self.view = pn.Column(self._missing, self._live, **_STRETCH)
        self._wire()

    def _build_controls(self) -> None:
        self.steps = choice_bar(STEPS, "machine", margin=(0, 0, 16, 0))
        self.back, self.next = button("Back"), button("Next", color="primary")
        self.skip = button("Use all recommended values")
        self.again = button("Look again")
        self._facts = html_pane()
        self._evidence = html_pane()
        self._effects = html_pane(margin=(0, 0, 6, 0))
        self.effects = LiveTable(
            columns=columns(*((name, name.capitalize(), "short") for name in EFFECT_HEADINGS)),
            label="Predicted effect",
            empty="No cells of yours are known",
            sizing_mode="stretch_width",
            margin=(0, 0, 16, 0),
        )
        self.workload = choice_bar({_TITLES[name]: name for name in WORKLOADS}, WORKLOADS[0])
        self.code = text_area("Code of a cell (optional)", placeholder=_SAMPLE, height=130, width=620)
        self.recognise = button("Recognise")
        self._issues = html_pane()
        self.name = text_input("Name of the profile", width=220)
        self.description = text_input("Description", width=520)
        self.default = pn.widgets.Checkbox(
            label="Use it when no profile is named", value=True, margin=(0, 0, 10, 2)
        )
        self._diff = html_pane()
        self._command = html_pane()
        self.save = button("Save", color="primary")
        self.result = html_pane()

    def _wire(self) -> None:
        self.steps.param.watch(lambda event: self._go(event.new), "value")
        self.next.on_click(lambda event: self._move(1))
        self.back.on_click(lambda event: self._move(-1))
        self.again.on_click(lambda event: self.detect())
        self.skip.on_click(lambda event: self._take_recommended(None))
        self.recognise.on_click(lambda event: self._recognise())
        self.save.on_click(lambda event: self._save())
        self.workload.param.watch(lambda event: self._chosen("workload", event.new), "value")
        self.name.param.watch(lambda event: self._chosen("name", event.new), "value")
        self.description.param.watch(lambda event: self._chosen("description", event.new), "value")
        self.default.param.watch(lambda event: self._show(), "value")

    def enter(self) -> None:
        """Called when the page is shown or its address changed."""
        step = self._board.route.get("step", "machine")
        step = step if step in self._parts else "machine"
        self.steps.value = step
        if list(self._body.objects) != [self._parts[step]]:
            self._body.objects = [self._parts[step]]
        order = list(self._parts)
        self.back.disabled = step == order[0]
        self.next.disabled = step == order[-1]

    def update(self, snapshot: Snapshot) -> None:
        """Remember whether a pool runs, for the next look at the machine."""
        if snapshot.connection == "live" and snapshot.status is not None:
            devices = ", ".join(device.device for device in snapshot.status.devices)
            self._pool = RunningPool("found", f"runs with {devices}; it takes new settings at its next start")
        elif snapshot.connection == "absent":
            self._pool = RunningPool("absent", "none runs")
        else:
            self._pool = RunningPool("unknown", snapshot.message)
        if not self._looked and snapshot.connection != "connecting":
            self._looked = True
            self.detect()

    def detect(self) -> None:
        """Look at the machine; what you chose stays."""
        pool = self._pool
        self._board.background.run("detect", lambda: self._look(pool), self.use_facts, self._failed)

    def _look(self, pool: RunningPool) -> tuple[Facts, OwnWork | None]:
        """Return what is known of the machine, and the visitor's own graphs."""
        work = None
        if pool.status == "found":
            try:
                work = own_work(self._board.hub.reader())
            except DjinnError as error:
                unread = f"{pool.detail}; your cells there are not known: {error.message}"
                pool = RunningPool("found", unread)
        return detect(lambda: pool), work

    def use_facts(self, found: tuple[Facts, OwnWork | None]) -> None:
        """Start, or start over, from what is known of the machine and of the visitor's own graphs."""
        before = self.draft
        facts, work = found
        self.draft = begin(facts, self.code.value or None, work=work)
        for path in sorted(before.profile.chosen) if before else ():
            assert before is not None
            self.draft = set_text(self.draft, path, before.profile.text(path))
        self._missing.visible = False
        self._live.visible = True
        self._show()

    def _failed(self, error: DjinnError) -> None:
        show_html(self.result, notice(error.message, error.advice, "bad"))

    def _go(self, step: str) -> None:
        self._board.route.update(step=step)
        self.enter()

    def _move(self, by: int) -> None:
        order = list(self._parts)
        position = order.index(self.steps.value) + by
        self._go(order[max(0, min(len(order) - 1, position))])

    def _typed(self, path: str, text: str) -> None:
        if self.draft is not None and not self._filling:
            self.draft = set_text(self.draft, path, text)
            self._show()

    def _chosen(self, path: str, text: str) -> None:
        self._typed(path, text)

    def _take_recommended(self, path: str | None) -> None:
        if self.draft is not None:
            self.draft = use_recommended(self.draft, path)
            self._show()
            if path is None:
                self._go("save")

    def _recognise(self) -> None:
        if self.draft is None:
            return
        work = self.draft.work
        graphs = None if work is None else work.guess
        guess = detect_workload(self.code.value or None, self.draft.facts.packages, graphs)
        self.draft = choose_workload(self.draft, guess.workload)
        self._show(f"{guess.evidence}.")

    def _show(self, evidence: str = "") -> None:
        """Bring every part up to the draft."""
        draft = self.draft
        if draft is None:
            return
        self._filling = True
        self.form.show(draft)
        self.workload.value = draft.profile.workload
        if "name" not in draft.refused:
            self.name.value = draft.profile.name
        self.description.value = draft.profile.description
        self._filling = False
        rows = "".join(
            f"<tr><th scope='row'>{label}</th><td>{escape(text)}</td></tr>"
            for label, text in facts_rows(draft.facts)
        )
        show_html(self._facts, f"{heading('This machine', _FACTS_HINT)}<table class='facts'>{rows}</table>")
        show_html(self._evidence, heading("Workload", evidence or f"{draft.guess.evidence}."))
        show_html(self._effects, heading("Predicted effect", f"{effect_sentence(draft.work)}."))
        self.effects.visible = draft.work is not None
        self.effects.show(effect_table_rows(draft))
        show_html(self._issues, issues_html(draft))
        self._show_saving(draft)

    def _show_saving(self, draft: Draft) -> None:
        self.save.disabled = not draft.can_save
        try:
            diff = preview(draft, read_text(), make_default=self.default.value)
        except DjinnError as error:
            show_html(self._diff, notice(error.message, error.advice, "bad"))
            self.save.disabled = True
            return
        title = heading("Change to the file", f"{profiles_path()}; the previous version is kept as .bak")
        body = diff_html(diff) if diff else "<p class='muted'>Nothing: the file already says this.</p>"
        problem = (
            "" if draft.can_save else notice("Errors have to be mended before saving", "See step 4", "bad")
        )
        show_html(self._diff, title + body + problem)
        command = escape(equivalent_command(draft.profile, make_default=self.default.value))
        label = heading("The same in a terminal", "")
        show_html(self._command, f"{label}<pre style='white-space:pre-wrap;user-select:all'>{command}</pre>")

    def _save(self) -> None:
        if self.draft is None:
            return
        try:
            path = save(self.draft, make_default=self.default.value)
        except DjinnError as error:
            show_html(self.result, notice(error.message, error.advice, "bad"))
            return
        self._show()
        advice = "Notebooks take it at their next start; the pool at its next start (djinn-lab pool start)."
        show_html(self.result, notice(f"Saved profile {self.draft.profile.name} in {path}", advice, "good"))


_SURFACE = {
    "background": "var(--dj-surface)",
    "border": "1px solid var(--dj-border)",
    "border-radius": "10px",
    "padding": "18px 20px",
}
_STRETCH: dict[str, Any] = {"sizing_mode": "stretch_width", "margin": 0}
_FACTS_HINT = "What was found; “unknown” means that a probe failed, not that nothing is there."
_SETTINGS_HINT = (
    "Each value says where it came from and why. Change what you like; the rest stays recommended."
)


def effect_table_rows(draft: Draft) -> list[dict[str, object]]:
    """Return what the settings, and those of each built-in profile, are predicted to come to."""
    found = () if draft.work is None else effect_rows(draft.work, draft.profile)
    return [dict(zip(("id", *EFFECT_HEADINGS), (row[0], *row), strict=True)) for row in found]


def issues_html(draft: Draft) -> str:
    """Render errors and warnings with what to do, or that there are none."""
    title = heading("Check", "The settings compared with this machine.")
    if not draft.issues:
        return title + notice("Everything fits this machine", "", "good")
    return title + "".join(
        notice(
            f"{issue.severity}: {issue.path}: {issue.message}",
            issue.fix,
            "bad" if issue.severity == "error" else "",
        )
        for issue in draft.issues
    )


def diff_html(diff: str) -> str:
    """Render a unified diff with colours (and its plus and minus signs)."""
    classes = {"+": "plus", "-": "minus", "@": "at"}
    lines = (f"<span class='{classes.get(line[:1], '')}'>{escape(line)}</span>" for line in diff.splitlines())
    return f"<pre class='diff'>{'<br>'.join(lines)}</pre>"

"""Wizard: look at the machine, recommend a profile with reasons, customise, check, preview and save."""

from __future__ import annotations

from html import escape
from typing import Any

import panel as pn

from djinn_lab.client.own_work import look_at_pool
from djinn_lab.config import profiles_path
from djinn_lab.config.detection import Facts, detect
from djinn_lab.config.effects import EFFECT_HEADINGS, OwnWork, effect_sentence
from djinn_lab.config.facts_text import facts_rows
from djinn_lab.config.profiles import WORKLOADS
from djinn_lab.config.store import can_undo, read_text, undo
from djinn_lab.config.wizard import (
    Draft,
    begin,
    begin_again,
    choose_workload,
    compare_with_file,
    equivalent_command,
    look_again,
    preview,
    refresh,
    save,
    set_text,
    use_recommended,
)
from djinn_lab.config.workload import detect_workload
from djinn_lab.dashboard.board import Board
from djinn_lab.dashboard.hub import Snapshot
from djinn_lab.dashboard.widgets.components import LiveTable
from djinn_lab.dashboard.widgets.controls import button, choice_bar, control_bar, text_area, text_input
from djinn_lab.dashboard.widgets.panes import empty_state, heading, html_pane, notice, show_html
from djinn_lab.dashboard.widgets.table_cells import columns
from djinn_lab.dashboard.wizard.comparison import CheckPart, StoredPart
from djinn_lab.dashboard.wizard.settings_form import SettingsForm, WrongFields
from djinn_lab.dashboard.wizard.tables import diff_html, effect_table_rows, issue_html
from djinn_lab.errors import DjinnError

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
        self.form = SettingsForm(self._typed, self._take_recommended)
        self.stored = StoredPart(self._refresh)
        self.check = CheckPart()
        self._build_controls()
        self._build_saving()
        self.wrong = WrongFields({"name": self.name, **self.form.inputs}, self._lead)
        self._parts = {
            "machine": pn.Column(self._facts, self.again, self.stored.view, **_STRETCH),
            "workload": pn.Column(self._evidence, self.workload, self.code, self.recognise, **_STRETCH),
            "settings": pn.Column(
                self._effects,
                self.effects,
                html_pane(heading("Settings", _SETTINGS_HINT)),
                self.form.view,
                **_STRETCH,
            ),
            "check": self.check.view,
            "save": pn.Column(
                control_bar(self.name, self.description),
                self.name_note,
                self.default,
                self._diff,
                self._command,
                pn.Row(self.save, self.undo, margin=0),
                self.result,
                **_STRETCH,
            ),
        }
        self._body = pn.Column(sizing_mode="stretch_width", margin=0, styles=_SURFACE)
        self._live = pn.Column(
            pn.Row(self.steps, margin=0),
            self._body,
            pn.Row(self.back, self.next, self.skip, margin=(14, 0, 8, 0)),
            self.wrong.view,
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
        self.code = text_area(
            "Code of a cell (optional)",
            placeholder=_SAMPLE,
            height=130,
            sizing_mode="stretch_width",
            max_width=620,
        )
        self.recognise = button("Recognise")

    def _build_saving(self) -> None:
        self.name = text_input("Name of the profile", width=220, tags=["name"])
        self.description = text_input("Description", sizing_mode="stretch_width", max_width=520, min_width=0)
        self.name_note = html_pane(visible=False)
        self.default = pn.widgets.Checkbox(
            label="Use it when no profile is named", value=True, margin=(0, 0, 10, 2)
        )
        self._diff = html_pane()
        self._command = html_pane()
        self.save = button("Save", color="primary")
        self.undo = button("Undo the last change to the file", visible=False)
        self.result = html_pane()

    def _wire(self) -> None:
        self.steps.param.watch(lambda event: self._go(event.new), "value")
        self.next.on_click(lambda event: self._move(1))
        self.back.on_click(lambda event: self._move(-1))
        self.again.on_click(lambda event: self.detect())
        self.skip.on_click(lambda event: self._take_recommended(None))
        self.recognise.on_click(lambda event: self._recognise())
        self.save.on_click(lambda event: self._save())
        self.undo.on_click(lambda event: self._undo())
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

    def _lead(self, path: str) -> None:
        self._go("save" if path == "name" else "settings")

    def update(self, snapshot: Snapshot) -> None:
        """Look at the machine, once the first answer of the pool says whether it runs."""
        if not self._looked and snapshot.connection != "connecting":
            self._looked = True
            self.detect()

    def detect(self) -> None:
        """Look at the machine; what you chose stays."""
        self._board.background.run("detect", self._look, self.use_facts, self._failed)

    def _look(self) -> tuple[Facts, OwnWork | None]:
        """Return what is known of the machine, and the visitor's own graphs."""
        pool, work = look_at_pool(self._board.hub.reader)
        return detect(lambda: pool), work

    def use_facts(self, found: tuple[Facts, OwnWork | None]) -> None:
        """Start, or start over, from what is known of the machine and of the visitor's own graphs."""
        before = self.draft
        facts, work = found
        problem = ""
        try:
            self.draft = begin_again(facts, self.code.value or None, work)
        except DjinnError as error:  # said here, and again beside the change that cannot be saved
            problem = notice(error.message, error.advice, "bad")
            self.draft = begin(facts, self.code.value or None, work=work)
        if before is not None:
            self.draft = look_again(before, self.draft)
        self.stored.problem = problem
        self._missing.visible = False
        self._live.visible = True
        self._show()

    def _failed(self, error: DjinnError) -> None:
        show_html(self.result, notice(error.message, error.advice, "bad"))

    def _go(self, step: str) -> None:
        self._board.route.update(step=step)
        self.enter()

    def _move(self, by: int) -> None:
        if by > 0 and self.steps.value in ("settings", "check"):
            wrong = [path for path in self.wrong.paths if path != "name"]  # its field is in the next step
            if wrong:
                self.wrong.lead_to(wrong[0])
                return
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

    def _refresh(self) -> None:
        if self.draft is not None:
            self.draft = refresh(self.draft)
            self._show()

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
        self.stored.show(draft)
        self.check.show(draft)
        self.wrong.show(draft)
        self._show_saving(draft)

    def _show_saving(self, draft: Draft) -> None:
        refused = draft.refused.get("name")
        self.name_note.visible = refused is not None
        show_html(self.name_note, "" if refused is None else issue_html(refused))
        self.undo.visible = can_undo()
        self.save.label = "Go to the first wrong field" if self.wrong.paths else "Save"
        try:
            diff = preview(draft, read_text(), make_default=self.default.value)
        except DjinnError as error:
            show_html(self._diff, notice(error.message, error.advice, "bad"))
            self.save.disabled = not self.wrong.paths
            return
        self.save.disabled = False
        title = heading("Change to the file", f"{profiles_path()}; the previous version is kept as .bak")
        body = diff_html(diff) if diff else "<p class='muted'>Nothing: the file already says this.</p>"
        show_html(self._diff, title + body)
        command = escape(equivalent_command(draft.profile, make_default=self.default.value))
        label = heading("The same in a terminal", "")
        show_html(self._command, f"{label}<pre style='white-space:pre-wrap;user-select:all'>{command}</pre>")

    def _save(self) -> None:
        if self.draft is None:
            return
        if self.wrong.paths:  # as its label says
            self.wrong.lead_to(self.wrong.paths[0])
            return
        try:
            path = save(self.draft, make_default=self.default.value)
            self.draft = compare_with_file(self.draft)
        except DjinnError as error:
            show_html(self.result, notice(error.message, error.advice, "bad"))
            return
        self._show()
        advice = "Notebooks take it at their next start; the pool at its next start (djinn-lab pool start)."
        show_html(self.result, notice(f"Saved profile {self.draft.profile.name} in {path}", advice, "good"))

    def _undo(self) -> None:
        if self.draft is None:
            return
        try:
            change = undo()
            self.draft = compare_with_file(self.draft)
        except DjinnError as error:
            show_html(self.result, notice(error.message, error.advice, "bad"))
            return
        self.stored.problem = ""
        self._show()
        show_html(self.result, notice(f"Restored {change.path} as it was", _UNDO_HINT, "good"))


_SURFACE = {
    "background": "var(--dj-surface)",
    "border": "1px solid var(--dj-border)",
    "border-radius": "10px",
    "padding": "18px 20px",
}
_STRETCH: dict[str, Any] = {"sizing_mode": "stretch_width", "margin": 0}
_UNDO_HINT = "Your values stay on this page. Undo again brings the change back."
_FACTS_HINT = "What was found; “unknown” means that a probe failed, not that nothing is there."
_SETTINGS_HINT = (
    "Each value says where it came from, why, and what it comes to. Change what you like; the rest stays."
)

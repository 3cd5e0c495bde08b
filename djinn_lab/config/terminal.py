"""The wizard in a terminal."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import Console
from rich.padding import Padding
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from djinn_lab.config.comparison import DIFFERENCE_HEADINGS, difference_rows
from djinn_lab.config.detection import Facts, detect
from djinn_lab.config.effects import EFFECT_HEADINGS, OwnWork, effect_rows, effect_sentence
from djinn_lab.config.facts_text import facts_rows
from djinn_lab.config.fields import FIELD_BY_PATH, FIELDS, Field, Issue, did_you_mean
from djinn_lab.config.profiles import BUILT_IN, WORKLOADS, Profile
from djinn_lab.config.questions import Option, Questions
from djinn_lab.config.store import last_change, load_file, profiles_path, read_text, undo
from djinn_lab.config.wizard import (
    Draft,
    begin,
    begin_again,
    begin_from,
    choose_workload,
    equivalent_command,
    file_change,
    preview,
    refresh,
    save,
    set_text,
    use_recommended,
)
from djinn_lab.config.workload import detect_workload
from djinn_lab.errors import ProfileError
from djinn_lab.units import capitalised, counted

_OTHER_PATHS = ("workload", "name", "description")
_SECTIONS = {
    "pool": "Settings of the pool",
    "session": "Settings of your sessions",
    "scheduler": "Settings of the scheduler",
}
_BACK = "back"


def run_terminal_wizard(
    *,
    console: Console,
    questions: Questions | None = None,
    overrides: Mapping[str, str] | None = None,
    profile: str | None = None,
    dry_run: bool = False,
    make_default: bool = True,
    source: str | None = None,
    facts: Facts | None = None,
    work: OwnWork | None = None,
) -> Profile:
    """Detect, recommend, customise, validate, preview and save (unless ``dry_run``); returns the profile.

    It begins with the stored profile, where there is one. Without ``questions`` it asks nothing, and takes
    what is recommended for every setting that the user did not choose. ``overrides`` maps settings (also
    ``workload`` and ``description``) to text. ``source``: code from which the workload is recognised;
    ``work``: the user's own graphs, on which settings are compared. Raises ProfileError when a setting is
    refused.
    """
    draft = _start(facts or detect(), profile, source, work)
    if questions is None:
        draft = refresh(draft)
    draft = _apply(draft, profile, overrides or {})
    _show_facts(console, draft)
    _show_differences(console, draft)
    if questions is not None:
        try:
            return _Dialogue(console, questions, draft, profile, make_default, dry_run).run()
        except KeyboardInterrupt:
            console.print("Nothing was written.")
            raise
    _show_settings(console, draft)
    _show_effects(console, draft)
    _refuse_errors(draft)
    _show_change(console, draft, make_default)
    _store(console, draft, make_default, dry_run)
    return draft.profile


def run_undo(console: Console, dry_run: bool = False) -> None:
    """Restore the previous profiles file, and show what that changes. Raises ProfileError where there is no
    previous one."""
    change = last_change() if dry_run else undo()
    console.print(f"[bold]Change to {change.path}[/bold]")
    diff = file_change(change.path, change.before, change.after, "after undo")
    console.print(Syntax(diff, "diff", background_color="default") if diff else "none")
    if dry_run:
        console.print("Nothing was written (dry run).")
    else:
        console.print("[green]Restored[/green] the previous file; --undo once more brings the change back")


def _start(facts: Facts, name: str | None, source: str | None, work: OwnWork | None) -> Draft:
    """Begin with the stored profile. Code that the user names decides the workload in any case."""
    if name is None:
        draft = begin_again(facts, source, work)
    else:
        stored = load_file().profiles.get(name)
        draft = begin_from(facts, stored, work, source) if stored else begin(facts, source, work=work)
    if draft.stored is None or source is None:
        return draft
    return choose_workload(draft, detect_workload(source, facts.packages).workload)


def _apply(draft: Draft, name: str | None, overrides: Mapping[str, str]) -> Draft:
    known = [*FIELD_BY_PATH, "workload", "description"]
    for path in overrides:
        if path not in known:
            raise ProfileError(
                f"No setting is called {path!r}{did_you_mean(path, known)}", f"There are: {', '.join(known)}"
            )
    for path in sorted(overrides, key=known[::-1].index):
        draft = set_text(draft, path, overrides[path])
    if name is not None:
        draft = set_text(draft, "name", name)
    for issue in draft.refused.values():
        raise ProfileError(f"{issue.path}: {issue.message}", issue.fix)
    return draft


class _Dialogue:
    """Asks until the draft is saved or left."""

    def __init__(
        self,
        console: Console,
        questions: Questions,
        draft: Draft,
        fixed_name: str | None,
        make_default: bool,
        dry_run: bool,
    ) -> None:
        self._console = console
        self._questions = questions
        self._draft = draft
        self._fixed_name = fixed_name
        self._make_default = make_default
        self._dry_run = dry_run

    def run(self) -> Profile:
        """Return the profile as it was in the end."""
        self._change_workload()
        _show_settings(self._console, self._draft)
        _show_effects(self._console, self._draft)
        while True:
            answer = self._questions.choose(self._menu_title(), self._menu(), "save")
            if answer == "leave":
                self._console.print("Nothing was written.")
                return self._draft.profile
            if answer == "save":
                if self._saved():
                    return self._draft.profile
            elif answer in _SECTIONS:
                self._section(answer)
            elif answer == "workload":
                self._change_workload()
            elif answer in ("name", "description"):
                self._write(answer, answer.capitalize(), getattr(self._draft.profile, answer))
            else:
                before = self._draft
                self._draft = refresh(before) if answer == "refresh" else use_recommended(before)
                _show_settings(self._console, self._draft)

    def _menu_title(self) -> str:
        profile = self._draft.profile
        return f"Profile {profile.name} for {profile.workload}: what next?"

    def _menu(self) -> list[Option]:
        draft = self._draft
        options = [Option("save", "See the change to the file, then save")]
        for section, label in _SECTIONS.items():
            values = [
                f"{field.key} {draft.profile.text(field.path)}"
                for field in FIELDS
                if field.section == section
            ]
            options.append(Option(section, label, ", ".join(values)))
        options.append(Option("workload", "Workload", draft.profile.workload))
        if self._fixed_name is None:
            options.append(Option("name", "Name", draft.profile.name))
        options.append(Option("description", "Description", draft.profile.description))
        count = sum(not _is_recommended(draft, field) for field in FIELDS)
        if count:
            options.append(
                Option("recommended", f"Take the recommended value of {counted(count, 'setting')}")
            )
        return [*options, Option("leave", "Leave without saving")]

    def _saved(self) -> bool:
        """Lead to the first wrong setting, or show the change and ask. Returns whether the wizard is done."""
        if self._draft.errors:
            issue = self._draft.errors[0]
            self._console.print(f"[red]{_plain(issue)}[/red]")
            self._change(issue.path)
            return False
        _show_change(self._console, self._draft, self._make_default)
        options = [
            Option("default", "Save, and use it where no profile is named"),
            Option("save", "Save, and use it only where it is named"),
            Option("change", "Change something else"),
            Option("leave", "Leave without saving"),
        ]
        answer = self._questions.choose("Save it?", options, "default" if self._make_default else "save")
        if answer == "change":
            return False
        make_default = self._make_default if answer == "leave" else answer == "default"
        _store(self._console, self._draft, make_default, self._dry_run or answer == "leave")
        return True

    def _section(self, section: str) -> None:
        position = _BACK
        while True:
            options = [
                Option(
                    field.path, f"{field.label} {self._draft.profile.text(field.path)}", self._comes_to(field)
                )
                for field in FIELDS
                if field.section == section
            ]
            options.append(Option(_BACK, "Back"))
            default = options[0].value if position == _BACK else position
            position = self._questions.choose(_SECTIONS[section], options, default)
            if position == _BACK:
                return
            self._change(position)

    def _comes_to(self, field: Field) -> str:
        return self._draft.consequence(field.path)

    def _change(self, path: str) -> None:
        """Ask for a setting, and say what its new value comes to."""
        if path not in FIELD_BY_PATH:
            self._write(path, path.capitalize(), str(getattr(self._draft.profile, path)))
            return
        field = FIELD_BY_PATH[path]
        before = self._draft.profile.text(path)
        if field.choices:
            options = [
                Option(choice, choice, self._draft.consequence(path, choice)) for choice in field.choices
            ]
            answer = self._questions.choose(f"{field.label}: {field.help}", options, before)
            if answer != before:
                self._draft = set_text(self._draft, path, answer)
        else:
            say = self._console.print
            say(f"{field.label}: {field.help}. Accepted: {field.accepted}.", markup=False)
            recommended = self._draft.recommendation
            say(f"Recommended: {recommended.profile.text(path)}. {recommended.reasons[path]}.", markup=False)
            self._write(path, field.label, before)
        self._show_changed(field, before)

    def _show_changed(self, field: Field, before: str) -> None:
        after = self._draft.profile.text(field.path)
        change = f"{before} stays" if before == after else f"{before} becomes {after}"
        self._console.print(f"{field.label}: {change}. {self._draft.consequence(field.path)}.", markup=False)
        for issue in self._draft.issues:
            if issue.path == field.path:
                self._console.print(_coloured(issue))

    def _write(self, path: str, label: str, default: str) -> None:
        def check(text: str) -> str | None:
            if text == default:
                return None
            issue = set_text(self._draft, path, text).refused.get(path)
            return None if issue is None else f"{issue.message}. {issue.fix}"

        answer = self._questions.write(f"{label}:", default, check)
        if answer != default:
            self._draft = set_text(self._draft, path, answer)

    def _change_workload(self) -> None:
        options = [Option(name, name, BUILT_IN[name].description) for name in WORKLOADS]
        evidence = self._draft.guess.evidence
        message = f"What kind of work? {evidence}."
        answer = self._questions.choose(message, options, self._draft.profile.workload)
        if answer != self._draft.profile.workload:
            self._draft = set_text(self._draft, "workload", answer)


def _is_recommended(draft: Draft, field: Field) -> bool:
    return draft.profile.value(field.path) == draft.for_machine.profile.value(field.path)


def _refuse_errors(draft: Draft) -> None:
    for issue in draft.errors:
        raise ProfileError(f"{issue.path}: {issue.message}", issue.fix)


def _show_change(console: Console, draft: Draft, make_default: bool) -> None:
    diff = preview(draft, read_text(), make_default=make_default)
    console.print(f"\n[bold]Change to {profiles_path()}[/bold]")
    console.print(Syntax(diff, "diff", background_color="default") if diff else "none: it already says this")


def _store(console: Console, draft: Draft, make_default: bool, dry_run: bool) -> None:
    profile = draft.profile
    if dry_run:
        console.print("Nothing was written.")
    else:
        path = save(draft, make_default=make_default)
        use = ", which is used where none is named," if make_default else ""
        console.print(f"[green]Saved[/green] profile {profile.name}{use} in {path}")
        console.print("djinn-lab wizard --undo restores the file as it was")
    console.print("The same without questions:")
    command = equivalent_command(profile, make_default=make_default)
    console.print(f"  {command}", soft_wrap=True, markup=False, highlight=False)


def _show_differences(console: Console, draft: Draft) -> None:
    if draft.stored is None:
        return
    if not draft.differences:
        console.print(f"Profile {draft.stored.name} is stored, and all its values are recommended today.")
        return
    table = Table(
        title=f"Stored profile {draft.stored.name} and today's recommendation", title_justify="left"
    )
    *names, last = DIFFERENCE_HEADINGS
    for heading in names:
        table.add_column(heading, no_wrap=True)
    table.add_column(last)
    for one, row in zip(draft.differences, difference_rows(draft), strict=True):
        table.add_row(one.path, *row[1:])  # as --set names it
    console.print(table)


def _show_facts(console: Console, draft: Draft) -> None:
    table = Table(title="This machine", show_header=False, title_justify="left")
    for label, sentence in facts_rows(draft.facts):
        table.add_row(label, sentence)
    console.print(table)
    console.print(f"Workload: [bold]{draft.profile.workload}[/bold]. {draft.guess.evidence}.")


def _show_settings(console: Console, draft: Draft) -> None:
    console.print(f"\n[bold]Profile {draft.profile.name}[/bold]")
    for field in FIELDS:
        path = field.path
        console.print(f"[bold]{path}[/bold] = {draft.profile.text(path)} ({draft.profile.origin(path)})")
        sentences = f"{capitalised(draft.reason(path))}. {draft.consequence(path)}."
        console.print(Padding(Text(sentences), (0, 0, 0, 4)))
    for issue in draft.issues:
        console.print(_coloured(issue))


def _coloured(issue: Issue) -> str:
    colour = "red" if issue.severity == "error" else "yellow"
    return f"[{colour}]{issue.severity}[/{colour}] {_plain(issue)}"


def _show_effects(console: Console, draft: Draft) -> None:
    console.print(f"{effect_sentence(draft.work)}.", markup=False)
    if draft.work is None:
        return
    table = Table(title="Predicted effect", title_justify="left")
    for heading in EFFECT_HEADINGS:
        table.add_column(heading)
    for row in effect_rows(draft.work, draft.profile):
        table.add_row(*row)
    console.print(table)


def _plain(issue: Issue) -> str:
    return issue.sentence().replace("[", r"\[")

"""The wizard in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table

from djinn_lab.config.detection import Facts, detect
from djinn_lab.config.effects import EFFECT_HEADINGS, OwnWork, effect_rows, effect_sentence
from djinn_lab.config.fields import FIELD_BY_PATH, FIELDS, Issue, did_you_mean
from djinn_lab.config.profiles import BUILT_IN, WORKLOADS, Profile
from djinn_lab.config.store import load_profile, profiles_path, read_text
from djinn_lab.config.wizard import Draft, begin, begin_from, equivalent_command, preview, save, set_text
from djinn_lab.errors import ProfileError
from djinn_lab.units import format_bytes

Ask = Callable[[str, str], str]
"""Question and default answer to what was typed (the default when nothing was)."""
_OTHER_PATHS = ("workload", "name", "description")


def run_terminal_wizard(
    *,
    console: Console,
    ask: Ask | None = None,
    assume_yes: bool = False,
    overrides: Mapping[str, str] | None = None,
    profile: str | None = None,
    dry_run: bool = False,
    make_default: bool = True,
    source: str | None = None,
    facts: Facts | None = None,
    work: OwnWork | None = None,
) -> Profile:
    """Detect, recommend, customise, validate, preview and save (unless ``dry_run``); returns the profile.

    ``overrides`` maps settings (also ``workload`` and ``description``) to text. ``assume_yes`` never asks.
    Without it ``ask`` is needed. ``source``: code from which the workload is recognised; ``work``: the user's
    own graphs, on which settings are compared. Raises ProfileError when a setting is refused or there is no
    user to ask.
    """
    if ask is None and not assume_yes:
        raise ProfileError(
            "The wizard asks questions, and there is no terminal",
            "Run djinn-lab setup --yes, with --set pool.devices=cpu:2 and the like for your own values",
        )
    known = facts or detect()
    draft = _apply(_start(known, profile, source, work), profile, overrides or {})
    _show_facts(console, draft)
    if not assume_yes:
        assert ask is not None
        draft = _customise(console, ask, draft, fixed_name=profile)
    _show_settings(console, draft)
    _show_effects(console, draft)
    _refuse_errors(draft)
    return _finish(console, None if assume_yes else ask, draft, make_default, dry_run)


def _start(facts: Facts, name: str | None, source: str | None, work: OwnWork | None) -> Draft:
    stored = None if name is None else _stored(name)
    return begin_from(facts, stored, work) if stored else begin(facts, source, work=work)


def _stored(name: str) -> Profile | None:
    try:
        return load_profile(name)
    except ProfileError:
        if name in BUILT_IN:
            raise
        read_text()
        return None


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


def _customise(console: Console, ask: Ask, draft: Draft, fixed_name: str | None) -> Draft:
    draft = _ask_until_accepted(
        console, ask, draft, "workload", f"Workload ({', '.join(WORKLOADS)})", draft.profile.workload
    )
    if fixed_name is None:
        draft = _ask_until_accepted(console, ask, draft, "name", "Name of the profile", draft.profile.name)
    while True:
        _show_settings(console, draft)
        path = ask("Setting to change (Enter to continue)", "").strip()
        if not path and draft.can_save:
            return draft
        if not path:
            console.print("[red]Errors have to be mended first.[/red]")
            continue
        if path not in FIELD_BY_PATH and path not in _OTHER_PATHS:
            hint = did_you_mean(path, [*FIELD_BY_PATH, *_OTHER_PATHS])
            console.print(f"[red]No setting is called {path!r}{hint}[/red]")
            continue
        draft = _ask_until_accepted(console, ask, draft, path, _question(path), _current(draft, path))


def _ask_until_accepted(
    console: Console, ask: Ask, draft: Draft, path: str, question: str, default: str
) -> Draft:
    while True:
        answer = ask(question, default)
        if answer == default:
            return draft
        changed = set_text(draft, path, answer)
        issue = changed.refused.get(path)
        if issue is None:
            return changed
        console.print(f"[red]{_plain(issue)}[/red]")


def _question(path: str) -> str:
    field = FIELD_BY_PATH.get(path)
    return f"{field.label}: {field.help}\n  accepted: {field.accepted}\n " if field else path.capitalize()


def _current(draft: Draft, path: str) -> str:
    return draft.profile.text(path) if path in FIELD_BY_PATH else str(getattr(draft.profile, path))


def _refuse_errors(draft: Draft) -> None:
    errors = [issue for issue in draft.issues if issue.severity == "error"]
    if errors:
        raise ProfileError(f"{errors[0].path}: {errors[0].message}", errors[0].fix)


def _finish(console: Console, ask: Ask | None, draft: Draft, make_default: bool, dry_run: bool) -> Profile:
    profile = draft.profile
    diff = preview(profile, read_text(), make_default=make_default)
    console.print(f"\n[bold]Change to {profiles_path()}[/bold]")
    console.print(Syntax(diff, "diff", background_color="default") if diff else "none: it already says this")
    if dry_run:
        console.print("Nothing was written (dry run).")
    elif ask is not None and ask("Save? (yes, no)", "yes").strip().lower() not in ("y", "yes"):
        console.print("Nothing was written.")
    else:
        path = save(draft, make_default=make_default)
        console.print(f"[green]Saved[/green] profile {profile.name} in {path}")
    console.print("The same without questions:")
    console.print(
        f"  {equivalent_command(profile, make_default=make_default)}",
        soft_wrap=True,
        markup=False,
        highlight=False,
    )
    return profile


def facts_rows(facts: Facts) -> list[tuple[str, str]]:
    """Return what was detected, as label and sentence; a failed probe says *unknown*."""
    memory = format_bytes(facts.memory_bytes) if facts.memory_bytes is not None else "unknown:"
    shared = facts.shared_memory_bytes
    return [
        ("CUDA devices", f"{facts.cuda.status}: {facts.cuda.detail}"),
        ("Cores", f"{facts.cores:g} usable"),
        ("Memory", f"{memory} {facts.memory_detail}"),
        ("Shared memory", f"{format_bytes(shared)} free in /dev/shm" if shared is not None else "unknown"),
        ("Packages", ", ".join(facts.packages) or "none that shows the workload"),
        ("Pool", f"{facts.pool.status}: {facts.pool.detail}" if facts.pool.detail else facts.pool.status),
    ]


def _show_facts(console: Console, draft: Draft) -> None:
    table = Table(title="This machine", show_header=False, title_justify="left")
    for label, sentence in facts_rows(draft.facts):
        table.add_row(label, sentence)
    console.print(table)
    console.print(f"Workload: [bold]{draft.profile.workload}[/bold]. {draft.guess.evidence}.")


def _show_settings(console: Console, draft: Draft) -> None:
    table = Table(title=f"Profile {draft.profile.name}", title_justify="left")
    for heading in ("setting", "value", "from", "why"):
        table.add_column(heading)
    for field in FIELDS:
        origin = draft.profile.origin(field.path)
        table.add_row(field.path, draft.profile.text(field.path), origin, draft.reason(field.path))
    console.print(table)
    for issue in draft.issues:
        colour = "red" if issue.severity == "error" else "yellow"
        console.print(f"[{colour}]{issue.severity}[/{colour}] {_plain(issue)}")


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

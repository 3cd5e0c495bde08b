"""``djinn-lab setup``: the wizard in a terminal."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.prompt import Prompt

from djinn_lab.config.detection import RunningPool, detect
from djinn_lab.config.terminal import Ask, run_terminal_wizard
from djinn_lab.errors import DjinnError, OptionError


def run_setup(
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Accept the recommended settings and ask nothing.")
    ] = False,
    profile: Annotated[str | None, typer.Option("--profile", "-p", help="Name of the profile.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="setting=value; repeatable.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be saved; write nothing.")
    ] = False,
    default: Annotated[
        bool, typer.Option("--default/--no-default", help="Make it the default profile, or not.")
    ] = True,
) -> None:
    """Detect this machine, recommend settings with reasons, let you change them, and save a profile."""
    console = Console(highlight=False)
    run_terminal_wizard(
        console=console,
        ask=_asker(console) if sys.stdin.isatty() else None,
        assume_yes=yes,
        overrides=dict(map(_setting, settings or ())),
        profile=profile,
        dry_run=dry_run,
        make_default=default,
        facts=detect(_find_pool),
    )


def _asker(console: Console) -> Ask:
    def ask(question: str, default: str) -> str:
        return Prompt.ask(question, console=console, default=default, show_default=bool(default))

    return ask


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise OptionError(f"--set {text!r} has no value.", "Write for instance: --set pool.devices=cpu:2")
    return name.strip(), value.strip()


def _find_pool() -> RunningPool:
    from djinn_lab.client.rest import PoolClient

    try:
        client = PoolClient.find()
        devices = client.status().devices
    except DjinnError as error:
        return RunningPool("absent", error.message)
    return RunningPool("found", f"{client.url} with {len(devices)} devices")

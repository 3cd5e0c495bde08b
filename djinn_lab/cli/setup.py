"""``djinn-lab wizard``, also called ``setup``: the wizard in a terminal."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from djinn_lab.config.detection import RunningPool, detect
from djinn_lab.config.effects import OwnWork
from djinn_lab.config.questions import ArrowQuestions, PlainQuestions, Questions
from djinn_lab.config.terminal import run_terminal_wizard, run_undo
from djinn_lab.config.workload import joined_cells
from djinn_lab.errors import OptionError


def run_setup(
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Accept the recommended settings and ask nothing.")
    ] = False,
    profile: Annotated[str | None, typer.Option("--profile", "-p", help="Name of the profile.")] = None,
    settings: Annotated[list[str] | None, typer.Option("--set", help="setting=value; repeatable.")] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be saved; write nothing.")
    ] = False,
    code: Annotated[
        Path | None,
        typer.Option("--code", help="A Python file or notebook from which the workload is recognised."),
    ] = None,
    default: Annotated[
        bool, typer.Option("--default/--no-default", help="Make it the default profile, or not.")
    ] = True,
    undo: Annotated[
        bool, typer.Option("--undo", help="Restore the profiles file as it was before the last change.")
    ] = False,
) -> None:
    """Detect this machine, recommend settings with reasons, let you change them, and save a profile."""
    console = Console(highlight=False)
    if undo:
        run_undo(console, dry_run)
        return
    pool, work = _look_at_pool()
    run_terminal_wizard(
        console=console,
        questions=None if yes else _questions(console),
        overrides=dict(map(_setting, settings or ())),
        profile=profile,
        dry_run=dry_run,
        make_default=default,
        source=None if code is None else _code(code),
        facts=detect(lambda: pool),
        work=work,
    )


def _questions(console: Console) -> Questions:
    if sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty():
        return ArrowQuestions()
    return PlainQuestions(console, _read_line)


def _read_line() -> str:
    line = "" if sys.stdin is None else sys.stdin.readline()
    if not line:
        raise EOFError
    return line


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise OptionError(f"--set {text!r} has no value.", "Write for instance: --set pool.devices=cpu:2")
    return name.strip(), value.strip()


def _code(path: Path) -> str:
    """Return the code of a Python file, or of all cells of a notebook that are Python."""
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix != ".ipynb":
            return text
        cells = json.loads(text)["cells"]
        sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OptionError(f"--code {path} cannot be read: {error}.", "Name a .py or .ipynb file.") from None
    return joined_cells(sources)


def _look_at_pool() -> tuple[RunningPool, OwnWork | None]:
    from djinn_lab.client.own_work import look_at_pool
    from djinn_lab.client.rest import PoolClient

    return look_at_pool(PoolClient.find)

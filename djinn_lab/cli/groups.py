"""Groups of commands that list something when they are called alone."""

from __future__ import annotations

from collections.abc import Callable

import typer

from djinn_lab.cli.options import AsJson


def listing_group(help_text: str, show: Callable[[bool], None]) -> typer.Typer:
    """``djinn-lab GROUP`` does what ``djinn-lab GROUP list`` does: ``show``, which takes ``--json``."""
    group = typer.Typer(help=help_text, invoke_without_command=True)

    def show_when_alone(context: typer.Context, as_json: AsJson = False) -> None:
        if context.invoked_subcommand is None:
            show(as_json)

    group.callback(help=help_text)(show_when_alone)
    group.command("list")(show)
    return group

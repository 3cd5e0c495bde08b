"""How commands print."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from djinn_lab.errors import DjinnError


def print_error(error: DjinnError) -> None:
    """What happened in red, and what to do below it, on standard error."""
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    console.print(f"[red]{escape(error.message)}[/red]")
    if error.advice:
        console.print(escape(error.advice))


def print_json(document: Any) -> None:
    """For other programs."""
    print(json.dumps(document, indent=2))


def print_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Cells are plain text, not markup; only the last column is wrapped."""
    table = Table(title=title, title_justify="left")
    for heading in headings[:-1]:
        table.add_column(heading, no_wrap=True)
    table.add_column(headings[-1], overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    Console(highlight=False).print(table)


def print_line(text: str) -> None:
    """One line of plain text, never wrapped."""
    Console(soft_wrap=True, highlight=False).print(escape(text))

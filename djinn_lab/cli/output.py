"""How commands print."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from djinn_lab.errors import DjinnError

Record = TypeVar("Record")
LAST_COLUMN_MIN, LAST_COLUMN_MAX = 20, 120


def print_error(error: DjinnError) -> None:
    """Print an error in red, with the advice below, on standard error."""
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    console.print(f"[red]{escape(error.message)}[/red]")
    if error.advice:
        console.print(escape(error.advice))


def print_json(document: object) -> None:
    """Print structs or plain values as JSON, for other programs."""
    print(json.dumps(msgspec.to_builtins(document), indent=2))


def print_found(
    found: Sequence[Record],
    as_json: bool,
    title: str,
    headings: Sequence[str],
    row: Callable[[Record], Sequence[str]],
    none: str,
) -> None:
    """Print the pool's answer as a table, or ``none`` when it is empty."""
    if as_json:
        print_json(found)
    elif found:
        print_table(title, headings, [row(one) for one in found])
    else:
        print_line(none)


def print_table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Cells are plain text, not markup; only the last column is wrapped. Where the terminal is too narrow for
    the others every row becomes lines of its own; into a file or a pipe it is as wide as it needs to be."""
    console = Console(highlight=False)
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    last = LAST_COLUMN_MIN if console.is_terminal else LAST_COLUMN_MAX
    needed = sum(widths[:-1]) + min(widths[-1], last) + 3 * len(widths) + 1
    if not console.is_terminal:
        console.width = max(console.width, needed)
    if needed > console.width:
        _print_lines(console, title, headings, rows)
        return
    table = Table(title=title, title_justify="left")
    for heading in headings[:-1]:
        table.add_column(heading, no_wrap=True)
    table.add_column(headings[-1], overflow="fold")
    for row in rows:
        table.add_row(*map(escape, row))
    console.print(table)


def _print_lines(
    console: Console, title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]
) -> None:
    console.print(f"[italic]{escape(title)}[/italic]")
    width = max(map(len, headings))
    for row in rows:
        console.print()
        for heading, cell in zip(headings, row, strict=True):
            console.print(f"[bold]{escape(heading):{width}}[/bold]  {escape(cell)}", soft_wrap=True)


def print_line(text: str) -> None:
    """Print one line of plain text, never wrapped."""
    Console(soft_wrap=True, highlight=False).print(escape(text))

"""Tables for what commands show: in plain text, and in HTML for widgets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a line for each row, with the columns aligned. The last column may be of any length."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    widths[-1] = 0
    return [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]


def html_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table without a style sheet: a widget has none of its own."""
    heads = "".join(f"<th style='text-align:left'>{heading}&emsp;</th>" for heading in headings)
    lines = "".join(f"<tr>{''.join(f'<td>{escape(cell)}&emsp;</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{heads}</tr>{lines}</table>"

"""Text of reference pages: docstrings as Markdown, and tables."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence

_ROLE = re.compile(r":\w+:`~?([^`]+)`")
_LITERAL = re.compile(r"``([^`]+)``")


def prose(docstring: str | None) -> str:
    """Return a docstring as Markdown: roles such as ``:func:`` become code."""
    text = inspect.cleandoc(docstring or "")
    return _LITERAL.sub(r"`\1`", _ROLE.sub(r"`\1`", text))


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table without the columns that are empty; the empty string for no rows."""
    found = list(rows)
    filled = [column for column in range(len(header)) if any(row[column] for row in found)]
    lines = [_line([row[column] for column in filled]) for row in (header, ["---"] * len(header), *found)]
    return "\n".join(lines) if found else ""


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"


def page(*parts: str) -> str:
    """Join the parts of a page that are not empty."""
    return "\n\n".join(filter(None, parts)) + "\n"

"""Pages can be read in an editor: no line of prose is long."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.house import PROSE_CHARS_MAX, long_lines, pages_of

PAGES = dict(pages_of(Path(__file__).parents[2]))


def test_the_pages_are_found() -> None:
    assert {"README.md", "CHANGELOG.md", "docs/index.md", "docs/pool.md"} <= PAGES.keys()


@pytest.mark.parametrize("name", PAGES)
def test_no_line_of_prose_is_longer_than_the_limit(name: str) -> None:
    """Lines of tables and code blocks may be. See ``PROSE_CHARS_MAX``."""
    assert long_lines(PAGES[name]) == [], f"wrap these at {PROSE_CHARS_MAX} characters"


def tables_in(text: str) -> list[list[str]]:
    """Runs of lines that begin with a bar, outside of code blocks."""
    found: list[list[str]] = [[]]
    fenced = False
    for line in text.splitlines():
        fenced ^= line.lstrip().startswith("```")
        if line.startswith("|") and not fenced:
            found[-1].append(line)
        elif found[-1]:
            found.append([])
    return [table for table in found if table]


def cells(row: str) -> int:
    """A bar after a backslash is text, also within backticks."""
    return len(re.findall(r"(?<!\\)\|", row.rstrip())) - 1


@pytest.mark.parametrize("name", PAGES)
def test_tables_render(name: str) -> None:
    """Each has a header, a line of dashes, and as many cells in every row."""
    for table in tables_in(PAGES[name]):
        assert len(table) > 1, table
        assert re.fullmatch(r"\|(?: *:?-+:? *\|)+", table[1].rstrip()), table[:2]
        assert [row for row in table if cells(row) != cells(table[0])] == []

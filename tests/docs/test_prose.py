"""Pages can be read in an editor: no line of prose is long."""

from __future__ import annotations

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

"""What `make docs` changes: files outside of this folder have no page, so they are named, not linked."""

from __future__ import annotations

import re
from typing import Any

_OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./([^)]+)\)")


def on_page_markdown(markdown: str, **options: Any) -> str:
    """Return a page's text for the site. MkDocs calls this for each page."""
    return _OUTSIDE.sub(r"\1 (`\2`)", markdown)

"""Adapt links for the site: those to tutorials lead to their pages. Other files outside of this folder have
no page, so they are named, not linked."""

from __future__ import annotations

import re
from typing import Any

_TUTORIAL = re.compile(r"\]\(\.\./notebooks/(tutorials/\w+)\.ipynb\)")
_OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./([^)]+)\)")


def on_page_markdown(markdown: str, page: Any, **options: Any) -> str:
    """Return a page's text for the site. MkDocs calls this for each page."""
    if "/" in page.file.src_uri:
        return markdown
    return _OUTSIDE.sub(r"\1 (`\2`)", _TUTORIAL.sub(r"](\1.md)", markdown))

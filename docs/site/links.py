"""Adapt links for the site: those to tutorials lead to their pages, and those to code that a page of the
reference is made from lead to that page. Other files outside of this folder have no page, so they are named,
not linked."""

from __future__ import annotations

import re
from typing import Any

_TUTORIAL = re.compile(r"\]\(\.\./notebooks/(tutorials/\w+)\.ipynb\)")
_REFERENCE = {
    "../djinn_lab/pool/api/app.py": "reference/rest.md",
    "../djinn_lab/config/fields.py": "reference/settings.md",
    "../djinn_lab/errors.py": "reference/errors.md",
    "../djinn_lab/__init__.py": "reference/python.md",
    "../djinn_lab/pool/metrics/pool.py": "reference/metrics.md",
}
_OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./([^)]+)\)")


def on_page_markdown(markdown: str, page: Any, **options: Any) -> str:
    """Return a page's text for the site. MkDocs calls this for each page."""
    if "/" in page.file.src_uri:
        return markdown
    for source, made in _REFERENCE.items():
        markdown = markdown.replace(f"]({source})", f"]({made})")
    return _OUTSIDE.sub(r"\1 (`\2`)", _TUTORIAL.sub(r"](\1.md)", markdown))

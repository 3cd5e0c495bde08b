"""Addresses beside those of the pages, for ``panel serve --plugins``. Behind a prefix Bokeh has no icon, and
sends the prefix without its slash to another place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tornado.web import RequestHandler

ICON = Path(__file__).parent / "static" / "favicon.svg"


class ToPages(RequestHandler):
    """Redirect the prefix itself to the pages below it."""

    def get(self) -> None:
        self.redirect(f"{self.request.path}/")


class Icon(RequestHandler):
    """Serve the icon of the pages."""

    def get(self) -> None:
        self.set_header("Content-Type", "image/svg+xml")
        self.finish(ICON.read_bytes())


ROUTES: list[tuple[str, type[RequestHandler], dict[str, Any]]] = [
    ("", ToPages, {}),
    ("/favicon.ico", Icon, {}),
]

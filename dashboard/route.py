"""The page's address as state: which page, which job, what was searched for. Reloading loses nothing."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import parse_qsl, urlencode

import panel as pn

from djinn_lab.protocol.dashboard_login import PARAMETER

Listener = Callable[["Route"], None]


class Route:
    """Query parameters of one browser session. Values that are empty are left out of the address."""

    def __init__(self) -> None:
        arguments = pn.state.session_args or {}
        self._values: dict[str, str] = {
            key: values[0].decode(errors="replace")
            for key, values in arguments.items()
            if values and key != PARAMETER
        }
        self._listeners: list[Listener] = []
        self._location = pn.state.location
        if self._location is not None:
            self._location.param.watch(self._changed_outside, "search")

    def get(self, key: str, default: str = "") -> str:
        return self._values.get(key, default)

    def number(self, key: str) -> int | None:
        """Return a whole number, or None when the address has none that can be read."""
        text = self._values.get(key, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else None

    def update(self, **values: str | int | None) -> None:
        """Set values (None removes) and notify the listeners if anything changed."""
        changed = dict(self._values)
        for key, value in values.items():
            if value is None or value == "":
                changed.pop(key, None)
            else:
                changed[key] = str(value)
        if changed != self._values:
            self._values = changed
            self._write()
            self._notify()

    def on_change(self, listener: Listener) -> None:
        self._listeners.append(listener)

    @property
    def search(self) -> str:
        """Return the query as it stands in the address."""
        return f"?{urlencode(self._values)}" if self._values else ""

    def _write(self) -> None:
        if self._location is not None:
            self._location.search = self.search

    def _changed_outside(self, event: object) -> None:
        values = dict(parse_qsl(self._location.search.removeprefix("?")))
        if values != self._values:
            self._values = values
            self._notify()

    def _notify(self) -> None:
        for listener in self._listeners:
            listener(self)

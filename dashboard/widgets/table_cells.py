"""Columns and cells of a :class:`~djinn_lab.dashboard.widgets.components.LiveTable`."""

from __future__ import annotations

from collections.abc import Callable

from djinn_lab.units import format_seconds, whole_seconds


def columns(*fields: tuple[str, str, str]) -> list[dict[str, str]]:
    """Describe a table's columns, each by its key in the rows, label and kind."""
    return [dict(zip(("key", "label", "kind"), field, strict=True)) for field in fields]


def number_cell(value: float | None, show: Callable[[float], str]) -> dict[str, object] | None:
    """Show a number as text, and sort by the number; nothing for None."""
    return None if value is None else {"text": show(value), "sort": value}


def time_cell(seconds: float | None, grows: bool) -> dict[str, object] | None:
    """Show a time. ``grows``: it is still under way, and a table with it changes once a second."""
    if seconds is None or not grows:
        return number_cell(seconds, format_seconds)
    return number_cell(float(int(seconds)), whole_seconds)


def share_cell(
    share: float | None, show: Callable[[float], str] = "{:.0%}".format
) -> dict[str, object] | None:
    """Show a part of one as a bar; nothing for None."""
    return None if share is None else {"done": share, "total": 1, "text": show(share), "sort": share}

"""A form: fields with labels, and what is wrong with a field below it, where it was typed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import Any

import panel as pn

from djinn_lab.dashboard.widgets.panes import html_pane, show_html
from djinn_lab.errors import OptionError

FIELD_PX, GAP_PX = 200, 8


class Form:
    """Show input widgets by name, each with a note below. Text that is refused stays where it was typed."""

    def __init__(self, fields: Mapping[str, pn.widgets.Widget]) -> None:
        self.fields = dict(fields)
        self.notes = {name: html_pane(margin=(-4, 8, 6, 2)) for name in fields}
        self._initial = {name: field.value for name, field in self.fields.items()}
        blocks = [_block(field, self.notes[name]) for name, field in self.fields.items()]
        self.view = pn.FlexBox(*blocks, align_items="start", gap="0px", margin=0)

    def text(self, name: str) -> str:
        """Return what was typed, without spaces around it."""
        return str(self.fields[name].value or "").strip()

    def value(self, name: str) -> Any:
        return self.fields[name].value

    def required(self, name: str, what: str) -> str:
        """Return what was typed. Raises OptionError, with the note beside the field, for nothing."""
        text = self.text(name)
        if not text:
            raise self.refused(name, f"Type {what} first.")
        return text

    def parts(self, name: str) -> list[str]:
        """Return what was typed between commas."""
        return [part for part in (piece.strip() for piece in self.text(name).split(",")) if part]

    def number(self, name: str, least: float = 0.0) -> float | None:
        """Return a number, None where nothing was typed. Raises OptionError, with the note beside the
        field."""
        text = self.text(name)
        if not text:
            return None
        try:
            found = float(text)
        except ValueError:
            raise self.refused(name, f"{text!r} is not a number.") from None
        if not math.isfinite(found) or found < least:
            raise self.refused(name, f"{text} is out of range: a number from {least:g} on.")
        return found

    def whole(self, name: str, least: int = 0) -> int | None:
        """Return a whole number as :meth:`number` does."""
        found = self.number(name, least)
        if found is not None and found != int(found):
            raise self.refused(name, f"{self.text(name)} is not a whole number.")
        return None if found is None else int(found)

    def refused(self, name: str, message: str) -> OptionError:
        """Show what is wrong beside a field, and return the error that says so."""
        note = f"<p class='refused' role='alert'>{escape(message)}</p>"
        show_html(self.notes[name], note)
        return OptionError(message)

    def clear_notes(self) -> None:
        for note in self.notes.values():
            show_html(note, "")

    def reset(self) -> None:
        """Empty the form after what was typed is done."""
        self.clear_notes()
        for name, field in self.fields.items():
            field.value = self._initial[name]


def _block(field: pn.widgets.Widget, note: pn.pane.HTML) -> pn.Column:
    width_px = (field.width or FIELD_PX) + GAP_PX
    return pn.Column(field, note, margin=0, width=width_px, styles={"max-width": "100%"})

"""Widgets in the page's style."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from io import BytesIO, StringIO

import panel as pn

from djinn_lab.dashboard.widgets.components import STATIC

_CSS = (STATIC / "widgets.css").read_text()


def _styled(options: dict[str, object]) -> dict[str, object]:
    return {"margin": (0, 8, 8, 0), "stylesheets": [_CSS], **options}


def control_bar(*widgets: pn.viewable.Viewable, **options: object) -> pn.FlexBox:
    """Put widgets side by side, in several lines where the page is narrow."""
    return pn.FlexBox(*widgets, align_items="end", gap="0px", **options)


def button(label: str, **options: object) -> pn.widgets.Button:
    return pn.widgets.Button(label=label, **_styled(options))


def toggle(label: str, **options: object) -> pn.widgets.Toggle:
    return pn.widgets.Toggle(label=label, **_styled(options))


def choice_bar(
    choices: Mapping[str, object] | Sequence[object], value: object, **options: object
) -> pn.widgets.RadioButtonGroup:
    """Make a choice of one of a few values, as a row of buttons."""
    return pn.widgets.RadioButtonGroup(options=choices, value=value, **_styled(options))


def whose_bar(mine: bool) -> pn.widgets.RadioButtonGroup:
    """Make the choice between the cells of all users and those of the visitor."""
    return choice_bar({"Everybody": False, "Mine": True}, mine, align="end")


def select(
    label: str, choices: Mapping[str, object] | Sequence[object], **options: object
) -> pn.widgets.Select:
    return pn.widgets.Select(label=label, options=choices, **_styled(options))


def text_input(label: str, **options: object) -> pn.widgets.TextInput:
    return pn.widgets.TextInput(label=label, **_styled(options))


def password_input(label: str, **options: object) -> pn.widgets.PasswordInput:
    return pn.widgets.PasswordInput(label=label, **_styled(options))


def text_area(label: str, **options: object) -> pn.widgets.TextAreaInput:
    return pn.widgets.TextAreaInput(label=label, **_styled(options))


def file_input(label: str, **options: object) -> pn.widgets.FileInput:
    """A button that opens a file of the visitor's machine."""
    widget = pn.widgets.FileInput(**_styled(options))
    widget.label = label
    return widget


def download(
    label: str, filename: str, callback: Callable[[], StringIO | BytesIO], **options: object
) -> pn.widgets.FileDownload:
    """A button that saves what ``callback`` returns."""
    widget = pn.widgets.FileDownload(
        filename=filename, callback=callback, embed=False, auto=True, **_styled(options)
    )
    widget.label = label
    return widget

"""Widgets in the page's style."""

from __future__ import annotations

from typing import Any

import panel as pn

from djinn_lab.dashboard.widgets.components import STATIC

_CSS = (STATIC / "widgets.css").read_text()


def _styled(options: dict[str, object]) -> dict[str, Any]:
    return {"margin": (0, 8, 8, 0), "stylesheets": [_CSS], **options}


def button(label: str, **options: Any) -> Any:
    return pn.widgets.Button(label=label, **_styled(options))


def toggle(label: str, **options: object) -> Any:
    return pn.widgets.Toggle(label=label, **_styled(options))


def choice_bar(choices: dict[str, Any] | list[Any], value: Any, **options: Any) -> Any:
    """Make a choice of one of a few values, as a row of buttons."""
    return pn.widgets.RadioButtonGroup(options=choices, value=value, **_styled(options))


def select(label: str, choices: dict[str, object] | list[object], **options: object) -> Any:
    return pn.widgets.Select(label=label, options=choices, **_styled(options))


def text_input(label: str, **options: object) -> Any:
    return pn.widgets.TextInput(label=label, **_styled(options))


def text_area(label: str, **options: object) -> Any:
    return pn.widgets.TextAreaInput(label=label, **_styled(options))


def file_input(label: str, **options: object) -> Any:
    """A button that opens a file of the visitor's machine."""
    widget = pn.widgets.FileInput(**_styled(options))
    widget.label = label
    return widget


def download(label: str, filename: str, callback: Any, **options: Any) -> Any:
    """A button that saves what ``callback`` returns."""
    widget = pn.widgets.FileDownload(
        filename=filename, callback=callback, embed=False, auto=True, **_styled(options)
    )
    widget.label = label
    return widget

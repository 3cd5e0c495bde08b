"""Colours (Okabe and Ito's, safe for colour-blind readers) and the look of every plot, in one place."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import NamedTuple

import panel as pn
from bokeh.models import CustomJSTickFormatter, DatetimeTickFormatter
from bokeh.plotting import figure

from djinn_lab.client.phase_colours import PHASE_COLOURS

DEVICE_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DEVICE_STATE_COLOURS: dict[str, str] = {
    "idle": "#7F8C99",
    "busy": "#009E73",
    "starting": "#E69F00",
    "silent": "#CC79A7",
    "lost": "#D55E00",
}
STATE_COLOURS: dict[str, str] = {
    "RUNNING": "#009E73",
    "RESTORING": "#56B4E9",
    "QUEUED": "#E69F00",
    "SUBMITTED": "#E69F00",
    "PREEMPTED": "#CC79A7",
    "WAITING": "#56B4E9",
    "DONE": "#7F8C99",
    "FAILED": "#D55E00",
    "CANCELLED": "#7F8C99",
}
MEMORY_COLOURS: dict[str, str] = {
    "busy": "#009E73",
    "idle": "#E69F00",
    "loading": "#56B4E9",
    "host": "#CC79A7",
    "disk": "#7F8C99",
    "none": "#7F8C99",
}
"""Of the states of a session's memory (:data:`djinn_lab.client.session_memory.STATES`)."""
SHARED_COLOUR = "#0072B2"
BAD_COLOUR = "#D55E00"


class Look(NamedTuple):
    """Colours of one theme."""

    dark: bool
    surface: str
    text: str
    muted: str
    grid: str
    edge: str
    box: str


LIGHT = Look(False, "#ffffff", "#1c2733", "#5b6875", "#e4e8ed", "#9aa7b4", "#f5f7f9")
DARK = Look(True, "#1b222b", "#e8edf2", "#9fadbb", "#303a46", "#66747f", "#232c37")


def current_look() -> Look:
    """Return the look that the page's address asks for (``?theme=dark``)."""
    arguments = pn.state.session_args or {}
    return DARK if arguments.get("theme", [b""])[0] == b"dark" else LIGHT


def blend(colour: str, other: str, share: float) -> str:
    """``share`` of ``colour`` over ``other``, both ``#rrggbb``."""
    one, two = (tuple(int(text[i : i + 2], 16) for i in (1, 3, 5)) for text in (colour, other))
    return "#" + "".join(f"{round(a * share + b * (1 - share)):02x}" for a, b in zip(one, two, strict=True))


def legend_html(extra: tuple[tuple[str, str], ...] = ()) -> str:
    """Phases (and ``extra`` labels) with their colours, as HTML for the page's style sheet."""
    return colour_legend((*PHASE_COLOURS.items(), *extra), "Colours of the phases")


def colour_legend(entries: Iterable[tuple[str, str]], label: str) -> str:
    """Return labels with their colours as HTML; ``label`` says to screen readers what the colours are for."""
    items = "".join(
        f'<span class="key"><i style="background:{colour}"></i>{escape(name)}</span>'
        for name, colour in entries
    )
    return f'<div class="legend" aria-label="{escape(label)}">{items}</div>'


_DURATION_JS = """
const units = [[86400, 'd'], [3600, 'h'], [60, 'min'], [1, 's'], [0.001, 'ms']];
if (tick === 0) return '0';
for (const [size, name] of units)
  if (Math.abs(tick) >= size) return `${+(tick / size).toFixed(1)} ${name}`;
return `${tick} s`;
"""


def duration_ticks() -> CustomJSTickFormatter:
    """Write seconds on an axis as people read them."""
    return CustomJSTickFormatter(code=_DURATION_JS)


MOMENTS = dict.fromkeys(("milliseconds", "seconds", "minsec"), "%H:%M:%S") | dict.fromkeys(
    ("minutes", "hourmin"), "%H:%M"
)


MOMENTS_SHOWN = 4
"""About so many moments below an axis have room in a narrow window."""


def new_figure(look: Look, **options: object) -> figure:
    """Make a figure in the page's colours; moments below it are written in full."""
    plot = figure(
        sizing_mode="stretch_width",
        background_fill_color=look.surface,
        border_fill_color=look.surface,
        outline_line_color=None,
        **options,
    )
    plot.toolbar.logo = None
    plot.toolbar.autohide = True
    for axis in (*plot.xaxis, *plot.yaxis):
        axis.axis_line_color = look.grid
        axis.major_tick_line_color = look.grid
        axis.minor_tick_line_color = None
        axis.major_label_text_color = look.muted
        axis.axis_label_text_color = look.muted
        axis.axis_label_text_font_style = "normal"
        axis.major_label_text_font_size = "11px"
        axis.axis_label_text_font_size = "11px"
    if options.get("x_axis_type") == "datetime":
        plot.xaxis.formatter = DatetimeTickFormatter(**MOMENTS)
        plot.xaxis.ticker.desired_num_ticks = MOMENTS_SHOWN
    plot.grid.grid_line_color = look.grid
    plot.title.text_color = look.muted
    plot.title.text_font_size = "11px"
    return plot

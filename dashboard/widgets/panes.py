"""Small HTML panes in the page's style. The caller that makes the HTML escapes what users wrote."""

from __future__ import annotations

from html import escape

import panel as pn

from djinn_lab.dashboard.hub import Snapshot
from djinn_lab.dashboard.widgets.components import STATIC

PANE_CSS = (STATIC / "pane.css").read_text()


def html_pane(content: str = "", **options: object) -> pn.pane.HTML:
    """Make a pane of HTML over the full width."""
    options.setdefault("sizing_mode", "stretch_width")
    options.setdefault("margin", (0, 0, 12, 0))
    return pn.pane.HTML(content, stylesheets=[PANE_CSS], **options)


def show_html(pane: pn.pane.HTML, content: str) -> None:
    """Send HTML, when it differs from what is on the page."""
    if pane.object != content:
        pane.object = content


def heading(title: str, summary: str = "") -> str:
    """Return a chart's or table's visible title with its one-sentence summary."""
    return f"<h2>{escape(title)}</h2><p class='muted'>{escape(summary)}</p>"


def notice(message: str, advice: str = "", tone: str = "") -> str:
    """Return a message with what to do about it; ``tone`` is empty, ``good`` or ``bad``."""
    more = f"<p class='muted'>{escape(advice)}</p>" if advice else ""
    return f"<div class='notice {tone}' role='status'><p>{escape(message)}</p>{more}</div>"


def empty_state(title: str, sentence: str, code: str = "") -> str:
    """Return a page's content when there is nothing to show: what is missing, and what to type."""
    block = f"<pre>{escape(code)}</pre>" if code else ""
    return f"<div class='empty'><h2>{escape(title)}</h2><p>{escape(sentence)}</p>{block}</div>"


CHOOSE_OTHER = (
    "<p style='text-align:center'><a href='?page=overview&amp;show=all'>Choose another cell</a></p>"
)
NO_JOBS = empty_state(
    "No cells have run yet",
    "Paste this into a notebook, and the cell appears here while it runs:",
    "%load_ext djinn_lab\n\n%%djinn\nimport torch\nx = torch.randn(1000, 1000)\nprint((x @ x).mean())",
)


def show_known(
    live: pn.Column, missing: pn.pane.HTML, snapshot: Snapshot, what: object, waiting: str = ""
) -> bool:
    """Show ``live`` where the pool has said ``what`` the page is about, and else why there is nothing;
    ``waiting``: while a pool that answers was only just asked. Whether it is known."""
    known = what is not None and snapshot.connection in ("live", "lost")
    live.visible, missing.visible = known, not known
    if not known:
        text = waiting if snapshot.connection == "live" else ""
        show_html(missing, text or no_pool(snapshot.connection, snapshot.message, snapshot.advice))
    return known


def no_pool(connection: str, message: str, advice: str) -> str:
    """Return the content of a page without a pool; says which of the reasons it is."""
    if connection == "connecting":
        return empty_state("Looking for a pool", "This takes a moment.")
    if connection == "refused":
        return empty_state("The pool refused this dashboard", f"{message} {advice}")
    if connection == "lost":
        return empty_state("The pool does not answer", f"{message} {advice}", "djinn-lab pool status")
    return empty_state(
        "No pool is running",
        "Start one in a terminal; this page finds it by itself.",
        "djinn-lab pool start",
    )

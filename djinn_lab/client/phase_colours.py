"""One colour for each phase of a graph, in notebooks and on the dashboard: Okabe and Ito's, which those who
are colour-blind tell apart."""

from __future__ import annotations

PHASE_COLOURS: dict[str, str] = {
    "prefill": "#0072B2",
    "decode": "#D55E00",
    "forward": "#009E73",
    "backward": "#CC79A7",
    "optimizer": "#E69F00",
    "other": "#7F8C99",
}
TRANSFER_COLOUR = "#56B4E9"


def phase_colour(phase: str) -> str:
    """Return the colour of a phase; that of ``other`` for one that has none."""
    return PHASE_COLOURS.get(phase, PHASE_COLOURS["other"])

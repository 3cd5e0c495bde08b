"""Colours of the boxes of a graph: by phase, by predicted or measured time, by memory, or by what changed."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal, NamedTuple, Protocol, get_args

import numpy as np

from djinn_lab.client.phase_colours import PHASE_COLOURS, phase_colour
from djinn_lab.dashboard.graph.changes import ItemChanges
from djinn_lab.dashboard.graph.figures import Floats, NodeFigures
from djinn_lab.dashboard.graph.folding import Item, Tree
from djinn_lab.dashboard.widgets.theme import Look, blend
from djinn_lab.units import format_bytes, format_seconds

ColourBy = Literal["phase", "predicted", "measured", "memory", "change"]
COLOUR_LABELS: dict[ColourBy, str] = {
    "phase": "Phase",
    "predicted": "Predicted",
    "measured": "Measured",
    "memory": "Memory",
    "change": "Change",
}
SHARES = (0.01, 0.05, 0.15, 0.4)
"""Where one colour of a time ends and the next begins, as a part of all ops' time."""
LEVELS = (0.04, 0.15, 0.3, 0.45, 0.62)
"""How much of the colour a box has, from the least to the most: text stays readable on each."""
TIME_COLOUR = "#D55E00"
MEMORY_COLOUR = "#0072B2"
ADDED_COLOUR, SLOWER_COLOUR, FASTER_COLOUR, SAME_COLOUR = "#009E73", "#D55E00", "#0072B2", "#7F8C99"
STRONG_RATIO, WEAK_RATIO = 1.5, 1.1
SMALL_SHARE = 0.001
"""A difference below this part of the run's time counts as none."""


class Shade(NamedTuple):
    """How a box looks. ``figure``: what its colour stands for, in words; empty where that is the phase."""

    fill: str
    line: str
    figure: str = ""


class Shading(Protocol):
    """Colours for the items of one graph. ``legend``: what each colour means."""

    @property
    def legend(self) -> tuple[tuple[str, str], ...]: ...

    def shade(self, item: Item) -> Shade: ...


class PhaseShading:
    """Colour by the phase that most of an item's ops have."""

    def __init__(self, tree: Tree, look: Look) -> None:
        self._tree, self._look = tree, look
        self.legend = tuple(PHASE_COLOURS.items())

    def shade(self, item: Item) -> Shade:
        """Return the phase's colour, stronger for a group."""
        colour = phase_colour(self._tree.totals(item).phase)
        return Shade(blend(colour, self._look.surface, 0.34 if item.is_group else 0.16), colour)


class TimeShading:
    """Colour by an item's share of the seconds of all ops. ``what``: predicted or measured."""

    def __init__(self, seconds: Floats, what: str, look: Look) -> None:
        self._look, self._what = look, what
        self._sums = np.concatenate([[0.0], np.cumsum(seconds)])
        bounds = [f"below {SHARES[0]:.0%}"]
        bounds += [f"{low:.0%} to {high:.0%}" for low, high in pairwise(SHARES)]
        bounds.append(f"above {SHARES[-1]:.0%} of the {what} time")
        self.legend = _legend(bounds, TIME_COLOUR, look)

    def shade(self, item: Item) -> Shade:
        """Return a colour that is stronger for a greater share."""
        seconds = float(self._sums[item.last] - self._sums[item.first])
        share = seconds / self._sums[-1] if self._sums[-1] > 0 else 0.0
        level = int(np.searchsorted(SHARES, share, side="right"))
        percent = "<1%" if 0 < share < 0.005 else f"{share:.0%}"
        return _shade(TIME_COLOUR, level, self._look, f"{format_seconds(seconds)}, {percent}")


class MemoryShading:
    """Colour by the most memory that is planned to be in use while an item's ops run."""

    def __init__(self, live_bytes: Floats, look: Look) -> None:
        self._look, self._live_bytes = look, live_bytes
        self._most = float(live_bytes.max(initial=0.0))
        steps = len(LEVELS)
        bounds = [f"up to {format_bytes(self._most * (step + 1) / steps)}" for step in range(steps)]
        bounds[-1] += " planned in use"
        self.legend = _legend(bounds, MEMORY_COLOUR, look)

    def shade(self, item: Item) -> Shade:
        """Return a colour that is stronger for more memory."""
        peak = float(self._live_bytes[item.first : item.last].max(initial=0.0))
        share = peak / self._most if self._most else 0.0
        level = min(int(share * len(LEVELS)), len(LEVELS) - 1)
        return _shade(MEMORY_COLOUR, level, self._look, format_bytes(peak))


class ChangeShading:
    """Colour by what changed against another run."""

    def __init__(self, changes: ItemChanges, look: Look) -> None:
        self._changes, self._look = changes, look
        self._small_s = SMALL_SHARE * changes.whole_s
        self.legend = (
            ("added", blend(ADDED_COLOUR, look.surface, 0.45)),
            (f"over {STRONG_RATIO} times slower", blend(SLOWER_COLOUR, look.surface, 0.55)),
            (f"{WEAK_RATIO} to {STRONG_RATIO} times slower", blend(SLOWER_COLOUR, look.surface, 0.25)),
            ("about the same", blend(SAME_COLOUR, look.surface, 0.12)),
            (f"{WEAK_RATIO} to {STRONG_RATIO} times faster", blend(FASTER_COLOUR, look.surface, 0.25)),
            (f"over {STRONG_RATIO} times faster", blend(FASTER_COLOUR, look.surface, 0.55)),
        )

    def shade(self, item: Item) -> Shade:
        """Return green for new ops, vermilion for slower and blue for faster ones."""
        change = self._changes.of(item)
        surface = self._look.surface
        text = _change_text(change.ratio, change.added, change.removed)
        if change.added == item.ops:
            return Shade(blend(ADDED_COLOUR, surface, 0.45), ADDED_COLOUR, text)
        ratio = change.ratio or 1.0
        slower = ratio >= 1
        factor = max(ratio, 1 / ratio) if ratio > 0 else STRONG_RATIO
        if factor < WEAK_RATIO or abs(change.difference_s) < self._small_s:
            fill, line = blend(SAME_COLOUR, surface, 0.12), SAME_COLOUR
        else:
            line = SLOWER_COLOUR if slower else FASTER_COLOUR
            fill = blend(line, surface, 0.55 if factor >= STRONG_RATIO else 0.25)
        return Shade(fill, ADDED_COLOUR if change.added else line, text)


def _change_text(ratio: float | None, added: int, removed: int) -> str:
    counts = [f"{sign}{count}" for sign, count in (("+", added), ("−", removed)) if count]
    return " ".join([*([] if ratio is None else [f"{ratio:.2g}×"]), *counts])


def _legend(labels: list[str], colour: str, look: Look) -> tuple[tuple[str, str], ...]:
    shades = [blend(colour, look.surface, level) for level in LEVELS]
    return tuple(zip(labels, shades, strict=True))


def _shade(colour: str, level: int, look: Look, figure: str) -> Shade:
    line = blend(colour, look.surface, max(0.35, LEVELS[level]))
    return Shade(blend(colour, look.surface, LEVELS[level]), line, figure)


def colour_choice(text: str, comparing: bool) -> ColourBy:
    """Read how to colour from an address; what it does not say, or says wrongly, is the change where two runs
    are compared, else the phase."""
    named = next((name for name in get_args(ColourBy) if name == text), None)
    if named is None or (named == "change" and not comparing):
        return "change" if comparing else "phase"
    found: ColourBy = named
    return found


def figures_shading(by: ColourBy, figures: NodeFigures, look: Look) -> Shading | None:
    """Return the colours that a schedule's figures give; None for measured times before all ops ran."""
    if by == "memory":
        return MemoryShading(figures.live_bytes, look)
    if by == "predicted":
        return TimeShading(figures.predicted_s, "predicted", look)
    return None if figures.measured_s is None else TimeShading(figures.measured_s, "measured", look)

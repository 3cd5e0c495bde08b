"""The drawing of a graph as an SVG file: all of it, with its legend, sharp at any size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from djinn_lab.dashboard.graph.folding import Tree
from djinn_lab.dashboard.graph.scene import (
    Columns,
    Scene,
    box_columns,
    container_columns,
    count_columns,
    link_columns,
)
from djinn_lab.dashboard.graph.shading import Shading
from djinn_lab.dashboard.widgets.theme import Look

MARGIN = 24.0
TITLE_HEIGHT = 26.0
LEGEND_HEIGHT = 24.0
CHAR_WIDTH = 6.6
KEY_WIDTH = 34.0
WIDTH_MIN = 420.0
_CURVE = "M{x0:.1f} {y0:.1f}C{cx0:.1f} {cy0:.1f} {cx1:.1f} {cy1:.1f} {x1:.1f} {y1:.1f}"
_FONT = "font-family='Liberation Sans,Arial,Helvetica,sans-serif'"


def graph_svg(tree: Tree, scene: Scene, shading: Shading, look: Look, title: str) -> str:
    """Draw the boxes and links that the page shows, below ``title``, above what the colours mean."""
    width = max(scene.width, WIDTH_MIN) + 2 * MARGIN
    keys, lines = _legend(shading.legend, look, width)
    top = MARGIN + TITLE_HEIGHT
    height = top + scene.height + MARGIN + lines * LEGEND_HEIGHT + MARGIN / 2
    left = (width - scene.width) / 2
    body = "".join(_scene(tree, scene, shading, look))
    legend_top = top + scene.height + MARGIN
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width:.0f}' height='{height:.0f}' "
        f"viewBox='0 0 {width:.1f} {height:.1f}' {_FONT}>"
        f"<title>{escape(title)}</title><rect width='100%' height='100%' fill='{look.surface}'/>"
        f"<text x='{MARGIN}' y='{MARGIN + 8}' font-size='14' font-weight='600' fill='{look.text}'>"
        f"{escape(_clipped(title, width))}</text>"
        f"<g transform='translate({left:.1f} {top:.1f})'>{body}</g>"
        f"<g transform='translate({MARGIN} {legend_top:.1f})'>{keys}</g></svg>"
    )


def _clipped(title: str, width: float) -> str:
    most = int((width - 2 * MARGIN) / 7.5)
    return title if len(title) <= most else f"{title[: most - 1]}…"


def _legend(entries: Sequence[tuple[str, str]], look: Look, width: float) -> tuple[str, int]:
    """Return what the colours mean as SVG, and the number of its lines."""
    parts: list[str] = []
    x, line = 0.0, 0
    for name, colour in entries:
        needed = KEY_WIDTH + CHAR_WIDTH * len(name)
        if x and x + needed > width - 2 * MARGIN:
            x, line = 0.0, line + 1
        y = line * LEGEND_HEIGHT
        parts.append(
            f"<rect x='{x:.0f}' y='{y:.0f}' width='12' height='12' rx='3' fill='{colour}'/>"
            f"<text x='{x + 18:.0f}' y='{y + 10:.0f}' font-size='12' fill='{look.muted}'>"
            f"{escape(name)}</text>"
        )
        x += needed
    return "".join(parts), line + 1


def _scene(tree: Tree, scene: Scene, shading: Shading, look: Look) -> Iterator[str]:
    for box in _rows(container_columns(scene, look)):
        yield _rect(box, look.box, look.grid, 1.2, 8)
        yield _text(box["label_x"], box["header_y"], box["label"], 12.5, look.muted, "start", bold=True)
    curves = [link_columns(scene, backward=backward) for backward in (False, True)]
    for curve, dash in zip(curves, ("", " stroke-dasharray='6 4'"), strict=True):
        for link in _rows(curve):
            yield (
                f"<path d='{_CURVE.format(**link)}' fill='none' stroke='{look.edge}' stroke-opacity='.75' "
                f"stroke-width='{link['thickness']:.2f}'{dash}/>"
            )
    for count in _rows(count_columns(scene, curves)):
        yield _rect(count, look.surface, look.edge, 0.8, 7)
        yield _text(count["x"], count["y"], count["count"], 10.5, look.muted, "middle")
    for box in _rows(box_columns(tree, scene, look, shading, frozenset(), None)):
        yield _rect(box, box["fill"], box["line"], box["line_width"], 6)
        yield _text(box["x"], box["label_y"], box["label"], 12.5, look.text, "middle")
        yield _text(box["x"], box["sublabel_y"], box["sublabel"], 10.5, look.muted, "middle")


def _rows(columns: Columns) -> Iterator[dict[str, Any]]:
    names = list(columns)
    return (dict(zip(names, values, strict=True)) for values in zip(*columns.values(), strict=True))


def _rect(box: dict[str, Any], fill: str, line: str, line_width: float, radius: float) -> str:
    left, top = box["x"] - box["width"] / 2, box["y"] - box["height"] / 2
    return (
        f"<rect x='{left:.1f}' y='{top:.1f}' width='{box['width']:.1f}' height='{box['height']:.1f}' "
        f"rx='{radius}' fill='{fill}' stroke='{line}' stroke-width='{line_width}'/>"
    )


def _text(x: float, y: float, text: str, size: float, fill: str, anchor: str, *, bold: bool = False) -> str:
    if not text:
        return ""
    weight = " font-weight='600'" if bold else ""
    return (
        f"<text x='{x:.1f}' y='{y + 0.35 * size:.1f}' font-size='{size}' fill='{fill}' "
        f"text-anchor='{anchor}'{weight}>{escape(text)}</text>"
    )

"""What to draw of a folded graph: boxes inside boxes and the curves between them, as columns for Bokeh."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from djinn_lab.dashboard.graph.folding import Item, Tree
from djinn_lab.dashboard.graph.layered import Pairs, place
from djinn_lab.dashboard.graph.shading import Shading
from djinn_lab.dashboard.widgets.theme import Look
from djinn_lab.units import counted, format_bytes

Columns = dict[str, list[Any]]
CHAR_WIDTH = 7.0
BOX_HEIGHT = 34.0
GROUP_HEIGHT = 50.0
PADDING = 18.0
HEADER = 30.0
LABEL_MAX = 34
GROUP_CHARS_MIN = 18
"""A group has space for the figure that its colour stands for, whichever is chosen later."""
COUNT_HEIGHT = 15.0


class Frame(msgspec.Struct, frozen=True):
    """A box: centre, size (y grows downwards) and whether it is an expanded group."""

    item: Item
    x: float
    y: float
    width: float
    height: float
    opened: bool


class SceneLink(NamedTuple):
    """``source`` and ``target``: positions among the frames. ``back``: it points upwards."""

    source: int
    target: int
    nbytes: float
    edges: int
    back: bool


class Scene(NamedTuple):
    """The boxes and links to draw. ``frames``: outer ones before what they hold."""

    frames: list[Frame]
    links: list[SceneLink]
    width: float
    height: float


def arrange(tree: Tree, open_groups: Iterable[int]) -> Scene:
    """Lay out the boxes that show when ``open_groups`` are expanded. Takes under a second at 400 boxes."""
    opened = frozenset(open_groups) | {0}
    frames: list[Frame] = []
    block = _Block(tree, tree.root, opened)
    block.emit(frames, 0.0, 0.0)
    frames = frames[1:]
    return Scene(frames, _links(tree, frames), block.width, block.height)


class _Block:
    """An item with its size; an expanded group also places its children."""

    def __init__(self, tree: Tree, item: Item, opened: frozenset[int]) -> None:
        self.item = item
        self.opened = item.is_group and item.index in opened
        self.children: list[_Block] = []
        if not self.opened:
            longest = max(map(len, label_lines(tree, item)))
            longest = max(longest, GROUP_CHARS_MIN) if item.is_group else longest
            self.width = max(96.0, longest * CHAR_WIDTH + 26.0)
            self.height = GROUP_HEIGHT if item.is_group else BOX_HEIGHT
            return
        self.children = [_Block(tree, tree.items[child], opened) for child in item.children]
        widths = np.array([child.width for child in self.children])
        heights = np.array([child.height for child in self.children])
        self.placement = place(widths, heights, _sibling_edges(tree, item))
        title = min(len(item.name), LABEL_MAX) * CHAR_WIDTH + 60.0
        outer = item.parent is None
        self.width = max(self.placement.width, 0.0 if outer else title) + (0.0 if outer else 2 * PADDING)
        self.height = self.placement.height + (0.0 if outer else PADDING + HEADER)

    def emit(self, frames: list[Frame], left: float, top: float) -> None:
        x, y = left + self.width / 2, top + self.height / 2
        frames.append(Frame(self.item, x, y, self.width, self.height, self.opened))
        if not self.opened:
            return
        inner_left = left + (self.width - self.placement.width) / 2
        inner_top = top + (0.0 if self.item.parent is None else HEADER)
        for child, child_x, child_y in zip(self.children, self.placement.x, self.placement.y, strict=True):
            child.emit(
                frames,
                inner_left + float(child_x) - child.width / 2,
                inner_top + float(child_y) - child.height / 2,
            )


def _sibling_edges(tree: Tree, item: Item) -> Pairs:
    """Edges among the children of ``item``, as positions in its list of children."""
    inside = (
        (tree.edge_source >= item.first)
        & (tree.edge_source < item.last)
        & (tree.edge_target >= item.first)
        & (tree.edge_target < item.last)
    )
    starts = np.array([tree.items[child].first for child in item.children])
    source = np.searchsorted(starts, tree.edge_source[inside], side="right") - 1
    target = np.searchsorted(starts, tree.edge_target[inside], side="right") - 1
    pairs = np.unique(np.stack([source, target], axis=1), axis=0)
    return [(int(a), int(b)) for a, b in pairs if a != b]


def _links(tree: Tree, frames: list[Frame]) -> list[SceneLink]:
    owner = np.full(len(tree.srg.nodes), -1, dtype=np.int64)
    for position, frame in enumerate(frames):
        if not frame.opened:
            owner[frame.item.first : frame.item.last] = position
    if not len(tree.edge_source):
        return []
    pairs = np.stack([owner[tree.edge_source], owner[tree.edge_target]], axis=1)
    different = pairs[:, 0] != pairs[:, 1]
    unique, inverse = np.unique(pairs[different], axis=0, return_inverse=True)
    sums = np.bincount(inverse.ravel(), weights=tree.edge_bytes[different], minlength=len(unique))
    counts = np.bincount(inverse.ravel(), minlength=len(unique))
    return [
        SceneLink(int(a), int(b), float(nbytes), int(number), frames[int(a)].y > frames[int(b)].y)
        for (a, b), nbytes, number in zip(unique, sums, counts, strict=True)
    ]


def label_lines(tree: Tree, item: Item, figure: str = "") -> list[str]:
    """Label an item: one line for an op, two for a folded group. ``figure``: in place of its FLOPs."""
    name = item.name if len(item.name) <= LABEL_MAX else f"{item.name[: LABEL_MAX - 1]}…"
    if not item.is_group:
        return [name]
    totals = tree.totals(item)
    figure = figure or (format_flops(totals.flops) if totals.flops else "")
    return [f"▸ {name}", ", ".join(part for part in (counted(totals.ops, "op"), figure) if part)]


def format_flops(count: float) -> str:
    """``1.2e9`` -> ``"1.2 GFLOP"``."""
    for unit, size in (("TFLOP", 1e12), ("GFLOP", 1e9), ("MFLOP", 1e6), ("kFLOP", 1e3)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count:.0f} FLOP"


def box_columns(
    tree: Tree, scene: Scene, look: Look, shading: Shading, marked: frozenset[int], chosen: int | None
) -> Columns:
    """Return the columns of folded groups and ops. ``marked``: items that match a search; ``chosen``: the one
    with details."""
    columns: Columns = {name: [] for name in BOX_COLUMNS}
    for frame in scene.frames:
        if frame.opened:
            continue
        totals = tree.totals(frame.item)
        shade = shading.shade(frame.item)
        lines = label_lines(tree, frame.item, shade.figure)
        hit, picked = frame.item.index in marked, frame.item.index == chosen
        node = tree.srg.nodes[frame.item.first]
        values = (
            frame.item.index,
            frame.x,
            frame.y,
            frame.width,
            frame.height,
            shade.fill,
            "#E69F00" if hit else look.text if picked else shade.line,
            3.0 if hit or picked else 1.2,
            lines[0],
            lines[1] if len(lines) > 1 else "",
            frame.y - 8 if len(lines) > 1 else frame.y,
            frame.y + 10,
            frame.item.path or "outside modules",
            f"{totals.ops}" if frame.item.is_group else node.op,
            ", ".join(totals.phases),
            format_flops(totals.flops),
            f"{format_bytes(totals.bytes_read)} read, {format_bytes(totals.bytes_written)} written",
            f"line {node.line}" if node.line else "unknown line",
            shade.figure,
        )
        for name, value in zip(BOX_COLUMNS, values, strict=True):
            columns[name].append(value)
    return columns


BOX_COLUMNS = (
    "item",
    "x",
    "y",
    "width",
    "height",
    "fill",
    "line",
    "line_width",
    "label",
    "sublabel",
    "label_y",
    "sublabel_y",
    "path",
    "what",
    "phases",
    "flops",
    "bytes",
    "cell_line",
    "figure",
)


def container_columns(scene: Scene, look: Look) -> Columns:
    """Return the columns of expanded groups: the outline, and the header that folds them again."""
    opened = [frame for frame in scene.frames if frame.opened]
    return {
        "item": [frame.item.index for frame in opened],
        "x": [frame.x for frame in opened],
        "y": [frame.y for frame in opened],
        "width": [frame.width for frame in opened],
        "height": [frame.height for frame in opened],
        "header_y": [frame.y - frame.height / 2 + HEADER / 2 - 2 for frame in opened],
        "header_height": [HEADER - 4 for _ in opened],
        "label": [f"▾ {frame.item.name[:LABEL_MAX]}" for frame in opened],
        "label_x": [frame.x - frame.width / 2 + 10 for frame in opened],
        "path": [frame.item.path for frame in opened],
    }


def link_columns(scene: Scene, backward: bool) -> Columns:
    """Return curves from the bottom of one box to the top of another; thicker ones carry more bytes.

    A long link swings out to the side, so that it does not hide behind the boxes between its ends.
    """
    most = max((link.nbytes for link in scene.links), default=0.0) or 1.0
    leaving, arriving = _ports(scene)
    columns: Columns = {
        name: [] for name in ("x0", "y0", "x1", "y1", "cx0", "cy0", "cx1", "cy1", "thickness", "link")
    }
    for number, (source, target, nbytes, _, back) in enumerate(scene.links):
        if back != backward:
            continue
        one, two = scene.frames[source], scene.frames[target]
        x0, y0 = leaving[number], one.y + one.height / 2
        x1, y1 = arriving[number], two.y - two.height / 2
        span = abs(y1 - y0)
        bend = max(14.0, min(90.0, span / 2))
        swing = 0.0
        if span > 2.5 * GROUP_HEIGHT and abs(x1 - x0) < max(one.width, two.width) / 2:
            swing, bend = max(one.width, two.width) / 2 + min(150.0, 40.0 + span / 12), span / 3
        values = (
            x0,
            y0,
            x1,
            y1,
            x0 + swing,
            y0 + bend,
            x1 + swing,
            y1 - bend,
            0.9 + 2.2 * (nbytes / most) ** 0.5,
            number,
        )
        for name, value in zip(columns, values, strict=True):
            columns[name].append(value)
    return columns


def count_columns(scene: Scene, curves: Sequence[Columns]) -> Columns:
    """Return how many values each link stands for, at its middle; a link of one value has no count.
    ``curves``: of :func:`link_columns`."""
    columns: Columns = {name: [] for name in ("x", "y", "width", "height", "count", "what")}
    for curve in curves:
        for position, number in enumerate(curve["link"]):
            link = scene.links[number]
            if link.edges < 2:
                continue
            at = {name: values[position] for name, values in curve.items()}
            x = (at["x0"] + 3 * at["cx0"] + 3 * at["cx1"] + at["x1"]) / 8
            y = (at["y0"] + 3 * at["cy0"] + 3 * at["cy1"] + at["y1"]) / 8
            names = [scene.frames[end].item.name for end in (link.source, link.target)]
            what = f"{link.edges} edges with {format_bytes(link.nbytes)}, from {names[0]} to {names[1]}"
            width = 10.0 + 6.5 * len(str(link.edges))
            values = (x, y, width, COUNT_HEIGHT, str(link.edges), what)
            for name, value in zip(columns, values, strict=True):
                columns[name].append(value)
    return columns


def _ports(scene: Scene) -> tuple[list[float], list[float]]:
    """Return where each link leaves and enters: spread over the box's edge in the order of the other ends."""
    ends = []
    for own, other in ((0, 1), (1, 0)):
        pairs = [(link[:2][own], link[:2][other]) for link in scene.links]
        by_frame: dict[int, list[int]] = {}
        for number, (position, _) in enumerate(pairs):
            by_frame.setdefault(position, []).append(number)
        places = [0.0] * len(pairs)
        for position, numbers in by_frame.items():
            frame = scene.frames[position]
            numbers.sort(key=lambda number: _angle(frame, scene.frames[pairs[number][1]]))
            step = min(16.0, 0.7 * frame.width / len(numbers))
            for index, number in enumerate(numbers):
                places[number] = frame.x + (index - (len(numbers) - 1) / 2) * step
        ends.append(places)
    return ends[0], ends[1]


def _angle(frame: Frame, other: Frame) -> tuple[float, float]:
    """Sort key for the links at a box: by side, and those that go far outermost on the right."""
    distance = abs(other.y - frame.y)
    return (round((other.x - frame.x) / max(distance, 1.0), 3), distance)


def sentence(tree: Tree, scene: Scene) -> str:
    """Summarise the drawing in one sentence."""
    totals = tree.totals(tree.root)
    shown = Counter("group" if frame.item.is_group else "op" for frame in scene.frames if not frame.opened)
    return (
        f"{totals.ops} ops and {format_flops(totals.flops)} in all; {shown['group']} folded groups and "
        f"{shown['op']} single ops are shown, with {len(scene.links)} connections."
    )

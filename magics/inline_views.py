"""Graph and schedule of a cell inside the notebook: text for terminals, and an SVG where HTML shows.

They are pictures without scripts, so a saved notebook, a page made of it and a diff keep them.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from djinn_lab.client.phase_colours import TRANSFER_COLOUR, phase_colour
from djinn_lab.scheduler import ExecutionSchedule
from djinn_lab.scheduler.schedule import ScheduledNode
from djinn_lab.srg.graph import SRG
from djinn_lab.units import counted, format_bytes, format_seconds

ROWS_MAX = 24
MODULE_DEPTH = 6
BLOCKS_MAX = 400
"""Neighbours of one module are drawn as one block, until there are no more than these."""
WIDTH, LABEL, BAR, ROW = 760, 300, 320, 20


@dataclass(slots=True)
class ModuleRow:
    """The ops of one module and phase. ``feeds``: bytes of values by the rows that read them."""

    module: str
    phase: str
    ops: int = 0
    flops: int = 0
    feeds: dict[int, int] = field(default_factory=dict)


class InlineView:
    """A picture with ``text`` below it; the text alone where pictures do not show."""

    def __init__(self, text: str, picture: str) -> None:
        self._text = text
        self._html = f"{picture}<pre style='white-space:pre-wrap'>{html.escape(text)}</pre>"

    def __repr__(self) -> str:
        return self._text

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/plain": self._text, "text/html": self._html}


def graph_view(graph: SRG, text: str, link: str) -> InlineView:
    """Show a graph by its modules, in the order in which they run. ``link``: all of it, empty for none."""
    rows = module_rows(graph)
    below = f'<a href="{html.escape(link)}" target="_blank">Open it on the dashboard</a>' if link else ""
    title = (
        f"{len(graph.nodes):,} ops in {len(rows):,} groups of modules, in order; arcs are values that pass"
    )
    return InlineView(text, _figure(title, _graph_picture(rows[:ROWS_MAX], len(rows)), below))


def module_rows(graph: SRG) -> list[ModuleRow]:
    """Group the nodes by module and phase, at the depth that gives at most :data:`ROWS_MAX` rows, or at the
    least one."""
    for depth in range(MODULE_DEPTH, 0, -1):
        rows = _rows_at(graph, depth)
        if len(rows) <= ROWS_MAX:
            break
    return rows


def _rows_at(graph: SRG, depth: int) -> list[ModuleRow]:
    rows: list[ModuleRow] = []
    number: dict[tuple[str, str], int] = {}
    of_node: dict[int, int] = {}
    for node in graph.nodes:
        name = node.module_at(depth) or f"{node.phase}, outside modules"
        key = (name, node.phase)
        if key not in number:
            number[key] = len(rows)
            rows.append(ModuleRow(*key))
        row = rows[number[key]]
        row.ops += 1
        row.flops += node.flops
        of_node[node.id] = number[key]
    for edge in graph.edges:
        if edge.source is None:
            continue
        source, target = of_node[edge.source], of_node[edge.target]
        if source != target:
            feeds = rows[source].feeds
            feeds[target] = feeds.get(target, 0) + edge.nbytes
    return rows


def _graph_picture(rows: Sequence[ModuleRow], total: int) -> str:
    most = max((row.flops for row in rows), default=0) or 1
    parts = [
        _arc(source, target, nbytes)
        for source, row in enumerate(rows)
        for target, nbytes in row.feeds.items()
        if target < len(rows)
    ]
    for place, row in enumerate(rows):
        top, width = place * ROW, max(1.0, BAR * row.flops / most)
        tip = f"{row.module}: {row.ops:,} ops of phase {row.phase}, {row.flops / 1e9:,.3f} GFLOP"
        parts.append(
            f"<g><title>{html.escape(tip)}</title>"
            f'<text x="{LABEL}" y="{top + 14}" text-anchor="end">{html.escape(_shortened(row.module))}</text>'
            f'<rect x="{LABEL + 90}" y="{top + 4}" width="{width:.1f}" height="{ROW - 8}" rx="2" '
            f'fill="{_colour(row.phase)}"/>'
            f'<text x="{LABEL + 96 + width:.1f}" y="{top + 14}" class="d">{counted(row.ops, "op")}</text></g>'
        )
    if total > len(rows):
        parts.append(
            f'<text x="{LABEL}" y="{len(rows) * ROW + 14}" class="d" text-anchor="end">'
            f"and {total - len(rows):,} more</text>"
        )
    legend = _legend({row.phase for row in rows}, (len(rows) + (total > len(rows))) * ROW + 8)
    return _svg([*parts, legend], (len(rows) + 2) * ROW + 8)


def _arc(source: int, target: int, nbytes: int) -> str:
    """Draw a value's way on the left of the bars; one that goes back up is dashed."""
    start, end = source * ROW + ROW / 2, target * ROW + ROW / 2
    reach = min(80.0, 14 + 6 * abs(target - source))
    back = ' stroke-dasharray="3 3"' if target < source else ""
    left = LABEL + 88
    return (
        f'<path d="M{left} {start} C{left - reach:.0f} {start} {left - reach:.0f} {end} {left} {end}" '
        f'class="a"{back}><title>{format_bytes(nbytes)}</title></path>'
    )


def schedule_view(schedule: ExecutionSchedule, graph: SRG, text: str) -> InlineView:
    """Show the predicted times of the cell's largest part, the planned transfers, and the measured times
    where it ran."""
    predicted = [(node, node.start_s, node.end_s) for node in schedule.nodes]
    lanes = [(f"{schedule.device.device}, predicted", _blocks(graph, predicted))]
    starts, ends = schedule.node_start_s, schedule.node_end_s
    if starts and ends:
        first = min(starts)
        for device, nodes in schedule.measured_nodes.items():
            ran = [(node, starts[node.node] - first, ends[node.node] - first) for node in nodes]
            lanes.append((f"{device}, measured", _blocks(graph, ran)))
    if schedule.transfers:
        moved: list[Block] = [(one.start_s, one.end_s, one.direction, TRANSFER) for one in schedule.transfers]
        lanes.insert(0, ("transfers, predicted", moved))
    title = f"Predicted {format_seconds(schedule.predicted_s)}"
    if schedule.measured_s is not None:
        title += f", measured {format_seconds(schedule.measured_s)}"
    return InlineView(text, _figure(title, _gantt(lanes), ""))


TRANSFER = "transfer"
Block = tuple[float, float, str, str]
"""Start and end in seconds, module, phase."""


def _blocks(graph: SRG, nodes: Iterable[tuple[ScheduledNode, float, float]]) -> list[Block]:
    """Merge neighbours of one module and phase, by fewer parts of the module's name where there are many."""
    ordered = sorted(
        ((start, end, graph.nodes[one.node]) for one, start, end in nodes), key=lambda one: one[0]
    )
    blocks: list[Block] = []
    for depth in range(MODULE_DEPTH, -1, -1):
        blocks = []
        for start, end, node in ordered:
            name = node.module_at(depth)
            if blocks and blocks[-1][2:] == (name, node.phase):
                blocks[-1] = (blocks[-1][0], end, name, node.phase)
            else:
                blocks.append((start, end, name, node.phase))
        if len(blocks) <= BLOCKS_MAX:
            break
    return blocks


def _gantt(lanes: Sequence[tuple[str, Sequence[Block]]]) -> str:
    until_s = max((block[1] for _, blocks in lanes for block in blocks), default=0.0) or 1.0
    scale, parts = (WIDTH - 190) / until_s, []
    for place, (label, blocks) in enumerate(lanes):
        top = place * (ROW + 8)
        parts.append(f'<text x="170" y="{top + 15}" text-anchor="end">{html.escape(label)}</text>')
        for start, end, name, phase in blocks:
            tip = f"{name or 'outside modules'}, {phase}: {format_seconds(end - start)}"
            left, width = 180 + start * scale, max(0.5, (end - start) * scale)
            parts.append(
                f'<rect x="{left:.2f}" y="{top + 2}" width="{width:.2f}" '
                f'height="{ROW}" fill="{_colour(phase)}"><title>{html.escape(tip)}</title></rect>'
            )
    bottom = len(lanes) * (ROW + 8)
    parts.append(f'<text x="180" y="{bottom + 14}" class="d">0 s</text>')
    parts.append(
        f'<text x="{WIDTH - 10}" y="{bottom + 14}" class="d" text-anchor="end">'
        f"{format_seconds(until_s)}</text>"
    )
    phases = {block[3] for _, blocks in lanes for block in blocks}
    return _svg([*parts, _legend(phases, bottom + 22)], bottom + 44)


def _legend(phases: Iterable[str], top: float) -> str:
    parts, left = [], 10
    for phase in sorted(phases):
        parts.append(
            f'<rect x="{left}" y="{top + 3}" width="10" height="10" fill="{_colour(phase)}"/>'
            f'<text x="{left + 14}" y="{top + 12}" class="d">{html.escape(phase)}</text>'
        )
        left += 34 + 7 * len(phase)
    return "".join(parts)


def _svg(parts: Sequence[str], height: float) -> str:
    style = (
        "text{font:12px sans-serif;fill:currentColor}.d{opacity:.75}"
        ".a{fill:none;stroke:currentColor;stroke-opacity:.35}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" '
        f'style="max-width:100%" role="img"><style>{style}</style>{"".join(parts)}</svg>'
    )


def _figure(title: str, picture: str, below: str) -> str:
    return (
        f"<figure style='margin:0'><figcaption>{html.escape(title)}</figcaption>{picture}<br>{below}</figure>"
    )


def _colour(phase: str) -> str:
    return TRANSFER_COLOUR if phase == TRANSFER else phase_colour(phase)


def _shortened(module: str) -> str:
    return module if len(module) <= 40 else f"…{module[-39:]}"

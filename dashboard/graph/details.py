"""Everything known about one op or one group, as HTML."""

from __future__ import annotations

from collections import Counter
from html import escape

from djinn_lab.client.phase_colours import phase_colour
from djinn_lab.dashboard.graph.folding import Item, Tree, short_op
from djinn_lab.dashboard.graph.scene import format_flops
from djinn_lab.srg.graph import Node
from djinn_lab.units import format_bytes

LIST_MAX = 8
_LOOKED_FOR = "patterns are being looked for"


def details_html(tree: Tree, item: Item, shown: tuple[str, str] | None = None) -> str:
    """Render the item's fields as a table, with patterns once the tree knows them. ``shown``: what its colour
    stands for, and the figure."""
    node = None if item.node is None else tree.srg.nodes[item.node]
    rows = _group_rows(tree, item) if node is None else _node_rows(tree, node)
    if shown is not None:
        rows.insert(1, (escape(shown[0]), escape(shown[1])))
    body = "".join(f"<tr><th scope='row'>{label}</th><td>{value}</td></tr>" for label, value in rows)
    title = f"{item.name}" if node is None else node.op
    return f"<h2>{escape(title)}</h2><table class='facts'>{body}</table>"


def _group_rows(tree: Tree, item: Item) -> list[tuple[str, str]]:
    totals = tree.totals(item)
    nodes = tree.srg.nodes[item.first : item.last]
    ops = Counter(short_op(node.op) for node in nodes).most_common(LIST_MAX)
    lines = sorted({node.line for node in nodes if node.line})
    shown = ", ".join(map(str, lines[:LIST_MAX])) + (" …" if len(lines) > LIST_MAX else "")
    return [
        ("Module", escape(item.path) or "–"),
        ("Ops", f"{totals.ops}"),
        ("FLOPs", f"{format_flops(totals.flops)} ({totals.flops:,})"),
        ("Bytes", f"{format_bytes(totals.bytes_read)} read, {format_bytes(totals.bytes_written)} written"),
        ("Phase", ", ".join(map(_phase, totals.phases))),
        ("Patterns", _patterns(tree, item)),
        ("Modality", escape(", ".join(sorted({node.modality for node in nodes})))),
        ("Cell line", shown or "unknown"),
        ("Most frequent", "<br>".join(f"{count} × <code>{escape(op)}</code>" for op, count in ops)),
    ]


def _node_rows(tree: Tree, node: Node) -> list[tuple[str, str]]:
    counted = "counted" if node.flops_counted else "estimated"
    shape = "known after it ran" if node.shape is None else " × ".join(map(str, node.shape)) or "scalar"
    rows = [
        ("Op", f"<code>{escape(node.op)}</code>"),
        ("Module", escape(node.module) or "outside modules"),
        ("Call", f"{node.call}" if node.call else "–"),
        ("Cell", escape(node.cell) or "–"),
        ("Cell line", f"{node.line}" if node.line else "unknown"),
        ("Phase", _phase(node.phase)),
        ("Part of", _kinds(tree, node)),
        ("Modality", escape(node.modality)),
        ("Residency", escape(node.residency)),
        ("FLOPs", f"{format_flops(node.flops)} ({node.flops:,}, {counted})"),
        ("Bytes", f"{format_bytes(node.bytes_read)} read, {format_bytes(node.bytes_written)} written"),
        ("Shape", shape),
        ("Dtype", escape(node.dtype or "known after it ran")),
        (
            "Kind",
            "view: no work, shares memory"
            if node.is_view
            else "in place"
            if node.writes
            else "makes a tensor",
        ),
    ]
    return [*rows, ("Reads", _inputs(tree, node)), ("Read by", _readers(tree, node)), ("Node", f"{node.id}")]


def _kinds(tree: Tree, node: Node) -> str:
    if not tree.patterns_known:
        return _LOOKED_FOR
    return ", ".join(tree.kinds_of_node.get(node.id, ())) or "no pattern"


def _patterns(tree: Tree, item: Item) -> str:
    """Count the patterns that begin in the group."""
    if not tree.patterns_known:
        return _LOOKED_FOR
    counts = Counter(one.kind for one in tree.patterns if item.first <= one.nodes[0] < item.last)
    return ", ".join(f"{count} × {kind}" for kind, count in counts.most_common()) or "none"


def _phase(phase: str) -> str:
    return (
        f"<span class='legend'><span class='key'><i style='background:{phase_colour(phase)}'></i>"
        f"{escape(phase)}</span></span>"
    )


def _inputs(tree: Tree, node: Node) -> str:
    parts = []
    for number in node.inputs[:LIST_MAX]:
        value = tree.srg.values.get(number)
        if value is None:
            parts.append(f"value {number}")
            continue
        size = "×".join(map(str, value.shape)) if value.shape else "scalar"
        made = f"node {value.producer}" if value.producer is not None else value.residency
        parts.append(f"{size} {value.dtype or ''} from {made}")
    more = f"<br>and {len(node.inputs) - LIST_MAX} more" if len(node.inputs) > LIST_MAX else ""
    return "<br>".join(map(escape, parts)) + more or "nothing"


def _readers(tree: Tree, node: Node) -> str:
    targets = sorted(set(tree.edge_target[tree.edge_source == node.id].tolist()))
    if not targets:
        return "the result" if set(node.outputs) & {*tree.srg.keep, *tree.srg.fetch} else "no node"
    names = [f"{short_op(tree.srg.nodes[target].op)} (node {target})" for target in targets[:LIST_MAX]]
    more = f", and {len(targets) - LIST_MAX} more" if len(targets) > LIST_MAX else ""
    return escape(", ".join(names)) + more

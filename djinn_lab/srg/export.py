"""The graph in other formats: networkx, JSON and DOT. Node ids are the graph's own in all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from djinn_lab.srg.graph import SRG, Edge, Node, Value

if TYPE_CHECKING:
    from networkx import MultiDiGraph

JSON_FORMAT = 1


class _GraphDocument(msgspec.Struct, frozen=True):
    format: int
    structural_hash: str
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    values: tuple[Value, ...]
    keep: tuple[int, ...]
    fetch: tuple[int, ...]
    unknown_flops: tuple[str, ...]
    unpriced: tuple[str, ...] = ()
    calls: tuple[int, ...] = ()


def to_json(srg: SRG) -> dict[str, object]:
    """Return plain lists, dicts and numbers; ``format`` is 1."""
    document = _GraphDocument(
        format=JSON_FORMAT,
        structural_hash=srg.structural_hash,
        nodes=srg.nodes,
        edges=srg.edges,
        values=tuple(srg.values.values()),
        keep=srg.keep,
        fetch=srg.fetch,
        unknown_flops=srg.unknown_flops,
        unpriced=srg.unpriced,
        calls=srg.calls,
    )
    plain: dict[str, object] = msgspec.to_builtins(document)
    return plain


def from_json(document: dict[str, object]) -> SRG:
    """The inverse of :func:`to_json`. Raises ``msgspec.ValidationError`` on anything else, and ValueError
    on a format of another version."""
    parsed = msgspec.convert(document, _GraphDocument)
    if parsed.format != JSON_FORMAT:
        raise ValueError(f"graph JSON has format {parsed.format}; this version reads format {JSON_FORMAT}")
    return SRG(
        nodes=parsed.nodes,
        values={value.id: value for value in parsed.values},
        keep=parsed.keep,
        fetch=parsed.fetch,
        structural_hash=parsed.structural_hash,
        unknown_flops=parsed.unknown_flops,
        unpriced=parsed.unpriced,
        calls=parsed.calls,
    )


def to_networkx(srg: SRG) -> MultiDiGraph[int | str]:
    """Ops are nodes named by their id, sources are nodes named ``"value <id>"``; all fields are attributes,
    and so is ``kind`` (``op`` or ``source``). Edges carry ``value`` and ``nbytes``."""
    import networkx

    graph: MultiDiGraph[int | str] = networkx.MultiDiGraph(structural_hash=srg.structural_hash)
    for value in srg.values.values():
        if value.producer is None:
            graph.add_node(f"value {value.id}", kind="source", **_fields(value))
    for node in srg.nodes:
        graph.add_node(node.id, kind="op", **_fields(node))
    for edge in srg.edges:
        source = f"value {edge.value}" if edge.source is None else edge.source
        graph.add_edge(source, edge.target, value=edge.value, nbytes=edge.nbytes)
    return graph


def _fields(record: Node | Value) -> dict[str, object]:
    return msgspec.structs.asdict(record)


def to_dot(srg: SRG) -> str:
    """Return Graphviz text: sources are boxes, ops are ellipses, edges are labelled with their bytes."""
    lines = ["digraph srg {", "  rankdir=TB;"]
    for value in srg.values.values():
        if value.producer is None:
            text = f"{value.residency} {value.id}\n{_layout(value)}"
            lines.append(f"  v{value.id} [shape=box, label={_quoted(text)}];")
    for node in srg.nodes:
        text = "\n".join(part for part in (node.op.removeprefix("aten."), node.module, _layout(node)) if part)
        lines.append(f"  n{node.id} [label={_quoted(text)}];")
    for edge in srg.edges:
        source = f"v{edge.value}" if edge.source is None else f"n{edge.source}"
        lines.append(f'  {source} -> n{edge.target} [label="{edge.nbytes} B"];')
    lines.append("}")
    return "\n".join(lines)


def _layout(record: Node | Value) -> str:
    return "" if record.shape is None else f"{record.dtype} {'x'.join(map(str, record.shape)) or 'scalar'}"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'

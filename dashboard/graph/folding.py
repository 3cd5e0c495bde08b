"""Fold a graph by module path.

A group is a run of consecutive nodes with the same module path, so it is an interval of program order. As
every edge points forward in that order, folding intervals can make no cycle; sums over a group are
differences of prefix sums. A module that is called again, or left and entered again, is another group.
Too many siblings are packed: first by repetition (loops), then in chunks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import cached_property, lru_cache
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from djinn_lab.srg.graph import SRG, Node
from djinn_lab.srg.patterns import Pattern, PatternKind, find_patterns

VISIBLE_MAX = 400
START_VISIBLE = 36
SIBLINGS_MAX = 120
"""More siblings than this are packed into chunks of at least :data:`CHUNK`."""
CHUNK = 50
REPEATS_FROM = 24
PERIOD_MAX = 64
REPEATS_MIN = 3
COVERED_MIN = 0.6
"""Part of the siblings that a loop must make up to be folded as one."""
NAMES_MAX = 2**15
"""That are remembered, since nodes share them."""
_OWN_ROOTS = ("backward", "optimizer")


class Item(msgspec.Struct, frozen=True):
    """A group, or one op (``node`` is its id). Covers the nodes ``first`` to ``last - 1``."""

    index: int
    name: str
    path: str
    parent: int | None
    first: int
    last: int
    children: tuple[int, ...] = ()
    node: int | None = None

    @property
    def is_group(self) -> bool:
        return self.node is None

    @property
    def ops(self) -> int:
        return self.last - self.first


class Totals(msgspec.Struct, frozen=True):
    """Sums over an item's nodes."""

    ops: int
    flops: int
    bytes_read: int
    bytes_written: int
    phase: str
    phases: tuple[str, ...]


class NodeRun(NamedTuple):
    """Nodes ``first`` to ``last - 1`` under one name. ``node``: a single op. ``inner``: what was packed."""

    name: str
    first: int
    last: int
    node: bool = False
    inner: tuple[NodeRun, ...] = ()


class PartRange(NamedTuple):
    """The nodes ``first`` to ``last - 1``, recorded from one cut of a cell to the next."""

    name: str
    first: int
    last: int


class Repeats(NamedTuple):
    """``times`` repetitions of ``period`` siblings, from the sibling ``start`` on."""

    start: int
    period: int
    times: int


class Tree:
    """The folded graph. Item 0 is the whole graph; items are numbered in the order of their first node.
    ``parts``: of a whole cell, each a group of its own."""

    def __init__(self, srg: SRG, parts: Sequence[PartRange] = ()) -> None:
        self.srg = srg
        self.parts = tuple(parts)
        self.items: list[Item] = []
        self._build(srg.nodes)
        self._flops = _prefix(node.flops for node in srg.nodes)
        self._read = _prefix(node.bytes_read for node in srg.nodes)
        self._written = _prefix(node.bytes_written for node in srg.nodes)
        self.phases = sorted({node.phase for node in srg.nodes})
        self._phase_counts = {
            phase: _prefix(int(node.phase == phase) for node in srg.nodes) for phase in self.phases
        }
        real = [edge for edge in srg.edges if edge.source is not None and edge.source != edge.target]
        self.edge_source = np.array([edge.source for edge in real], dtype=np.int64)
        self.edge_target = np.array([edge.target for edge in real], dtype=np.int64)
        self.edge_bytes = np.array([edge.nbytes for edge in real], dtype=np.float64)

    @property
    def root(self) -> Item:
        return self.items[0]

    @cached_property
    def patterns(self) -> tuple[Pattern, ...]:
        """The graph's patterns, by their first nodes."""
        return find_patterns(self.srg)

    @property
    def patterns_known(self) -> bool:
        """Return whether the patterns were found already, which takes a while in a large graph."""
        return "kinds_of_node" in self.__dict__

    @cached_property
    def kinds_of_node(self) -> dict[int, tuple[PatternKind, ...]]:
        """Kinds of patterns by node, for nodes that are part of one."""
        found: dict[int, dict[PatternKind, None]] = {}
        for pattern in self.patterns:
            for node in pattern.nodes:
                found.setdefault(node, {})[pattern.kind] = None
        return {node: tuple(kinds) for node, kinds in found.items()}

    def totals(self, item: Item) -> Totals:
        """Return sums over the item's nodes; ``phase`` is the one that most of them have."""
        first, last = item.first, item.last
        counts = {phase: int(sums[last] - sums[first]) for phase, sums in self._phase_counts.items()}
        present = tuple(
            sorted((phase for phase in counts if counts[phase]), key=lambda phase: -counts[phase])
        )
        return Totals(
            item.ops,
            int(self._flops[last] - self._flops[first]),
            int(self._read[last] - self._read[first]),
            int(self._written[last] - self._written[first]),
            present[0] if present else "other",
            present,
        )

    def ancestors(self, item: Item) -> list[Item]:
        """Return the path from the outermost group below the whole graph to the item's own group."""
        found: list[Item] = []
        while item.parent:
            item = self.items[item.parent]
            found.append(item)
        return found[::-1]

    def visible(self, open_groups: Iterable[int]) -> list[Item]:
        """Return the boxes to draw when ``open_groups`` are expanded: folded groups and ops, in program
        order."""
        opened = set(open_groups) | {0}
        found: list[Item] = []
        stack = [self.root]
        while stack:
            item = stack.pop()
            if item.is_group and item.index in opened:
                stack += [self.items[child] for child in reversed(item.children)]
            else:
                found.append(item)
        return found

    def start(self, limit: int = START_VISIBLE) -> frozenset[int]:
        """Return the groups to expand at first: from the outside in, while at most ``limit`` boxes show."""
        opened: set[int] = set()
        shown = len(self.root.children)
        level = [self.items[child] for child in self.root.children]
        while level:
            groups = [item for item in level if item.is_group]
            more = sum(len(item.children) - 1 for item in groups)
            if not groups or shown + more > limit:
                break
            shown += more
            opened |= {item.index for item in groups}
            level = [self.items[child] for item in groups for child in item.children]
        return frozenset(opened)

    def matches(self, pattern: str) -> list[Node]:
        """Return the nodes whose op, module, ``line N``, phase or pattern matches the expression. Raises
        ``re.error``."""
        wanted = re.compile(pattern, re.IGNORECASE)
        return [
            node
            for node in self.srg.nodes
            if wanted.search(node.op)
            or wanted.search(node.module)
            or wanted.search(f"line {node.line} {node.phase}")
            or any(map(wanted.search, self.kinds_of_node.get(node.id, ())))
        ]

    def item_of_node(self, node: int) -> Item:
        """Return the op's own item."""
        return self.items[self._item_of_node[node]]

    def _build(self, nodes: Sequence[Node]) -> None:
        self._item_of_node = [0] * len(nodes)
        self.items.append(Item(0, "graph", "", None, 0, len(nodes)))
        parts = [module_parts(node) for node in nodes]
        if self.parts:
            runs = [
                NodeRun(part.name, part.first, part.last, inner=pack(_runs(nodes, parts, *part[1:], 0)))
                for part in self.parts
                if part.first < part.last
            ]
            children = tuple(self._run_item(nodes, parts, run, 0, 0) for run in pack(runs))
        else:
            children = self._children(nodes, parts, 0, len(nodes), 0, 0)
        self.items[0] = msgspec.structs.replace(self.items[0], children=children)

    def _children(
        self,
        nodes: Sequence[Node],
        parts: list[tuple[str, ...]],
        first: int,
        last: int,
        depth: int,
        parent: int,
    ) -> tuple[int, ...]:
        """Items for the nodes ``first`` to ``last - 1``, which share the first ``depth`` parts."""
        runs = _runs(nodes, parts, first, last, depth)
        return tuple(self._run_item(nodes, parts, run, depth, parent) for run in pack(runs))

    def _run_item(
        self, nodes: Sequence[Node], parts: list[tuple[str, ...]], run: NodeRun, depth: int, parent: int
    ) -> int:
        index, (name, first, last, node, packed) = len(self.items), run
        if node:
            self.items.append(Item(index, name, nodes[first].module, parent, first, last, (), first))
            self._item_of_node[first] = index
            return index
        path = self.items[parent].path
        if not packed:
            shared = [name]
            while (more := _common_part(parts, first, last, depth + 1)) is not None:
                depth += 1
                shared.append(more)
            path = " / ".join(parts[first][: depth + 1])
            name = " · ".join(shared)
        self.items.append(Item(index, name, path, parent, first, last))
        if packed:
            inner = tuple(self._run_item(nodes, parts, part, depth, index) for part in packed)
        else:
            inner = self._children(nodes, parts, first, last, depth + 1, index)
        self.items[index] = Item(index, name, path, parent, first, last, inner)
        return index


def _runs(
    nodes: Sequence[Node], parts: list[tuple[str, ...]], first: int, last: int, depth: int
) -> list[NodeRun]:
    """Nodes ``first`` to ``last - 1`` in runs of the same part at ``depth``; a node without one is alone."""
    runs = []
    start = first
    while start < last:
        if len(parts[start]) <= depth:
            runs.append(NodeRun(short_op(nodes[start].op), start, start + 1, node=True))
            start += 1
            continue
        name, end = parts[start][depth], start + 1
        while end < last and len(parts[end]) > depth and parts[end][depth] == name:
            end += 1
        runs.append(NodeRun(name, start, end))
        start = end
    return runs


def _common_part(parts: list[tuple[str, ...]], first: int, last: int, depth: int) -> str | None:
    """The part at ``depth`` when all nodes ``first`` to ``last - 1`` have the same."""
    if len(parts[first]) <= depth:
        return None
    name = parts[first][depth]
    same = all(len(parts[index]) > depth and parts[index][depth] == name for index in range(first, last))
    return name if same else None


def module_parts(node: Node) -> tuple[str, ...]:
    """Return the groups a node lies in, outermost first: ``("GPT2 #3", "transformer", "h.0", "attn")``.

    Nodes outside modules are grouped by cell line; backward and optimizer nodes have roots of their own.
    """
    suffix = f" {node.phase}" if node.phase in _OWN_ROOTS else ""
    if not node.module:
        return (f"line {node.line}{suffix}" if node.line else f"outside modules{suffix}",)
    outermost, *inner = _module_names(node.module)
    call = f" #{node.call}" if node.call else ""
    return (f"{outermost}{call}{suffix}", *inner)


@lru_cache(maxsize=NAMES_MAX)
def _module_names(path: str) -> tuple[str, ...]:
    names: list[str] = []
    for name in path.split("."):
        if name.isdigit() and len(names) > 1:
            names[-1] += f".{name}"
        else:
            names.append(name)
    return tuple(names)


@lru_cache(maxsize=NAMES_MAX)
def short_op(op: str) -> str:
    """``aten.addmm.default`` -> ``addmm``; overloads other than the default keep their name."""
    name = op.split("::")[-1].removeprefix("aten.")
    return name.removesuffix(".default")


def _prefix(values: Iterable[object]) -> NDArray[np.float64]:
    numbers = np.fromiter(values, dtype=np.float64)
    return np.concatenate([[0.0], np.cumsum(numbers)])


def pack(runs: Sequence[NodeRun]) -> tuple[NodeRun, ...]:
    """Return the same nodes in at most :data:`SIBLINGS_MAX` siblings, in the same order."""
    runs = _fold_repeats(runs)
    if len(runs) <= SIBLINGS_MAX:
        return tuple(runs)
    size = max(CHUNK, -(-len(runs) // SIBLINGS_MAX))
    return tuple(
        _around(f"{start + 1} to {start + len(chunk)} of {len(runs)}", chunk)
        for start in range(0, len(runs), size)
        for chunk in [tuple(runs[start : start + size])]
    )


def find_repeats(names: Sequence[str]) -> Repeats | None:
    """Find the loop that makes up most of ``names``, with the shortest period; None when there is none."""
    plain = [re.sub(r" #\d+", "", name) for name in names]
    for period in range(2, min(PERIOD_MAX, len(plain) // REPEATS_MIN) + 1):
        start, length = _longest_match(plain, period)
        count = (length + period) // period
        covered = count * period >= COVERED_MIN * len(plain)
        if count >= REPEATS_MIN and covered and len(set(plain[start : start + period])) > 1:
            return Repeats(start, period, count)
    return None


def _longest_match(names: Sequence[str], period: int) -> tuple[int, int]:
    best_start = best = start = 0
    length = 0
    for index in range(len(names) - period):
        if names[index] == names[index + period]:
            length += 1
            if length > best:
                best_start, best = start, length
        else:
            start, length = index + 1, 0
    return best_start, best


def _fold_repeats(runs: Sequence[NodeRun]) -> list[NodeRun]:
    found = find_repeats([run.name for run in runs]) if len(runs) > REPEATS_FROM else None
    if found is None:
        return list(runs)
    end = found.start + found.times * found.period
    steps = [
        _around(f"repeat {number + 1} of {found.times}", runs[at : at + found.period])
        for number, at in enumerate(range(found.start, end, found.period))
    ]
    return [*runs[: found.start], *steps, *runs[end:]]


def _around(name: str, runs: Sequence[NodeRun]) -> NodeRun:
    return NodeRun(name, runs[0].first, runs[-1].last, inner=tuple(runs))

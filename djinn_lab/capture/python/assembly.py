"""From what was recorded to what must be sent: reachability, interning, liveness.

Backwards over the pending nodes: a node is needed when the client still holds one of its results, when a
needed node reads one, when it writes memory that is still looked at, or when it draws from the random
stream (whose state all share).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from djinn_lab.capture.shapes.inference import OpPlan
from djinn_lab.capture.values import Layout
from djinn_lab.srg.program import (
    NodeRecord,
    NumericSettings,
    Program,
    Residency,
    Scalar,
    Scope,
    Source,
    Template,
    TensorMeta,
)


class PendingNode(NamedTuple):
    plan: OpPlan
    inputs: tuple[int | None, ...]
    outputs: tuple[int | None, ...]
    storages: tuple[int | None, ...]
    input_storages: tuple[int, ...]
    written: tuple[int, ...]
    scope: int
    scalars: tuple[Scalar, ...]
    random: bool


class PendingSource(NamedTuple):
    storage: int
    layout: Layout
    residency: Residency
    blob: str | None
    inline: bytes | None


@dataclass(frozen=True)
class Assembled:
    """``positions[i]`` is the index in the pending list of the program's i-th node; ``sent`` the sources
    that went along."""

    program: Program
    positions: Sequence[int]
    sent: Collection[int]


def needed_nodes(
    nodes: Sequence[PendingNode], wanted: Collection[int], live_storages: Collection[int]
) -> list[int]:
    """Return the indices, in order, of the nodes that matter."""
    values = set(wanted)
    storages = set(live_storages)
    kept: list[int] = []
    for index in range(len(nodes) - 1, -1, -1):
        node = nodes[index]
        if not (
            node.random
            or node.plan.dynamic
            or any(output in values for output in node.outputs)
            or any(storage in storages for storage in node.written)
        ):
            continue
        kept.append(index)
        values.update(value for value in node.inputs if value is not None)
        storages.update(node.input_storages)
    kept.reverse()
    return kept


K = TypeVar("K")


class _Table(Generic[K]):
    """Items by first use, each once (by identity: layouts and templates are interned)."""

    def __init__(self) -> None:
        self.items: list[K] = []
        self._index: dict[int, int] = {}

    def add(self, item: K) -> int:
        index = self._index.get(id(item))
        if index is None:
            index = self._index[id(item)] = len(self.items)
            self.items.append(item)
        return index


def assemble(
    nodes: Sequence[PendingNode],
    sources: Mapping[int, PendingSource],
    scopes: Sequence[Scope],
    live: Collection[int],
    live_storages: Collection[int],
    fetch: Sequence[int],
    release: Sequence[int],
    rng_state: bytes | None,
    settings: NumericSettings,
) -> Assembled:
    """Assemble the program; ``sources`` describes every value that may exist before the first node. ``live``:
    ids the client still holds."""
    layouts: _Table[Layout] = _Table()
    templates: _Table[Template] = _Table()
    used_scopes: _Table[Scope] = _Table()
    positions = needed_nodes(nodes, {*live, *fetch}, live_storages)
    used: dict[int, None] = {}
    records: list[NodeRecord] = []
    produced: list[int] = []
    made: set[int] = set()
    for position in positions:
        node = nodes[position]
        for value in node.inputs:
            if value is not None and value not in made:
                used[value] = None
        new_outputs = [output for output in node.outputs if output is not None and output not in made]
        produced.extend(output for output in new_outputs if output not in used)
        made.update(new_outputs)
        records.append(
            NodeRecord(
                templates.add(node.plan.template),
                node.inputs,
                node.outputs,
                tuple(None if layout is None else layouts.add(layout) for layout in node.plan.layouts),
                node.storages,
                used_scopes.add(scopes[node.scope]),
                node.scalars,
                node.plan.dynamic,
            )
        )
    for value in fetch:
        if value not in made:
            used[value] = None
    entries = [
        Source(
            value, source.storage, layouts.add(source.layout), source.residency, source.blob, source.inline
        )
        for value, source in ((value, sources[value]) for value in used)
    ]
    arrived = [entry.value for entry in entries if not entry.held]
    metas: list[TensorMeta] = [layout.meta for layout in layouts.items]
    program = Program(
        metas=metas,
        templates=templates.items,
        scopes=used_scopes.items,
        sources=entries,
        nodes=records,
        keep=[value for value in (*arrived, *produced) if value in live],
        fetch=list(fetch),
        release=list(release),
        rng_state=rng_state,
        settings=None if settings == NumericSettings() else settings,
    )
    return Assembled(program, positions, frozenset(arrived))

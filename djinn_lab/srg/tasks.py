"""A program as tasks that depend on each other, to be laid over several devices.

Where :mod:`~djinn_lab.srg.branches` looks for parts without an edge between them, tasks may feed each other:
layers whose experts run side by side, or the steps of a recurrent network of several layers, as a wavefront.

The prelude has the ops that draw random numbers, with all that they need, and views of what the session has.
The epilogue has what changes layouts or writes memory of the session that other ops read, and all that
follows. What is between them is cut into tasks so that only finished storages travel. A storage's maker, its
views and all that touches it up to its last write are one task, and so is what lies between two ops of one
task. A task runs where a copy of its inputs is, and nothing that it does is seen before its end.

Small tasks are then joined with the only task that they wait for, or that waits for them
(:mod:`djinn_lab.srg.coarsening`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from djinn_lab.srg.branches import CHAIN_SHARE, COPIED, EPILOGUE, PRELUDE
from djinn_lab.srg.coarsening import coarsen, joined
from djinn_lab.srg.precedence import Edges, Facts, touched_storages
from djinn_lab.srg.program import Program
from djinn_lab.srg.wiring import trace_wiring


class Tasks(msgspec.Struct, frozen=True):
    """A split of a program into tasks, in an order in which they could run. ``places``: of every op, PRELUDE,
    EPILOGUE, COPIED or the number of its task. ``seconds``: of each task. ``edges``: (task, a later one that
    needs it, bytes that travel between them). ``home_bytes``: what each task reads of the session's."""

    places: tuple[int, ...]
    seconds: tuple[float, ...]
    edges: tuple[tuple[int, int, int], ...]
    home_bytes: tuple[int, ...]


def find_tasks(program: Program, seconds: Sequence[float], grain_s: float) -> Tasks | None:
    """Return the tasks of a valid program. ``seconds``: of every op. ``grain_s``: shorter tasks are joined
    where that keeps no other task waiting. None: there are fewer than two, or one follows the other for
    nearly all of the time."""
    return _TaskFinder(program, seconds).find(grain_s)


class _TaskFinder:
    def __init__(self, program: Program, seconds: Sequence[float]) -> None:
        self._program, self._seconds = program, seconds
        self._facts = facts = Facts(trace_wiring(program))
        self._wiring = facts.wiring
        self._edges = Edges(facts)
        self._touched = [
            touched_storages(self._wiring, index)
            | {self._wiring.storages[value] for value in node.inputs if value is not None}
            for index, node in enumerate(program.nodes)
        ]

    def find(self, grain_s: float) -> Tasks | None:
        home = self._home()
        if home is None:
            return None
        places: list[int] = [COPIED if copied else 0 for copied in self._facts.copied]
        for ops, place in zip(home, (PRELUDE, EPILOGUE), strict=True):
            for node in ops:
                places[node] = place
        middle = [node for node, place in enumerate(places) if place == 0]
        if self._longest_way_s(middle) > CHAIN_SHARE * sum(self._seconds):
            return None
        before = [[one for one in self._edges.before[node] if places[one] == 0] for node in middle]
        groups = joined(middle, before, self._bound(middle))
        found = coarsen(groups, self._edges.before, self._seconds, grain_s)
        if len(found) < 2:
            return None
        for number, nodes in enumerate(found):
            for node in nodes:
                places[node] = number
        return self._tasks(found, places)

    def _home(self) -> tuple[set[int], set[int]] | None:
        """Return the ops of the prelude and of the epilogue; None where one would be in both."""
        facts, edges = self._facts, self._edges
        first = edges.closed_above(facts.random)
        last = edges.closed_below({node for node, at_end in enumerate(facts.at_end) if at_end})
        first_touch: dict[int, int] = {}
        for node, touched in enumerate(self._touched):
            if node not in first:
                for storage in touched:
                    first_touch.setdefault(storage, node)
        given = {source.storage for source in self._program.sources}
        for node in reversed(range(len(facts.stays))):
            written = {self._wiring.storages[value] for value in self._wiring.writes[node]} & given
            if written and node not in last and node not in first:
                read = any(first_touch[storage] < node for storage in written)
                if read or all(one in last for one in edges.after[node]):
                    last |= edges.closed_below({node})
        if facts.torn or first & last or any(facts.stays[node] for node in first):
            return None
        self._add_views(first, last)
        return first, last

    def _add_views(self, first: set[int], last: set[int]) -> None:
        """Make views of what is at home at home: made elsewhere, they would be views of a copy. So, too,
        where only the epilogue writes what was sent along."""
        facts, wiring = self._facts, self._wiring
        home = (facts.held | facts.written).union(*(self._touched[node] for node in first))
        outside = (node for node in range(len(self._seconds)) if node not in first and node not in last)
        home -= {wiring.storages[value] for node in outside for value in wiring.writes[node]}
        for node, view in enumerate(wiring.views):
            if view and node not in last and not facts.copied[node]:
                inputs = {wiring.storages[v] for v in self._program.nodes[node].inputs if v is not None}
                if inputs <= home and all(one in first for one in self._edges.before[node]):
                    first.add(node)

    def _longest_way_s(self, middle: Sequence[int]) -> float:
        """Return the seconds of everything at home and of the longest way through the rest."""
        inside, ends_s = set(middle), [0.0] * len(self._seconds)
        for node in middle:
            before = (ends_s[one] for one in self._edges.before[node] if one in inside)
            ends_s[node] = self._seconds[node] + max(before, default=0.0)
        home_s = sum(s for node, s in enumerate(self._seconds) if node not in inside)
        return home_s + max(ends_s, default=0.0)

    def _bound(self, middle: Sequence[int]) -> list[list[int]]:
        """List ops that must be one task, by the storage that binds them: its maker, its views and all that
        touches it up to its last write."""
        wiring, writes = self._wiring, self._wiring.writes
        known = {source.storage for source in self._program.sources}
        known = known.union(*(self._made(node) for node in set(range(len(self._seconds))) - set(middle)))
        made: dict[int, list[int]] = {}
        touching: dict[int, list[int]] = {}
        last_write: dict[int, int] = {}
        for node in middle:
            outputs = self._made(node)
            written = {wiring.storages[value] for value in writes[node]}
            if not wiring.views[node]:
                written |= outputs & (known | made.keys())
            last_write.update(dict.fromkeys(written, node))
            for storage in self._touched[node]:
                touching.setdefault(storage, []).append(node)
            for storage in outputs:
                made.setdefault(storage, []).append(node)
        bound = []
        for storage, nodes in touching.items():
            together = made.get(storage, [])
            if storage in last_write:
                before = [node for node in nodes if node <= last_write[storage]]
                whole = storage in known and not self._travels(storage, before, nodes[len(before) :])
                together = [*(nodes if whole else before), *together]
            bound.append(together)
        return bound

    def _travels(self, storage: int, before: Sequence[int], after: Sequence[int]) -> bool:
        """Return whether memory of before the tasks can go on from the task that writes it to those that read
        it later: as values that the first knows."""
        values = [
            {value for node in nodes for value in self._read(node) if self._wiring.storages[value] == storage}
            for nodes in (before, after)
        ]
        return values[1] <= values[0]

    def _read(self, node: int) -> Iterator[int]:
        return (value for value in self._program.nodes[node].inputs if value is not None)

    def _made(self, node: int) -> set[int]:
        """Return the storages of an op's results."""
        return {storage for storage in self._program.nodes[node].storages if storage is not None}

    def _tasks(self, groups: Sequence[Sequence[int]], places: Sequence[int]) -> Tasks:
        maker: dict[int, int] = {}
        storage_bytes: dict[int, int] = {}
        for value, meta in self._wiring.metas.items():
            if meta is not None:
                storage = self._wiring.storages[value]
                storage_bytes[storage] = max(storage_bytes.get(storage, 0), meta.span_bytes)
        given = {source.storage: source.held for source in self._program.sources}
        for node, place in enumerate(places):
            written = {self._wiring.storages[value] for value in self._wiring.writes[node]}
            for storage in (self._made(node) - given.keys()) | (written if place >= 0 else set()):
                if maker.get(storage, PRELUDE) < 0:
                    maker[storage] = place
        edges: dict[tuple[int, int], int] = {}
        home_bytes = [0] * len(groups)
        for number, nodes in enumerate(groups):
            for storage in sorted(set().union(*(self._touched[node] for node in nodes))):
                source, nbytes = maker.get(storage, PRELUDE), storage_bytes.get(storage, 0)
                if source >= 0 and source != number:
                    edges[source, number] = edges.get((source, number), 0) + nbytes
                elif source == PRELUDE and given.get(storage, True):
                    home_bytes[number] += nbytes
        return Tasks(
            places=tuple(places),
            seconds=tuple(sum(self._seconds[node] for node in nodes) for nodes in groups),
            edges=tuple((one, other, nbytes) for (one, other), nbytes in sorted(edges.items())),
            home_bytes=tuple(home_bytes),
        )

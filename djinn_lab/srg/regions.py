"""Which runs of a program's ops a compiler may turn into one op.

A *region* is a run of consecutive ops. Each makes new memory, looks at memory that is there, or writes it in
a way that a region may (:mod:`djinn_lab.srg.region_ops`). None draws random numbers, has sizes that depend on
data, or reads memory at places which data name, since a wrong place has to be an error of that op.

What a compiler makes of a region returns its *roots*: the new memory that something after the region needs.
It writes what the region writes of memory that was there before, and gets that under one name only: a
compiler does not see that two inputs lie in the same memory. Views that are needed later are made again, of
roots and of what the region reads, so aliasing stays what it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import msgspec

from djinn_lab.srg.program import NodeRecord, Program, Template
from djinn_lab.srg.region_ops import is_eligible
from djinn_lab.srg.wiring import Wiring, trace_wiring

REGION_OP = "djinn.region"
"""Stands for an op's name where a region is one op."""


class RegionSize(msgspec.Struct, frozen=True):
    """How large a region may be. ``ops``, views left out: compiling takes time and memory for each.
    ``seconds``: what takes less is not worth compiling; a run that is to be preempted waits for its end."""

    ops_min: int = 4
    ops_max: int = 160
    seconds_min: float = 200e-6
    seconds_max: float = 0.25


REGION_SIZE = RegionSize()
RECORDED_SIZE = RegionSize(ops_min=8, seconds_min=0.0)
"""Of regions that are recorded: what that spares is the starts of ops, however little each computes."""


class Place(msgspec.Struct, frozen=True, array_like=True):
    """One input or output of a node, by its position among them."""

    node: int
    position: int


class Region(msgspec.Struct, frozen=True):
    """The nodes from ``first`` up to ``end``, without it. ``inputs``: what it reads, each where it is first
    read. ``written``: which of them it writes. ``roots``: new memory that is needed later, where it is made.
    ``views``: nodes to be run again after it, in order. ``numbers``: scalars that are others in each run."""

    first: int
    end: int
    inputs: tuple[Place, ...]
    written: tuple[int, ...]
    roots: tuple[Place, ...]
    views: tuple[int, ...]
    numbers: tuple[Place, ...]


def find_regions(
    program: Program,
    seconds: Sequence[float],
    varying: Collection[int] = (),
    size: RegionSize = REGION_SIZE,
    resized: Collection[int] = (),
    recorded: bool = False,
) -> tuple[Region, ...]:
    """Return the longest regions of a valid program, in order. ``seconds``: of every op. ``varying``: nodes
    whose numbers are others in each run; the rest is compiled in. ``resized``: nodes whose sizes are, which
    no region has. ``recorded``: a GPU's kernels are recorded, and nothing is compiled."""
    wiring = trace_wiring(program)
    eligible = [
        index not in resized and is_eligible(wiring, index, index in varying, recorded)
        for index in range(len(program.nodes))
    ]
    needed = _NeededLater(wiring, varying)
    runs = _runs(wiring, eligible, seconds, size)
    found = (needed.region(run) for run in runs if sum(seconds[run.start : run.stop]) >= size.seconds_min)
    return tuple(region for region in found if region.roots or region.written)


def _runs(
    wiring: Wiring, eligible: Sequence[bool], seconds: Sequence[float], size: RegionSize
) -> Iterator[range]:
    """Return runs of eligible nodes with enough to compute, and not too much, without views at their ends."""
    run = _Run(wiring, 0)
    for index, one in enumerate([*eligible, False]):
        if not one or run.is_full(size, seconds[index]) or run.would_alias(index):
            if run.ops >= size.ops_min:
                yield run.trimmed(index)
            run = _Run(wiring, index)
        if not one or (not run.ops and wiring.views[index]) or run.would_alias(index):
            run = _Run(wiring, index + 1)
        else:
            run.add(index, seconds[index])


class _Run:
    """A run of nodes that grows. ``ops``: in it, views left out; ``seconds``: that they take."""

    def __init__(self, wiring: Wiring, first: int) -> None:
        self._wiring = wiring
        self._first = first
        self._made: set[int] = set()
        self._outside: dict[int, set[int]] = {}
        self._written: set[int] = set()
        self.ops = 0
        self.seconds = 0.0

    def is_full(self, size: RegionSize, more_s: float) -> bool:
        """Return whether an op that takes so long would be too much."""
        return self.ops >= size.ops_max or (self.ops > 0 and self.seconds + more_s > size.seconds_max)

    def would_alias(self, index: int) -> bool:
        """Return whether, with this node, memory that the run writes would be known to it by two names."""
        storages = self._wiring.storages
        written = self._written | {storages[value] for value in self._wiring.writes[index]}
        names: dict[int, set[int]] = {}
        for value in self._read_outside(index):
            names.setdefault(storages[value], set()).add(value)
        return any(
            len(names.get(storage, set()) | self._outside.get(storage, set())) > 1 for storage in written
        )

    def add(self, index: int, seconds: float) -> None:
        storages, node = self._wiring.storages, self._wiring.program.nodes[index]
        for value in self._read_outside(index):
            self._outside.setdefault(storages[value], set()).add(value)
        self._written.update(storages[value] for value in self._wiring.writes[index])
        self._made.update(value for value in node.outputs if value is not None and value not in node.inputs)
        self.ops += not self._wiring.views[index]
        self.seconds += seconds

    def trimmed(self, end: int) -> range:
        """Return the run up to ``end``, less the views at its end."""
        while self._wiring.views[end - 1]:
            end -= 1
        return range(self._first, end)

    def _read_outside(self, index: int) -> Iterator[int]:
        inputs = self._wiring.program.nodes[index].inputs
        return (value for value in inputs if value is not None and value not in self._made)


class _NeededLater:
    """Knows by which node each value is last used; those that a client keeps or fetches are used for ever."""

    def __init__(self, wiring: Wiring, varying: Collection[int]) -> None:
        self._wiring = wiring
        self._varying = varying
        program = wiring.program
        self._last = {value: index for index, node in enumerate(program.nodes) for value in node.inputs}
        self._last.update(dict.fromkeys((*program.keep, *program.fetch), len(program.nodes)))

    def region(self, run: range) -> Region:
        nodes, wiring = self._wiring.program.nodes, self._wiring
        made: dict[int, Place] = {}
        inputs: dict[int, Place] = {}
        for index in run:
            for position, value in enumerate(nodes[index].inputs):
                if value is not None and value not in made:
                    inputs.setdefault(value, Place(index, position))
            for position, value in enumerate(nodes[index].outputs):
                if value is not None and value not in nodes[index].inputs:
                    made[value] = Place(index, position)
        needed = {value for value in made if self._last.get(value, -1) >= run.stop}
        views: list[int] = []
        for index in reversed(run):
            if wiring.views[index] and not needed.isdisjoint(nodes[index].outputs):
                views.append(index)
                needed.update(value for value in nodes[index].inputs if value in made)
        roots = (place for value, place in made.items() if value in needed and not wiring.views[place.node])
        written = {wiring.storages[value] for index in run for value in wiring.writes[index]}
        places = (place for place, value in enumerate(inputs) if wiring.storages[value] in written)
        return Region(
            first=run.start,
            end=run.stop,
            inputs=tuple(inputs.values()),
            written=tuple(places),
            roots=tuple(roots),
            views=tuple(reversed(views)),
            numbers=tuple(
                Place(index, position)
                for index in run
                if index in self._varying
                for position in range(len(nodes[index].scalars))
            ),
        )


def with_regions(program: Program, regions: Sequence[Region]) -> Program:
    """Return the program with each region as one node. Its template, one for each region, comes after the
    others; it reads the region's inputs and numbers, and makes the roots and all that the views make."""
    nodes: list[NodeRecord] = []
    at, first = 0, len(program.templates)
    for number, region in enumerate(regions):
        nodes += program.nodes[at : region.first]
        nodes.append(_as_one_node(program.nodes, region, first + number))
        at = region.end
    nodes += program.nodes[at:]
    templates = [*program.templates, *(Template(REGION_OP, [], {}) for _ in regions)]
    return msgspec.structs.replace(program, templates=templates, nodes=nodes)


def _as_one_node(nodes: Sequence[NodeRecord], region: Region, template: int) -> NodeRecord:
    made = [(nodes[place.node], place.position) for place in region.roots]
    made += [(nodes[index], place) for index in region.views for place in range(len(nodes[index].outputs))]
    return NodeRecord(
        template,
        tuple(nodes[place.node].inputs[place.position] for place in region.inputs),
        tuple(node.outputs[place] for node, place in made),
        tuple(node.output_metas[place] for node, place in made),
        tuple(node.storages[place] for node, place in made),
        nodes[region.first].scope,
        tuple(nodes[place.node].scalars[place.position] for place in region.numbers),
    )


def first_nodes(count: int, regions: Sequence[Region]) -> list[int]:
    """Return, for each node of :func:`with_regions` and for its end, which node of the whole program, of
    ``count``, it begins with."""
    found: list[int] = []
    at = 0
    for region in regions:
        found += range(at, region.first)
        found.append(region.first)
        at = region.end
    return [*found, *range(at, count + 1)]

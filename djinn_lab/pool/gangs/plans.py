"""Decide whether a cell is worth several devices, and plan what each of them runs."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from djinn_lab.memory import predict_peak_bytes
from djinn_lab.memory.footprint import Footprint
from djinn_lab.pool.gangs.grouping import COPIES, PART_S, makespan_s
from djinn_lab.pool.gangs.layouts import Layout, LayoutCache
from djinn_lab.srg.costs import node_charges
from djinn_lab.srg.curves import DeviceCurves
from djinn_lab.srg.parting import Part, Parts, part_program
from djinn_lab.srg.program import Program, encode_program
from djinn_lab.units import format_bytes, format_seconds

SHARE_MAX = 0.8
"""A gang must be expected to end within so much of the time on one device."""
OPS_MAX = 250_000
"""Looking for branches takes seconds then."""


class PlannedPart(msgspec.Struct, frozen=True):
    """``program``: encoded. ``nodes``: which of the cell's ops it runs. ``footprint``: of the program alone,
    without what it imports. ``after``: the groups that it waits for. ``lane``: groups of one lane are meant
    to run one after the other on one device."""

    program: bytes
    nodes: tuple[int, ...]
    imports: tuple[int, ...]
    exports: tuple[int, ...]
    blobs: tuple[str, ...]
    footprint: Footprint
    imported_bytes: int
    after: tuple[int, ...] = ()
    lane: int = 0

    @property
    def peak_bytes(self) -> int:
        """Predict the part's peak, with what it imports."""
        return self.footprint.peak_bytes + self.imported_bytes

    def remaining_bytes(self, executed: int) -> int:
        """Predict what the part needs besides what it holds, once stopped before that op."""
        return self.footprint.remaining_bytes(executed)


class GangPlan(msgspec.Struct, frozen=True):
    """Plan a gang, with the fields of :class:`djinn_lab.srg.parting.Parts`. ``ops``: of the whole."""

    prelude: PlannedPart | None
    groups: tuple[PlannedPart, ...]
    epilogue: PlannedPart
    release: tuple[int, ...]
    undo: tuple[int, ...]
    made: tuple[int, ...]
    ops: int

    @property
    def devices(self) -> int:
        """Count the devices that its groups can use at once."""
        return len({group.lane for group in self.groups})

    @property
    def parts_bytes(self) -> int:
        """Sum what its groups hold at most at once, beside the session."""
        largest: dict[int, int] = {}
        for group in self.groups:
            largest[group.lane] = max(largest.get(group.lane, 0), group.peak_bytes)
        return sum(largest.values())


class GangDecision(msgspec.Struct, frozen=True):
    """``plan`` None: the cell runs on one device. ``why``: it uses fewer than it asked for, in one sentence.
    ``predicted_s``: with all devices of the plan."""

    plan: GangPlan | None
    why: str = ""
    predicted_s: float | None = None

    @property
    def devices(self) -> int:
        """Count the devices that the cell can use at once."""
        return 1 if self.plan is None else self.plan.devices

    @property
    def parts_bytes(self) -> int:
        """Sum what its groups hold at most at once, beside the session."""
        return 0 if self.plan is None else self.plan.parts_bytes


class _Judged(msgspec.Struct, frozen=True):
    """A layout with its parts. ``seconds``: predicted until all of them are done."""

    layout: Layout
    parts: Parts
    seconds: float

    @property
    def devices(self) -> int:
        """Count the devices that it uses at once."""
        return len(set(self.layout.lanes))

    @property
    def moved_bytes(self) -> int:
        """Sum what parts hand on."""
        made = [group.exported_bytes for group in self.parts.groups]
        return sum(made) + (0 if self.parts.prelude is None else self.parts.prelude.exported_bytes)


def decide_gang(
    program: Program,
    asked: int,
    pool: int,
    curves: DeviceCurves,
    known: LayoutCache,
    key: bytes | None,
) -> GangDecision:
    """``asked``: devices at most; ``pool``: as many there are. ``curves``: of the slowest of them.

    The rule: with what travels copied :data:`~djinn_lab.pool.gangs.grouping.COPIES` times at the rate of
    memory, and :data:`~djinn_lab.pool.gangs.grouping.PART_S` for every part, the best layout over the devices
    must take :data:`SHARE_MAX` of the time on one device or less."""
    devices = min(asked, pool)
    if len(program.nodes) > OPS_MAX:
        found_in = f"branches are looked for in up to {OPS_MAX:,}"
        return GangDecision(
            None, f"It runs on one device: it has {len(program.nodes):,} ops, and {found_in}."
        )
    # each device calls an op for the first time, wherever its nodes are
    charges = [replace(charge, first=False) for charge in node_charges(program)[0]]
    seconds = curves.each(charges)
    judged = [
        _judge(program, layout, seconds, curves)
        for layout in known.find(program, key, curves, seconds, devices)
    ]
    if not judged:
        return GangDecision(
            None, "It runs on one device: its graph has no parts that could run side by side."
        )
    best = min(judged, key=lambda one: one.seconds)
    alone_s = sum(seconds)
    if best.seconds > SHARE_MAX * alone_s:
        return GangDecision(
            None,
            f"It runs on one device: it needs about {format_seconds(alone_s)} there, and about "
            f"{format_seconds(best.seconds)} on {best.devices}, with {format_bytes(best.moved_bytes)} to be "
            "moved.",
        )
    plan = _planned(best, len(program.nodes))
    if best.devices < asked:
        used = f"It uses {best.devices} of the {asked} devices that it asked for"
        return GangDecision(plan, f"{used}: {_fewer(best.layout, devices)}.", best.seconds)
    return GangDecision(plan, "", best.seconds)


def _fewer(layout: Layout, devices: int) -> str:
    """Say why a layout uses fewer devices than were asked for."""
    used = len(set(layout.lanes))
    if used == devices:
        return f"this pool has {devices}"
    if layout.branches:
        return f"its graph has {layout.branches} branches"
    return f"more than {used} would not make it faster"


def _judge(program: Program, layout: Layout, seconds: Sequence[float], curves: DeviceCurves) -> _Judged:
    parts = part_program(program, layout.places, layout.groups)

    def took_s(part: Part | None) -> float:
        if part is None:
            return 0.0
        moved_s = COPIES / 2 * (part.imported_bytes + part.exported_bytes) / curves.memory_bytes_per_s
        return PART_S + moved_s + sum(seconds[node] for node in part.nodes)

    side_by_side_s = makespan_s(
        [took_s(group) for group in parts.groups],
        [group.after for group in parts.groups],
        len(set(layout.lanes)),
    )
    return _Judged(layout, parts, took_s(parts.prelude) + side_by_side_s + took_s(parts.epilogue))


def _planned(judged: _Judged, ops: int) -> GangPlan:
    parts, lanes = judged.parts, judged.layout.lanes
    return GangPlan(
        prelude=None if parts.prelude is None else _planned_part(parts.prelude),
        groups=tuple(_planned_part(group, lane) for group, lane in zip(parts.groups, lanes, strict=True)),
        epilogue=_planned_part(parts.epilogue),
        release=parts.release,
        undo=parts.undo,
        made=parts.made,
        ops=ops,
    )


def _planned_part(part: Part, lane: int = 0) -> PlannedPart:
    program = part.program
    blobs = dict.fromkeys(source.blob for source in program.sources if source.blob is not None)
    return PlannedPart(
        program=encode_program(program),
        nodes=part.nodes,
        imports=part.imports,
        exports=part.exports,
        blobs=tuple(blobs),
        footprint=predict_peak_bytes(program),
        imported_bytes=part.imported_bytes,
        after=part.after,
        lane=lane,
    )

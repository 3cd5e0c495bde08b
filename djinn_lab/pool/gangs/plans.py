"""Decide whether a cell is worth several devices, and plan what each of them runs."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from djinn_lab.memory import predict_peak_bytes
from djinn_lab.memory.footprint import Footprint
from djinn_lab.srg.branches import Branches, BranchFinder
from djinn_lab.srg.costs import node_charges
from djinn_lab.srg.curves import DeviceCurves
from djinn_lab.srg.parting import Part, Parts, part_program
from djinn_lab.srg.program import Program, encode_program
from djinn_lab.units import format_bytes, format_seconds

SHARE_MAX = 0.8
"""A gang must be expected to end within so much of the time on one device."""
COPIES = 4
"""What travels is written and read once on its way out, and once on its way back."""
OPS_MAX = 250_000
"""Looking for branches takes seconds then."""
PART_S = 0.003
"""What a part costs beside its ops: a message there and back, a session, a few files."""


class PlannedPart(msgspec.Struct, frozen=True):
    """``program``: encoded. ``nodes``: which of the cell's ops it runs. ``footprint``: of the program alone,
    without what it imports."""

    program: bytes
    nodes: tuple[int, ...]
    imports: tuple[int, ...]
    exports: tuple[int, ...]
    blobs: tuple[str, ...]
    footprint: Footprint
    imported_bytes: int

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


class GangDecision(msgspec.Struct, frozen=True):
    """``plan`` None: the cell runs on one device. ``why``: it uses fewer than it asked for, in one sentence.
    ``predicted_s``: with all devices of the plan."""

    plan: GangPlan | None
    why: str = ""
    predicted_s: float | None = None

    @property
    def devices(self) -> int:
        """Count the devices that the cell can use at once."""
        return 1 if self.plan is None else len(self.plan.groups)

    @property
    def parts_bytes(self) -> int:
        """Sum what its groups hold at most, beside the session."""
        return 0 if self.plan is None else sum(group.peak_bytes for group in self.plan.groups)


class BranchCache:
    """Cache where the branches of programs are, by :func:`~djinn_lab.srg.plan_key.plan_key` and by the curves
    of the devices, which become known while a pool runs; the least recently used go first. ``ops_max``: of
    all programs that are remembered. Called from several threads."""

    def __init__(self, entries_max: int = 1000, ops_max: int = 4_000_000) -> None:
        self._entries_max = entries_max
        self._ops_max = ops_max
        self._known: OrderedDict[tuple[object, ...], Branches | None] = OrderedDict()
        self._ops = 0
        self._lock = threading.Lock()

    def best(
        self,
        program: Program,
        key: bytes | None,
        curves: DeviceCurves,
        seconds: Sequence[float],
        devices: int,
    ) -> Branches | None:
        """``seconds``: of every op, by these curves."""
        name = (key, curves.digest, devices, program.rng_state is None)
        with self._lock:
            if key is not None and name in self._known:
                self._known.move_to_end(name)
                return self._known[name]
        found = BranchFinder(program, seconds).best(devices)
        with self._lock:
            if key is not None and name not in self._known:
                self._known[name] = found
                self._ops += _places(found)
            while len(self._known) > self._entries_max or self._ops > self._ops_max:
                self._ops -= _places(self._known.popitem(last=False)[1])
        return found


def _places(found: Branches | None) -> int:
    return 0 if found is None else len(found.places)


def decide_gang(
    program: Program,
    asked: int,
    pool: int,
    curves: DeviceCurves,
    known: BranchCache,
    key: bytes | None,
) -> GangDecision:
    """``asked``: devices at most; ``pool``: as many there are. ``curves``: of the slowest of them.

    The rule: with the branches laid over the devices, what travels copied :data:`COPIES` times at the rate of
    memory, and :data:`PART_S` for every part, it must take :data:`SHARE_MAX` of the time on one device or
    less."""
    devices = min(asked, pool)
    if len(program.nodes) > OPS_MAX:
        found_in = f"branches are looked for in up to {OPS_MAX:,}"
        return GangDecision(
            None, f"It runs on one device: it has {len(program.nodes):,} ops, and {found_in}."
        )
    # each device calls an op for the first time, wherever its nodes are
    charges = [replace(charge, first=False) for charge in node_charges(program)[0]]
    seconds = curves.each(charges)
    found = known.best(program, key, curves, seconds, devices)
    if found is None:
        return GangDecision(
            None, "It runs on one device: its graph has no branches that could run side by side."
        )
    alone_s = sum(seconds)
    parts = part_program(program, found, devices)
    moving_s = COPIES * parts.moved_bytes / curves.memory_bytes_per_s
    together_s = found.makespan_s(devices) + moving_s + PART_S * (2 + len(parts.groups))
    if together_s > SHARE_MAX * alone_s:
        count = min(devices, len(found.branch_s))
        return GangDecision(
            None,
            f"It runs on one device: it needs about {format_seconds(alone_s)} there, and about "
            f"{format_seconds(together_s)} on {count}, with {format_bytes(parts.moved_bytes)} to be moved.",
        )
    plan = _planned(parts, len(program.nodes))
    if len(plan.groups) < asked:
        many = len(found.branch_s)
        why = f"its graph has {many} branches" if many < devices else f"this pool has {devices}"
        used = f"It uses {len(plan.groups)} of the {asked} devices that it asked for"
        return GangDecision(plan, f"{used}: {why}.", together_s)
    return GangDecision(plan, "", together_s)


def _planned(parts: Parts, ops: int) -> GangPlan:
    return GangPlan(
        prelude=None if parts.prelude is None else _planned_part(parts.prelude),
        groups=tuple(_planned_part(group) for group in parts.groups),
        epilogue=_planned_part(parts.epilogue),
        release=parts.release,
        undo=parts.undo,
        made=parts.made,
        ops=ops,
    )


def _planned_part(part: Part) -> PlannedPart:
    program = part.program
    blobs = dict.fromkeys(source.blob for source in program.sources if source.blob is not None)
    imported: dict[int, int] = {}
    for source in program.sources:
        if source.value in part.imports:
            nbytes = program.metas[source.meta].span_bytes
            imported[source.storage] = max(imported.get(source.storage, 0), nbytes)
    return PlannedPart(
        program=encode_program(program),
        nodes=part.nodes,
        imports=part.imports,
        exports=part.exports,
        blobs=tuple(blobs),
        footprint=predict_peak_bytes(program),
        imported_bytes=sum(imported.values()),
    )

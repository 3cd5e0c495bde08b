"""A gang that runs or is preempted: what its parts made so far, their names, and their joint answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from djinn_lab.pool.bookkeeping.records import JobRecord, SegmentPreemptions
from djinn_lab.pool.gangs.plans import GangPlan, PlannedPart
from djinn_lab.pool.gangs.state_machine import GangStateMachine, PartName
from djinn_lab.protocol import worker
from djinn_lab.protocol.worker import SegmentDone, pack_times

SEPARATOR = "/"
"""Between a job and the name of a part, in messages to workers and session memory."""


@dataclass(slots=True)
class RunningGang:
    """``handed``: what each part exported; ``replaced``: what parts exported that began again, which others
    may be reading. ``sent_s`` (when it first went to a worker, without the time for which the gang was
    preempted before), ``done``, ``executed``, ``stops``: by part. ``opened``: groups that have a session.
    ``used``: the device that last ran each part; ``visited``: every device that ran one."""

    job: str
    segment: int
    record: JobRecord
    rank: int
    plan: GangPlan
    machine: GangStateMachine
    handed: dict[PartName, tuple[worker.Handed, ...]] = field(default_factory=dict)
    replaced: list[worker.Handed] = field(default_factory=list)
    sent_s: dict[PartName, float] = field(default_factory=dict)
    done: dict[PartName, worker.SegmentDone] = field(default_factory=dict)
    executed: dict[PartName, int] = field(default_factory=dict)
    stops: dict[PartName, SegmentPreemptions] = field(default_factory=dict)
    opened: set[int] = field(default_factory=set)
    used: dict[PartName, str] = field(default_factory=dict)
    visited: set[str] = field(default_factory=set)

    def part(self, name: PartName) -> PlannedPart:
        if isinstance(name, int):
            return self.plan.groups[name]
        found = self.plan.prelude if name == "prelude" else self.plan.epilogue
        assert found is not None
        return found

    @property
    def sessions(self) -> set[str]:
        """Return the cell's session and those of its groups."""
        return {self.record.session, *(name_of(self.job, group) for group in self.opened)}

    @property
    def executed_ops(self) -> int:
        """Count the cell's executed ops. Ops that several parts repeat count in each, up to the whole."""
        return min(self.plan.ops, sum(self.executed.values()))

    def peak_bytes(self, group: int) -> int:
        """Predict what a group needs besides what it holds."""
        stops, part = self.stops.get(group), self.part(group)
        return part.peak_bytes if stops is None else part.remaining_bytes(stops.executed)

    def at_home(self) -> list[int]:
        """List values of the session that are of no use if the gang does not resume."""
        stopped = (stops.if_given_up for part, stops in self.stops.items() if not isinstance(part, int))
        return [*self.plan.made, *(value for values in stopped for value in values)]

    def imports(self, name: PartName) -> tuple[worker.Handed, ...]:
        """List what a part imports: a group from the prelude and other groups, the epilogue from the groups.
        A resumed part has it."""
        if name in self.stops:
            return ()
        part = self.part(name)
        groups = [source for source in self.handed if source != "prelude"]
        wanted, found = set(part.imports), list[worker.Handed]()
        sources: Iterable[PartName] = (*part.after, "prelude") if isinstance(name, int) else groups
        for source in sources:
            for one in self.handed.get(source, ()):
                if not wanted.isdisjoint(one.values):
                    wanted.difference_update(one.values)
                    found.append(one)
        return tuple(found)

    def summary(self) -> str:
        """Say on which devices the gang ran, and why not on more."""
        visited = sorted(self.visited)
        where = f"It ran on {len(visited)} devices: {', '.join(visited)}."
        if len(visited) == 1:
            where = f"It ran on one device: {visited[0]}."
        return f"{where} {self.record.gang}" if self.record.gang else where

    def node_devices(self) -> tuple[str, ...]:
        """Return the device that ran each of the cell's nodes; of one that several parts repeat, the last."""
        devices = [self.machine.home] * self.plan.ops
        for part, device in self.used.items():
            for node in () if part == "undo" else self.part(part).nodes:
                devices[node] = device
        return tuple(devices)


def name_of(job: str, part: PartName) -> str:
    return f"{job}{SEPARATOR}{part}"


def part_of(text: str) -> PartName:
    match text:
        case "prelude" | "epilogue" | "undo":
            return text
        case _:
            return int(text)


def whole_answer(
    job: str,
    segment: int,
    plan: GangPlan,
    done: Mapping[PartName, SegmentDone],
    sent_s: Mapping[PartName, float],
    now_s: float,
) -> SegmentDone:
    """``done``: by part, with when it was sent in seconds of the pool's clock. Ops are timed from the moment
    at which the first part was sent, on the clock that all workers share. What the epilogue fetched is the
    cell's; load and fetch are those of the parts in the session, so that all stages add up."""
    last = done["epilogue"]
    began_s = min(sent_s.values())
    starts, ends = [0.0] * plan.ops, [0.0] * plan.ops
    parts: dict[PartName, PlannedPart] = dict(enumerate(plan.groups))
    parts["epilogue"] = plan.epilogue
    if plan.prelude is not None:
        parts["prelude"] = plan.prelude
    for name, part in parts.items():
        answer = done[name]
        offset_s = sent_s[name] - began_s + answer.load_s
        for node, start_s, end_s in zip(part.nodes, answer.node_start_s, answer.node_end_s, strict=True):
            starts[node], ends[node] = offset_s + start_s, offset_s + end_s
    first = done.get("prelude")
    load_s = last.load_s + (first.load_s if first is not None else 0.0)
    run_s = max(0.0, now_s - began_s - load_s - last.fetch_s)
    peak_bytes = max(answer.memory.peak_bytes for answer in done.values())
    return replace(
        last,
        job=job,
        segment=segment,
        rng_state=first.rng_state if first is not None else None,
        node_times=pack_times(starts, ends),
        load_s=load_s,
        run_s=run_s,
        memory=replace(last.memory, peak_bytes=peak_bytes),
        exported=(),
    )

"""``--dry-run``: record a cell, plan it for the pool as it is now, run nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from types import TracebackType
from typing import NamedTuple

import msgspec

from djinn_lab.capture.rehearsal import Rehearsal, RehearsalEnded
from djinn_lab.capture.sending.backend import Cut
from djinn_lab.client.cell import Cell
from djinn_lab.client.cuts import cure_of, name_of
from djinn_lab.client.profile_terms import first_choice, scheduler_profile
from djinn_lab.client.session import Session
from djinn_lab.errors import DeviceMemoryError
from djinn_lab.jobs import Terms
from djinn_lab.jobs.resources import error_sentence
from djinn_lab.jobs.targets import allowed
from djinn_lab.protocol.rest.status import PoolStatus
from djinn_lab.scheduler import SESSION_BOUND, ExecutionSchedule, Scheduler
from djinn_lab.srg.graph import SRG
from djinn_lab.units import format_bytes, format_seconds


class DryRun:
    """In place of a captured cell. ``plan`` holds the lines for people once the cell is over."""

    def __init__(self, session: Session, cell: Cell) -> None:
        self._session = session
        self._cell = cell
        self._rehearsal = Rehearsal(session.recorder)
        self.plan: list[str] = []

    def __enter__(self) -> Cell:
        self._rehearsal.__enter__()
        cell = self._cell.__enter__()
        self._watch = self._rehearsal.watch()
        self._watch.__enter__()
        return cell

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        """True (the exception is dealt with) when the recording ended at a cut."""
        self._watch.__exit__(kind, error, traceback)
        ended = isinstance(error, RehearsalEnded)
        try:
            if error is None or ended:
                self._rehearsal.collect()
                self._cell.rehearsed(self._rehearsal.programs)
            self._cell.__exit__(None, None, None)
        finally:
            self._rehearsal.__exit__(kind, error, traceback)
        if error is None or ended:
            self.plan = list(self._lines())
        return ended

    def _lines(self) -> Iterator[str]:
        yield f"dry run of {self._cell.report.cell}: nothing ran, and nothing was sent to the pool."
        if not any(program.nodes for program in self._rehearsal.programs):
            yield "The plan is empty: no torch work was captured whose result is kept."
        else:
            yield from self._planned(self._cell.graph)
        yield from _cut_lines(self._rehearsal.cut)

    def _planned(self, graph: SRG) -> Iterator[str]:
        status = self._session.pool.status()
        bound, terms = self._session.device, self._cell.terms
        try:
            suitable = suitable_devices(status, terms)
        except ValueError as error:
            yield f"It would be refused: {error}."
            return
        moves = bound is not None and bound not in suitable
        if bound is None:
            yield f"Device: not chosen yet; the pool takes {first_choice(terms)}."
        elif moves:
            yield f"Device: its target is {terms.target}; the session's values are moved there from {bound}."
        candidates = suitable if bound is None or moves else [bound]
        watts = {device.device: device.watts for device in status.devices}
        profiles = [
            msgspec.structs.replace(
                profile,
                used_bytes=_held_by_others(status, profile.device, graph),
                watts=watts.get(profile.device),
            )
            for profile in self._session.device_profiles(None)
            if profile.device in candidates
        ]
        for device in status.devices:
            if device.device in candidates:
                line = f"{device.state}, {device.queue_length} jobs wait there"
                yield f"Queue: {device.device} is {line}."
        try:
            bound_by = (
                "" if bound is None else f"the cell asked for {terms.target}" if moves else SESSION_BOUND
            )
            scheduler = Scheduler(devices=profiles, profile=scheduler_profile(terms), bound_by=bound_by)
            self._cell.planned = schedule = scheduler.create_schedule(graph)
        except DeviceMemoryError as error:
            yield f"It would be refused: {error}"
            return
        yield from schedule.explain()
        yield (
            f"Predicted: {format_seconds(schedule.predicted_s)} with transfers, at most "
            f"{format_bytes(schedule.memory.peak_bytes)} at once; up to "
            f"{format_bytes(self._rehearsal.staged_bytes)} of large tensors to upload "
            "(what the pool has already is not sent again)."
        )
        yield error_sentence(status.forecast_error)
        yield from _phase_lines(graph, schedule)


class _DescribedDevice(NamedTuple):
    device: str
    labels: frozenset[str]
    taints: frozenset[str]


def suitable_devices(status: PoolStatus, terms: Terms) -> list[str]:
    """Return the names of the devices that a cell with these terms may run on. Raises ValueError, which says
    why there is none and what is there."""
    described = [
        _DescribedDevice(one.device, frozenset(one.labels), frozenset(one.taints)) for one in status.devices
    ]
    return [one.device for one in allowed(terms.target, terms.tolerates, described)]


def _held_by_others(status: PoolStatus, device: str, graph: SRG) -> int:
    """Return the bytes in use on the device, less those that the graph itself counts."""
    used = next((item.used_bytes for item in status.devices if item.device == device), 0)
    own = {
        v.storage: v.span_bytes for v in graph.values.values() if v.producer is None and not v.upload_bytes
    }
    return max(0, used - sum(own.values()))


def _phase_lines(graph: SRG, schedule: ExecutionSchedule) -> Iterator[str]:
    seconds: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    flops: dict[str, int] = defaultdict(int)
    for node in schedule.nodes:
        seconds[node.phase] += node.end_s - node.start_s
        counts[node.phase] += 1
        flops[node.phase] += graph.nodes[node.node].flops
    for phase in sorted(seconds, key=lambda name: -seconds[name]):
        yield (
            f"  {phase:10} {format_seconds(seconds[phase]):>10}  {counts[phase]} ops, "
            f"{flops[phase] / 1e9:.3f} GFLOP"
        )


def _cut_lines(cut: Cut | None) -> Iterator[str]:
    if cut is None:
        yield "Cuts: none; the cell is sent at its end (a long one also in parts before)."
        return
    where = f"line {cut.line}" if cut.line else "a line outside the cell"
    yield (
        f"Cuts: first at {where}, which needs a value: {name_of(cut.cause)}. The plan ends there, since what "
        f"follows may depend on it. Without that cut: {cure_of(cut.cause)}."
    )

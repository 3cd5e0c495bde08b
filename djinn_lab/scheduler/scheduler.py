"""From a graph to an execution schedule on one device.

For every candidate device: the order is fixed, memory is planned for it, and the time is predicted. Devices
whose memory would be exceeded drop out, and those that would keep less free than the profile's reserve, if
others do not. The profile's objective picks among the rest; ties go to the first listed.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import NoReturn, Self

import msgspec

from djinn_lab.errors import DeviceMemoryError, OptionError
from djinn_lab.scheduler.costs import (
    CheckedEstimates,
    CostEstimator,
    DeviceProfile,
    GraphCostEstimator,
    check_estimator,
)
from djinn_lab.scheduler.explanation import explain_schedule
from djinn_lab.scheduler.memory_order import MemoryOrder
from djinn_lab.scheduler.memory_plan import MemoryPlan, plan_memory
from djinn_lab.scheduler.offload import offload_plan
from djinn_lab.scheduler.ordering import Arrangement, OptimizationStrategy, colocation_groups
from djinn_lab.scheduler.profiles import SchedulerProfile, profile_named
from djinn_lab.scheduler.remembered import remembered_order, remembered_schedule
from djinn_lab.scheduler.schedule import ExecutionSchedule, PlannedTransfer, ScheduledNode
from djinn_lab.scheduler.strategies import load_strategies
from djinn_lab.srg.graph import SRG
from djinn_lab.srg.offload import OffloadPlan
from djinn_lab.srg.program import Program
from djinn_lab.units import format_bytes

SESSION_BOUND = "the session is bound to it"
"""``bound_by`` of cells that ran: a cell runs where its session's values are."""


def check_graph(given: object) -> SRG:
    """Return a graph. Raises OptionError for anything else."""
    if isinstance(given, SRG):
        return given
    raise OptionError(
        f"an object of type {type(given).__name__} cannot be scheduled.",
        "Pass a graph (SRG), such as the graph of a captured cell: cell.graph.",
    )


def _checked_devices(devices: Sequence[DeviceProfile]) -> tuple[DeviceProfile, ...]:
    wrong = next((one for one in devices if not isinstance(one, DeviceProfile)), None)
    if devices and wrong is None:
        return tuple(devices)
    raise OptionError(
        "there are no devices to schedule for." if not devices else f"{wrong!r} is no DeviceProfile.",
        "Pass profiles, such as DeviceProfile.default('cpu'); without devices there is one such.",
    )


class Scheduler:
    """Turns graphs into schedules. ``profile``: a name in
    :data:`djinn_lab.scheduler.profiles.SCHEDULER_PROFILES` or a profile of your own. ``devices``: the
    candidates; None means one unmeasured CPU device. ``strategies`` may change the order, one after the
    other; text is the name of an installed one. ``bound_by``: why no other device is a candidate, such as
    :data:`SESSION_BOUND`, for the schedule's reasons. Raises OptionError for an unknown profile or strategy,
    for what is no cost estimator, and for what are no devices."""

    _remembers = True

    def __init_subclass__(cls, *, remembers: bool = False) -> None:
        """``remembers``: its schedules depend on the graph and on what ``_settings`` returns alone."""
        cls._remembers = remembers

    def __init__(
        self,
        cost_estimator: CostEstimator | None = None,
        devices: Sequence[DeviceProfile] | None = None,
        profile: str | SchedulerProfile = "basic_inference",
        strategies: Sequence[OptimizationStrategy | str] = (),
        bound_by: str = "",
    ) -> None:
        self.cost_estimator: CostEstimator = GraphCostEstimator()
        if cost_estimator is not None:
            self.set_cost_model(cost_estimator)
        self.devices = (DeviceProfile.default("cpu"),) if devices is None else _checked_devices(devices)
        self.profile = profile_named(profile) if isinstance(profile, str) else profile
        self.strategies = load_strategies(strategies)
        self.bound_by = bound_by

    def __repr__(self) -> str:
        devices = ", ".join(device.device for device in self.devices)
        return f"<{type(self).__name__} of profile {self.profile.name} for {devices}>"

    def set_cost_model(self, estimator: CostEstimator) -> None:
        """Predict the times of nodes by another estimator, from the next schedule on. Raises OptionError for
        an object without a method ``estimate(node, device)``."""
        self.cost_estimator = check_estimator(estimator)

    def create_schedule(self, srg: SRG) -> ExecutionSchedule:
        """Return the schedule; raise :class:`~djinn_lab.errors.DeviceMemoryError` when no device can hold the
        graph at its peak, ValueError when a strategy proposes an order that would change results, and
        OptionError when the cost estimator returns what is no time."""
        return self.schedule_in(check_graph(srg), self.arrange(srg))

    def schedule_program(self, program: Program) -> ExecutionSchedule:
        """Return the schedule of a valid program's graph. Where an equal program was scheduled with equal
        settings before, but for ids, cells and data, it is not made again. Raises as
        :meth:`create_schedule`."""
        settings = self._settings()
        if settings is None:
            return self.create_schedule(SRG.from_program(program))
        return remembered_schedule(program, settings, lambda one: self.create_schedule(SRG.from_program(one)))

    def _settings(self) -> tuple[object, ...] | None:
        """Return all that a schedule depends on but the graph; None where code of others decides, too."""
        own_estimator = type(self.cost_estimator) is GraphCostEstimator
        own_strategies = all(type(strategy) is MemoryOrder for strategy in self.strategies)
        if not (self._remembers and own_estimator and own_strategies):
            return None
        return (self.devices, self.profile, len(self.strategies), self.bound_by)

    @property
    def reorders(self) -> bool:
        """Return whether :meth:`arrange` may change the order."""
        return bool(self.strategies)

    def arrange(self, srg: SRG) -> Arrangement:
        """Return the order that the strategies propose, one after the other. Raises ValueError for an order
        that would change results."""
        arranged = Arrangement(tuple(range(len(srg.nodes))))
        for strategy in self.strategies:
            arranged = arranged.then(srg, strategy)
        return arranged

    def arrange_program(self, program: Program) -> Arrangement:
        """Return the order of a valid program's graph, found once for equal programs as
        :meth:`schedule_program` does. Raises as :meth:`arrange`."""
        settings = self._settings()
        if settings is None:
            return self.arrange(SRG.from_program(program))
        return remembered_order(program, settings, lambda one: self.arrange(SRG.from_program(one)))

    def on(self, devices: Sequence[DeviceProfile], bound_by: str = "") -> Self:
        """Return the same scheduler with other candidates."""
        made = copy.copy(self)
        made.devices, made.bound_by = tuple(devices), bound_by
        return made

    def schedule_in(self, srg: SRG, arranged: Arrangement) -> ExecutionSchedule:
        """Return the schedule of nodes in this order. Raises DeviceMemoryError as
        :meth:`create_schedule`."""
        order = arranged.order
        memory = plan_memory(srg, order)
        fitting = [one for one in self.devices if memory.peak_bytes <= one.memory_bytes - one.used_bytes]
        if not fitting:
            return self._offloading(srg, arranged, memory)
        roomy = [device for device in fitting if memory.peak_bytes <= self._limit_bytes(device)]
        fitting = roomy or fitting
        candidates = [self._place(srg, order, memory, device) for device in fitting]
        left_out = [device for device in self.devices if device not in fitting]
        return self._best(srg, arranged, candidates, self._rank, left_out)

    def _offloading(self, srg: SRG, arranged: Arrangement, memory: MemoryPlan) -> ExecutionSchedule:
        """Return a schedule on a device that has no memory for all of it at once: what others hold there is
        parked, and values of the graph are offloaded. Raises DeviceMemoryError where no device can."""
        candidates = []
        for device in self.devices:
            plan = offload_plan(srg, arranged.order, device.memory_bytes)
            if plan is not None and memory.peak_bytes <= device.memory_bytes + device.below_bytes:
                candidates.append(self._place(srg, arranged.order, memory, device, plan))
        if not candidates:
            self._refuse(srg, arranged.order, memory)
        return self._best(srg, arranged, candidates, lambda one: (one.predicted_s,), ())

    def _best(
        self,
        srg: SRG,
        arranged: Arrangement,
        candidates: Sequence[ExecutionSchedule],
        rank: Callable[[ExecutionSchedule], tuple[float, ...]],
        left_out: Sequence[DeviceProfile],
    ) -> ExecutionSchedule:
        """Return the candidate of the lowest rank, with the reasons."""
        best = min(candidates, key=rank)
        others = [schedule for schedule in candidates if schedule is not best]
        best = msgspec.structs.replace(best, groups=colocation_groups(srg))
        decisions = explain_schedule(
            srg, best, self.profile, others, left_out, arranged.changed_by, self.bound_by
        )
        return msgspec.structs.replace(best, decisions=decisions)

    def _limit_bytes(self, device: DeviceProfile) -> int:
        """Return the bytes that a plan may use: the device's memory less the reserve, less what others
        hold."""
        return max(0, int(device.memory_bytes * (1 - self.profile.reserve_fraction)) - device.used_bytes)

    def _rank(self, schedule: ExecutionSchedule) -> tuple[float, ...]:
        if self.profile.objective == "latency":
            return (schedule.predicted_s,)
        if self.profile.objective == "throughput":
            return (schedule.interval_s,)
        if self.profile.objective == "energy":
            return math.inf if schedule.joules is None else schedule.joules, schedule.predicted_s
        device = schedule.device
        return ((device.used_bytes + schedule.memory.peak_bytes) / max(device.memory_bytes, 1),)

    def _place(
        self,
        srg: SRG,
        order: Sequence[int],
        memory: MemoryPlan,
        device: DeviceProfile,
        offload: OffloadPlan | None = None,
    ) -> ExecutionSchedule:
        uploads, now_s = _uploads(srg, order, device)
        nodes = []
        price = CheckedEstimates(self.cost_estimator, device).of
        for node_id, live_bytes in zip(order, memory.live_bytes, strict=True):
            node = srg.nodes[node_id]
            cost = price(node)
            end_s = now_s + cost.seconds
            nodes.append(
                ScheduledNode(
                    node_id, node.op, node.module, node.line, node.phase, now_s, end_s, cost.bound, live_bytes
                )
            )
            now_s = end_s
        fetches, now_s = _fetches(srg, device, now_s)
        return ExecutionSchedule(
            device=device,
            profile=self.profile.name,
            structural_hash=srg.structural_hash,
            nodes=tuple(nodes),
            transfers=(*uploads, *fetches),
            groups=(),
            memory=memory,
            limit_bytes=self._limit_bytes(device),
            predicted_s=now_s + (0.0 if offload is None else device.offload_s(offload.moved_bytes)),
            decisions=(),
            offload=offload,
        )

    def _refuse(self, srg: SRG, order: Sequence[int], memory: MemoryPlan) -> NoReturn:
        largest = max(self.devices, key=lambda device: device.memory_bytes - device.used_bytes)
        where = "loading its inputs"
        if memory.peak_position is not None:
            node = srg.nodes[order[memory.peak_position]]
            place = ", ".join(
                part for part in (node.module, f"line {node.line}" if node.line else "") if part
            )
            where = f"node {node.id} ({node.op}{', ' + place if place else ''})"
        raise DeviceMemoryError(
            f"This cell needs {format_bytes(memory.peak_bytes)} at its peak, at {where}, but "
            f"{largest.device} has {format_bytes(max(0, largest.memory_bytes - largest.used_bytes))} free of "
            f"its {format_bytes(largest.memory_bytes)}.",
            f"Its inputs and weights are {format_bytes(memory.resident_bytes)}. Use a smaller batch, compute "
            "in smaller parts, delete tensors that you no longer need (del name), or start the pool with "
            "more memory.",
        )


def create_scheduler_for_workload(
    workload: str,
    *,
    cost_estimator: CostEstimator | None = None,
    devices: Sequence[DeviceProfile] | None = None,
    strategies: Sequence[OptimizationStrategy | str] = (),
    **overrides: object,
) -> Scheduler:
    """Return a scheduler with the profile of a workload (``basic_inference``, ``llm_serving``,
    ``research_training``), and ``objective`` or ``reserve_fraction`` in place of its own. Raises OptionError
    as :func:`djinn_lab.scheduler.profiles.profile_named`."""
    return Scheduler(cost_estimator, devices, profile_named(workload, **overrides), strategies)


def _uploads(srg: SRG, order: Sequence[int], device: DeviceProfile) -> tuple[list[PlannedTransfer], float]:
    """Everything that travels before the first node, one after the other, and when that is done."""
    waiting = [value.id for value in srg.values.values() if value.upload_bytes]
    readers: dict[int, int | None] = dict.fromkeys(waiting)
    for node_id in order if waiting else ():
        for value in srg.nodes[node_id].inputs:
            if value in readers and readers[value] is None:
                readers[value] = node_id
    transfers: list[PlannedTransfer] = []
    now_s = 0.0
    for value in waiting:
        nbytes = srg.values[value].upload_bytes
        end_s = now_s + device.transfer_s(nbytes)
        transfers.append(PlannedTransfer(value, "upload", nbytes, now_s, end_s, readers[value]))
        now_s = end_s
    return transfers, now_s


def _fetches(srg: SRG, device: DeviceProfile, now_s: float) -> tuple[list[PlannedTransfer], float]:
    transfers: list[PlannedTransfer] = []
    for value in srg.fetch:
        known = srg.values[value]
        end_s = now_s + device.transfer_s(known.nbytes)
        transfers.append(PlannedTransfer(value, "fetch", known.nbytes, now_s, end_s, known.producer))
        now_s = end_s
    return transfers, now_s

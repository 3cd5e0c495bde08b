"""The devices as they are now: readiness, measurements, and when to measure."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from djinn_lab.pool.devices.plans import DevicePlan
from djinn_lab.protocol.messages import DeviceInfo
from djinn_lab.protocol.worker import DeviceMeasured, DeviceNotMeasured, FromWorker, WorkerReady
from djinn_lab.srg.curves import DeviceCurves

CALIBRATE_AFTER_IDLE_S = 3.0
"""A pause between two cells."""
CALIBRATE_CPU_AFTER_IDLE_S = 60.0
"""A break: the guess is near a CPU, and a pool that lives for seconds spends none on measuring it."""
CALIBRATE_AGAIN_AFTER_IDLE_S = 60.0
"""Where a measurement had to be given up."""

log = logging.getLogger(__name__)

MeasuredKind = tuple[str, int, str]
"""Device name, thread count and torch version: what a measurement holds for."""


@dataclass(slots=True)
class DeviceStatus:
    """``failure``: why it does not start. ``measured``: as the worker said, ``curves``: corrected by what
    runs taught. ``measuring``: a measurement was asked for and is not answered. ``wants_measuring``: one
    was asked for. ``not_measured``: why the last one was given up."""

    plan: DevicePlan
    ready: WorkerReady | None = None
    seen: WorkerReady | None = None
    measured: DeviceMeasured | None = None
    curves: DeviceCurves | None = None
    failure: str | None = None
    measuring: bool = False
    wants_measuring: bool = False
    not_measured: str = ""
    idle_since_s: float | None = None

    @property
    def kind(self) -> MeasuredKind | None:
        return None if self.seen is None else (self.seen.name, self.seen.threads, self.seen.torch_version)

    @property
    def measured_after_s(self) -> float:
        """How long it is idle before it is measured."""
        if self.not_measured:
            return CALIBRATE_AGAIN_AFTER_IDLE_S
        soon = self.wants_measuring or self.plan.kind != "cpu"
        return CALIBRATE_AFTER_IDLE_S if soon else CALIBRATE_CPU_AFTER_IDLE_S

    @property
    def kind_name(self) -> str:
        """The kind in words, the device's own name before it was seen."""
        return self.plan.device if self.kind is None else "/".join(map(str, self.kind))


class Fleet:
    """``measurements``: from the store."""

    def __init__(self, plans: Sequence[DevicePlan], measurements: dict[MeasuredKind, DeviceMeasured]) -> None:
        self._statuses = {plan.device: DeviceStatus(plan) for plan in plans}
        self._measurements = measurements
        self._factors: dict[str, dict[str, float]] = {}
        self.changed = asyncio.Event()
        """Set when a device becomes ready or fails; the waiter clears it."""
        self.new_measurements: list[tuple[MeasuredKind, DeviceMeasured]] = []
        self.on_measured: Callable[[str], None] = _ignore_measurement
        """Called with the name of a kind of device that was measured."""

    @property
    def statuses(self) -> list[DeviceStatus]:
        return list(self._statuses.values())

    def add(self, plan: DevicePlan) -> None:
        """Add a device that came with a node of its own."""
        self._statuses[plan.device] = DeviceStatus(plan)

    def remove(self, device: str) -> None:
        """Forget a device that was given back with its node."""
        del self._statuses[device]

    @property
    def all_ready(self) -> bool:
        return all(status.ready for status in self._statuses.values())

    @property
    def any_ready(self) -> bool:
        return any(status.ready for status in self._statuses.values())

    @property
    def failures(self) -> list[str]:
        return [f"{s.plan.device}: the worker {s.failure}" for s in self._statuses.values() if s.failure]

    def status(self, device: str) -> DeviceStatus:
        return self._statuses[device]

    def worker_said(self, device: str, message: FromWorker) -> bool:
        """Handle a worker's message, and return whether the device just became ready."""
        status = self._statuses[device]
        if isinstance(message, WorkerReady):
            status.ready = status.seen = message
            status.failure, status.measuring = None, False
            self.changed.set()
            self._take_known(status)
            return True
        if isinstance(message, DeviceMeasured) and status.kind is not None:
            self._measurements[status.kind] = message
            self.new_measurements.append((status.kind, message))
            self._factors.pop(status.kind_name, None)
            self.on_measured(status.kind_name)
            status.measuring = status.wants_measuring = False
            status.not_measured = ""
            for other in self._statuses.values():
                if other.kind == status.kind:
                    self._take_known(other)
        if isinstance(message, DeviceNotMeasured):
            if status.not_measured != message.reason:
                log.warning("%s is not measured now, its times are guesses: %s", device, message.reason)
            status.measuring, status.idle_since_s = False, None
            status.not_measured = message.reason
        return False

    def _take_known(self, status: DeviceStatus) -> None:
        """Take over what is known of devices of this kind."""
        if status.kind is None:
            return
        status.measured = self._measurements.get(status.kind)
        factors = self._factors.get(status.kind_name, {})
        status.curves = None if status.measured is None else status.measured.curves.corrected(factors)

    def worker_died(self, device: str) -> None:
        status = self._statuses[device]
        status.ready, status.measuring = None, False

    def worker_failed(self, device: str, how: str) -> None:
        self._statuses[device].failure = how
        self.changed.set()

    def due_for_measuring(self, busy: set[str], now_s: float) -> str | None:
        """Find a device that has been idle for a while and whose kind is not measured, or is to be again;
        one at a time, since devices of one machine share its memory bus."""
        under_way = any(status.measuring for status in self._statuses.values())
        for device, status in self._statuses.items():
            if status.ready is None or device in busy:
                status.idle_since_s = None
                continue
            status.idle_since_s = status.idle_since_s if status.idle_since_s is not None else now_s
            idle_s = now_s - status.idle_since_s
            due = status.measured is None or status.wants_measuring
            if due and not under_way and idle_s >= status.measured_after_s:
                status.measuring = True
                return device
        return None

    def measure_again(self, device: str) -> None:
        """Have a device measured as soon as it is idle."""
        self._statuses[device].wants_measuring = True

    def correct(self, kind_name: str, factors: Mapping[str, float]) -> None:
        """Correct the curves of devices of a kind, by family."""
        self._factors[kind_name] = dict(factors)
        for status in self._statuses.values():
            if status.kind_name == kind_name:
                self._take_known(status)

    def alike(self, one: str, other: str) -> bool:
        """Return whether two devices compute the same bits: the same kind and model of device, as many
        threads, one torch."""
        known = [self._statuses[name].ready for name in (one, other)]
        facts = [(ready.kind, ready.name, ready.threads, ready.torch_version) for ready in known if ready]
        return len(facts) == 2 and facts[0] == facts[1]

    @property
    def lacking_ops(self) -> Mapping[str, str]:
        """Ops that a graph may name, and that a device lacks, with the torch of that device."""
        known = [status.seen for status in self._statuses.values() if status.seen is not None]
        return {op: ready.torch_version for ready in known for op in ready.lacking_ops}

    def infos(self) -> list[DeviceInfo]:
        """Describe the devices as the protocol does."""
        return [_info(status) for status in self._statuses.values()]


def _ignore_measurement(kind_name: str) -> None:
    """Nothing is learned here."""


def _info(status: DeviceStatus) -> DeviceInfo:
    plan, seen = status.plan, status.seen
    return DeviceInfo(
        device=plan.device,
        kind=plan.kind,
        name=seen.name if seen else "",
        memory_bytes=seen.memory_bytes if seen else plan.memory_bytes,
        threads=seen.threads if seen else plan.threads,
        torch_version=seen.torch_version if seen else "",
        curves=status.curves,
        below_bytes=seen.host_bytes + seen.disk_bytes if seen and seen.host_bytes else 0,
        link_bytes_per_s=seen.link_bytes_per_s if seen else None,
    )

"""The devices as they are now: readiness, measurements, and when to measure."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from djinn_lab.pool.devices.plans import DevicePlan
from djinn_lab.protocol.messages import DeviceInfo
from djinn_lab.protocol.worker import DeviceMeasured, FromWorker, WorkerReady
from djinn_lab.srg.costs import Work

CALIBRATE_AFTER_IDLE_S = 3.0


@dataclass(slots=True)
class DeviceStatus:
    """``failure``: why it does not start. ``asked_to_measure``: a calibration was sent in this life of
    the pool."""

    plan: DevicePlan
    ready: WorkerReady | None = None
    seen: WorkerReady | None = None
    measured: DeviceMeasured | None = None
    failure: str | None = None
    asked_to_measure: bool = False
    idle_since_s: float | None = None


class Fleet:
    """``measurements``: from the store, by device name and thread count."""

    def __init__(
        self, plans: Sequence[DevicePlan], measurements: dict[tuple[str, int], DeviceMeasured]
    ) -> None:
        self._statuses = {plan.device: DeviceStatus(plan) for plan in plans}
        self._measurements = measurements
        self.changed = asyncio.Event()
        """Set when a device becomes ready or fails; the waiter clears it."""
        self.new_measurements: list[tuple[str, int, DeviceMeasured]] = []

    @property
    def statuses(self) -> list[DeviceStatus]:
        return list(self._statuses.values())

    @property
    def all_ready(self) -> bool:
        return all(status.ready for status in self._statuses.values())

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
            status.failure = None
            self.changed.set()
            status.measured = self._measurements.get((message.name, message.threads), status.measured)
            return True
        if isinstance(message, DeviceMeasured) and status.ready is not None:
            status.measured = message
            self._measurements[status.ready.name, status.ready.threads] = message
            self.new_measurements.append((status.ready.name, status.ready.threads, message))
        return False

    def worker_died(self, device: str) -> None:
        self._statuses[device].ready = None

    def worker_failed(self, device: str, how: str) -> None:
        self._statuses[device].failure = how
        self.changed.set()

    def due_for_measuring(self, busy: set[str], now_s: float) -> str | None:
        """Find a device that has been idle for a while and was never measured; at most one at a time, since
        devices of one machine share its memory bus."""
        for device, status in self._statuses.items():
            if status.ready is None or device in busy:
                status.idle_since_s = None
                continue
            status.idle_since_s = status.idle_since_s if status.idle_since_s is not None else now_s
            known = self._measurements.get((status.ready.name, status.ready.threads))
            status.measured = status.measured or known
            idle_s = now_s - status.idle_since_s
            if status.measured is None and not status.asked_to_measure and idle_s >= CALIBRATE_AFTER_IDLE_S:
                status.asked_to_measure = True
                return device
        return None

    def seconds(self, work: Work) -> float | None:
        """Predict seconds on the slowest measured device; None while none is measured."""
        measured = [status.measured for status in self._statuses.values() if status.measured is not None]
        return max(
            (work.seconds(one.flops_per_s, one.memory_bytes_per_s, one.op_overhead_s) for one in measured),
            default=None,
        )

    def rates(self) -> DeviceMeasured | None:
        """Return the rates of the slowest measured device in each respect; None while none is measured."""
        measured = [status.measured for status in self._statuses.values() if status.measured is not None]
        if not measured:
            return None
        return DeviceMeasured(
            flops_per_s=min(one.flops_per_s for one in measured),
            memory_bytes_per_s=min(one.memory_bytes_per_s for one in measured),
            op_overhead_s=max(one.op_overhead_s for one in measured),
        )

    def alike(self, one: str, other: str) -> bool:
        """Return whether two devices compute the same bits: the same kind and model of device, as many
        threads, one torch."""
        known = [self._statuses[name].ready for name in (one, other)]
        facts = [(ready.kind, ready.name, ready.threads, ready.torch_version) for ready in known if ready]
        return len(facts) == 2 and facts[0] == facts[1]

    def infos(self) -> list[DeviceInfo]:
        """Describe the devices as the protocol does."""
        return [_info(status) for status in self._statuses.values()]


def _info(status: DeviceStatus) -> DeviceInfo:
    plan, seen = status.plan, status.seen
    measured = {} if status.measured is None else msgspec.structs.asdict(status.measured)
    return DeviceInfo(
        device=plan.device,
        kind=plan.kind,
        name=seen.name if seen else "",
        memory_bytes=seen.memory_bytes if seen else plan.memory_bytes,
        threads=seen.threads if seen else plan.threads,
        torch_version=seen.torch_version if seen else "",
        **measured,
    )

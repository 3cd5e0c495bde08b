"""What other scheduler settings would do to graphs that ran: one session, planned by the real scheduler."""

from __future__ import annotations

from collections.abc import Sequence

from djinn_lab.config.effects import PredictedEffect
from djinn_lab.config.profiles import SchedulerSettings
from djinn_lab.config.workload import Guess
from djinn_lab.errors import DeviceMemoryError
from djinn_lab.scheduler.costs import DeviceProfile
from djinn_lab.scheduler.features import workload_of
from djinn_lab.scheduler.profiles import profile_named
from djinn_lab.scheduler.schedule import ExecutionSchedule
from djinn_lab.scheduler.scheduler import SESSION_BOUND, Scheduler
from djinn_lab.srg.graph import SRG


class SettingsComparison:
    """Plans a session that runs ``graphs`` one after the other: the settings choose its device by the first
    graph, and all run there. ``graphs``: oldest first, at least one. ``devices``: the candidates, at least
    one, with what others hold there. How many sessions and jobs a device has is not known here. Raises
    ValueError without graphs or devices."""

    def __init__(self, graphs: Sequence[SRG], devices: Sequence[DeviceProfile]) -> None:
        if not graphs or not devices:
            raise ValueError("a session needs a graph and a device to be planned")
        self._graphs, self._devices = tuple(graphs), tuple(devices)
        self._planned: dict[tuple[str, int], ExecutionSchedule | str] = {}
        self._effects: dict[SchedulerSettings, PredictedEffect] = {}

    @property
    def graphs(self) -> int:
        return len(self._graphs)

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(device.device for device in self._devices)

    @property
    def unmeasured(self) -> tuple[str, ...]:
        return tuple(device.device for device in self._devices if not device.measured)

    @property
    def guess(self) -> Guess:
        """Return the workload of the newest graph that trains or decodes, else plain inference."""
        guesses = [workload_of(graph) for graph in reversed(self._graphs)]
        significant = [guess for guess in guesses if guess.workload != "basic_inference"]
        if not significant:
            return Guess("basic_inference", "Your last cells have no gradients and no decode phase")
        return Guess(significant[0].workload, f"A graph of your last cells has {significant[0].evidence}")

    def effect(self, settings: SchedulerSettings) -> PredictedEffect:
        """Return what the session comes to under these settings."""
        if settings not in self._effects:
            self._effects[settings] = self._session(settings)
        return self._effects[settings]

    def _session(self, settings: SchedulerSettings) -> PredictedEffect:
        profile = profile_named(
            "basic_inference",
            objective=settings.objective,
            reserve_fraction=settings.memory_reserve_fraction,
        )
        try:
            device = Scheduler(devices=self._devices, profile=profile).create_schedule(self._graphs[0]).device
        except DeviceMemoryError as error:
            roomiest = max(self._devices, key=lambda one: one.memory_bytes - one.used_bytes)
            return PredictedEffect(roomiest.device, memory_bytes=roomiest.memory_bytes, refused=error.message)
        return self._on(device)

    def _on(self, device: DeviceProfile) -> PredictedEffect:
        seconds, peak_bytes, moved_bytes = 0.0, 0, 0
        for number in range(len(self._graphs)):
            planned = self._plan(device, number)
            if isinstance(planned, str):
                return PredictedEffect(
                    device.device, seconds, peak_bytes, device.memory_bytes, moved_bytes, refused=planned
                )
            seconds += planned.predicted_s
            peak_bytes = max(peak_bytes, planned.memory.peak_bytes)
            moved_bytes += sum(transfer.nbytes for transfer in planned.transfers)
            moved_bytes += 0 if planned.offload is None else planned.offload.moved_bytes
        joules = None if device.watts is None else seconds * device.watts
        return PredictedEffect(
            device.device, seconds, peak_bytes, device.memory_bytes, moved_bytes, joules=joules
        )

    def _plan(self, device: DeviceProfile, number: int) -> ExecutionSchedule | str:
        """Return a graph's schedule on a device, or why it does not fit there."""
        key = (device.device, number)
        if key not in self._planned:
            bound = Scheduler(devices=[device], bound_by=SESSION_BOUND)
            try:
                self._planned[key] = bound.create_schedule(self._graphs[number])
            except DeviceMemoryError as error:
                self._planned[key] = error.message
        return self._planned[key]

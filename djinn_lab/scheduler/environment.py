"""What a scheduler can know of the place where its graphs run, and which mode suits it.

:func:`detect_environment` looks; :func:`suitable_mode` is a pure function of what was seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

from djinn_lab.config.detection import Facts, detect
from djinn_lab.scheduler.costs import DeviceProfile
from djinn_lab.scheduler.features import workload_of
from djinn_lab.scheduler.memory_plan import plan_memory
from djinn_lab.srg.graph import SRG
from djinn_lab.units import counted, format_bytes

FixedMode = Literal["basic", "semantic", "advanced"]
TIGHT_FRACTION = 0.5
"""From this share of the emptiest device's free memory on, the order of nodes is worth a look."""


class PoolSession(Protocol):
    """A session of a pool, as :func:`djinn_lab.connect` opens one."""

    def device_profiles(self, device: str | None) -> list[DeviceProfile]: ...


class Environment(msgspec.Struct, frozen=True):
    """``devices``: the candidates, at least one. ``source``: where they were found. ``connected``: they are a
    pool's, through a session."""

    devices: tuple[DeviceProfile, ...]
    source: Literal["given", "pool", "machine"]

    @property
    def connected(self) -> bool:
        return self.source == "pool"

    @property
    def free_bytes(self) -> int:
        """Return the free memory of the emptiest device."""
        return max(max(0, device.memory_bytes - device.used_bytes) for device in self.devices)

    def describe(self) -> tuple[str, ...]:
        """Return what was found, as sentences."""
        where = {
            "given": "The caller named",
            "pool": "A pool is connected and has",
            "machine": "No pool is connected; this machine has",
        }[self.source]
        shown = ", ".join(f"{one.device} with {format_bytes(one.memory_bytes)}" for one in self.devices)
        return f"{where} {counted(len(self.devices), 'device')}: {shown}.", self._rates()

    def _rates(self) -> str:
        unmeasured = [one.device for one in self.devices if not one.measured]
        rates = {one.device: one.transfer_bytes_per_s for one in self.devices}
        links = [f"{format_bytes(rate)}/s to {name}" for name, rate in rates.items() if rate is not None]
        link = (
            f"Link: {', '.join(links)}."
            if links
            else "Link: its rate is not known, half the memory rate counts."
        )
        return f"{link} Default speeds count for {', '.join(unmeasured)}." if unmeasured else link


def detect_environment(
    session: PoolSession | None = None,
    devices: Sequence[DeviceProfile] | None = None,
    facts: Facts | None = None,
) -> Environment:
    """Return the devices of the caller, else those of the session's pool, else those of this machine.
    ``facts``: what is known of the machine; None looks now, which may start ``nvidia-smi``. Raises PoolLost
    where the session's pool went away."""
    if devices:
        return Environment(tuple(devices), "given")
    if session is not None:
        return Environment(tuple(session.device_profiles(None)), "pool")
    return Environment(_of_machine(facts or detect()), "machine")


def _of_machine(facts: Facts) -> tuple[DeviceProfile, ...]:
    if facts.cuda.status == "found":
        return tuple(
            msgspec.structs.replace(
                DeviceProfile.default("cuda", f"cuda:{number}", device.memory_bytes),
                used_bytes=max(0, device.memory_bytes - device.free_bytes),
            )
            for number, device in enumerate(facts.cuda.devices)
        )
    return (DeviceProfile.default("cpu", memory_bytes=facts.memory_bytes),)


def suitable_mode(environment: Environment, srg: SRG) -> tuple[FixedMode, str]:
    """Return the mode that suits a graph in an environment, and the reason with its numbers."""
    peak_bytes, free_bytes = plan_memory(srg, range(len(srg.nodes))).peak_bytes, environment.free_bytes
    if peak_bytes >= TIGHT_FRACTION * free_bytes:
        peak, free = format_bytes(peak_bytes), format_bytes(free_bytes)
        return (
            "advanced",
            f"the peak of {peak} is at least half of the {free} that the emptiest device has free",
        )
    if len(environment.devices) > 1:
        return "semantic", f"there are {len(environment.devices)} devices to choose from"
    workload = workload_of(srg)
    if workload.workload != "basic_inference":
        return "semantic", f"the graph is {workload.workload}: {workload.evidence}"
    return "basic", "there is one device, its memory is ample, and the graph is plain inference"

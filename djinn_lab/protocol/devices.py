"""Translate a pool's description of a device into the scheduler's."""

from __future__ import annotations

from djinn_lab.protocol.messages import DeviceInfo
from djinn_lab.scheduler import DeviceProfile


def device_profile(info: DeviceInfo) -> DeviceProfile:
    """Return the profile with measured curves where there are any, else the defaults of its kind."""
    if info.curves is None:
        return DeviceProfile.default("cuda" if info.kind == "cuda" else "cpu", info.device, info.memory_bytes)
    return DeviceProfile(info.device, info.kind, info.memory_bytes, info.curves)

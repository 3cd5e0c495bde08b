"""Translate a pool's description of a device into the scheduler's."""

from __future__ import annotations

from msgspec.structs import replace

from djinn_lab.protocol.messages import DeviceInfo
from djinn_lab.scheduler import DeviceProfile


def device_profile(info: DeviceInfo) -> DeviceProfile:
    """Return the profile with measured curves where there are any, else the defaults of its kind."""
    if info.curves is None:
        kind = "cpu" if info.kind == "cpu" else "cuda"
        known = DeviceProfile.default(kind, info.device, info.memory_bytes)
    else:
        known = DeviceProfile(info.device, info.kind, info.memory_bytes, info.curves)
    return replace(
        known, below_bytes=info.below_bytes, link_bytes_per_s=info.link_bytes_per_s, watts=info.watts
    )

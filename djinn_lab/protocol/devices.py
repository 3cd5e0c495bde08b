"""Translate a pool's description of a device into the scheduler's."""

from __future__ import annotations

from djinn_lab.protocol.messages import DeviceInfo
from djinn_lab.scheduler import DeviceProfile


def device_profile(info: DeviceInfo) -> DeviceProfile:
    """Return the profile with measured rates where there are any, else the defaults of its kind."""
    if info.flops_per_s is None or info.memory_bytes_per_s is None or info.op_overhead_s is None:
        return DeviceProfile.default("cuda" if info.kind == "cuda" else "cpu", info.device, info.memory_bytes)
    return DeviceProfile(
        info.device,
        info.kind,
        info.memory_bytes,
        info.flops_per_s,
        info.memory_bytes_per_s,
        info.op_overhead_s,
    )

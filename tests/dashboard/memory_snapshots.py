"""Session memory made by hand, as the pool answers it."""

from __future__ import annotations

from typing import Any

import msgspec

from djinn_lab.events import MemoryRelease
from djinn_lab.memory.snapshot import (
    Counters,
    DeferredSegment,
    DeviceAccount,
    MemoryChange,
    MemorySnapshot,
    SessionAccount,
    WakeUps,
)
from djinn_lab.memory.states import Connection, Phase
from djinn_lab.pool.api.status import name_sessions
from djinn_lab.protocol.rest.sessions import MemoryView

MIB = 2**20
NOW_S = 1_000_000.0
ADA, BO, CY, DEE = "ada0" * 8, "b0b0" * 8, "c1c1" * 8, "dee0" * 8


def device(name: str = "cuda:0", **changes: Any) -> DeviceAccount:
    made = DeviceAccount(
        name,
        1000 * MIB,
        used_bytes=700 * MIB,
        peak_bytes=900 * MIB,
        busy_bytes=300 * MIB,
        idle_bytes=200 * MIB,
        loading_bytes=100 * MIB,
        shared_bytes=100 * MIB,
        reserved_bytes=50 * MIB,
        host_bytes=2000 * MIB,
        host_used_bytes=600 * MIB,
        disk_bytes=4000 * MIB,
        disk_used_bytes=400 * MIB,
        link_bytes_per_s=10e9,
        out_bytes_per_s=2.5e9,
        in_bytes_per_s=5e9,
    )
    return msgspec.structs.replace(made, **changes)


def account(session: str, **changes: Any) -> SessionAccount:
    made = SessionAccount(session, "ann", Connection.CONNECTED, Phase.IO_WAIT, "cuda:0")
    return msgspec.structs.replace(made, **changes)


def four_sessions() -> tuple[SessionAccount, ...]:
    """One computes, one idles on the device, one is on the host, one on its way back."""
    return (
        account(ADA, phase=Phase.COMPUTE, tier="device", total_bytes=300 * MIB, stored_bytes=150 * MIB),
        account(
            BO,
            tier="device",
            total_bytes=200 * MIB,
            kv_bytes=50 * MIB,
            wake_at_s=NOW_S + 20,
            wake_from_s=NOW_S + 10,
            wake_until_s=NOW_S + 90,
            leased_until_s=NOW_S + 3,
        ),
        account(CY, tier="host", total_bytes=500 * MIB, last_wake_s=0.3, last_floor_s=0.2, user="cyd"),
        account(DEE, tier="none", moving="restore", total_bytes=100 * MIB),
    )


HAPPENINGS = (
    MemoryChange(NOW_S - 100, "evict", CY, "cuda:0", 500 * MIB, 0.001, "ada is due sooner"),
    MemoryChange(NOW_S - 50, "restore", CY, "cuda:0", 500 * MIB, 2.0, "its owner is back"),
    MemoryChange(NOW_S - 50, "wake", CY, "cuda:0", 500 * MIB, 2.1, ""),
    MemoryChange(NOW_S - 10, "store", BO, "cuda:0", 20 * MIB, 0.01, "idle"),
)


def memory(now_s: float = NOW_S, **changes: Any) -> MemoryView:
    """What the dashboard reads from the pool's answer."""
    made = MemorySnapshot(
        (device(),),
        four_sessions(),
        "lazy",
        (DeferredSegment("job", DEE, "cuda:0", NOW_S - 12, "needs 100.0 MiB", 3.0, MemoryRelease.ADMISSION),),
        WakeUps(100, 90, 0.001, 0.4, 0.5, 1.2, 1.8, (0.0001, 0.3, 0.5), (0.0, 1.3, 2.5)),
        Counters(
            stores=7,
            evictions=10,
            restores=8,
            demotions=1,
            useful_swaps=9,
            prefetches=6,
            prefetches_on_time=3,
            prefetches_late=1,
            prefetches_wasted=1,
            bytes_out=3 * 2**30,
            bytes_in=2**31,
            hash_checks=1234,
            admission_waits=2,
        ),
        HAPPENINGS,
    )
    names = {ADA: ("ada’s", 3), BO: ("bo’s", 1), CY: ("<cy>", 2)}
    view = name_sessions(msgspec.structs.replace(made, **changes), names, now_s)
    return msgspec.json.decode(msgspec.json.encode(view), type=MemoryView)


def counters(**changes: Any) -> MemoryView:
    return memory(counters=msgspec.structs.replace(memory().counters, **changes))

"""What ``%djinn memory`` says, from answers made by hand."""

from __future__ import annotations

from typing import Any

import msgspec

from djinn_lab.events import MemoryRelease
from djinn_lab.magics.memory_command import OTHERS_SHOWN, describe_memory
from djinn_lab.memory.snapshot import DeferredSegment, DeviceAccount, WakeUps
from djinn_lab.memory.states import Connection, Phase
from djinn_lab.protocol.rest.sessions import MemorySession, MemoryView

MIB = 2**20
NOW_S = 1000.0
OWN = MemorySession(
    "a0b0" * 8,
    "ann",
    Connection.CONNECTED,
    Phase.IO_WAIT,
    "cpu:0",
    tier="host",
    name="ann",
    total_bytes=120 * MIB,
    kv_bytes=80 * MIB,
    stored_bytes=120 * MIB,
    wake_at_s=NOW_S + 30,
    wake_from_s=NOW_S + 10,
    wake_until_s=NOW_S + 120,
    last_wake_s=0.045,
    last_floor_s=0.03,
)


def said(own: MemorySession = OWN, **changes: Any) -> str:
    device = DeviceAccount(
        "cpu:0",
        512 * MIB,
        used_bytes=300 * MIB,
        busy_bytes=200 * MIB,
        idle_bytes=100 * MIB,
        reserved_bytes=50 * MIB,
        host_bytes=1024 * MIB,
        host_used_bytes=120 * MIB,
        link_bytes_per_s=2e9,
        in_bytes_per_s=120e6,
    )
    other = MemorySession(
        "b0b1" * 8,
        "bob",
        Connection.CONNECTED,
        Phase.COMPUTE,
        "cpu:0",
        tier="device",
        total_bytes=200 * MIB,
        name="agent",
    )
    made = MemoryView(NOW_S, "lazy", (device,), (own, other), (), WakeUps(12, 9, 0.001, 0.05, 0.06, 1.2, 1.6))
    return describe_memory(msgspec.structs.replace(made, **changes), OWN.session)


def test_memory_command_begins_with_the_state_of_this_notebook() -> None:
    first, second, third, *_ = said().splitlines()
    assert first == (
        "this notebook (ann · a0b0): parked on the host of cpu:0, 120.0 MiB, 80.0 MiB of it key-value caches"
    )
    assert second == "  expected to compute again in 30 s (10 s to 2 min)"
    assert third == "  last wake-up: 45.0 ms, 1.50 times what copying takes"
    late = msgspec.structs.replace(OWN, wake_at_s=NOW_S - 20, wake_from_s=NOW_S - 30, wake_until_s=NOW_S + 5)
    assert "  was expected to compute again 20 s ago (now: within 5 s)\n" in said(late)
    due = msgspec.structs.replace(late, wake_at_s=NOW_S - 0.2, wake_until_s=NOW_S + 0.1)
    assert "  expected to compute again at any moment\n" in said(due)
    on_device = msgspec.structs.replace(OWN, tier="device")
    assert "all of it has a copy outside the device, so it can leave at once" in said(on_device)
    assert "25% of it has a copy" in said(msgspec.structs.replace(on_device, stored_bytes=30 * MIB))
    assert said(on_device).startswith("this notebook (ann · a0b0): on cpu:0, idle, 120.0 MiB")
    quick = msgspec.structs.replace(OWN, last_wake_s=0.0001)
    assert "last wake-up: it was on the device" in said(quick)
    assert "holds nothing on the pool yet" in said(msgspec.structs.replace(OWN, tier="none"))
    assert "not known to the pool" in said(sessions=())


def test_memory_command_shows_devices_and_other_sessions() -> None:
    text = said()
    assert (
        "cpu:0: 300.0 MiB of 512.0 MiB used (busy 200.0 MiB, idle 100.0 MiB, reserved 50.0 MiB); "
        "host 120.0 MiB of 1.0 GiB"
    ) in text
    assert "disk" not in text
    assert "link 2.0 GB/s; over the last ten seconds 0 B/s out, 120.0 MB/s in" in text
    [row] = [line for line in text.splitlines() if line.startswith("agent · b0b1")]
    assert row.split("  ")[0] == "agent · b0b1"
    assert "on a device, computing" in row
    assert "200.0 MiB" in row
    assert (
        "wake-ups: 12, 75% without a wait for a copy, p50 1.0 ms, p99 50.0 ms; with a copy p99 1.60" in text
    )
    assert "no other session" in said(sessions=(OWN,), wake_ups=WakeUps())
    assert "wake-ups: none yet" in said(sessions=(OWN,), wake_ups=WakeUps())


def test_memory_command_with_many_sessions_is_bounded_and_counts_the_rest() -> None:
    crowd = tuple(
        MemorySession(
            f"{number:032x}",
            "bob",
            Connection.CONNECTED,
            Phase.IO_WAIT,
            tier="disk",
            total_bytes=MIB,
            name=f"agent {number}",
        )
        for number in range(100)
    )
    text = said(sessions=(OWN, *crowd))
    assert text.count("parked on disk") == OTHERS_SHOWN
    assert f"and {100 - OTHERS_SHOWN} more with 88.0 MiB" in text


def test_memory_command_shows_waiting_sessions_with_reason() -> None:
    held = DeferredSegment(
        "job", OWN.session, "cpu:0", NOW_S - 12, "needs 100.0 MiB", 3.0, MemoryRelease.ADMISSION
    )
    assert said(deferred=(held,)).endswith(
        "waits for memory: ann · a0b0 for 12.0 s, about 3.0 s to go: needs 100.0 MiB"
    )

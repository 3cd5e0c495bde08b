"""Session memory at one moment, for people: what the API, the pages and the reports show."""

from __future__ import annotations

from typing import Literal

import msgspec

from djinn_lab.events import MemoryRelease
from djinn_lab.memory.states import Connection, Phase

Tier = Literal["none", "device", "host", "disk"]
"""Where a session's state can be used from; ``none``: it holds nothing."""


class DeviceAccount(msgspec.Struct, frozen=True):
    """Memory of one device by what holds it. Bytes as the worker last reported them; ``memory_bytes`` is the
    enforced limit. ``busy_bytes`` + ``idle_bytes`` + ``loading_bytes`` + ``shared_bytes`` make up what is
    used: of sessions that compute or wait to, of idle sessions, under way to the device, and of weights in
    common. ``reserved_bytes``: granted to segments. ``out_bytes_per_s``, ``in_bytes_per_s``: of the last ten
    seconds."""

    device: str
    memory_bytes: int
    used_bytes: int = 0
    peak_bytes: int = 0
    session_bytes: dict[str, int] = {}
    busy_bytes: int = 0
    idle_bytes: int = 0
    loading_bytes: int = 0
    shared_bytes: int = 0
    reserved_bytes: int = 0
    host_bytes: int = 0
    host_used_bytes: int = 0
    disk_bytes: int = 0
    disk_used_bytes: int = 0
    link_bytes_per_s: float | None = None
    out_bytes_per_s: float = 0.0
    in_bytes_per_s: float = 0.0


class SessionAccount(msgspec.Struct, frozen=True):
    """One session's state. ``tier``: where its state is; ``moving``: the kind of the transfer under way, else
    None. ``total_bytes``: its own state, wherever it is; ``stored_bytes``: the part of it with a valid copy
    on the host or disk. ``wake_at_s``: when it is expected to compute again, from ``wake_from_s`` to
    ``wake_until_s`` two times in three; None when nothing is known or it computes. ``leased_until_s``: it is
    not evicted before. ``last_wake_s``: how long its last wake-up took, ``last_floor_s`` how long copying its
    bytes takes at least. ``target``: the device that it is bound for, while its state still lies on another.
    ``offloaded_bytes``: the part that gave way to other values of the session, and stays on the host until an
    op reads it."""

    session: str
    user: str
    connection: Connection
    phase: Phase
    device: str | None = None
    wake_at_s: float | None = None
    tier: Tier = "none"
    moving: str | None = None
    total_bytes: int = 0
    kv_bytes: int = 0
    stored_bytes: int = 0
    idle_since_s: float | None = None
    wake_from_s: float | None = None
    wake_until_s: float | None = None
    leased_until_s: float | None = None
    last_wake_s: float | None = None
    last_floor_s: float | None = None
    target: str | None = None
    offloaded_bytes: int = 0


class DeferredSegment(msgspec.Struct, frozen=True):
    """A cell that waits for memory. ``since_s``: on the pool's clock."""

    job: str
    session: str
    device: str
    since_s: float
    reason: str
    estimate_s: float | None = None
    release: MemoryRelease = MemoryRelease.COPIES


class WakeUps(msgspec.Struct, frozen=True):
    """How long wake-ups took. From the wish to compute to the grant, of sessions that hold state; waits for
    admission are not among them. ``hits``: without a copy to wait for. ``p50_s`` and the rest are None
    without samples; ``p99_ratio``: the 99th percentile of wake-up over its own floor (bytes over the link's
    rate), over those that were not on the device, and take a millisecond to copy. ``recent_s``: the last
    thousand, oldest first; ``recent_ratios`` run parallel (0 for the others)."""

    count: int = 0
    hits: int = 0
    p50_s: float | None = None
    p99_s: float | None = None
    max_s: float | None = None
    p50_ratio: float | None = None
    p99_ratio: float | None = None
    recent_s: tuple[float, ...] = ()
    recent_ratios: tuple[float, ...] = ()


class Counters(msgspec.Struct, frozen=True):
    """What session memory did. Since the pool started. A *swap* is an eviction; it is *useful* when the freed
    memory was used by another session's restore or grant, and its own session came back later (or is still
    expected). ``prefetches_on_time``: done when the session woke; ``_late``: under way then; ``_wasted``:
    evicted again, or closed, unused. ``hash_checks``: pieces compared in restores; ``mismatches``: those that
    differed."""

    stores: int = 0
    evictions: int = 0
    restores: int = 0
    demotions: int = 0
    useful_swaps: int = 0
    prefetches: int = 0
    prefetches_on_time: int = 0
    prefetches_late: int = 0
    prefetches_wasted: int = 0
    bytes_out: int = 0
    bytes_in: int = 0
    hash_checks: int = 0
    mismatches: int = 0
    failed_transfers: int = 0
    admission_waits: int = 0
    values_lost: int = 0


class MemoryChange(msgspec.Struct, frozen=True):
    """Something that session memory did. ``what``: a transfer kind, ``prefetch``, ``wake``, ``defer``,
    ``grant``, ``lost`` or ``failed``; ``reason``: why, in one sentence."""

    at_s: float
    what: str
    session: str
    device: str
    nbytes: int = 0
    seconds: float | None = None
    reason: str = ""


class MemorySnapshot(msgspec.Struct, frozen=True):
    """All of session memory at one moment. ``policy``: its name. ``happenings``: the last few hundred, oldest
    first."""

    devices: tuple[DeviceAccount, ...]
    sessions: tuple[SessionAccount, ...]
    policy: str = ""
    deferred: tuple[DeferredSegment, ...] = ()
    wake_ups: WakeUps = WakeUps()
    counters: Counters = Counters()
    happenings: tuple[MemoryChange, ...] = ()

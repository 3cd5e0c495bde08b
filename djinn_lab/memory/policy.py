"""A policy is a set of switches: which sessions move, in which order, when.
:mod:`djinn_lab.memory.machine.accounts` obeys them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec.structs import replace

Ranking = Literal["expected_wake", "recency"]
Prefetch = Literal["none", "into_free", "just_in_time"]
Recompute = Literal["never", "when_cheaper", "always"]


class MemoryPolicy(msgspec.Struct, frozen=True):
    """What session memory moves, and when. ``moves``: sessions leave the device at all; without, what does
    not fit is rejected. ``ranking``: the order of victims. ``prefetch``: when absent sessions are restored
    unasked. ``write_through``: idle state is copied to the host before its device memory is needed.
    ``recompute``: whether state that a client can rebuild is dropped instead of moved. ``admission_share``:
    of device, host and disk that sessions may fill before new ones are deferred; None: all.
    ``eager_after_s``: an idle session is evicted after this long, even if capacity is free.
    ``trust_estimates``: signalled estimates are exact (the oracle). ``lease_restores``: an idle session stays
    on the device for this many times its own restore, at least ``lease_s_min`` and at most ``lease_s_max``.
    ``residency_copies``: state that was restored for a waiting cell stays until that cell ran, at most for
    this many times its copy. ``displacement``: a prefetch may evict a session that is expected this many
    times later. ``settle_s``: an idle session is copied in advance after this long, at once where half of the
    device is in use. ``just_in_time_s``: how long before the predicted moment that kind of prefetch begins.
    ``wish_s``: how long a COMPUTE or SOON signal counts without a cell. ``headroom``: the part of a device
    that prefetches leave free for the cells of resident sessions. ``ready_ahead``: segments for which
    capacity is reserved besides those that run. The others wait in the device's queue, the next
    ``restore_ahead`` of them with their state on the device or under way. ``early_start_s``: a cell starts
    before the end of its session's restore where that takes longer and no other segment could use the device
    meanwhile; None: never."""

    name: str
    moves: bool = True
    ranking: Ranking = "expected_wake"
    prefetch: Prefetch = "into_free"
    write_through: bool = True
    recompute: Recompute = "never"
    admission_share: float | None = 0.9
    eager_after_s: float | None = None
    trust_estimates: bool = False
    lease_restores: float = 2.0
    lease_s_min: float = 0.02
    lease_s_max: float = 2.0
    residency_copies: float = 10.0
    settle_s: float = 0.25
    displacement: float = 2.0
    just_in_time_s: float = 0.25
    wish_s: float = 30.0
    headroom: float = 0.02
    ready_ahead: int = 1
    restore_ahead: int = 3
    early_start_s: float | None = 0.005


_DEFAULT = MemoryPolicy("default")
_REACTIVE = MemoryPolicy(
    "lru_write_back",
    ranking="recency",
    prefetch="none",
    write_through=False,
    admission_share=None,
    lease_restores=0.0,
    lease_s_min=0.0,
    residency_copies=0.0,
    early_start_s=None,
)

POLICIES: Mapping[str, MemoryPolicy] = {
    policy.name: policy
    for policy in (
        _DEFAULT,
        replace(_REACTIVE, name="keep_all", moves=False),
        replace(_REACTIVE, name="recompute", recompute="always"),
        _REACTIVE,
        replace(_REACTIVE, name="lru_write_through", write_through=True),
        replace(_REACTIVE, name="eager_jit", prefetch="just_in_time", eager_after_s=1.0),
        replace(_DEFAULT, name="oracle", trust_estimates=True, displacement=1.0),
        replace(_DEFAULT, name="default_no_prefetch", prefetch="none"),
        replace(_DEFAULT, name="default_no_ranking", ranking="recency"),
        replace(_DEFAULT, name="default_no_write_through", write_through=False),
        replace(_DEFAULT, name="default_no_admission", admission_share=None),
        replace(_DEFAULT, name="default_no_lease", lease_restores=0.0, lease_s_min=0.0),
        replace(_DEFAULT, name="default_no_early_start", early_start_s=None),
        replace(_DEFAULT, name="default_recompute", recompute="when_cheaper"),
    )
}
"""Ours, the baselines it is measured against (keep everything; drop and rebuild; what others ship: least
recently used, written back or through; park at once and restore just in time; an oracle that knows
when every session comes back), and ours with one part missing."""

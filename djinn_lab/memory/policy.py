"""A policy is a set of switches: which sessions move, in which order, when. The machine that obeys them is
:mod:`djinn_lab.memory.accounts`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec.structs import replace

Ranking = Literal["expected_wake", "recency"]
Prefetch = Literal["none", "into_room", "just_in_time"]
Recompute = Literal["never", "when_cheaper", "always"]


class MemoryPolicy(msgspec.Struct, frozen=True):
    """``moves``: sessions leave the device at all; without, what does not fit is refused. ``ranking``: who
    leaves first. ``prefetch``: when the absent come back unasked. ``write_through``: idle state is copied
    to the host before anybody needs its room. ``recompute``: whether what a session can rebuild is dropped
    instead of moved. ``admission_share``: of device, host and disk that sessions may fill before new ones
    wait; None: all. ``eager_after_s``: an idle session leaves after this long, room or not.
    ``trust_estimates``: what is signalled is exact (the oracle).

    ``lease_restores``: a session stays for this many times its own restore after it went idle, at least
    ``lease_s_min`` and at most ``lease_s_max``. ``residency_copies``: state that was restored for a waiting
    cell stays until that ran, at most for this many times its copy. ``displacement``: a prefetch may take the
    room of a session that is expected this many times later. ``settle_s``: an idle session is copied in
    advance after this long, at once where half of the device is in use. ``just_in_time_s``: how long before
    the expected moment that kind of prefetch begins. ``wish_s``: how long a COMPUTE or SOON signal counts
    without a cell. ``headroom``: the part of a device that prefetches leave free for the cells of those who
    are there. ``ready_ahead``: segments that room is kept for besides those that run; the others of a
    device's line wait, the next ``restore_ahead`` of them with their state on the device or on its way
    there. ``early_start_s``: a cell starts before the end of its session's restore where that takes longer
    and nothing else could use the device meanwhile; None: never."""

    name: str
    moves: bool = True
    ranking: Ranking = "expected_wake"
    prefetch: Prefetch = "into_room"
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
    displacement: float = 1.3
    just_in_time_s: float = 0.25
    wish_s: float = 30.0
    headroom: float = 0.02
    ready_ahead: int = 1
    restore_ahead: int = 3
    early_start_s: float | None = 0.005


_OURS = MemoryPolicy("ours")
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
        _OURS,
        replace(_REACTIVE, name="keep_all", moves=False),
        replace(_REACTIVE, name="recompute", recompute="always"),
        _REACTIVE,
        replace(_REACTIVE, name="lru_write_through", write_through=True),
        replace(_REACTIVE, name="eager_jit", prefetch="just_in_time", eager_after_s=1.0),
        replace(_OURS, name="oracle", trust_estimates=True, displacement=1.0),
        replace(_OURS, name="ours_no_prefetch", prefetch="none"),
        replace(_OURS, name="ours_no_ranking", ranking="recency"),
        replace(_OURS, name="ours_no_write_through", write_through=False),
        replace(_OURS, name="ours_no_admission", admission_share=None),
        replace(_OURS, name="ours_no_lease", lease_restores=0.0, lease_s_min=0.0),
        replace(_OURS, name="ours_no_early_start", early_start_s=None),
        replace(_OURS, name="ours_recompute", recompute="when_cheaper"),
    )
}
"""Ours, the baselines it is measured against (keep everything; drop and rebuild; what others ship: least
recently used, written back or through; move out at once and come back just in time; an oracle that knows
when everybody comes back), and ours with one part missing."""

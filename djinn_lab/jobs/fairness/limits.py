"""Limits of accounts of any level."""

from __future__ import annotations

import math
from typing import Literal

import msgspec

LimitKind = Literal["devices", "device_s", "queued", "rank"]
"""Devices at once; decayed device-seconds; waiting jobs; the best priority."""


class Limits(msgspec.Struct, frozen=True):
    """Limits and guarantee of one account. ``devices_max``: devices at once, never more. ``devices_soft``:
    more only where no account within its own soft limit wants them. ``device_s_max``: device-seconds in the
    window (decayed). ``queued_max``: waiting jobs. ``rank_min``: the best rank of priority that its jobs may
    have (0 is CRITICAL). ``devices_guaranteed``: up to so many devices, other accounts' jobs are preempted
    for its jobs, and its jobs are not preempted (:mod:`djinn_lab.jobs.decision.rules.guarantees`)."""

    devices_max: float | None = None
    devices_soft: float | None = None
    device_s_max: float | None = None
    queued_max: int | None = None
    rank_min: int = 0
    devices_guaranteed: float | None = None

    @property
    def limiting(self) -> bool:
        """Return whether there is more than a guarantee."""
        return self != NO_LIMITS and self != Limits(devices_guaranteed=self.devices_guaranteed)


NO_LIMITS = Limits()


def check_limits(account: str, limits: Limits) -> None:
    """Raise ValueError for what is no limit, and for a guarantee that could not be kept."""
    for name in ("devices_max", "devices_soft", "device_s_max", "queued_max"):
        most = getattr(limits, name)
        if most is not None and not 0 <= most < math.inf:
            raise ValueError(
                f"{name} {most:g} for {account or 'the whole pool'}; it must be a number from 0 on"
            )
    guaranteed = limits.devices_guaranteed
    if guaranteed is None:
        return
    if not account:
        raise ValueError(
            "the whole pool cannot be guaranteed devices, for it has no others beside it; name an account"
        )
    if not 0 <= guaranteed < math.inf:
        raise ValueError(f"a guarantee of {guaranteed:g} devices for {account}; it must be 0 or more")
    for most, kind in ((limits.devices_max, "limit"), (limits.devices_soft, "soft limit")):
        if most is not None and guaranteed > most:
            raise ValueError(
                f"a guarantee of {guaranteed:g} devices for {account}, whose {kind} is {most:g}; "
                "the guarantee must not be above it"
            )


class LimitHit(msgspec.Struct, frozen=True):
    """A limit that forbids a start. ``account``: the account with the limit, possibly an ancestor. ``used``
    and ``wanted`` are in the limit's unit. ``until_s``: when it ends without anything happening, None when
    something must end first."""

    account: str
    kind: LimitKind
    limit: float
    used: float
    wanted: float
    until_s: float | None = None

    @property
    def never(self) -> bool:
        """Return whether the request alone is above the limit."""
        return self.wanted > self.limit and self.kind != "device_s"

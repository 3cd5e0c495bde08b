"""The resources that are shared, and all of a share tree as one frozen value. Exact: floats are stored as
they are, totals are integers."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from djinn_lab.jobs.fairness.limits import NO_LIMITS, Limits

WEEK_S = 7 * 86_400.0


class Amounts(NamedTuple):
    """Usage of the three resources. ``device_s``: devices times seconds. ``memory_byte_s``: bytes times
    seconds."""

    device_s: float = 0.0
    memory_byte_s: float = 0.0
    transfer_bytes: float = 0.0


class Capacity(NamedTuple):
    """The resources that the whole pool offers in one second. A resource of capacity 0 is not compared."""

    devices: float = 0.0
    memory_bytes: float = 0.0
    transfer_bytes_per_s: float = 0.0


class ShareSettings(msgspec.Struct, frozen=True):
    """Settings of a share tree. ``half_life_s`` of usage. ``resource_weights``: by which each normalised
    resource counts before the dominant one is chosen. ``quantum_s``: at most so much run time is charged
    ahead of its use."""

    half_life_s: float = WEEK_S
    resource_weights: Amounts = Amounts(1.0, 1.0, 1.0)
    quantum_s: float = 60.0


class AccountState(msgspec.Struct, frozen=True):
    """``usage``: stored forward from the landmark (:mod:`djinn_lab.jobs.fairness.decay`). ``used``:
    undecayed totals of ended runs: device-microseconds, byte-milliseconds, bytes. ``leaf``: jobs were
    charged to it."""

    account: str
    weight: float = 1.0
    limits: Limits = NO_LIMITS
    min_runtime_s: float | None = None
    usage: Amounts = Amounts()
    used: tuple[int, int, int] = (0, 0, 0)
    leaf: bool = False


class Charge(msgspec.Struct, frozen=True):
    """The charge of a running job since it was admitted at ``at_s``; its real usage replaces it,
    at the same weight."""

    job: str
    account: str
    at_s: float
    amounts: Amounts


class ShareState(msgspec.Struct, frozen=True):
    settings: ShareSettings = ShareSettings()
    capacity: Capacity = Capacity()
    landmark_s: float = 0.0
    accounts: tuple[AccountState, ...] = ()
    charges: tuple[Charge, ...] = ()


class AccountView(msgspec.Struct, frozen=True):
    """An account for people. ``share``: its part of the pool by weights. ``usage``: fractions of the
    pool's window, by resource. ``dominant``: the largest. ``level``: dominant usage over weight, by which
    siblings are compared, the lowest first. ``rank``: among all leaves, 1 first, ties equal; None for
    inner ones. ``overcommitted``: a sentence where more devices are guaranteed beside or below it than
    there are, or than a limit above it allows."""

    account: str
    weight: float
    share: float
    usage: Amounts
    dominant: float
    level: float
    rank: int | None
    used: Amounts
    limits: Limits
    overcommitted: str = ""

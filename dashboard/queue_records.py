"""The pool's answer about its queue as frozen records. Unknown keys are ignored."""

from __future__ import annotations

from typing import Any

import msgspec


class WaitingCell(msgspec.Struct, frozen=True):
    """``quality``: its class, GUARANTEED or another, where an account is guaranteed devices."""

    job: str
    user: str = ""
    account: str = ""
    priority: str = ""
    state: str = ""
    device: str | None = None
    position: int | None = None
    reason: str = ""
    sentence: str = ""
    since: float = 0.0
    expected_at: float | None = None
    quality: str = ""


class RunningCell(msgspec.Struct, frozen=True):
    """``members``: of a gang, the other devices that it holds. ``quality``: as of waiting ones."""

    job: str
    user: str = ""
    account: str = ""
    priority: str = ""
    device: str | None = None
    since: float | None = None
    ends_at: float | None = None
    preempting: bool = False
    preemptions: int = 0
    members: tuple[str, ...] = ()
    unusual: str = ""
    quality: str = ""


class Limits(msgspec.Struct, frozen=True):
    devices_max: float | None = None
    devices_soft: float | None = None
    device_s_max: float | None = None
    queued_max: int | None = None
    rank_min: int = 0
    devices_guaranteed: float | None = None


class Account(msgspec.Struct, frozen=True):
    """``used``: device-seconds, memory byte-seconds, bytes moved; ``dominant``: part of the pool's window.
    ``overcommitted``: a sentence where more devices are guaranteed than there are."""

    account: str
    weight: float = 1.0
    share: float = 0.0
    dominant: float = 0.0
    level: float = 0.0
    rank: int | None = None
    used: tuple[float, float, float] = (0.0, 0.0, 0.0)
    limits: Limits = Limits()
    overcommitted: str = ""

    @property
    def pays(self) -> bool:
        """Is it a leaf, that cells are charged to?"""
        return self.rank is not None


class Reservation(msgspec.Struct, frozen=True):
    """From ``begins_s`` to ``ends_s`` these devices are for these accounts and all below them."""

    name: str
    nodes: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    begins_s: float = 0.0
    ends_s: float = 0.0


class Times(msgspec.Struct, frozen=True):
    count: int
    p50_s: float
    p99_s: float


class EstimateError(msgspec.Struct, frozen=True):
    count: int
    median_s: float
    p90_s: float


class Stall(msgspec.Struct, frozen=True):
    """``job`` could run on ``device``, and nothing is under way that lets it."""

    since_s: float
    job: str
    device: str
    reason: str


class Queue(msgspec.Struct, frozen=True):
    """``now`` is the pool's clock, in seconds since the epoch."""

    now: float
    policy: str = ""
    policy_version: int = 0
    decided_at: float | None = None
    decisions: Times | None = None
    event_loop_lag_s: float = 0.0
    waiting_count: int = 0
    waiting: tuple[WaitingCell, ...] = ()
    running: tuple[RunningCell, ...] = ()
    accounts: tuple[Account, ...] = ()
    reservations: tuple[Reservation, ...] = ()
    jain: float | None = None
    estimate_error: EstimateError | None = None
    stall: Stall | None = None

    def device_s(self) -> dict[str, float]:
        """Device-seconds that all accounts have had, with what runs now, on all devices of a gang. What
        a running cell had before it last started is its account's already."""
        had = {account.account: account.used[0] for account in self.accounts if account.pays}
        for cell in self.running:
            if cell.account in had and cell.since is not None:
                had[cell.account] += max(0.0, self.now - cell.since) * (1 + len(cell.members))
        return had

    def find(self, job: str) -> WaitingCell | None:
        return next((cell for cell in self.waiting if cell.job == job), None)


def read_queue(answer: object) -> Queue:
    """Raises ``msgspec.ValidationError`` when the answer is not a queue."""
    plain: Any = msgspec.to_builtins(answer)
    return msgspec.convert(plain, Queue, strict=False)

"""``/v1/history``: how much of the devices was used over time, by which accounts, and how long cells
waited."""

from __future__ import annotations

import math

import msgspec

BUCKETS_MAX = 1000


class HistorySpan(msgspec.Struct, frozen=True):
    """A time from ``since`` to ``until``, seconds since the epoch, in buckets of ``bucket_s`` seconds. The
    last bucket is shorter where they do not divide the time."""

    since: float
    until: float
    bucket_s: float

    @classmethod
    def of(cls, since: float, until: float, bucket_s: float) -> HistorySpan:
        """Make a span that was asked for. Raises ValueError that says what is wrong with it."""
        if not all(map(math.isfinite, (since, until, bucket_s))):
            raise ValueError("since, until and bucket_s must be finite numbers of seconds.")
        if since >= until:
            raise ValueError(f"since ({since:g}) must be before until ({until:g}), and before now.")
        if bucket_s <= 0 or (until - since) / bucket_s > BUCKETS_MAX:
            least_s = math.ceil((until - since) / BUCKETS_MAX)
            raise ValueError(
                f"bucket_s is {bucket_s:g}, and a history has at most {BUCKETS_MAX} buckets: "
                f"give at least {least_s} for this time."
            )
        return cls(float(since), float(until), float(bucket_s))

    @property
    def count(self) -> int:
        """Return the number of buckets."""
        return max(1, math.ceil((self.until - self.since) / self.bucket_s))

    def begins(self, bucket: int) -> float:
        """Return when a bucket begins, seconds since the epoch."""
        return self.since + bucket * self.bucket_s

    def ends(self, bucket: int) -> float:
        """Return when a bucket ends, seconds since the epoch."""
        return min(self.until, self.begins(bucket + 1))


class DeviceHistory(msgspec.Struct, frozen=True):
    """Show a device, bucket by bucket. ``up_s``: seconds for which a pool with this device is known to have
    served. ``busy_s``: seconds for which it ran cells."""

    device: str
    up_s: tuple[float, ...]
    busy_s: tuple[float, ...]


class AccountHistory(msgspec.Struct, frozen=True):
    """Show what a user used in an account, bucket by bucket. ``device_s``: devices times seconds."""

    account: str
    user: str
    device_s: tuple[float, ...]


class WaitHistory(msgspec.Struct, frozen=True):
    """Show the waits of cells by when they were submitted, bucket by bucket. ``cells``: how many have begun
    to run. ``median_s``, ``p90_s``: of their seconds in the queue, session memory included; None without
    cells."""

    cells: tuple[int, ...] = ()
    median_s: tuple[float | None, ...] = ()
    p90_s: tuple[float | None, ...] = ()


class PoolHistory(HistorySpan, frozen=True):
    """Show a time of the pool's database. What runs at ``until`` is counted up to then."""

    devices: tuple[DeviceHistory, ...] = ()
    accounts: tuple[AccountHistory, ...] = ()
    waits: WaitHistory = WaitHistory()

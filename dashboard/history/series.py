"""A time of the pool as lines, shares and sentences. None in a line is a gap: nothing is known, or nothing
ran whose wait could be known."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from djinn_lab.protocol.rest.history import AccountHistory, PoolHistory
from djinn_lab.units import counted, format_seconds

ALL_DEVICES = "All devices"
NO_PROJECT = "No project"
OTHERS = "All others"
USERS, PROJECTS = "user", "project"
DEVICES_DRAWN_MAX = 6
SHARES_DRAWN_MAX = 6


class Line(NamedTuple):
    """A value for each bucket."""

    name: str
    values: tuple[float | None, ...]


class Share(NamedTuple):
    """What a user or a project used: device-seconds by bucket. ``part``: of all that was used."""

    name: str
    device_s: tuple[float, ...]
    part: float

    @property
    def total_s(self) -> float:
        """Return the device-seconds of the whole time."""
        return sum(self.device_s)


def utilisation_lines(history: PoolHistory) -> list[Line]:
    """Return the part of its time for which each device ran cells, the busiest first. With several devices
    the first line is that of all of them together."""
    devices = sorted(history.devices, key=lambda one: -sum(one.busy_s))
    lines = [Line(one.device, _parts(one.busy_s, one.up_s)) for one in devices]
    if len(devices) > 1:
        busy = _summed([one.busy_s for one in devices])
        lines.insert(0, Line(ALL_DEVICES, _parts(busy, _summed([one.up_s for one in devices]))))
    return lines


def drawn_lines(lines: Sequence[Line]) -> list[Line]:
    """Return the line of all devices, and those of the busiest."""
    together = [line for line in lines if line.name == ALL_DEVICES]
    single = [line for line in lines if line.name != ALL_DEVICES]
    return together + single[:DEVICES_DRAWN_MAX]


def wait_lines(history: PoolHistory) -> list[Line]:
    """Return the median and the ninetieth percentile of waits, in seconds."""
    return [Line("Median", history.waits.median_s), Line("90 % below", history.waits.p90_s)]


def down_times(history: PoolHistory) -> list[tuple[float, float]]:
    """Return the times of which no pool is known to have served, seconds since the epoch."""
    up = _summed([one.up_s for one in history.devices]) or (0.0,) * history.count
    found: list[tuple[float, float]] = []
    for bucket, seconds in enumerate(up):
        if seconds > 0:
            continue
        begins, ends = history.begins(bucket), history.ends(bucket)
        if found and found[-1][1] == begins:
            begins = found.pop()[0]
        found.append((begins, ends))
    return found


def shares_by(history: PoolHistory, by: str) -> list[Share]:
    """Return what each user, or each project, used; most first."""
    used: defaultdict[str, list[tuple[float, ...]]] = defaultdict(list)
    for account in history.accounts:
        used[account.user if by == USERS else project_of(account)].append(account.device_s)
    sums = {name: _summed(of_accounts) for name, of_accounts in used.items()}
    total_s = sum(map(sum, sums.values()))
    shares = [Share(name, own, sum(own) / total_s if total_s else 0.0) for name, own in sums.items()]
    return sorted(shares, key=lambda share: (-share.total_s, share.name))


def drawn_shares(shares: Sequence[Share]) -> list[Share]:
    """Return the largest shares; all others as one."""
    if len(shares) <= SHARES_DRAWN_MAX:
        return list(shares)
    rest = shares[SHARES_DRAWN_MAX - 1 :]
    others = Share(OTHERS, _summed([one.device_s for one in rest]), sum(one.part for one in rest))
    return [*shares[: SHARES_DRAWN_MAX - 1], others]


def project_of(account: AccountHistory) -> str:
    """Return the account above a user's own, which is the project."""
    above, _, last = account.account.rpartition("/")
    return (above or NO_PROJECT) if last == account.user else account.account


def nothing_ran(history: PoolHistory) -> bool:
    """Return whether no cell used a device or began to run."""
    return not any(map(any, (one.device_s for one in history.accounts))) and not any(history.waits.cells)


def utilisation_sentence(history: PoolHistory, words: str) -> str:
    """Say how much of the devices was used. ``words``: the time, such as "the last day"."""
    up_s = sum(sum(one.up_s) for one in history.devices)
    busy_s = sum(min(busy, up) for one in history.devices for busy, up in _pairs(one.busy_s, one.up_s))
    if not up_s:
        return f"No pool is known to have served in {words}."
    devices = [one for one in history.devices if any(one.up_s)]
    time = "the time"
    if down_times(history):
        time = f"the {format_seconds(max(sum(one.up_s) for one in devices))} for which a pool served"
    said = f"In {words}, {counted(len(devices), 'device')} ran cells for {_percent(busy_s / up_s)} of {time}."
    left_out = len(history.devices) - DEVICES_DRAWN_MAX
    part = f" The {DEVICES_DRAWN_MAX} busiest are drawn; the CSV has all." if left_out > 0 else ""
    return f"{said}{part}"


def wait_sentence(history: PoolHistory, words: str) -> str:
    """Say how many cells ran, and when they waited longest."""
    waits = history.waits
    cells = sum(waits.cells)
    if not cells:
        return f"No cell that was submitted in {words} has begun to run."
    known = [(p90_s, bucket) for bucket, p90_s in enumerate(waits.p90_s) if p90_s is not None]
    longest_s, bucket = max(known, key=lambda one: (one[0], -one[1]))
    at = moment(history.begins(bucket), history.bucket_s)
    return (
        f"{cells:,} {'cell' if cells == 1 else 'cells'} of {words} began to run. Waits were longest for "
        f"those submitted from {at} on: nine of ten began within {format_seconds(longest_s)}."
    )


def share_sentence(shares: Sequence[Share], by: str) -> str:
    """Say who used most."""
    if not shares or not shares[0].total_s:
        return "Nothing was used."
    total_s = sum(share.total_s for share in shares)
    first = shares[0]
    return (
        f"{counted(len(shares), by)} used {format_seconds(total_s)} of device time; {first.name} used most, "
        f"{first.part:.0%}."
    )


def moment(at_s: float, bucket_s: float) -> str:
    """Return the time at which a bucket begins, by this machine's clock; with the day where buckets are
    long."""
    return time.strftime("%H:%M" if bucket_s < 600 else "%d %b %H:%M", time.localtime(at_s))


def _percent(part: float) -> str:
    """Show a part of one; a small one with a digit more."""
    return f"{part:.1%}" if 0 < part < 0.1 else f"{part:.0%}"


def _parts(busy_s: Sequence[float], up_s: Sequence[float]) -> tuple[float | None, ...]:
    """Divide, at most to one: the last seconds of a pool that was killed are not known to be served."""
    return tuple(min(1.0, busy / up) if up > 0 else None for busy, up in _pairs(busy_s, up_s))


def _pairs(busy_s: Sequence[float], up_s: Sequence[float]) -> list[tuple[float, float]]:
    return list(zip(busy_s, up_s, strict=True))


def _summed(rows: Sequence[Sequence[float]]) -> tuple[float, ...]:
    return tuple(map(sum, zip(*rows, strict=True)))

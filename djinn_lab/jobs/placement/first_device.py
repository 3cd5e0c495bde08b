"""Choose the device at which a session begins: by the objective and the reserve of its cell's profile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

Objective = Literal["latency", "memory"]

SAME_SPEED = 1.25
"""Devices whose predicted run times differ by less count as equally fast: predictions are off by as much."""
SAME_FILL = 0.05
"""Devices count as equally full within this share of their memory."""


class DeviceFit(msgspec.Struct, frozen=True):
    """How a session's first cell fits a device. ``filled``: the share of the device's memory that is used at
    the cell's peak, more than 1 where something has to go first. ``run_s``: its predicted run time there,
    None when unknown."""

    device: str
    filled: float
    run_s: float | None = None


class DeviceOption(msgspec.Struct, frozen=True):
    """A device that suits the cell. ``load``: its sessions and jobs. ``hour_price``: of a device-hour.
    ``near``: members of the cell's gang that could lie on its NUMA node. ``fit``: None where it is not known.
    """

    device: str
    load: int
    hour_price: float = 0.0
    near: int = 0
    fit: DeviceFit | None = None


class FirstDevice(msgspec.Struct, frozen=True):
    """``why``: how the profile changed the choice, empty where it did not."""

    device: str
    why: str = ""


def choose_first_device(
    options: Sequence[DeviceOption], objective: Objective, reserve_fraction: float
) -> FirstDevice | None:
    """Return the device with the least load, ties by price, by what is near and by name, with two changes.
    Devices that keep ``reserve_fraction`` of their memory free beside the cell go before all others. Among
    these, ``latency`` takes the one where the cell is predicted to be done first, if each load waits as long,
    and ``memory`` the one that is filled least. None: there is no option."""
    if not options:
        return None
    usual = min(options, key=_usual)
    roomy = [one for one in options if one.fit is None or one.fit.filled <= 1 - reserve_fraction]
    among = roomy or options
    chosen = min(among, key=_emptiest if objective == "memory" else _Soonest(among))
    if chosen is usual or chosen.fit is None or usual.fit is None:
        return FirstDevice(chosen.device)
    why = _why(chosen.fit, usual.fit, objective, None if usual in among else reserve_fraction)
    return FirstDevice(chosen.device, f"{chosen.device} instead of {usual.device}: {why}.")


def _why(here: DeviceFit, there: DeviceFit, objective: Objective, reserve_fraction: float | None) -> str:
    """Say why one device is better than the usual one. ``reserve_fraction``: that it does not keep."""
    if reserve_fraction is not None:
        return (
            f"there, less than {reserve_fraction:.0%} of the memory would stay free "
            f"({there.filled:.0%} would be used, {here.filled:.0%} here)"
        )
    if objective == "memory":
        return (
            f"less of its memory is used with this cell ({here.filled:.0%}, {there.filled:.0%} there), which "
            "the objective memory asks for"
        )
    assert here.run_s is not None
    assert there.run_s is not None
    faster = f"{there.run_s / here.run_s:.1f} times as fast"
    return f"the cell is predicted to run {faster}, which the objective latency asks for"


def _usual(option: DeviceOption) -> tuple[int, float, int, str]:
    return option.load, option.hour_price, -option.near, option.device


def _emptiest(option: DeviceOption) -> tuple[float, int, float, int, str]:
    steps = 0.0 if option.fit is None else option.fit.filled // SAME_FILL
    return steps, *_usual(option)


class _Soonest:
    """Rank options by their load and one more job, times how slow they are beside the fastest."""

    def __init__(self, options: Sequence[DeviceOption]) -> None:
        times_s = [one.fit.run_s for one in options if one.fit is not None and one.fit.run_s is not None]
        known = len(times_s) == len(options) and min(times_s, default=0.0) > 0
        self._fastest_s = min(times_s) if known else None

    def __call__(self, option: DeviceOption) -> tuple[float, int, float, int, str]:
        return (option.load + 1) * self._slowness(option), *_usual(option)

    def _slowness(self, option: DeviceOption) -> float:
        if self._fastest_s is None or option.fit is None or option.fit.run_s is None:
            return 1.0
        ratio = option.fit.run_s / self._fastest_s
        return ratio if ratio >= SAME_SPEED else 1.0

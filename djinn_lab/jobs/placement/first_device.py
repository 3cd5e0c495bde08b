"""Choose the device at which a session begins: by the objective and the reserve of its cell's profile."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import msgspec

from djinn_lab.units import format_joules, format_seconds

Objective = Literal["latency", "memory", "energy"]
Rank = tuple[float, int, float, int, str]

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
    ``watts``: that it draws when busy, None for unknown."""

    device: str
    load: int
    hour_price: float = 0.0
    near: int = 0
    fit: DeviceFit | None = None
    watts: float | None = None

    @property
    def run_s(self) -> float | None:
        """Return the predicted run time, None where it is unknown."""
        return None if self.fit is None else self.fit.run_s

    @property
    def joules(self) -> float | None:
        """Return the energy that the cell is predicted to use there, None where that is unknown."""
        return None if self.run_s is None or self.watts is None else self.run_s * self.watts


class FirstDevice(msgspec.Struct, frozen=True):
    """``why``: how the profile changed the choice, or why ``energy`` could not compare devices, or empty."""

    device: str
    why: str = ""


def choose_first_device(
    options: Sequence[DeviceOption], objective: Objective, reserve_fraction: float
) -> FirstDevice | None:
    """Return the device with the least load, ties by price, by what is near and by name, with two changes.
    Devices that keep ``reserve_fraction`` of their memory free beside the cell go before all others. Among
    these, ``latency`` takes the one where the cell is predicted to be done first, if each load waits as long,
    ``memory`` the one that is filled least, and ``energy`` the one where the cell is predicted to use the
    fewest joules. Devices whose energy is unknown are named and come last; where it is known of none,
    ``energy`` counts as ``latency``. None: there is no option."""
    if not options:
        return None
    usual = min(options, key=_usual)
    roomy = [one for one in options if one.fit is None or one.fit.filled <= 1 - reserve_fraction]
    among = roomy or options
    compared = [one for one in among if one.joules is not None] if objective == "energy" else among
    followed = objective if compared else "latency"
    chosen = min(compared or among, key=_rank(among, followed))
    sentences: list[str] = []
    if chosen is not usual:
        sentences += _why(chosen, usual, followed, None if usual in among else reserve_fraction)
    if objective == "energy" and len(among) > 1:
        sentences += _not_compared(among)
    return FirstDevice(chosen.device, " ".join(sentences))


def _why(
    here: DeviceOption, there: DeviceOption, objective: Objective, reserve_fraction: float | None
) -> Iterator[str]:
    """Say why one device is better than the usual one. ``reserve_fraction``: that it does not keep."""
    if here.fit is None or there.fit is None:
        return
    if reserve_fraction is not None:
        why = (
            f"there, less than {reserve_fraction:.0%} of the memory would stay free "
            f"({there.fit.filled:.0%} would be used, {here.fit.filled:.0%} here)"
        )
    elif objective == "memory":
        why = (
            f"less of its memory is used with this cell ({here.fit.filled:.0%}, {there.fit.filled:.0%} "
            "there), which the objective memory asks for"
        )
    elif objective == "energy":
        why = (
            f"the cell is predicted to use {_energy(here)}, {_energy(there)} there, which the objective "
            "energy asks for"
        )
    else:
        assert here.run_s is not None
        assert there.run_s is not None
        faster = f"{there.run_s / here.run_s:.1f} times as fast"
        why = f"the cell is predicted to run {faster}, which the objective latency asks for"
    yield f"{here.device} instead of {there.device}: {why}."


def _energy(option: DeviceOption) -> str:
    if option.joules is None or option.run_s is None:
        return "an unknown energy"
    return f"{format_joules(option.joules)} ({format_seconds(option.run_s)} at {option.watts:g} W)"


def _not_compared(options: Sequence[DeviceOption]) -> Iterator[str]:
    """Name the devices whose energy is unknown, and say what is missing."""
    powerless = sorted(one.device for one in options if one.watts is None)
    untimed = sorted(one.device for one in options if one.watts is not None and one.run_s is None)
    outcome = "" if len(powerless) + len(untimed) < len(options) else ", so the objective latency counted"
    if powerless:
        yield (
            f"Energy was not compared on {', '.join(powerless)}{outcome}: how much it draws is unknown "
            "until an operator says so with djinn-lab device NAME --watts W."
        )
    if untimed:
        yield f"Energy was not compared on {', '.join(untimed)}{outcome}: no run time is predicted there."


def _rank(options: Sequence[DeviceOption], objective: Objective) -> Callable[[DeviceOption], Rank]:
    if objective == "latency":
        return _Soonest(options)
    return _emptiest if objective == "memory" else _thriftiest


def _usual(option: DeviceOption) -> tuple[int, float, int, str]:
    return option.load, option.hour_price, -option.near, option.device


def _thriftiest(option: DeviceOption) -> Rank:
    return math.inf if option.joules is None else option.joules, *_usual(option)


def _emptiest(option: DeviceOption) -> Rank:
    steps = 0.0 if option.fit is None else option.fit.filled // SAME_FILL
    return steps, *_usual(option)


class _Soonest:
    """Rank options by their load and one more job, times how slow they are beside the fastest."""

    def __init__(self, options: Sequence[DeviceOption]) -> None:
        times_s = [one.fit.run_s for one in options if one.fit is not None and one.fit.run_s is not None]
        known = len(times_s) == len(options) and min(times_s, default=0.0) > 0
        self._fastest_s = min(times_s) if known else None

    def __call__(self, option: DeviceOption) -> Rank:
        return (option.load + 1) * self._slowness(option), *_usual(option)

    def _slowness(self, option: DeviceOption) -> float:
        if self._fastest_s is None or option.fit is None or option.fit.run_s is None:
            return 1.0
        ratio = option.fit.run_s / self._fastest_s
        return ratio if ratio >= SAME_SPEED else 1.0

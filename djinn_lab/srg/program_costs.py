"""What a cost estimator for programs is, and which of its answers count as seconds."""

from __future__ import annotations

from math import isfinite
from numbers import Real
from typing import Protocol

import msgspec

from djinn_lab.srg.costs import Work
from djinn_lab.srg.curves import DeviceCurves

SECONDS_MAX = 1e9
"""Thirty years: what is longer is a mistake in units."""


class NotSeconds(ValueError):
    """An answer is no time. Its text says what was found."""


class MeasuredDevice(msgspec.Struct, frozen=True):
    """A device as a cost estimator sees it.

    ``kind``: ``cpu`` or ``cuda``. ``model``: equal for devices on which a program takes as long, such as
    ``NVIDIA H100/16/2.9.0`` (its name, threads, torch version). ``curves``: as measured, corrected by what
    runs taught."""

    kind: str
    model: str
    curves: DeviceCurves


class ProgramCostEstimator(Protocol):
    """Predicts how long programs run."""

    def seconds(self, work: Work, device: MeasuredDevice) -> float | None:
        """Predict the run time of a program on a device, in seconds; None: not known here, so that the
        built-in cost model predicts it."""
        ...


def checked_seconds(answer: object) -> float:
    """Return a predicted time in seconds. Raises NotSeconds for what is no number from 0 to
    :data:`SECONDS_MAX`."""
    if isinstance(answer, bool) or not isinstance(answer, Real):
        raise NotSeconds(f"an object of type {type(answer).__name__} instead of seconds")
    try:
        seconds = float(answer)
    except OverflowError:
        raise NotSeconds(f"a number of seconds above {SECONDS_MAX:g}") from None
    if not isfinite(seconds) or seconds < 0:
        raise NotSeconds(f"{seconds:g} seconds")
    if seconds > SECONDS_MAX:
        raise NotSeconds(f"{seconds:g} seconds, above {SECONDS_MAX:g}")
    return seconds

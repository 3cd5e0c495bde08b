"""What a user asks of the queue for one cell, beside its priority."""

from __future__ import annotations

import math

import msgspec

from djinn_lab.jobs import conditions, targets
from djinn_lab.jobs.placement.first_device import Objective
from djinn_lab.units import format_seconds

GANG_MAX = 4096
AFTER_MAX = 64
SECONDS_MAX = 366 * 86400.0
RESERVE_FRACTION_MAX = 0.9


class Terms(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The terms of one cell's job. ``gang``: devices at once, ``gang_min``: the fewest to start with.
    ``after``: its dependencies, as :mod:`djinn_lab.jobs.conditions` has them; with ``after_any`` a job alone
    may have ended anyhow. ``after_count``: so many of them suffice, None: all; ``after_timeout_s``: it waits
    so long for them, and is cancelled then. ``deadline_s``: when the cell should be done, in seconds from its
    submission; it orders, and kills nothing. ``timeout_s``: of run time; past it the cell is stopped.
    ``target``: the devices that it may run on, as :mod:`djinn_lab.jobs.targets` has it; ``tolerates``: taints
    of devices that it may run on nevertheless. ``objective`` and ``reserve_fraction``: where a session begins
    (:mod:`djinn_lab.jobs.placement.first_device`). An unknown field is refused: no option may be ignored."""

    gang: int = 1
    gang_min: int = 1
    after: tuple[str, ...] = ()
    after_any: bool = False
    deadline_s: float | None = None
    timeout_s: float | None = None
    after_count: int | None = None
    after_timeout_s: float | None = None
    target: str | None = None
    tolerates: tuple[str, ...] = ()
    objective: Objective = "latency"
    reserve_fraction: float = 0.05

    def problem(self) -> str | None:
        """Return what is wrong with the terms, None when nothing is."""
        if self == NO_TERMS:
            return None
        if not isinstance(self.gang, int) or not isinstance(self.gang_min, int):
            return f"a gang of {self.gang!r} that starts with {self.gang_min!r}, which are no whole numbers"
        if not 1 <= self.gang_min <= self.gang <= GANG_MAX:
            return (
                f"a gang of {self.gang} that starts with {self.gang_min} (1 to {GANG_MAX}, the least first)"
            )
        if len(self.after) > AFTER_MAX:
            return f"it waits for {len(self.after)} jobs, at most {AFTER_MAX}"
        if not 0 <= self.reserve_fraction <= RESERVE_FRACTION_MAX:
            return f"a reserve of {self.reserve_fraction} (0 to {RESERVE_FRACTION_MAX})"
        try:
            awaited = len(conditions.parsed(self.after))
        except ValueError as error:
            return str(error)
        if self.after_count is not None and not 1 <= self.after_count <= awaited:
            return f"{self.after_count} of its {awaited} dependencies (1 to all of them)"
        if self.after_timeout_s is not None and not awaited:
            return "a limit of waiting without anything to wait for"
        if len(self.tolerates) > targets.MARKS_MAX:
            return f"it tolerates {len(self.tolerates)} taints, at most {targets.MARKS_MAX}"
        try:
            targets.parsed(self.target)
            for taint in self.tolerates:
                targets.check_taint(taint)
        except ValueError as error:
            return str(error)
        for name, seconds in (
            ("deadline", self.deadline_s),
            ("timeout", self.timeout_s),
            ("limit of waiting", self.after_timeout_s),
        ):
            if seconds is not None and not (math.isfinite(seconds) and 0 < seconds <= SECONDS_MAX):
                return f"a {name} of {seconds} s (more than 0, at most {format_seconds(SECONDS_MAX)})"
        return None


NO_TERMS = Terms()

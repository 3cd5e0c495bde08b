"""Whether a notebook that ended runs again, and how long it waits before.

The words and the doubling delay are those of Docker's restart policies and of Kubernetes' pods; the limit
on restarts is ``backoffLimit`` of Kubernetes' jobs."""

from __future__ import annotations

import math
from enum import StrEnum

import msgspec

from djinn_lab.units import format_seconds

BACKOFF_S = 10.0
BACKOFF_FACTOR = 2.0
BACKOFF_MAX_S = 300.0
BACKOFF_LIMIT_S = 86400.0
RESTARTS_MAX = 4
RESTARTS_LIMIT = 10_000


class Restart(StrEnum):
    NEVER = "never"
    """One attempt, however it ends."""
    ON_FAILURE = "on-failure"
    """Again after an attempt that failed, or that was lost."""
    ALWAYS = "always"
    """Again after an attempt that went well, too."""


class RestartRules(msgspec.Struct, frozen=True, omit_defaults=True):
    """When a notebook runs again. ``restarts_max``: attempts beside the first; None: RESTARTS_MAX after
    failures, without end under ``always``. ``backoff_s``: before the first restart; doubled with every
    failure in a row, up to BACKOFF_MAX_S (or to itself, when it is longer)."""

    policy: Restart = Restart.NEVER
    restarts_max: int | None = None
    backoff_s: float = BACKOFF_S

    @property
    def attempts_max(self) -> float:
        """Attempts in all, infinite for no limit."""
        if self.policy is Restart.NEVER:
            return 1
        if self.restarts_max is not None:
            return 1 + self.restarts_max
        return math.inf if self.policy is Restart.ALWAYS else 1 + RESTARTS_MAX

    def again(self, succeeded: bool, attempts: int) -> bool:
        """Return whether another attempt follows the one that ended, the last of so many."""
        if attempts >= self.attempts_max:
            return False
        return self.policy is Restart.ALWAYS or (self.policy is Restart.ON_FAILURE and not succeeded)

    def delay_s(self, failures: int) -> float:
        """Return the pause before the next attempt, after so many failures in a row (0: it went well)."""
        doublings = min(max(0, failures - 1), 64)
        longest_s = max(BACKOFF_MAX_S, self.backoff_s)
        return min(longest_s, self.backoff_s * BACKOFF_FACTOR**doublings)

    def problem(self) -> str | None:
        """Return what is wrong with the numbers, None when nothing is."""
        if self.restarts_max is not None:
            if not 0 <= self.restarts_max <= RESTARTS_LIMIT:
                return f"at most {self.restarts_max} restarts (0 to {RESTARTS_LIMIT})"
            if self.policy is Restart.NEVER and self.restarts_max > 0:
                return f"{self.restarts_max} restarts with the restart policy never"
        if not (math.isfinite(self.backoff_s) and 0 <= self.backoff_s <= BACKOFF_LIMIT_S):
            return f"a backoff of {self.backoff_s} s (0 to {format_seconds(BACKOFF_LIMIT_S)})"
        return None

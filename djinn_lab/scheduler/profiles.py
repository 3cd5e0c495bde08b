"""Named scheduler settings for common workloads."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any, Literal

import msgspec

from djinn_lab.config.fields import did_you_mean
from djinn_lab.errors import OptionError


class SchedulerProfile(msgspec.Struct, frozen=True):
    """Settings of the scheduler. ``objective``: among the devices that fit, take the fastest (``latency``),
    the one that finishes most such graphs one after the other (``throughput``), the one whose memory is
    filled least at the peak (``memory``), or the one that is predicted to use the fewest joules
    (``energy``). ``reserve_fraction``: share of a device's memory that a plan leaves free, for workspaces
    inside ops and for what comes next."""

    name: str
    description: str
    objective: Literal["latency", "throughput", "memory", "energy"]
    reserve_fraction: float

    def __post_init__(self) -> None:
        if not 0 <= self.reserve_fraction < 1:
            raise ValueError(
                f"reserve_fraction is {self.reserve_fraction}; it must be at least 0 and below 1"
            )


SCHEDULER_PROFILES = MappingProxyType(
    {
        profile.name: profile
        for profile in (
            SchedulerProfile(
                "basic_inference", "One-off forward passes: the fastest device.", "latency", 0.05
            ),
            SchedulerProfile(
                "llm_serving",
                "Token generation: the fastest device, with memory for the KV cache to grow.",
                "latency",
                0.2,
            ),
            SchedulerProfile(
                "research_training", "Training and experiments: the emptiest device first.", "memory", 0.1
            ),
        )
    }
)
"""By name. Read-only."""


def profile_named(name: str, **overrides: Any) -> SchedulerProfile:
    """Return a profile of :data:`SCHEDULER_PROFILES`, with other settings in place of its own. Raises
    OptionError for an unknown name or setting, or a value that a setting does not accept."""
    if name not in SCHEDULER_PROFILES:
        raise OptionError(
            f"{name!r} is no profile of the scheduler{did_you_mean(name, list(SCHEDULER_PROFILES))}.",
            f"Use one of {', '.join(SCHEDULER_PROFILES)}.",
        )
    settings = ("objective", "reserve_fraction")
    unknown = next((one for one in overrides if one not in settings), None)
    if unknown is not None:
        raise OptionError(
            f"{unknown!r} is no setting of a profile{did_you_mean(unknown, settings)}.",
            f"Use {' or '.join(settings)}.",
        )
    found = msgspec.to_builtins(SCHEDULER_PROFILES[name])
    try:
        return msgspec.convert(found | overrides, SchedulerProfile)
    except msgspec.ValidationError as error:
        raise OptionError(f"this profile cannot be used: {error}.", "Correct the setting.") from None

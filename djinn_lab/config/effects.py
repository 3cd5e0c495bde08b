"""What scheduler settings would have done to a user's own last cells, for the wizard's faces.

The plans come from the scheduler (:mod:`djinn_lab.scheduler.what_if`); here they are compared and put into
words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from djinn_lab.config.profiles import BUILT_IN, Profile, SchedulerSettings
from djinn_lab.config.workload import Guess
from djinn_lab.units import counted, format_bytes, format_joules, format_seconds, listed

SAME_TIME = 1.1
"""Settings whose predicted times differ by less count as equally fast: predictions are off by as much."""
EFFECT_HEADINGS = (
    *("profile", "objective", "kept free", "begins on"),
    *("predicted", "peak memory", "moved", "energy"),
)


class PredictedEffect(msgspec.Struct, frozen=True):
    """What a session with some graphs comes to. ``device``: where it begins, and stays. ``seconds``:
    predicted, with transfers. ``peak_bytes`` of ``memory_bytes`` are used at the peak. ``moved_bytes``:
    between client and device, and what the device offloads and takes back. ``refused``: why a graph cannot
    run there, else empty; the figures are then those of the graphs before it. ``joules``: None where
    operators have not said what the device draws."""

    device: str
    seconds: float = 0.0
    peak_bytes: int = 0
    memory_bytes: int = 0
    moved_bytes: int = 0
    refused: str = ""
    joules: float | None = None


class OwnWork(Protocol):
    """A user's last graphs, and the devices on which they may run."""

    @property
    def guess(self) -> Guess:
        """Return what kind of work the graphs are."""

    @property
    def graphs(self) -> int:
        """Return how many graphs there are, at least one."""

    @property
    def devices(self) -> Sequence[str]:
        """Return the devices' names."""

    @property
    def unmeasured(self) -> Sequence[str]:
        """Return the devices for which default speeds count."""

    def effect(self, settings: SchedulerSettings) -> PredictedEffect:
        """Return what the graphs come to in one session under these settings."""


def best_objective(work: OwnWork, usual: SchedulerSettings) -> tuple[str, str]:
    """Return the objective that is recommended for graphs, and why: the usual one, unless another one of the
    built-in profiles is predicted to be faster with as much memory kept free, or to run what does not fit."""
    objectives = dict.fromkeys((usual.objective, *(one.scheduler.objective for one in BUILT_IN.values())))
    settings = {one: msgspec.structs.replace(usual, objective=one) for one in objectives}
    effects = {one: work.effect(asked) for one, asked in settings.items()}
    own = effects[usual.objective]
    fitting = {objective: effect for objective, effect in effects.items() if not effect.refused}
    cells = f"Your last {counted(work.graphs, 'cell')}"
    if not fitting:
        return usual.objective, f"{cells} fit under no objective: {own.refused}"
    best = min(fitting, key=lambda objective: fitting[objective].seconds)
    found = effects[best]
    took = f"{cells} would take {format_seconds(found.seconds)} on {found.device}"
    if own.refused:
        return best, f"{took}; with the objective {usual.objective} they would not fit on {own.device}"
    if own.seconds > SAME_TIME * found.seconds:
        there = f"{format_seconds(own.seconds)} on {own.device} with the objective {usual.objective}"
        return best, f"{took}, against {there}"
    return usual.objective, (
        f"{cells} would take {format_seconds(own.seconds)} on {own.device}, and no other objective is "
        f"predicted to be over {SAME_TIME - 1:.0%} faster"
    )


def effect_rows(work: OwnWork, profile: Profile) -> list[tuple[str, ...]]:
    """Return what the profile's settings come to, and those of each built-in profile, under
    :data:`EFFECT_HEADINGS`."""
    shown = {"these settings": profile.scheduler} | {str(one): BUILT_IN[one].scheduler for one in BUILT_IN}
    return [_row(name, settings, work.effect(settings)) for name, settings in shown.items()]


def _row(name: str, settings: SchedulerSettings, effect: PredictedEffect) -> tuple[str, ...]:
    peak = f"{format_bytes(effect.peak_bytes)} of {format_bytes(effect.memory_bytes)}"
    return (
        name,
        settings.objective,
        f"{settings.memory_reserve_fraction:.0%}",
        effect.device,
        "does not fit" if effect.refused else format_seconds(effect.seconds),
        peak,
        format_bytes(effect.moved_bytes),
        "unknown" if effect.joules is None else format_joules(effect.joules),
    )


def effect_sentence(work: OwnWork | None) -> str:
    """Say what the table of effects is about, or why there is none."""
    if work is None:
        return (
            "None is predicted, as no running pool knows cells of yours, or none that is planned in a "
            "moment: run some there, then look again"
        )
    speeds = f", default speeds count for {listed(work.unmeasured)}" if work.unmeasured else ", as measured"
    return (
        f"What the scheduler predicts for your last {counted(work.graphs, 'cell')} in one session on "
        f"{listed(work.devices)} of the running pool{speeds}"
    )

"""Which features are on: they switch on as runs succeed or memory gets short, and off when runs get
worse.

:func:`progressed` is a pure state machine over :class:`RunOutcome` events; time is in the event.

==============  =====================================  ======================================================
event           when                                   what happens
==============  =====================================  ======================================================
succeeded       a feature is on trial                  it stays on after so many successes
succeeded       no feature is on trial                 the next is tried after so many successes
succeeded       memory was filled up to the limit      the next feature that saves memory is tried
succeeded       on trial, and far slower than before   the feature on trial is switched off for some time
out of memory   at any time                            the next feature that saves memory is tried
failed          a feature is on trial                  the feature on trial is switched off for some time
==============  =====================================  ======================================================

A feature that was switched off is paused: for an hour at first, for twice as long each further time.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from statistics import median
from typing import Literal, get_args

import msgspec

from djinn_lab.errors import UserError
from djinn_lab.scheduler.features import FEATURES
from djinn_lab.units import format_seconds

LADDER = tuple(FEATURES)
EPOCH_MIN_S, EPOCH_MAX_S = 1e9, 1e11
"""The order in which features are tried after successes."""
SAVES_MEMORY = ("order_for_memory", "reserve", "placement")
"""Those that are tried under pressure, in this order."""
REGRESSION = 1.5
"""Runs that take so many times longer than before, as compared with their predictions, are worse."""
RATIO_MAX = 1e6
RATIOS_KEPT = 5
TRIED_MIN = 2
"""Runs with a feature on trial before they are compared: one may be slow by chance."""
PAUSE_S, PAUSE_MAX_S = 3600.0, 30 * 86400.0
DECISIONS_KEPT = 100


Kind = Literal["succeeded", "failed", "out of memory"]


class RunOutcome(msgspec.Struct, frozen=True):
    """How one run of a graph ended, at ``at_s``: seconds on any clock that only goes forward.
    ``predicted_s`` and ``measured_s``: of its ops, None where they are not known. ``peak_fraction``: of the
    device's memory, in use at the peak. Raises ValueError for a kind or for numbers that cannot be."""

    kind: Kind
    at_s: float
    predicted_s: float | None = None
    measured_s: float | None = None
    peak_fraction: float = 0.0

    def __post_init__(self) -> None:
        kinds = get_args(Kind)
        if self.kind not in kinds:
            raise ValueError(f"{self.kind!r} is no way for a run to end; there are {', '.join(kinds)}")
        given = [self.at_s, self.peak_fraction, self.predicted_s or 0.0, self.measured_s or 0.0]
        numbers = all(isinstance(one, (int, float)) for one in given)
        if not numbers or not all(math.isfinite(number) and number >= 0 for number in given):
            raise ValueError(f"an outcome has finite numbers of at least 0, not {given}")

    @property
    def ratio(self) -> float | None:
        """Return how many times longer the run took than predicted; None where that is not known, or beyond
        :data:`RATIO_MAX` either way, which compares nothing."""
        if not self.measured_s or not self.predicted_s:
            return None
        ratio = self.measured_s / self.predicted_s
        return ratio if 1 / RATIO_MAX <= ratio <= RATIO_MAX else None


class Thresholds(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``enable_after_success``: successes after which the next feature is tried, and after which one on trial
    stays. ``enable_on_pressure``: share of a device's memory from which on it is short. Raises ValueError."""

    enable_after_success: int = 3
    enable_on_pressure: float = 0.85

    def __post_init__(self) -> None:
        if not isinstance(self.enable_after_success, int) or self.enable_after_success < 1:
            raise ValueError(f"enable_after_success is {self.enable_after_success}; it must be at least 1")
        if not isinstance(self.enable_on_pressure, (int, float)) or not 0 < self.enable_on_pressure <= 1:
            raise ValueError(
                f"enable_on_pressure is {self.enable_on_pressure}; it must be above 0, at most 1"
            )


class Decision(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A feature that was switched on or off, or that stays (``on`` is True then), and why."""

    at_s: float
    feature: str
    on: bool
    reason: str

    def sentence(self) -> str:
        switched = "on" if self.on else "off"
        return f"At {_shown_time(self.at_s)}: feature {self.feature} {switched}, {self.reason}."


def _shown_time(at_s: float) -> str:
    """Return a time on a clock of the caller's, or of the epoch's in UTC."""
    if not EPOCH_MIN_S <= at_s <= EPOCH_MAX_S:
        return f"{at_s:.0f} s"
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


class Pause(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A feature that is not tried before ``until_s``, since it was switched off; ``seconds``: how long."""

    until_s: float
    seconds: float

    def __post_init__(self) -> None:
        if not (self.until_s >= 0 and self.seconds > 0):
            raise ValueError("a pause is out of range")


class Progress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The state. ``on``: features that are on. ``trial``: the one of them that is on trial. ``pinned``:
    switched by the user, so that no event changes them. ``successes``: in a row, since the last change.
    ``ratios``: measured over predicted seconds of the last runs without a feature on trial; ``tried``: of
    those with it. Raises ValueError for a state that no events lead to."""

    on: tuple[str, ...] = ()
    trial: str | None = None
    pinned: tuple[str, ...] = ()
    successes: int = 0
    now_s: float = 0.0
    ratios: tuple[float, ...] = ()
    tried: tuple[float, ...] = ()
    pauses: dict[str, Pause] = {}
    decisions: tuple[Decision, ...] = ()

    def __post_init__(self) -> None:
        named = (*self.on, *self.pinned, *self.pauses, *(one.feature for one in self.decisions))
        unknown = next((name for name in named if name not in FEATURES), None)
        if unknown is not None:
            raise ValueError(f"{unknown!r} is no feature")
        if len(set(self.on)) != len(self.on) or len(set(self.pinned)) != len(self.pinned):
            raise ValueError("a feature is named twice")
        if self.trial is not None and (self.trial not in self.on or self.trial in self.pinned):
            raise ValueError(f"{self.trial!r} is on trial and not on, or pinned")
        ratios = (*self.ratios, *self.tried)
        if self.successes < 0 or self.now_s < 0 or not all(0 < ratio <= RATIO_MAX for ratio in ratios):
            raise ValueError("a count, a time or a ratio is out of range")


def progressed(state: Progress, thresholds: Thresholds, outcome: RunOutcome) -> Progress:
    """Return the state after a run. A time before the last event's counts as that of the last event."""
    now_s = max(state.now_s, outcome.at_s)
    state = msgspec.structs.replace(state, now_s=now_s)
    if outcome.kind == "failed":
        failed = msgspec.structs.replace(state, successes=0)
        return failed if state.trial is None else _switched_off(failed, "a run with it failed")
    if outcome.kind == "out of memory":
        return _under_pressure(msgspec.structs.replace(state, successes=0), "a run was out of memory")
    return _after_success(state, thresholds, outcome)


def _after_success(state: Progress, thresholds: Thresholds, outcome: RunOutcome) -> Progress:
    state = _with_ratio(state, outcome.ratio)
    slower = _regression(state, min(TRIED_MIN, thresholds.enable_after_success))
    if slower is not None:
        return _switched_off(state, f"runs with it took {slower:.1f} times as long as before")
    state = msgspec.structs.replace(state, successes=state.successes + 1)
    enough = state.successes >= thresholds.enable_after_success
    if state.trial is not None and enough:
        kept = _noted(state, state.trial, True, f"it stays after {state.successes} successes")
        ratios = (*state.ratios, *state.tried)[-RATIOS_KEPT:]
        state = msgspec.structs.replace(kept, trial=None, successes=0, ratios=ratios, tried=())
        enough = False
    pressing = outcome.peak_fraction >= thresholds.enable_on_pressure
    if pressing and _next(state, SAVES_MEMORY) is not None:
        return _under_pressure(state, f"{outcome.peak_fraction:.0%} of the memory were in use")
    found = next_feature(state)
    if state.trial is None and enough and found is not None:
        return _tried(state, found, f"{state.successes} runs succeeded")
    return state


def next_feature(state: Progress) -> str | None:
    """Return the feature that is to be tried next after successes; None where none is left now."""
    return _next(state, LADDER)


def _with_ratio(state: Progress, ratio: float | None) -> Progress:
    if ratio is None:
        return state
    if state.trial is None:
        return msgspec.structs.replace(state, ratios=(*state.ratios, ratio)[-RATIOS_KEPT:])
    return msgspec.structs.replace(state, tried=(*state.tried, ratio)[-RATIOS_KEPT:])


def _regression(state: Progress, runs_min: int) -> float | None:
    """Return how many times longer runs with the feature on trial take; None where that is not worse, or not
    known before so many runs."""
    if state.trial is None or not state.ratios or len(state.tried) < runs_min:
        return None
    slower = median(state.tried) / median(state.ratios)
    return slower if slower > REGRESSION else None


def _under_pressure(state: Progress, why: str) -> Progress:
    """Try the next feature that saves memory. One that is on trial stays on, and its trial ends."""
    found = _next(state, SAVES_MEMORY)
    return state if found is None else _tried(state, found, why)


def _next(state: Progress, names: tuple[str, ...]) -> str | None:
    for name in names:
        pause = state.pauses.get(name)
        waits = pause is not None and state.now_s < pause.until_s
        if name not in state.on and name not in state.pinned and not waits:
            return name
    return None


def _tried(state: Progress, name: str, why: str) -> Progress:
    if state.trial is not None:
        state = _noted(state, state.trial, True, "it stays, as another feature is tried")
    noted = _noted(state, name, True, f"on trial: {why}")
    return msgspec.structs.replace(noted, on=(*state.on, name), trial=name, successes=0, tried=())


def _switched_off(state: Progress, why: str) -> Progress:
    name = state.trial
    assert name is not None
    before = state.pauses.get(name)
    seconds = PAUSE_S if before is None else min(PAUSE_MAX_S, 2 * before.seconds)
    noted = _noted(state, name, False, f"{why}; not tried again for {format_seconds(seconds)}")
    return msgspec.structs.replace(
        noted,
        on=tuple(one for one in state.on if one != name),
        trial=None,
        successes=0,
        tried=(),
        pauses=state.pauses | {name: Pause(state.now_s + seconds, seconds)},
    )


def pinned(state: Progress, name: str, on: bool) -> Progress:
    """Return the state after the user switched a feature: no event changes it from now on."""
    noted = _noted(state, name, on, "you switched it")
    others = tuple(one for one in state.on if one != name)
    return msgspec.structs.replace(
        noted,
        on=(*others, name) if on else others,
        trial=None if state.trial == name else state.trial,
        tried=() if state.trial == name else state.tried,
        pinned=(*(one for one in state.pinned if one != name), name),
    )


def _noted(state: Progress, name: str, on: bool, reason: str) -> Progress:
    decisions = (*state.decisions, Decision(state.now_s, name, on, reason))[-DECISIONS_KEPT:]
    return msgspec.structs.replace(state, decisions=decisions)


class SavedProgress(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a file holds. ``version``: of the format."""

    version: Literal[1]
    thresholds: Thresholds
    progress: Progress


def read_progress(text: bytes, place: str) -> SavedProgress:
    """Return what was saved. Raises UserError that names ``place`` and says what to do."""
    try:
        return msgspec.json.decode(text, type=SavedProgress)
    except msgspec.DecodeError as error:
        raise UserError(
            f"{place} holds no progress of a scheduler: {error}.",
            "Remove the file to begin anew, or take a copy of it from before.",
        ) from None

"""What a cell or a notebook is likely to take: seconds on devices, and bytes at its fullest.

Foretold from what the same took before, where it ran before: the median of its seconds, and the most of its
bytes, since memory that is short once is short. Else from its graph. Every forecast is compared with what
came, and is told with how far such forecasts were off so far.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Sequence
from statistics import median

import msgspec

from djinn_lab.units import format_bytes, format_joules, format_seconds

RUNS_MAX = 5
"""Of one program; older ones say less."""
PROGRAMS_MAX = 10_000
COMPARED_MAX = 500
COMPARED_MIN = 5
"""With fewer, nothing is said about how far forecasts are off."""


class Use(msgspec.Struct, frozen=True):
    """``device_s``: on devices, in all; ``peak_bytes``: on one device, at its fullest, by itself; ``where``:
    in which cell that was."""

    device_s: float = 0.0
    peak_bytes: int = 0
    where: str = ""

    def and_then(self, other: Use) -> Use:
        """One after the other."""
        fuller = max(self, other, key=lambda use: use.peak_bytes)
        return Use(self.device_s + other.device_s, fuller.peak_bytes, fuller.where)


class ForecastError(msgspec.Struct, frozen=True):
    """Of the latest ``count`` forecasts that were compared: half were off by less than this part of what
    came."""

    count: int
    device_part: float
    peak_part: float


class Foretold(msgspec.Struct, frozen=True):
    """``runs``: that it is foretold from, 0: its graph. ``device_s`` None: unknown. ``error``: of such
    forecasts when it was made, None while too few were compared."""

    device_s: float | None
    peak_bytes: int
    runs: int = 0
    where: str = ""
    error: ForecastError | None = None


Off = tuple[tuple[float, float], ...]
"""By which part of what came forecasts were off, in seconds and in bytes, oldest first."""


class Comparisons:
    """Forecasts of one kind beside what came."""

    def __init__(self, off: Off = ()) -> None:
        self._parts = deque(off, maxlen=COMPARED_MAX)
        self._device_parts = sorted(device for device, _ in self._parts)
        self._peak_parts = sorted(peak for _, peak in self._parts)
        self._error: ForecastError | None = None
        self._added = True

    def add(self, foretold: Foretold, use: Use) -> bool:
        """Whether they could be compared."""
        comparable = foretold.device_s is not None and use.device_s > 0 and use.peak_bytes > 0
        if foretold.device_s is not None and comparable:
            device = abs(foretold.device_s - use.device_s) / use.device_s
            self._add(device, abs(foretold.peak_bytes - use.peak_bytes) / use.peak_bytes)
        return comparable

    def _add(self, device: float, peak: float) -> None:
        """Both stay sorted, for a median is asked for with every cell."""
        if len(self._parts) == COMPARED_MAX:
            oldest_device, oldest_peak = self._parts[0]
            del self._device_parts[bisect_left(self._device_parts, oldest_device)]
            del self._peak_parts[bisect_left(self._peak_parts, oldest_peak)]
        self._added = True
        self._parts.append((device, peak))
        insort(self._device_parts, device)
        insort(self._peak_parts, peak)

    @property
    def off(self) -> Off:
        return tuple(self._parts)

    @property
    def error(self) -> ForecastError | None:
        if self._added and len(self._parts) >= COMPARED_MIN:
            self._error = ForecastError(
                len(self._parts), _middle(self._device_parts), _middle(self._peak_parts)
            )
        self._added = False
        return self._error


def _middle(ordered: Sequence[float]) -> float:
    """The median of what is in order already."""
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def from_runs(uses: Sequence[Use], error: ForecastError | None) -> Foretold:
    """``uses``: of the same before, at least one."""
    fullest = max(uses, key=lambda use: use.peak_bytes)
    seconds = median(use.device_s for use in uses)
    return Foretold(seconds, fullest.peak_bytes, len(uses), fullest.where, error)


class Learnt(msgspec.Struct, frozen=True):
    """What forecasts are made from. ``uses``: by program, which ran last comes last. ``off``: by kind of
    forecast, from ``runs`` or from ``graphs``."""

    uses: dict[str, tuple[Use, ...]] = msgspec.field(default_factory=dict)
    off: dict[str, Off] = msgspec.field(default_factory=dict)


class ResourceHistory:
    """What programs took; ``program``: what equal ones have in common. ``learnt``: before."""

    def __init__(self, learnt: Learnt | None = None) -> None:
        before = learnt or Learnt()
        self._uses = OrderedDict((name, deque(uses, RUNS_MAX)) for name, uses in before.uses.items())
        self._compared = {kind: Comparisons(before.off.get(kind, ())) for kind in ("runs", "graphs")}
        self._new_uses: dict[str, None] = {}
        self._newly_compared: set[str] = set()

    def foretell(self, program: str | None, device_s: float | None, peak_bytes: int) -> Foretold:
        """``program``: None for one that cannot be told from others. ``device_s`` and ``peak_bytes``: as its
        graph says."""
        known = None if program is None else self._uses.get(program)
        if known:
            return from_runs(known, self._compared["runs"].error)
        return Foretold(device_s, peak_bytes, error=self.graph_error)

    def ended(self, program: str, foretold: Foretold, use: Use) -> None:
        """Well, so that it took what it takes."""
        kind = "runs" if foretold.runs else "graphs"
        if self._compared[kind].add(foretold, use):
            self._newly_compared.add(kind)
        self._uses.setdefault(program, deque(maxlen=RUNS_MAX)).append(use)
        self._uses.move_to_end(program)
        self._new_uses[program] = None
        while len(self._uses) > PROGRAMS_MAX:
            forgotten, _ = self._uses.popitem(last=False)
            self._new_uses.pop(forgotten, None)

    def news(self) -> Learnt:
        """What is known of all of which something was learnt since the last call."""
        uses = {program: tuple(self._uses[program]) for program in self._new_uses}
        off = {kind: self._compared[kind].off for kind in self._newly_compared}
        self._new_uses.clear()
        self._newly_compared.clear()
        return Learnt(uses, off)

    @property
    def graph_error(self) -> ForecastError | None:
        """Of forecasts from graphs alone."""
        return self._compared["graphs"].error


def told(foretold: Foretold, watts: float | None = None) -> str:
    """A sentence. ``watts``: of its device, as operators say; None: then it says nothing of energy."""
    runs = f"{foretold.runs} earlier run{'s' if foretold.runs > 1 else ''}"
    source = runs if foretold.runs else "its graph so far"
    seconds = "" if foretold.device_s is None else f"{format_seconds(foretold.device_s)} on devices"
    if energy := foretold_energy(foretold.device_s, watts):
        seconds += f" (about {energy}, at the {watts:g} W that operators say its device draws)"
    seconds += " and " if seconds else ""
    where = f" (in {foretold.where})" if foretold.where else ""
    takes = f"{seconds}at most {format_bytes(foretold.peak_bytes)} at once{where}"
    return f"Foretold from {source}: {takes}. {how_far_off(foretold.error)}"


def foretold_energy(device_s: float | None, watts: float | None) -> str | None:
    """None where either is unknown."""
    return None if device_s is None or watts is None else format_joules(device_s * watts)


def used_energy(joules: float) -> str:
    """A sentence."""
    return (
        f"It used about {format_joules(joules)} (not measured: the seconds that it held devices, times what "
        "operators say that these draw)."
    )


def how_far_off(error: ForecastError | None) -> str:
    """In parentheses."""
    if error is None:
        return "(Too few such forecasts could be compared with what came to say how far they are off.)"
    return (
        f"(Such forecasts were off by {error.device_part:.0%} in seconds and {error.peak_part:.0%} in bytes, "
        f"in the median of the last {error.count}.)"
    )


def too_large(foretold: Foretold, earlier: str, memory_bytes: int) -> str | None:
    """Why what ran before, as ``earlier``, will fail where no device has more than ``memory_bytes``."""
    if not foretold.runs or foretold.peak_bytes <= memory_bytes:
        return None
    where = foretold.where or "a cell of it"
    return (
        f"when it ran before ({earlier}) {where} needed {format_bytes(foretold.peak_bytes)}, and no device "
        f"of this pool has more than {format_bytes(memory_bytes)}"
    )

"""Predict what a cell or a notebook is likely to use: seconds on devices, and peak bytes.

Where the same ran before, the prediction is the median of its seconds, and the most of its bytes, since
memory that is short once is short. Else it comes from the graph. Every forecast is compared with what
came, and is given with the error of such forecasts so far."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Sequence
from statistics import median

import msgspec

from djinn_lab.units import format_bytes, format_error, format_joules, format_seconds

RUNS_MAX = 5
"""Runs of one program that are remembered; older ones say less."""
PROGRAMS_MAX = 10_000
COMPARED_MAX = 500
COMPARED_MIN = 5
"""With fewer comparisons, no error is given."""


class ResourceUse(msgspec.Struct, frozen=True):
    """What a program used. ``device_s``: on devices, in all; ``peak_bytes``: on one device, the session by
    itself; ``where``: in which cell that was."""

    device_s: float = 0.0
    peak_bytes: int = 0
    where: str = ""

    def and_then(self, other: ResourceUse) -> ResourceUse:
        """Return the use of one after the other."""
        fuller = max(self, other, key=lambda use: use.peak_bytes)
        return ResourceUse(self.device_s + other.device_s, fuller.peak_bytes, fuller.where)


class ForecastError(msgspec.Struct, frozen=True):
    """Median error of the latest ``count`` forecasts that were compared, as a part of what came."""

    count: int
    device_part: float
    peak_part: float


class ResourceForecast(msgspec.Struct, frozen=True):
    """What a program is predicted to use. ``runs``: how many runs it is predicted from, 0: from the graph.
    ``device_s`` None: unknown. ``error``: of such forecasts when it was made, None while too few were
    compared."""

    device_s: float | None
    peak_bytes: int
    runs: int = 0
    where: str = ""
    error: ForecastError | None = None


Errors = tuple[tuple[float, float], ...]
"""Errors of forecasts as parts of what came, in seconds and in bytes, oldest first."""


class Comparisons:
    """Forecasts of one kind beside what came."""

    def __init__(self, errors: Errors = ()) -> None:
        self._parts = deque(errors, maxlen=COMPARED_MAX)
        self._device_parts = sorted(device for device, _ in self._parts)
        self._peak_parts = sorted(peak for _, peak in self._parts)
        self._error: ForecastError | None = None
        self._added = True

    def add(self, predicted: ResourceForecast, use: ResourceUse) -> bool:
        """Add a comparison; return whether the two could be compared."""
        comparable = predicted.device_s is not None and use.device_s > 0 and use.peak_bytes > 0
        if predicted.device_s is not None and comparable:
            device = abs(predicted.device_s - use.device_s) / use.device_s
            self._add(device, abs(predicted.peak_bytes - use.peak_bytes) / use.peak_bytes)
        return comparable

    def _add(self, device: float, peak: float) -> None:
        """Add to both sorted lists: a median is asked for with every cell."""
        if len(self._parts) == COMPARED_MAX:
            oldest_device, oldest_peak = self._parts[0]
            del self._device_parts[bisect_left(self._device_parts, oldest_device)]
            del self._peak_parts[bisect_left(self._peak_parts, oldest_peak)]
        self._added = True
        self._parts.append((device, peak))
        insort(self._device_parts, device)
        insort(self._peak_parts, peak)

    @property
    def errors(self) -> Errors:
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
    """Return the median of sorted values."""
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2


def from_runs(uses: Sequence[ResourceUse], error: ForecastError | None) -> ResourceForecast:
    """Return the forecast from earlier runs, at least one."""
    fullest = max(uses, key=lambda use: use.peak_bytes)
    seconds = median(use.device_s for use in uses)
    return ResourceForecast(seconds, fullest.peak_bytes, len(uses), fullest.where, error)


class ResourceRecords(msgspec.Struct, frozen=True):
    """Records that forecasts are made from. ``uses``: by program, the latest run last. ``errors``: by kind of
    forecast, from ``runs`` or from ``graphs``."""

    uses: dict[str, tuple[ResourceUse, ...]] = msgspec.field(default_factory=dict)
    errors: dict[str, Errors] = msgspec.field(default_factory=dict)


class ResourceHistory:
    """Remembers the use of programs. ``program``: a key that equal programs share. ``learnt``: from an
    earlier pool."""

    def __init__(self, learnt: ResourceRecords | None = None) -> None:
        before = learnt or ResourceRecords()
        self._uses = OrderedDict((name, deque(uses, RUNS_MAX)) for name, uses in before.uses.items())
        self._compared = {kind: Comparisons(before.errors.get(kind, ())) for kind in ("runs", "graphs")}
        self._new_uses: dict[str, None] = {}
        self._newly_compared: set[str] = set()

    def forecast(self, program: str | None, device_s: float | None, peak_bytes: int) -> ResourceForecast:
        """Predict a program's use. ``program``: None for one without a key. ``device_s`` and
        ``peak_bytes``: as its graph says."""
        known = None if program is None else self._uses.get(program)
        if known:
            return from_runs(known, self._compared["runs"].error)
        return ResourceForecast(device_s, peak_bytes, error=self.graph_error)

    def ended(self, program: str, predicted: ResourceForecast, use: ResourceUse) -> None:
        """Record the use of a run that ended well."""
        kind = "runs" if predicted.runs else "graphs"
        if self._compared[kind].add(predicted, use):
            self._newly_compared.add(kind)
        self._uses.setdefault(program, deque(maxlen=RUNS_MAX)).append(use)
        self._uses.move_to_end(program)
        self._new_uses[program] = None
        while len(self._uses) > PROGRAMS_MAX:
            forgotten, _ = self._uses.popitem(last=False)
            self._new_uses.pop(forgotten, None)

    def take_changes(self) -> ResourceRecords:
        """Return all records that changed since the last call."""
        uses = {program: tuple(self._uses[program]) for program in self._new_uses}
        errors = {kind: self._compared[kind].errors for kind in self._newly_compared}
        self._new_uses.clear()
        self._newly_compared.clear()
        return ResourceRecords(uses, errors)

    @property
    def graph_error(self) -> ForecastError | None:
        """Error of forecasts from graphs alone."""
        return self._compared["graphs"].error


def forecast_sentence(predicted: ResourceForecast, watts: float | None = None) -> str:
    """Return a sentence on the forecast. ``watts``: of its device, as operators say; None: no word on
    energy."""
    runs = f"{predicted.runs} earlier run{'s' if predicted.runs > 1 else ''}"
    source = runs if predicted.runs else "its graph so far"
    seconds = "" if predicted.device_s is None else f"{format_seconds(predicted.device_s)} on devices"
    if energy := predicted_energy(predicted.device_s, watts):
        seconds += f" (about {energy}, at the {watts:g} W that operators say its device draws)"
    seconds += " and " if seconds else ""
    where = f" (in {predicted.where})" if predicted.where else ""
    takes = f"{seconds}at most {format_bytes(predicted.peak_bytes)} at once{where}"
    return f"Predicted from {source}: {takes}. {error_sentence(predicted.error)}"


def predicted_energy(device_s: float | None, watts: float | None) -> str | None:
    """Return the energy, None where either is unknown."""
    return None if device_s is None or watts is None else format_joules(device_s * watts)


def used_energy(joules: float) -> str:
    """Return a sentence on used energy."""
    return (
        f"It used about {format_joules(joules)} (not measured: the seconds that it held devices, times what "
        "operators say that these draw)."
    )


def error_sentence(error: ForecastError | None) -> str:
    """Return the error of forecasts, in parentheses."""
    if error is None:
        return "(Too few such forecasts could be compared with what came to say how far they are off.)"
    seconds, nbytes = format_error(error.device_part), format_error(error.peak_part)
    return (
        f"(Such forecasts were off by {seconds} in seconds and {nbytes} in bytes, in the median of the last "
        f"{error.count}.)"
    )


def too_large(predicted: ResourceForecast, earlier: str, memory_bytes: int) -> str | None:
    """Return why a program that ran before, as ``earlier``, will fail where no device has more than
    ``memory_bytes``."""
    if not predicted.runs or predicted.peak_bytes <= memory_bytes:
        return None
    where = predicted.where or "one of its cells"
    return (
        f"when it ran before ({earlier}) {where} needed {format_bytes(predicted.peak_bytes)}, and no device "
        f"of this pool has more than {format_bytes(memory_bytes)}"
    )

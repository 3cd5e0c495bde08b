"""Predict how long a program runs on a device: the one answer for admission, the queue, gangs and forecasts.

Where an equal program ran there before, it is the median of its last runs; else what its graph costs there.
Every prediction is compared with its run, and the spread of such comparisons goes with the next."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from math import isfinite
from statistics import median
from typing import Literal, get_args

import msgspec

RUNS_MAX = 5
"""Runs of one program that are remembered; older ones say less."""
PROGRAMS_MAX = 10_000
COMPARED_MAX = 500
COMPARED_MIN = 5
"""With fewer comparisons, nothing is known of how far such predictions are off."""
UNCOMPARED_SPREAD = 4.0
CERTAIN_PART = 0.9
Source = Literal["runs", "graph"]
SOURCES: tuple[Source, ...] = get_args(Source)


class RunTime(msgspec.Struct, frozen=True):
    """``seconds``: as likely too short as too long. Nine of ten such runs end within ``spread`` times as
    long. ``runs``: how many it is predicted from, 0: from the graph. ``unpriced``: its ops of no family,
    whose time is a guess from their bytes."""

    seconds: float
    spread: float = UNCOMPARED_SPREAD
    runs: int = 0
    unpriced: tuple[str, ...] = ()

    @property
    def source(self) -> Source:
        return "runs" if self.runs else "graph"


class RunTimeSpread:
    """Run times over what was predicted. ``ratios``: of an earlier pool, oldest first."""

    def __init__(self, ratios: Iterable[float] = ()) -> None:
        self._ratios = deque(ratios, COMPARED_MAX)
        self._ordered = sorted(self._ratios)

    @property
    def ratios(self) -> tuple[float, ...]:
        return tuple(self._ratios)

    def add(self, ratio: float) -> None:
        """Add a comparison. Raises ValueError for what is no positive number."""
        if not (isfinite(ratio) and ratio > 0):
            raise ValueError(f"a run time over its prediction is positive, not {ratio}")
        if len(self._ratios) == COMPARED_MAX:
            del self._ordered[bisect_left(self._ordered, self._ratios[0])]
        self._ratios.append(ratio)
        insort(self._ordered, ratio)

    @property
    def high(self) -> float:
        """Within so many times the prediction nine of ten runs ended: wide before enough were compared."""
        if len(self._ordered) < COMPARED_MIN:
            return UNCOMPARED_SPREAD
        return max(1.0, self._ordered[int(CERTAIN_PART * (len(self._ordered) - 1) + 0.5)])


class RunTimeHistory:
    """Remembers runs by device and program. ``device``: a name that devices share on which a program takes as
    long. ``ratios``: by source, of an earlier pool."""

    def __init__(self, ratios: dict[str, tuple[float, ...]] | None = None) -> None:
        before = ratios or {}
        self._runs: OrderedDict[tuple[str, bytes], deque[float]] = OrderedDict()
        self._spreads: dict[Source, RunTimeSpread] = {
            "runs": RunTimeSpread(before.get("runs", ())),
            "graph": RunTimeSpread(before.get("graph", ())),
        }
        self._compared: set[Source] = set()

    def predict(
        self,
        device: str,
        key: bytes | None,
        graph_s: Callable[[], float | None],
        unpriced: tuple[str, ...] = (),
    ) -> RunTime | None:
        """``key``: equal for equal programs, None for one without. ``graph_s``: prices its graph, None while
        the device is not measured; only called where no run is known. None: nothing is known."""
        runs = None if key is None else self._runs.get((device, key))
        if runs:
            return RunTime(median(runs), self._spreads["runs"].high, len(runs))
        seconds = graph_s()
        if seconds is None:
            return None
        return RunTime(seconds, self._spreads["graph"].high, 0, unpriced)

    def ended(self, device: str, key: bytes | None, predicted: RunTime | None, run_s: float) -> None:
        """Record a run that ended well. Raises ValueError for seconds that cannot be, with nothing
        changed."""
        if not (isfinite(run_s) and run_s >= 0):
            raise ValueError(f"a run takes seconds, not {run_s}")
        if predicted is not None and predicted.seconds > 0 and run_s > 0:
            self._spreads[predicted.source].add(run_s / predicted.seconds)
            self._compared.add(predicted.source)
        if key is None:
            return
        self._runs.setdefault((device, key), deque(maxlen=RUNS_MAX)).append(run_s)
        self._runs.move_to_end((device, key))
        if len(self._runs) > PROGRAMS_MAX:
            self._runs.popitem(last=False)

    def spread(self, source: Source) -> float:
        return self._spreads[source].high

    def take_changes(self) -> dict[Source, tuple[float, ...]]:
        """Return the comparisons of every source that has new ones since the last call."""
        changed = {source: self._spreads[source].ratios for source in sorted(self._compared)}
        self._compared.clear()
        return changed

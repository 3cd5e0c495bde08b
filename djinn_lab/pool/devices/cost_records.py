"""What runs and measurements said lately, with times: for people, nothing is predicted from it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping

from djinn_lab.jobs.run_times import RunTime
from djinn_lab.protocol.rest.costs import ComparedRun, CostChange, UnpricedOp

RUNS_MAX = 500
CHANGES_MAX = 100
PROGRAM_CHARS = 12
"""Of a program's key, as people read it."""


class CostRecords:
    """The newest comparisons of runs with their predictions, what changed in the cost model, and the ops that
    had no price. ``now_s``: the pool's clock."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._runs: deque[ComparedRun] = deque(maxlen=RUNS_MAX)
        self._changes: deque[CostChange] = deque(maxlen=CHANGES_MAX)
        self._unpriced: Counter[str] = Counter()
        self._measured_at: dict[str, float] = {}

    def compared(
        self, device: str, job: str, key: bytes | None, predicted: RunTime | None, run_s: float, gang: int
    ) -> None:
        """Record a run on ``gang`` devices that ended well, if it was predicted."""
        if predicted is None or min(predicted.seconds, run_s) <= 0:
            return
        program = "" if key is None else key.hex()[:PROGRAM_CHARS]
        program += "" if gang == 1 else f" on {gang} devices"
        run = ComparedRun(self._now_s(), job, device, program, predicted.source, predicted.seconds, run_s)
        self._runs.append(run)
        self._unpriced.update(predicted.unpriced)

    def measured(self, kind: str, again: bool) -> None:
        """Record that devices of a kind were measured."""
        detail = (
            "measured again: what runs had taught of the former curves is dropped" if again else "measured"
        )
        self._changed(kind, "measured", detail)
        self._measured_at[kind] = self._changes[-1].at

    def asked(self, kind: str) -> None:
        """Record that runs were so far off that a new measurement is wanted."""
        self._changed(kind, "drifted", "runs are off: a new measurement is wanted as soon as it is idle")

    def corrected(self, kind: str, before: Mapping[str, float], after: Mapping[str, float]) -> None:
        """Record the families whose factor changed."""
        for family, factor in sorted(after.items()):
            former = before.get(family, 1.0)
            if factor != former:
                detail = f"{family}: predictions count {factor:.2f} times the curve, before {former:.2f}"
                self._changed(kind, "corrected", detail)

    def _changed(self, kind: str, what: str, detail: str) -> None:
        self._changes.append(CostChange(self._now_s(), kind, what, detail))

    def measured_at(self, kind: str) -> float | None:
        """Return when devices of the kind were measured, None: not in this life of the pool."""
        return self._measured_at.get(kind)

    @property
    def runs(self) -> tuple[ComparedRun, ...]:
        return tuple(self._runs)

    @property
    def changes(self) -> tuple[CostChange, ...]:
        return tuple(self._changes)

    @property
    def unpriced(self) -> tuple[UnpricedOp, ...]:
        return tuple(UnpricedOp(op, runs) for op, runs in self._unpriced.most_common())

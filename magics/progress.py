"""One line that says what the pool is doing with the cell, once it takes longer than a moment."""

from __future__ import annotations

import html
from time import perf_counter
from typing import Any

from IPython.display import display

from djinn_lab.client.report import CellReport
from djinn_lab.protocol.messages import JobUpdate
from djinn_lab.units import format_seconds

REFRESH_S = 0.2

_WAITING = ("RESTORING", "QUEUED", "PREEMPTED")


class _Line:
    """Text for terminals and saved notebooks, the same with a bar for front ends that show HTML."""

    def __init__(self, text: str, fraction: float | None) -> None:
        self._text = text
        self._fraction = fraction

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        bar = "" if self._fraction is None else f'<progress max="1" value="{self._fraction:.4f}"></progress> '
        return {
            "text/plain": self._text,
            "text/html": f'<div style="font-family:monospace">{bar}{html.escape(self._text)}</div>',
        }


class ProgressLine:
    """Show one line ``after_s`` seconds into the wait (negative: never), updated in place, at most five times
    a second. ``waits``: the pool's reasons while the cell was queued."""

    def __init__(self, after_s: float) -> None:
        self._after_s = after_s
        self._started = perf_counter()
        self._handle: Any = None
        self._shown_at = 0.0
        self._update: JobUpdate | None = None
        self._in_parts = False
        self.waits: list[str] = []

    def on_update(self, update: JobUpdate) -> None:
        before, self._update = self._update, update
        if before is not None and 0 < before.ops_total < update.ops_total:
            self._in_parts = True
        if update.state in _WAITING and update.reason and update.reason not in self.waits[-1:]:
            self.waits.append(update.reason)
        self.tick()

    def tick(self) -> None:
        """Called now and then while waiting."""
        now = perf_counter()
        if self._after_s < 0 or now - self._started < self._after_s or now - self._shown_at < REFRESH_S:
            return
        self._shown_at = now
        self._show(*describe(self._update, now - self._started, self._in_parts))

    def finish(self, report: CellReport, outcome: str) -> None:
        """Leave the last word in place, if anything was ever shown, or a lost worker was recovered from."""
        if self._handle is not None or report.recovery:
            stages = ", ".join(
                f"{name} {format_seconds(seconds)}"
                for name, seconds in report.stages.items()
                if seconds >= 0.001
            )
            summary = f"{outcome} on {report.device} in {format_seconds(report.total_s)} ({stages})"
            more = [text for text in (report.recovery, report.gang) if text]
            self._show(". ".join([summary, *more]), 1.0)

    def _show(self, text: str, fraction: float | None) -> None:
        line = _Line(text, fraction)
        if self._handle is None:
            self._handle = display(line, display_id=True)
        else:
            self._handle.update(line)


def describe(update: JobUpdate | None, elapsed_s: float, in_parts: bool = False) -> tuple[str, float | None]:
    """Return a sentence and the fraction done, or None. ``in_parts``: the cell's total of ops is not known
    yet, so a bar would go backwards with every part."""
    elapsed = format_seconds(elapsed_s)
    if update is None:
        return f"SUBMITTED, {elapsed}", None
    parts = [update.state]
    fraction = None
    if update.state in _WAITING:
        if update.position is not None:
            parts.append(f"position {update.position}")
        if update.estimate_s is not None:
            off = update.estimate_error_s
            give_or_take = "" if off is None else f" (give or take {format_seconds(off)})"
            parts.append(f"about {format_seconds(update.estimate_s)} to go{give_or_take}")
    if update.device:
        parts.append(f"on {update.device}")
    if update.ops_total:
        counts = f"{update.ops_done}/{update.ops_total} ops"
        parts.append(f"{counts} so far" if in_parts else counts)
        fraction = None if in_parts else update.ops_done / update.ops_total
    if update.reason and update.state != "RUNNING":
        parts.append(update.reason)
    return f"{', '.join(parts)} ({elapsed})", fraction

"""One line that says what the pool is doing with the cell, once it takes longer than a moment."""

from __future__ import annotations

import html
from collections.abc import Callable
from time import perf_counter
from typing import Any, Literal

from IPython.display import display
from msgspec.structs import replace

from djinn_lab.client.report import CellReport
from djinn_lab.client.upload_progress import UploadState
from djinn_lab.protocol.messages import JobUpdate
from djinn_lab.units import format_bytes, format_seconds

Outcome = Literal["submitted", "done", "failed", "cancelled"]
REFRESH_S = 0.2


class _Line:
    """Text for terminals and saved notebooks, the same with a bar for front ends that show HTML. ``stopped``:
    the bar is grey."""

    def __init__(self, text: str, fraction: float | None, stopped: bool = False) -> None:
        self._text = text
        self._fraction = fraction
        self._style = ' style="filter:grayscale(1)"' if stopped else ""

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        bar = ""
        if self._fraction is not None:
            bar = f'<progress max="1" value="{self._fraction:.4f}"{self._style}></progress> '
        return {
            "text/plain": self._text,
            "text/html": f'<div style="font-family:monospace">{bar}{html.escape(self._text)}</div>',
        }


class ProgressLine:
    """Show one line about a cell ``after_s`` seconds into the wait (negative: never), updated in place, at
    most five times a second. ``recorded``: returns how many ops the cell has recorded. ``uploads``: how far
    an upload under way is. ``complete``: it will record no more. ``update``: the pool's last word."""

    def __init__(
        self,
        after_s: float,
        recorded: Callable[[], int] = lambda: 0,
        uploads: Callable[[], UploadState | None] = lambda: None,
    ) -> None:
        self.cell = "the cell"
        self.complete = False
        self._recorded = recorded
        self._uploads = uploads
        self._after_s = after_s
        self._started = perf_counter()
        self._handle: Any = None
        self._shown_at = 0.0
        self.update: JobUpdate | None = None
        self._updated_at = 0.0
        self._grew = False

    def on_update(self, update: JobUpdate) -> None:
        before, self.update = self.update, with_unsent(update, self._recorded())
        self._updated_at = perf_counter()
        if before is not None and 0 < before.ops_total < self.update.ops_total:
            self._grew = True
        self.tick()

    def tick(self) -> None:
        """Called now and then while waiting."""
        now = perf_counter()
        if self._after_s < 0 or now - self._started < self._after_s or now - self._shown_at < REFRESH_S:
            return
        self._shown_at = now
        upload = self._uploads()
        if upload is not None:
            self._show(*describe_upload(self.cell, upload, now - self._started))
            return
        update = None if self.update is None else since(self.update, now - self._updated_at)
        self._show(*describe(self.cell, update, now - self._started, self._grew and not self.complete))

    def end(self, text: str) -> None:
        """Leave a last word in place, if anything was ever shown."""
        if self._handle is not None:
            self._show(text, 1.0)

    def finish(self, report: CellReport, outcome: Outcome) -> None:
        """Leave the last word in place, if anything was ever shown, or a lost worker was recovered from."""
        if self._handle is None and not report.recovery:
            return
        fraction = 1.0
        stages = [
            f"{name} {format_seconds(took_s)}" for name, took_s in report.stages.items() if took_s >= 0.001
        ]
        where = "" if report.device is None else f" on {report.device}"
        took = f"{format_seconds(report.total_s)} ({', '.join(stages)})"
        match outcome:
            case "done":
                summary = f"{self.cell} is done{where}, in {took}"
            case "submitted":
                summary = f"{self.cell} is on its way to the pool"
            case "failed":
                summary = f"{self.cell} failed{where}, after {took}"
            case "cancelled":
                ran, total = report.ops_run, report.ops_sent
                fraction = ran / total if total else 0.0
                ops = f" {_ops(ran, total)}," if total else ""
                summary = f"{self.cell} was cancelled{where} after{ops} {format_seconds(report.total_s)}"
        more = [text for text in (report.recovery, report.gang) if text]
        self._show(". ".join([summary, *more]), fraction, stopped=outcome != "done")

    def _show(self, text: str, fraction: float | None, stopped: bool = False) -> None:
        line = _Line(text, fraction, stopped)
        if self._handle is None:
            self._handle = display(line, display_id=True)
        else:
            self._handle.update(line)


class WaitLine:
    """Show one line about another wait than that for a cell, ``after_s`` seconds into it, updated in place.
    ``at_most_s``: when the wait ends in any case."""

    def __init__(self, what: str, at_most_s: float, after_s: float = 1.0) -> None:
        self._what, self._at_most_s, self._after_s = what, at_most_s, after_s
        self._started = perf_counter()
        self._handle: Any = None
        self._shown_at = 0.0

    def tick(self) -> None:
        """Called now and then while waiting."""
        now = perf_counter()
        waited_s = now - self._started
        if waited_s >= self._after_s and now - self._shown_at >= REFRESH_S:
            self._shown_at = now
            at_most = format_seconds(self._at_most_s)
            self._show(f"{self._what} ({format_seconds(waited_s)} of at most {at_most})", waited_s)

    def finish(self, text: str, failed: bool = False) -> None:
        """Leave the last word in place, if anything was shown."""
        if self._handle is not None:
            took = format_seconds(perf_counter() - self._started)
            self._show(f"{text} ({took})", self._at_most_s, stopped=failed)

    def _show(self, text: str, waited_s: float, stopped: bool = False) -> None:
        line = _Line(text, waited_s / self._at_most_s, stopped)
        if self._handle is None:
            self._handle = display(line, display_id=True)
        else:
            self._handle.update(line)


def describe_upload(cell: str, upload: UploadState, elapsed_s: float) -> tuple[str, float]:
    """Return a sentence about a cell whose tensors are on their way to the pool, and the fraction sent."""
    rate = f" at {format_bytes(round(upload.bytes_per_s))}/s" if upload.bytes_per_s else ""
    left = "" if upload.left_s is None else f", {_about(upload.left_s)} left"
    sent = f"{format_bytes(upload.sent)} of {format_bytes(upload.total)}"
    return f"{cell} uploads {sent}{rate}{left} ({format_seconds(elapsed_s)})", upload.sent / upload.total


def since(update: JobUpdate, seconds: float) -> JobUpdate:
    """Count the seconds since the pool's word down; what took longer than it said is not known any more."""
    if not update.left_s or update.state != "RUNNING":
        return update
    return replace(update, left_s=update.left_s - seconds if update.left_s > seconds else None)


def with_unsent(update: JobUpdate, recorded: int) -> JobUpdate:
    """Count ``recorded`` ops of the cell, of which the pool has not got all yet; those take as long as the
    others that have not run."""
    unsent = recorded - update.ops_total
    if unsent <= 0 or not update.ops_total:
        return update
    left_s, sent = update.left_s, update.ops_total - update.ops_done
    if left_s is not None:
        left_s = left_s * (sent + unsent) / sent if sent else None
    return replace(update, ops_total=recorded, left_s=left_s)


def describe(
    cell: str, update: JobUpdate | None, elapsed_s: float, in_parts: bool = False
) -> tuple[str, float | None]:
    """Return a sentence about a cell and the fraction done, or None. ``in_parts``: the cell's total of ops is
    not known yet, so a bar would go backwards with every part."""
    elapsed = format_seconds(elapsed_s)
    if update is None:
        return f"{cell} is on its way to the pool ({elapsed})", None
    fraction = None if in_parts or not update.ops_total else update.ops_done / update.ops_total
    where = f" on {update.device}" if update.device else ""
    ran = _ops(update.ops_done, update.ops_total)
    if update.state == "RUNNING":
        ops = f": {ran}{' so far' if in_parts else ''}" if update.ops_total else ""
        left = "" if in_parts or not update.left_s else f", {_about(update.left_s)} left"
        return f"{cell} runs{where}{ops}{left} ({elapsed})", fraction
    states = {"PREEMPTED": f"was preempted after {ran}", "RESTORING": "waits for its values"}
    words = [f"{cell} {states.get(update.state, 'waits')}"]
    if update.estimate_s is not None:
        off = update.estimate_error_s
        give_or_take = "" if off is None else f" (give or take {format_seconds(off)})"
        words.append(f"{_about(update.estimate_s)} to go{give_or_take}")
    reason = f": {update.reason}" if update.reason else ""
    return f"{', '.join(words)}{reason} ({elapsed})", fraction


def _about(seconds: float) -> str:
    return f"about {format_seconds(seconds)}" if seconds >= 1 else "less than 1 s"


def _ops(done: int, total: int) -> str:
    return f"{done:,} of {total:,} ops"

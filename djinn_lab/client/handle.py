"""The handle of a cell that is not waited for: where it is, its result, a way to stop it."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch.utils._pytree import tree_leaves

from djinn_lab.capture.host.interrupts import whole
from djinn_lab.capture.lazy import is_lazy, recorder_of
from djinn_lab.client.pending_cell import PendingCell, Watcher
from djinn_lab.client.report import CellReport
from djinn_lab.errors import UserError
from djinn_lab.units import format_seconds

if TYPE_CHECKING:
    from djinn_lab.client.cell import Cell


@dataclass(frozen=True)
class CellProgress:
    """Where a cell is. ``state``: ``SUBMITTED`` until the pool says more, then as on the jobs page, at last
    ``DONE``, ``FAILED`` or ``CANCELLED``. ``reason``: why it waits, or its error, in one sentence.
    ``position`` and ``estimate_s``: in the queue, and until it starts."""

    state: str
    ops_done: int = 0
    ops_total: int = 0
    device: str | None = None
    reason: str = ""
    position: int | None = None
    estimate_s: float | None = None

    @property
    def fraction(self) -> float | None:
        """Return the part of the ops that has run, None while nothing is known."""
        if self.state == "DONE":
            return 1.0
        return self.ops_done / self.ops_total if self.ops_total else None

    def __str__(self) -> str:
        parts = [self.state]
        if self.position is not None and self.state == "QUEUED":
            parts.append(f"position {self.position}")
        if self.estimate_s is not None and self.state == "QUEUED":
            parts.append(f"about {format_seconds(self.estimate_s)} to go")
        if self.device:
            parts.append(f"on {self.device}")
        if self.ops_total:
            parts.append(f"{self.ops_done}/{self.ops_total} ops")
        if self.reason and self.state != "RUNNING":
            parts.append(self.reason)
        return ", ".join(parts)


class CellHandle:
    """Stands for a cell that was sent and not waited for. Any thread may use it."""

    def __init__(self, cell: Cell, pending: PendingCell) -> None:
        self._cell = cell
        self._pending = pending

    @property
    def cell(self) -> Cell:
        """Return the cell itself, with ``.graph`` and ``.schedule``."""
        return self._cell

    @property
    def job(self) -> str | None:
        """Return the id of its job, None for a cell without torch work."""
        return self._cell.report.job

    @property
    def report(self) -> CellReport:
        """Return where the time went; what the pool did is in it once the cell is :attr:`ready`."""
        if self.ready:
            self._pending.wait(None)
        return self._cell.report

    @property
    def ready(self) -> bool:
        """Return whether :meth:`get` returns or raises at once, but for bringing values here."""
        return self._pending.is_answered

    @property
    def successful(self) -> bool:
        """Return whether it ended well. Raises UserError while it is pending."""
        if not self.ready:
            raise UserError(
                f"{self._cell.report.cell} is still pending: {self.progress}.",
                "Ask ready first, or call wait() or get().",
            )
        self._pending.wait(None)
        self._pending.see_error()
        return self._pending.error is None

    @property
    def progress(self) -> CellProgress:
        """Return where it is now, as the pool said last; waits for nothing."""
        pending = self._pending
        pending.look()
        update, outcome = pending.update, pending.outcome
        if outcome is not None:
            report = self._cell.report
            total = report.ops_run if outcome == "DONE" else report.ops_sent
            error = report.error.split("\n", 1)[0]
            return CellProgress(outcome, report.ops_run, total, report.device, error)
        if update is None:
            return CellProgress("SUBMITTED")
        return CellProgress(
            update.state,
            update.ops_done,
            update.ops_total,
            update.device,
            update.reason,
            update.position,
            update.estimate_s,
        )

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the cell has ended, at most ``timeout_s`` seconds, and return whether it has. An
        interrupt cancels the cell."""
        return self._pending.wait(timeout_s)

    @whole
    def get(self, timeout_s: float | None = None) -> object:
        """Wait for the cell and return its last expression, with the values of tensors here. Raises its
        error, and TimeoutError after ``timeout_s`` seconds, which changes nothing. An interrupt cancels the
        cell."""
        if not self._pending.wait(timeout_s):
            raise TimeoutError(
                f"{self._cell.report.cell} did not end within {timeout_s:g} s: {self.progress}"
            )
        self._pending.raise_error()
        result = self._cell.result
        lazies = [leaf for leaf in tree_leaves(result) if is_lazy(leaf)]
        if lazies:
            recorder = recorder_of(lazies[0])
            with recorder.paused_recording():
                recorder.fetch_tensors(lazies, "fetch")
        return result

    def cancel(self) -> bool:
        """Stop the cell between two ops, and return whether it was stopped: False where it had ended. Its
        values are lost then, those of earlier cells are not. Raises CancelFailed when the pool does not
        confirm within 10 s."""
        return self._pending.cancel()

    def watch(self, watcher: Watcher) -> None:
        """Notify ``watcher`` of waits for the cell, and of its end."""
        self._pending.watcher = watcher

    # ---------------------------------------------------------------- shown

    def _words(self) -> str:
        progress = self.progress
        if self.job is None:
            return f"{progress.state}, no torch work was captured"
        taken = f" in {format_seconds(self._cell.report.total_s)}" if progress.state == "DONE" else ""
        return f"{progress}{taken}, job {self.job[:8]}"

    def __repr__(self) -> str:
        return f"<{self._cell.report.cell}: {self._words()}>"

    def _repr_html_(self) -> str:
        fraction = self.progress.fraction
        bar = "" if fraction is None else f'<progress max="1" value="{fraction:.4f}"></progress> '
        text = f"<b>{html.escape(self._cell.report.cell)}</b> {bar}{html.escape(self._words())}"
        return f'<div style="font-family:monospace">{text}</div>'

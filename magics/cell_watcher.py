"""Show where a cell is that was sent with ``--noblock``: at its own output, and where it is waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from IPython.display import display

from djinn_lab.client.handle import CellHandle
from djinn_lab.client.pending_cell import Outcome
from djinn_lab.magics import progress
from djinn_lab.magics.progress import ProgressLine
from djinn_lab.protocol.messages import JobUpdate

ENDED: dict[Outcome, progress.Outcome] = {"DONE": "done", "FAILED": "failed", "CANCELLED": "cancelled"}


class CellWatcher:
    """A :class:`~djinn_lab.client.pending_cell.Watcher`. Each wait has a line of progress of its own, after
    ``after_s`` seconds. ``ended``: is called with the outcome and the error, once the cell has ended."""

    def __init__(
        self,
        cell: str,
        after_s: float,
        ended: Callable[[ProgressLine, progress.Outcome, BaseException | None], None],
    ) -> None:
        self._cell = cell
        self._after_s = after_s
        self._ended = ended
        self._progress = self._new_line()
        self._shown: Any = None
        self._handle: CellHandle | None = None

    def show(self, handle: CellHandle) -> None:
        """Display the handle as the cell's output, which says at last how the cell ended."""
        self._handle = handle
        self._shown = display(handle, display_id=True)

    def begin_wait(self, update: JobUpdate | None) -> None:
        self._progress = self._new_line()
        self._progress.update = update

    def on_update(self, update: JobUpdate) -> None:
        self._progress.on_update(update)

    def tick(self) -> None:
        self._progress.tick()

    def settled(self, outcome: Outcome, error: BaseException | None) -> None:
        self._ended(self._progress, ENDED[outcome], error)
        if self._shown is not None:
            self._shown.update(self._handle)

    def _new_line(self) -> ProgressLine:
        line = ProgressLine(self._after_s)
        line.cell, line.complete = self._cell, True
        return line

"""How the run of a model ended, for a scheduler that learns from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from time import time

from djinn_lab.client.cell import Cell
from djinn_lab.client.session import Session
from djinn_lab.errors import DeviceMemoryError, DjinnError, RemoteError
from djinn_lab.scheduler import ProgressiveScheduler, RunOutcome, Scheduler


@contextmanager
def recorded_outcome(scheduler: Scheduler | None, session: Session, cell: Cell) -> Iterator[None]:
    """Let a progressive scheduler record how what is inside ends. Other schedulers record nothing, nor does a
    cell inside of another one, nor an error that is not of the device."""
    if not isinstance(scheduler, ProgressiveScheduler):
        yield
        return
    try:
        yield
    except RemoteError as error:
        memory = isinstance(error, DeviceMemoryError)
        scheduler.record(RunOutcome("out of memory" if memory else "failed", time()))
        raise
    if cell.report.job is not None:
        scheduler.record(_success(session, cell))


def _success(session: Session, cell: Cell) -> RunOutcome:
    report = cell.report
    memory_bytes = max(device.memory_bytes for device in session.device_profiles(report.device))
    return RunOutcome(
        "succeeded", time(), _predicted_s(cell), report.run_s, report.peak_bytes / max(memory_bytes, 1)
    )


def _predicted_s(cell: Cell) -> float | None:
    """Return the predicted seconds of the ops; None for what should not have fitted, and did."""
    try:
        return cell.schedule.compute_s
    except DjinnError:
        return None

"""``--explain``: why a cell ran where and when it did, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from djinn_lab.client.cell import Cell
from djinn_lab.client.cuts import is_explicit, name_of
from djinn_lab.client.session import Session
from djinn_lab.errors import PoolError
from djinn_lab.srg.merging import STREAMED
from djinn_lab.units import format_seconds


def explain_cell(session: Session, cell: Cell, waits: Sequence[str]) -> Iterator[str]:
    """``waits``: the pool's own reasons while the cell was queued, in order."""
    report = cell.report
    if report.job is None:
        yield f"{report.cell}: no torch work was captured, so nothing was sent to the pool."
        return
    yield f"{report.cell} ran as job {report.job[:8]} on {report.device}."
    yield from _device(session, report.device)
    yield from _queue(session, report.job, report.stages.get("queued", 0.0), waits)
    yield from (f"Schedule: {reason}" for reason in cell.schedule.explain())
    yield from _cuts(cell)


def _device(session: Session, device: str | None) -> Iterator[str]:
    others = [info.device for info in session.welcome.devices if info.device != device]
    if not others:
        yield f"Placement: {device} is the pool's only device."
        return
    yield (
        "Placement: a session is bound at its first cell to the device with the fewest sessions and waiting "
        f"jobs (ties by name), which was {device}; its values live there, so every later cell runs there, "
        f"not on {', '.join(others)}."
    )


def _queue(session: Session, job: str, queued_s: float, waits: Sequence[str]) -> Iterator[str]:
    try:
        priority = session.pool.job(job)["priority"]
    except PoolError as error:
        yield f"Queue: the pool no longer tells ({error.message})."
        return
    if not waits:
        yield f"Queue: priority {priority}; nothing was ahead of it, {format_seconds(queued_s)} in line."
        return
    yield f"Queue: priority {priority}, {format_seconds(queued_s)} in line: {' Then: '.join(waits)}"


def _cuts(cell: Cell) -> Iterator[str]:
    for index, cut in enumerate(cell.report.cuts):
        where = f" at line {cut.line}" if cut.line else ""
        if cut.cause == STREAMED:
            why = "1,000 ops or more were recorded and the device was free for them: sent ahead, no cut"
        elif cut.cause == "cell end":
            why = "the cell ended"
        elif is_explicit(cut.cause):
            why = f"you asked for values with {cut.cause}"
        else:
            why = f"a value was needed: {name_of(cut.cause)}"
        yield f"Segment {index}: {cut.ops} ops sent{where}, as {why} ({format_seconds(cut.seconds)})."

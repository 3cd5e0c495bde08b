"""``--explain``: why a cell ran where and when it did, in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from djinn_lab.client.cell import Cell
from djinn_lab.client.cuts import is_explicit, name_of
from djinn_lab.client.profile_terms import first_choice
from djinn_lab.client.session import Session
from djinn_lab.errors import PoolError
from djinn_lab.jobs import Terms
from djinn_lab.protocol.rest.jobs import JobView
from djinn_lab.srg.merging import STREAMED
from djinn_lab.units import format_seconds


def explain_cell(session: Session, cell: Cell) -> Iterator[str]:
    """Yield why it was placed and queued as it was, what its schedule is, and why it was sent when it was."""
    report = cell.report
    if report.job is None:
        yield f"{report.cell}: no torch work was captured, so nothing was sent to the pool."
        return
    if report.device is None:
        yield f"{report.cell} was sent as job {report.job[:8]}, and nothing of it ran."
        if report.error:
            yield report.error
        return
    yield f"{report.cell} ran as job {report.job[:8]} on {report.device}."
    job = _job(session, report.job)
    yield from _device(session, report.device, cell.terms, "" if isinstance(job, PoolError) else job.placed)
    if report.recovery:
        yield f"Recovery: {report.recovery}"
    if report.gang:
        yield f"Gang: {report.gang}"
    if report.offloading:
        yield f"Offloaded: {report.offloading}."
    yield from _queue(job, report.stages.get("queued", 0.0), report.waits)
    restoring_s = report.stages.get("restoring", 0.0)
    if restoring_s:
        yield f"Memory: {format_seconds(restoring_s)} until its state and a memory grant were there."
    yield from (f"Schedule: {reason}" for reason in cell.schedule.explain())
    yield from _cuts(cell)


def _job(session: Session, job: str) -> JobView | PoolError:
    try:
        return session.pool.job(job)
    except PoolError as error:
        return error


def _device(session: Session, device: str | None, terms: Terms, placed: str) -> Iterator[str]:
    """``placed``: how the profile changed where the session began."""
    if terms.target is not None:
        asked = f"it asked for {terms.target}, and {device} is that"
        yield f"Placement: {asked}; its session's values are there now."
        return
    others = [info.device for info in session.welcome.devices if info.device != device]
    if not others:
        yield f"Placement: {device} is the pool's only device."
        return
    yield (
        f"Placement: a session begins on {first_choice(terms)}; its values are on {device} now, so this cell "
        f"ran there, not on {', '.join(others)}. A session goes elsewhere where that is worth the copy, or "
        "asked for."
    )
    if placed:
        yield f"Profile: {placed}"


def _queue(job: JobView | PoolError, queued_s: float, waits: Sequence[str]) -> Iterator[str]:
    if isinstance(job, PoolError):
        yield f"Queue: the pool cannot be asked any more ({job.message})."
        return
    priority = job.priority
    if not waits:
        yield f"Queue: priority {priority}; no job was ahead, pending for {format_seconds(queued_s)}."
        return
    yield f"Queue: priority {priority}, pending for {format_seconds(queued_s)}: {' Then: '.join(waits)}"


def _cuts(cell: Cell) -> Iterator[str]:
    """A sentence for each run of segments that were sent for the same reason."""
    number = 0
    for (cause, line), group in groupby(cell.report.cuts, key=lambda cut: (cut.cause, cut.line)):
        cuts = list(group)
        where = f" at line {line}" if line else ""
        seconds = format_seconds(sum(cut.seconds for cut in cuts))
        ops = f"{sum(cut.ops for cut in cuts)} ops"
        if len(cuts) == 1:
            yield f"Segment {number}: {ops} sent{where}, as {_why(cause)} ({seconds})."
        else:
            last = number + len(cuts) - 1
            yield f"Segments {number} to {last}: {ops} sent{where}, each as {_why(cause)} ({seconds})."
        number += len(cuts)


def _why(cause: str) -> str:
    if cause == STREAMED:
        return "enough was recorded to be worth a message and the device was free: sent ahead, no cut"
    if cause == "cell end":
        return "the cell ended"
    if is_explicit(cause):
        return f"you asked for values with {cause}"
    return f"a value was needed: {name_of(cause)}"

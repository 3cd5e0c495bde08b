"""What the pool's answer to a segment says: what arrived, what is missing, what went wrong."""

from __future__ import annotations

from collections.abc import Sequence

from djinn_lab.client.remote_errors import to_exception
from djinn_lab.errors import CellCancelled, PoolError, WorkerLost
from djinn_lab.protocol.messages import SegmentResult
from djinn_lab.srg.program import EncodedProgram

WAITING_STAGES = frozenset({"queued"})
"""Of a segment that never started."""


def arrived(result: SegmentResult) -> bool:
    """Are the program's sources on the device? A worker that is stopped before the first op forgets them."""
    if missing(result) or (result.error is not None and result.error.type_name == WorkerLost.__name__):
        return False
    if result.outcome == "cancelled":
        return result.executed > 0
    return result.outcome == "done" or bool(result.stages.keys() - WAITING_STAGES)


def stopped_with(stop: BaseException, message: str) -> BaseException:
    """Return what a cell ends with that ``stop`` stopped: that itself, unless it is an ordinary interrupt."""
    return CellCancelled(message) if type(stop) is KeyboardInterrupt else stop


def missing(result: SegmentResult) -> Sequence[int]:
    """Values that the pool no longer has, for want of which the segment did not begin."""
    return result.error.missing if result.error is not None and not result.executed else ()


def failure(
    result: SegmentResult,
    program: EncodedProgram,
    file: str,
    stop: BaseException | None,
    ran: tuple[int, int],
) -> BaseException | None:
    """Return what to raise for the answer to ``program``, None for success. ``file``: with the cell's code,
    as tracebacks name it. ``stop``: what the user stopped it with. ``ran``: how many of the cell's ops have
    run, and how many were sent."""
    if stop is not None:
        ops, total = ran
        return stopped_with(stop, f"stopped on {result.device or 'the pool'} after {ops:,} of {total:,} ops")
    if result.error is not None:
        return to_exception(result.error, program.program, file)
    if result.outcome == "cancelled":
        return CellCancelled("the cell was cancelled")
    if result.outcome != "done":
        return PoolError("the cell failed on the pool, which does not say why.", "Run the cell again.")
    return None

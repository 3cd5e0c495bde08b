"""Answers that a client gets for a submitted segment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from djinn_lab.engine import WorkLost
from djinn_lab.errors import DjinnError
from djinn_lab.jobs import EndSegment, Job, JobState
from djinn_lab.memory import RejectSegment
from djinn_lab.pool.blobs.store import BlobStore
from djinn_lab.pool.bookkeeping.records import RunningSegment
from djinn_lab.protocol.messages import SKIPPED, ErrorInfo, Fetched, SegmentResult, SubmitSegment
from djinn_lab.protocol.worker import RemoteFailure, SegmentDone
from djinn_lab.srg.lost_values import RUN_AGAIN
from djinn_lab.srg.program import decode_program
from djinn_lab.units import capitalised


def failed(submit: SubmitSegment, error: ErrorInfo, outcome: str = "failed") -> SegmentResult:
    """Answer a segment of which nothing ran."""
    return SegmentResult(submit.job, submit.segment, outcome, 0, None, {}, 0.0, error=error)


def skipped(submit: SubmitSegment) -> SegmentResult:
    """Answer a segment whose predecessor did not end well."""
    return SegmentResult(submit.job, submit.segment, SKIPPED, 0, None, {}, 0.0)


def refused(error: DjinnError) -> ErrorInfo:
    return ErrorInfo("refused", "Refused", error.message, error.advice)


def never_fits(verdict: RejectSegment) -> ErrorInfo:
    return ErrorInfo(
        "memory", "DeviceMemoryError", verdict.sentence, verdict.advice, verdict.node, verdict.op
    )


def already_finished(submit: SubmitSegment, job: Job) -> SegmentResult:
    """Answer a segment of a job that is over, for instance because another client cancelled it."""
    if job.state is JobState.CANCELLED:
        return failed(submit, cancelled(job.message), "cancelled")
    advice = "Run the cell again."
    return failed(submit, ErrorInfo("refused", "Refused", f"The cell's job is already {job.state}.", advice))


def past(submit: SubmitSegment) -> SegmentResult:
    """Answer a segment of a job that an earlier pool ended; nothing runs twice."""
    message = "A job of this name ran before; nothing runs twice under one name."
    return failed(submit, ErrorInfo("refused", "Refused", message, "Run the cell again."))


def blobs_missing(
    submit: SubmitSegment, missing: Sequence[str], rejected: Mapping[str, str]
) -> SegmentResult:
    reasons = [rejected[digest] for digest in missing if digest in rejected]
    why = f" {reasons[0]}" if reasons else ""
    message = f"{len(missing)} uploaded tensor{'s are' if len(missing) > 1 else ' is'} not on the pool.{why}"
    error = ErrorInfo("missing_blobs", "PoolError", message, "Run the cell again: it uploads them again.")
    return failed(submit, error)


def cancelled(message: str) -> ErrorInfo:
    return ErrorInfo(
        "cancelled", "CellCancelled", f"The cell was cancelled: {message}." if message else "Cancelled."
    )


def refused_later(command: EndSegment) -> ErrorInfo:
    """Make the error of a segment that was admitted and then cannot run where it has to."""
    message = f"The pool refuses this cell: {command.message}."
    advice = "Nothing of it ran. Free values (del x) and run it again, or run it without a target."
    return ErrorInfo("refused", "Refused", message, advice)


def lost(command: EndSegment, flight: RunningSegment | None) -> ErrorInfo:
    """Make the error of a segment whose worker was lost twice, with the op that ran if it is known."""
    message = capitalised(command.message)
    node, op = None, None
    if flight is not None and flight.reached is not None:
        program = decode_program(flight.program)
        if flight.reached < len(program.nodes):
            node = flight.reached
            op = program.templates[program.nodes[node].template].op
    return ErrorInfo(
        "pool",
        "WorkerLost",
        f"{message} while it ran this cell, for the second time.",
        "An op of this cell may be what ends it. The next cell makes the values of earlier cells again.",
        node,
        op,
    )


def worker_error(failure: RemoteFailure, lost_values: str | None) -> ErrorInfo:
    """``lost_values``: how the session's values were lost, when they were."""
    message, advice = failure.message, RUN_AGAIN if failure.type_name == "ValueLost" else ""
    if failure.family == "pool" and lost_values is not None:
        message = f"{message}\n{lost_values}"
        advice = "Run the cells that made the values again."
    return ErrorInfo(
        failure.family,
        failure.type_name,
        message,
        advice,
        failure.node,
        failure.op,
        list(failure.frames),
        list(failure.missing),
    )


def lost_while_preempted(lost: WorkLost) -> ErrorInfo:
    """Make the error of a preempted cell whose values were lost."""
    return ErrorInfo("pool", "WorkerLost", lost.sentence, "Run the cells that made the values again.")


def fetched(done: SegmentDone | None, outcome: str, session: str, blobs: BlobStore) -> list[Fetched]:
    """Hand results over to the session; those of a cancelled segment are deleted."""
    if done is None:
        return []
    if outcome != "done":
        discard(done, blobs)
        return []
    for tensor in done.fetched:
        if tensor.blob is not None:
            blobs.deliver(session, tensor.blob)
    return [Fetched(tensor.value, tensor.meta, tensor.data, tensor.blob) for tensor in done.fetched]


def undelivered(problem: Exception) -> ErrorInfo:
    return ErrorInfo(
        "pool", "PoolError", f"The results could not be handed over: {problem}.", "Run the cell again."
    )


def discard(done: SegmentDone | None, blobs: BlobStore) -> None:
    """Delete results that no client will read."""
    for tensor in done.fetched if done is not None else ():
        if tensor.blob is not None:
            blobs.discard(tensor.blob)

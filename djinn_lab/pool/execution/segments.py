"""Workers' messages about the segments that they run: progress, and the one answer to each."""

from __future__ import annotations

import logging
from collections.abc import Callable

from djinn_lab import engine, jobs
from djinn_lab.pool.bookkeeping.job_accounting import JobAccounting
from djinn_lab.pool.bookkeeping.records import RunningSegment, SegmentPreemptions
from djinn_lab.pool.execution.journaled_engine import JournaledEngine
from djinn_lab.pool.sessions import answers
from djinn_lab.pool.sessions.registry import ClientSession
from djinn_lab.protocol.worker import (
    RunAnswer,
    RunPreempted,
    SegmentCancelled,
    SegmentDone,
    SegmentFailed,
    SegmentProgress,
    WorkerMemory,
)

PROGRESS_INTERVAL_S = 0.2
EARLY_S = 0.05
"""By so much a report may come early: a worker sends one in each interval, and none of these is skipped."""

log = logging.getLogger(__name__)


class SegmentRuns:
    """Turn workers' answers to segments into events. ``handle``: handles an event with the engine, and
    carries out its commands."""

    def __init__(
        self, core: JournaledEngine, accounting: JobAccounting, handle: Callable[[engine.Event], None]
    ) -> None:
        self._core = core
        self._accounting = accounting
        self._handle = handle

    def progress(self, message: SegmentProgress) -> None:
        record = self._accounting.records.get(message.job)
        now_s = self._core.clock.now_s()
        if record is None or record.flight is None or record.flight.segment != message.segment:
            return
        record.flight.reached = message.ops_done
        due_s = record.flight.progress_due_s
        if now_s < due_s - EARLY_S:
            return
        record.flight.progress_due_s = max(due_s, now_s) + PROGRESS_INTERVAL_S
        record.progressed(message.ops_done)
        try:
            self._handle(jobs.SegmentProgressed(now_s, message.job, message.segment, message.ops_done))
        except jobs.IllegalEvent as error:
            log.error("a worker's progress makes no sense: %s", error)
            return
        job = self._core.queue.job(message.job)
        record.reason = self._core.queue.explain(message.job)
        self._accounting.notify(record, job)

    def over(self, device: str, message: RunAnswer) -> None:
        """Handle the one answer to a segment that a worker was given."""
        record = self._accounting.records.get(message.job)
        if record is None or record.flight is None or record.flight.segment != message.segment:
            log.error(
                "%s answers segment %d of %s, which is not running", device, message.segment, message.job
            )
            return
        match message:
            case SegmentDone():
                self._done(message)
            case SegmentFailed():
                self._failed(message)
            case SegmentCancelled():
                self._cancelled(message)
            case RunPreempted():
                self._preempted(message, record.flight)

    def _done(self, message: SegmentDone) -> None:
        stops = self._stops(message.job)
        message = message if stops is None else stops.whole(message)
        ops = len(message.node_end_s)
        seconds = {"load": message.load_s, "run": message.run_s, "fetch": message.fetch_s}
        moved_bytes = sum(tensor.meta.nbytes for tensor in message.fetched)
        self._settle(message, "done", ops, "", moved_bytes, device_s=sum(seconds.values()))
        job = self._core.queue.job(message.job)
        late = job is not None and job.state is jobs.JobState.CANCELLED
        error = answers.cancelled(job.message) if job is not None and late else None
        self._accounting.note_run(message)
        session = self._session_of(message.job)
        if session is not None:
            session.lost = None
        self._accounting.answer(message.job, "cancelled" if error else "done", ops, seconds, message, error)

    def _failed(self, message: SegmentFailed) -> None:
        session = self._session_of(message.job)
        error = answers.worker_error(message.error, session.lost if session else None)
        flight = self._accounting.records[message.job].flight
        continues = flight is not None and flight.resends and bool(error.missing) and not message.executed
        self._settle(message, "failed", message.executed, error.message, continues=continues)
        self._accounting.answer(
            message.job,
            "failed",
            message.executed,
            {},
            error=error,
            report=self._memory(message),
            rng_state=message.rng_state,
        )

    def _cancelled(self, message: SegmentCancelled) -> None:
        job = self._core.queue.job(message.job)
        error = answers.cancelled(job.message if job else "")
        self._settle(message, "cancelled", message.executed, error.message)
        self._accounting.answer(
            message.job, "cancelled", message.executed, {}, error=error, report=self._memory(message)
        )

    def _preempted(self, message: RunPreempted, flight: RunningSegment) -> None:
        now_s = self._core.clock.now_s()
        if flight.stops is None:
            flight.stops = SegmentPreemptions()
        flight.stops.add(message, now_s)
        self._accounting.records[message.job].progressed(message.executed)
        remaining_bytes = flight.footprint.remaining_bytes(message.executed)
        replayed_s, flight.replayed_s = flight.replayed_s, 0.0
        self._handle(
            engine.SegmentStopped(
                now_s,
                message.job,
                message.segment,
                message.executed,
                remaining_bytes,
                undone=message.undone,
                replayed_s=replayed_s,
            )
        )

    def _stops(self, job: str) -> SegmentPreemptions | None:
        flight = self._accounting.records[job].flight
        return flight.stops if flight is not None else None

    def _memory(self, message: SegmentFailed | SegmentCancelled) -> WorkerMemory:
        stops = self._stops(message.job)
        return message.memory if stops is None else stops.fullest(message.memory)

    def _session_of(self, job: str) -> ClientSession | None:
        return self._accounting.registry.get(self._accounting.records[job].session)

    def _settle(
        self,
        answer: SegmentDone | SegmentFailed | SegmentCancelled,
        outcome: str,
        executed: int,
        message: str,
        moved_bytes: int = 0,
        continues: bool = False,
        device_s: float | None = None,
    ) -> None:
        """``moved_bytes``: fetched for the cell. ``continues``: the job, even after its final segment.
        ``device_s``: for how long the worker was at it. Its session pays for the memory that it holds, too,
        over the run time since it last started."""
        record, now_s = self._accounting.records[answer.job], self._core.clock.now_s()
        record.progressed(executed)
        started_s = record.flight.started_s if record.flight is not None else None
        replayed_s = record.flight.replayed_s if record.flight is not None else 0.0
        held_bytes = answer.memory.session_bytes.get(record.session, 0)
        memory_byte_s = 0.0 if started_s is None else held_bytes * max(0.0, now_s - started_s)
        self._handle(
            jobs.SegmentFinished(
                now_s,
                answer.job,
                answer.segment,
                outcome,
                executed,
                message,
                memory_byte_s,
                float(moved_bytes),
                continues,
                replayed_s,
                device_s,
            )
        )

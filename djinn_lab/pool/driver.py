"""Drives the cores live: stamps the time, journals, handles, performs. Holds no policy.

Everything here runs on the event loop's thread and none of it blocks. What comes in: messages of sessions
(through :mod:`djinn_lab.pool.sessions`) and of workers (through the launcher). What goes out: frames to
workers, messages to clients, writes queued at the store.
"""

from __future__ import annotations

import contextlib
import logging

from djinn_lab import jobs, memory
from djinn_lab.errors import Refused
from djinn_lab.pool import answers
from djinn_lab.pool.admission import Inspected, PlanCache, inspect_program
from djinn_lab.pool.blobs import BlobStore
from djinn_lab.pool.bookkeeping import Bookkeeper
from djinn_lab.pool.fleet import Fleet
from djinn_lab.pool.launcher import LocalLauncher
from djinn_lab.pool.ledger import Ledger
from djinn_lab.pool.records import RunningSegment
from djinn_lab.pool.registry import Session
from djinn_lab.protocol.messages import (
    ErrorInfo,
    FinishJob,
    SignalPhase,
    SubmitSegment,
)
from djinn_lab.srg.program import Program, encode_program
from djinn_lab.worker.messages import (
    Calibrate,
    CancelSegment,
    CloseSession,
    FromWorker,
    RunSegment,
    SegmentCancelled,
    SegmentDone,
    SegmentFailed,
    SegmentProgress,
    SegmentStarted,
    SessionClosed,
    WorkerMemory,
)

RECORDS_MAX = 1000
HISTORY_MAX = 10_000
PROGRESS_INTERVAL_S = 0.2
RELEASE_JOB = "release"
"""Job name of segments that only drop values; the queue does not know them."""

log = logging.getLogger(__name__)


class Driver:
    """One per pool."""

    def __init__(
        self, ledger: Ledger, launcher: LocalLauncher, fleet: Fleet, blobs: BlobStore, books: Bookkeeper
    ) -> None:
        self.ledger = ledger
        self.launcher = launcher
        self.fleet = fleet
        self.blobs = blobs
        self.books = books
        self.registry = books.registry
        self.plans = PlanCache()

    # -- from sessions -------------------------------------------------------------------------------------

    async def submit(self, session: Session, submit: SubmitSegment) -> None:
        """Take in a segment, or answer why not."""
        received_s = self.ledger.clock.now_s()
        known = self.ledger.queue.job(submit.job)
        if known is not None and known.finished and known.session == session.session:
            session.send(answers.already_finished(submit, known))
            return
        try:
            inspected = await inspect_program(submit.program, self.plans)
        except Refused as error:
            self._refuse(session, submit, 0, answers.refused(error))
            return
        missing = [digest for digest in inspected.blobs if not self.blobs.has(session.user, digest)]
        if missing:
            session.send(answers.blobs_missing(submit, missing, session.rejected))
            return
        verdict = self._propose(session, submit, inspected)
        if isinstance(verdict, memory.RefuseSegment):
            self._refuse(session, submit, inspected.ops, answers.never_fits(verdict))
            return
        self._enqueue(session, submit, inspected, received_s)

    def finish(self, session: Session, finish: FinishJob) -> None:
        """The cell is over. A job that never came here, or is finished, needs nothing."""
        job = self.ledger.queue.job(finish.job)
        if job is None or job.finished or job.session != session.session:
            return
        outcome = finish.outcome if finish.outcome in ("done", "failed", "cancelled") else "failed"
        self._jobs(jobs.JobFinished(self.ledger.clock.now_s(), finish.job, outcome, finish.message))

    def cancel(self, job: str, message: str) -> None:
        """Raises jobs.IllegalEvent for a job that is unknown or finished. ``message``: by whom."""
        self._jobs(jobs.CancelRequested(self.ledger.clock.now_s(), job, message))

    def signal(self, session: Session, signal: SignalPhase) -> memory.AnswerPhase:
        now_s = self.ledger.clock.now_s()
        event = memory.PhaseSignalled(now_s, session.session, signal.phase[:40], signal.expected_s)
        (answer,) = self.ledger.memory(event)
        assert isinstance(answer, memory.AnswerPhase)
        return answer

    def release(self, session: Session, values: list[int]) -> None:
        """Nobody holds these values any more."""
        device = self.ledger.queue.device_of(session.session)
        if device is None:
            return
        program = Program(metas=(), templates=(), scopes=(), sources=(), nodes=(), release=values)
        self.launcher.send(device, RunSegment(RELEASE_JOB, 0, session.session, encode_program(program)))

    def detach(self, session: Session) -> None:
        """The client vanished; its values stay."""
        now_s = self.ledger.clock.now_s()
        session.link = None
        session.last_seen = now_s
        self._unpin_query(session)
        self._jobs(jobs.SessionDetached(now_s, session.session))
        self.ledger.memory(memory.SessionDetached(now_s, session.session))

    def close(self, session: Session) -> None:
        """Free everything that the session holds."""
        now_s = self.ledger.clock.now_s()
        self._unpin_query(session)
        self._jobs(jobs.SessionClosed(now_s, session.session))
        self._memory(memory.SessionClosed(now_s, session.session))
        self.registry.remove(session.session)
        self.blobs.close_session(session.session)
        if session.link is not None:
            session.link.close()
            session.link = None

    # -- from workers --------------------------------------------------------------------------------------

    def worker_said(self, device: str, message: FromWorker) -> None:
        match message:
            case SegmentStarted():
                pass
            case SegmentProgress():
                self._progress(message)
            case SegmentDone() | SegmentFailed() | SegmentCancelled():
                self._report_memory(device, message.memory)
                self._segment_over(device, message)
            case SessionClosed():
                self._report_memory(device, message.memory)
            case _:
                if self.fleet.worker_said(device, message):
                    self._device_ready(device)

    def worker_died(self, device: str, how: str) -> None:
        now_s = self.ledger.clock.now_s()
        self.fleet.worker_died(device)
        self._memory(memory.DeviceLost(now_s, device))
        self._jobs(jobs.DeviceLost(now_s, device, f"the process of {device} {how}"))

    def worker_failed(self, device: str, how: str) -> None:
        self.fleet.worker_failed(device, how)

    # -- by the clock --------------------------------------------------------------------------------------

    def calibrate_idle(self) -> None:
        """Measure a device that nobody uses and that was never measured."""
        busy = {view.device for view in self.ledger.queue.snapshot().devices if view.running is not None}
        device = self.fleet.due_for_measuring(busy, self.ledger.clock.now_s())
        if device is not None:
            self.launcher.send(device, Calibrate())

    # -- parts ---------------------------------------------------------------------------------------------

    def _propose(self, session: Session, submit: SubmitSegment, inspected: Inspected) -> memory.Command:
        event = memory.SegmentProposed(
            at_s=self.ledger.clock.now_s(),
            job=submit.job,
            segment=submit.segment,
            session=session.session,
            peak_bytes=inspected.footprint.peak_bytes,
            node=inspected.footprint.node,
            op=inspected.peak_op,
        )
        (verdict,) = self.ledger.memory(event)
        return verdict

    def _enqueue(
        self, session: Session, submit: SubmitSegment, inspected: Inspected, received_s: float
    ) -> None:
        predicted_s = self.books.predicted_s(session, submit, inspected.ops)
        event = jobs.SegmentSubmitted(
            at_s=self.ledger.clock.now_s(),
            job=submit.job,
            segment=submit.segment,
            session=session.session,
            user=session.user,
            priority=submit.priority,
            ops_total=inspected.ops,
            final=submit.final,
            wish=submit.target,
            predicted_s=predicted_s,
        )
        try:
            commands = self.ledger.jobs(event)
        except jobs.IllegalEvent as error:
            session.send(
                answers.failed(submit, answers.refused(Refused(f"The pool refuses this cell: {error}.")))
            )
            return
        record = self.books.record_of(session, submit)
        record.ops_total = record.ops_before + inspected.ops
        record.predicted_s = predicted_s
        for digest in inspected.blobs:
            self.blobs.pin(digest)
        record.flight = RunningSegment(
            submit.segment,
            submit.program,
            inspected.blobs,
            received_s,
            key=inspected.key,
            plan_cached=inspected.cached,
        )
        self._unpin_query(session)
        self._perform(commands)
        self.books.keep_program(submit)

    def _refuse(self, session: Session, submit: SubmitSegment, ops: int, error: ErrorInfo) -> None:
        event = jobs.SegmentRefused(
            at_s=self.ledger.clock.now_s(),
            job=submit.job,
            segment=submit.segment,
            session=session.session,
            user=session.user,
            priority=submit.priority,
            ops_total=ops,
            final=submit.final,
            message=error.message,
        )
        with contextlib.suppress(jobs.IllegalEvent):
            commands = self.ledger.jobs(event)
            record = self.books.record_of(session, submit)
            record.ops_total += ops
            record.ops_before += ops
            record.error = error
            self._perform(commands)
        self._unpin_query(session)
        session.send(answers.failed(submit, error))

    def _jobs(self, event: jobs.Event) -> None:
        self._perform(self.ledger.jobs(event))

    def _perform(self, commands: list[jobs.Command]) -> None:
        for command in commands:
            match command:
                case jobs.StartSegment():
                    self._start(command)
                case jobs.CancelSegment():
                    self.launcher.send(command.device, CancelSegment(command.job))
                case jobs.EndSegment():
                    self._end(command)
                case jobs.Notify():
                    self.books.note(command)

    def _memory(self, event: memory.Event) -> None:
        for command in self.ledger.memory(event):
            match command:
                case memory.FreeSession():
                    self.launcher.send(command.device, CloseSession(command.session))
                case memory.ValuesLost():
                    session = self.registry.get(command.session)
                    if session is not None:
                        session.lost = f"{command.device}'s process died and this session's values with it."
                case _:
                    raise AssertionError(command)

    def _start(self, command: jobs.StartSegment) -> None:
        record = self.books.records[command.job]
        flight = record.flight
        assert flight is not None
        flight.started_s = self.ledger.clock.now_s()
        blobs = {digest: str(self.blobs.path(digest)) for digest in flight.blobs}
        run = RunSegment(command.job, command.segment, record.session, flight.program, blobs, flight.key)
        self.launcher.send(command.device, run)
        account = self.ledger.accounts.session(record.session)
        if account is not None and account.device != command.device:
            self.ledger.memory(memory.SessionBound(flight.started_s, record.session, command.device))

    def _end(self, command: jobs.EndSegment) -> None:
        """The pool answers for the worker."""
        error = answers.lost(command) if command.outcome == "lost" else answers.cancelled(command.message)
        outcome = "failed" if command.outcome == "lost" else "cancelled"
        self.books.answer(command.job, outcome, command.ops_done, {}, error=error)

    def _progress(self, message: SegmentProgress) -> None:
        record = self.books.records.get(message.job)
        now_s = self.ledger.clock.now_s()
        if record is None or record.flight is None or record.flight.segment != message.segment:
            return
        if now_s - record.flight.told_progress_s < PROGRESS_INTERVAL_S:
            return
        record.flight.told_progress_s = now_s
        try:
            self._jobs(jobs.SegmentProgressed(now_s, message.job, message.segment, message.ops_done))
        except jobs.IllegalEvent as error:
            log.error("a worker's progress makes no sense: %s", error)
            return
        job = self.ledger.queue.job(message.job)
        record.ops_done = record.ops_before + message.ops_done
        record.reason = self.ledger.queue.explain(message.job)
        self.books.tell(record, job)

    def _segment_over(self, device: str, message: SegmentDone | SegmentFailed | SegmentCancelled) -> None:
        record = self.books.records.get(message.job)
        if message.job == RELEASE_JOB:
            return
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

    def _done(self, message: SegmentDone) -> None:
        ops = len(message.node_end_s)
        seconds = {"load": message.load_s, "run": message.run_s, "fetch": message.fetch_s}
        self._settle(message.job, message.segment, "done", ops, "")
        job = self.ledger.queue.job(message.job)
        late = job is not None and job.state is jobs.JobState.CANCELLED
        error = answers.cancelled(job.message) if job is not None and late else None
        self.books.note_run(message)
        session = self._session_of(message.job)
        if session is not None:
            session.lost = None
        self.books.answer(message.job, "cancelled" if error else "done", ops, seconds, message, error)

    def _failed(self, message: SegmentFailed) -> None:
        session = self._session_of(message.job)
        error = answers.worker_error(message.error, session.lost if session else None)
        self._settle(message.job, message.segment, "failed", message.executed, error.message)
        self.books.answer(message.job, "failed", message.executed, {}, error=error, report=message.memory)

    def _cancelled(self, message: SegmentCancelled) -> None:
        job = self.ledger.queue.job(message.job)
        error = answers.cancelled(job.message if job else "")
        self._settle(message.job, message.segment, "cancelled", message.executed, error.message)
        self.books.answer(message.job, "cancelled", message.executed, {}, error=error, report=message.memory)

    def _session_of(self, job: str) -> Session | None:
        return self.registry.get(self.books.records[job].session)

    def _settle(self, job: str, segment: int, outcome: str, executed: int, message: str) -> None:
        self._jobs(jobs.SegmentFinished(self.ledger.clock.now_s(), job, segment, outcome, executed, message))

    def _report_memory(self, device: str, report: WorkerMemory) -> None:
        now_s = self.ledger.clock.now_s()
        try:
            self._memory(
                memory.MemoryReported(
                    now_s, device, report.used_bytes, report.peak_bytes, report.session_bytes
                )
            )
        except memory.IllegalEvent as error:
            log.error("%s: the worker's memory report makes no sense: %s", device, error)

    def _device_ready(self, device: str) -> None:
        now_s = self.ledger.clock.now_s()
        ready = self.fleet.status(device).ready
        assert ready is not None
        self.ledger.memory(memory.DeviceAdded(now_s, device, ready.memory_bytes))
        self._jobs(jobs.DeviceAdded(now_s, device))

    def _unpin_query(self, session: Session) -> None:
        self.blobs.unpin(session.pins)
        session.pins.clear()

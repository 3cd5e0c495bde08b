"""Drives the cores live: stamps the time, journals, handles, performs. Holds no policy.

Everything here runs on the event loop's thread and none of it blocks. What comes in: messages of sessions
(through :mod:`djinn_lab.pool.sessions`) and of workers (through the launcher). What goes out: frames to
workers, messages to clients, writes queued at the store.
"""

from __future__ import annotations

import logging
from collections import deque

from djinn_lab import jobs, memory
from djinn_lab.pool import answers
from djinn_lab.pool.alarm import Alarm
from djinn_lab.pool.blobs import BlobStore
from djinn_lab.pool.bookkeeping import Bookkeeper
from djinn_lab.pool.fleet import Fleet
from djinn_lab.pool.intake import Intake
from djinn_lab.pool.launcher import LocalLauncher
from djinn_lab.pool.ledger import Ledger
from djinn_lab.pool.registry import Session
from djinn_lab.pool.residence import RELEASE_JOB, Residence
from djinn_lab.protocol.messages import (
    ErrorInfo,
    FinishJob,
    SignalPhase,
    SubmitSegment,
)
from djinn_lab.worker.messages import (
    Calibrate,
    CancelSegment,
    FromWorker,
    RunSegment,
    SegmentCancelled,
    SegmentDone,
    SegmentFailed,
    SegmentProgress,
    SegmentStarted,
    SessionClosed,
    TransferDone,
    TransferFailed,
)

PROGRESS_INTERVAL_S = 0.2

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
        self.residence = Residence(
            ledger, launcher, self.registry, self._memory_granted, self._memory_held, self._memory_refused
        )
        self.intake = Intake(ledger, blobs, books, self.residence, self._perform)
        self._commands: deque[jobs.Command] = deque()
        self._performing = False
        self._alarm = Alarm(self.ledger.clock.now_s, self._due)

    # -- from sessions -------------------------------------------------------------------------------------

    async def submit(self, session: Session, submit: SubmitSegment) -> None:
        """Take in a segment, or answer why not."""
        await self.intake.submit(session, submit)

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
        answer, *others = self.ledger.memory(event)
        assert isinstance(answer, memory.AnswerPhase)
        self.residence.perform(others)
        return answer

    def release(self, session: Session, values: list[int]) -> None:
        """Nobody holds these values any more."""
        self.residence.release(session.session, values)

    def detach(self, session: Session) -> None:
        """The client vanished; its values stay."""
        now_s = self.ledger.clock.now_s()
        session.link = None
        session.last_seen = now_s
        self.intake.unpin_query(session)
        self._jobs(jobs.SessionDetached(now_s, session.session))
        self.residence.handle(memory.SessionDetached(now_s, session.session))

    def close(self, session: Session) -> None:
        """Free everything that the session holds."""
        now_s = self.ledger.clock.now_s()
        self.intake.unpin_query(session)
        self._jobs(jobs.SessionClosed(now_s, session.session))
        self.residence.handle(memory.SessionClosed(now_s, session.session))
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
                self.residence.report(device, message.memory, message.job)
                self._segment_over(device, message)
            case SessionClosed():
                self.residence.report(device, message.memory)
            case TransferDone():
                self.residence.transferred(device, message)
            case TransferFailed():
                self.residence.not_transferred(device, message)
            case _:
                if self.fleet.worker_said(device, message):
                    self._device_ready(device)

    def worker_died(self, device: str, how: str) -> None:
        now_s = self.ledger.clock.now_s()
        seen = self.fleet.status(device).seen
        self.fleet.worker_died(device)
        self.residence.died(device, seen.pid if seen else None)
        self._jobs(jobs.DeviceLost(now_s, device, f"the process of {device} {how}"))

    def worker_failed(self, device: str, how: str) -> None:
        self.fleet.worker_failed(device, how)

    # -- by the clock --------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Session memory looks ahead."""
        self.residence.handle(memory.ClockTicked(self.ledger.clock.now_s()))

    def calibrate_idle(self) -> None:
        """Measure a device that nobody uses and that was never measured."""
        busy = {view.device for view in self.ledger.queue.snapshot().devices if view.running is not None}
        device = self.fleet.due_for_measuring(busy, self.ledger.clock.now_s())
        if device is not None:
            self.launcher.send(device, Calibrate())

    # -- parts ---------------------------------------------------------------------------------------------

    def _jobs(self, event: jobs.Event) -> None:
        self._perform(self.ledger.jobs(event))

    def _due(self) -> None:
        self._jobs(jobs.ClockTicked(self.ledger.clock.now_s()))

    def _perform(self, commands: list[jobs.Command]) -> None:
        """In the order in which the queue gave them, even where performing one leads to more."""
        self._commands.extend(commands)
        if self._performing:
            return
        self._performing = True
        try:
            while self._commands:
                self._perform_one(self._commands.popleft())
        finally:
            self._performing = False
        self._alarm.set(self.ledger.queue.due_s())

    def _perform_one(self, command: jobs.Command) -> None:
        match command:
            case jobs.PlaceSegment():
                self._place(command)
            case jobs.StartSegment():
                self._start(command)
            case jobs.CancelSegment():
                self.launcher.send(command.device, CancelSegment(command.job))
            case jobs.PreemptSegment():
                raise NotImplementedError("no worker can stop and keep what it has yet")
            case jobs.LineOrdered():
                pass
            case jobs.EndSegment():
                self._end(command)
            case jobs.Notify():
                self.books.note(command)
                if command.state in jobs.FINISHED:
                    self._cell_over(command.job)

    def _place(self, command: jobs.PlaceSegment) -> None:
        """The queue bound the segment's session: memory decides when it may start."""
        job = self.ledger.queue.job(command.job)
        flight = self.books.records[command.job].flight
        if job is None or job.state is not jobs.JobState.RESTORING or flight is None:
            return
        self.residence.bind(command.session, command.device)
        self.residence.perform(self.residence.place(flight.placement))

    def _cell_over(self, job: str) -> None:
        """Between cells a session waits for its user."""
        session = self.books.records[job].session
        if self.ledger.accounts.session(session) is None or self.ledger.queue.has_unfinished(session):
            return
        self.residence.handle(memory.CellEnded(self.ledger.clock.now_s(), session))

    def _memory_granted(self, grant: memory.GrantSegment) -> None:
        flight = self.books.records[grant.job].flight
        assert flight is not None
        flight.restoring_s = grant.waited_s
        self._jobs(jobs.MemoryGranted(self.ledger.clock.now_s(), grant.job))

    def _memory_held(self, hold: memory.HoldSegment) -> None:
        now_s = self.ledger.clock.now_s()
        self._jobs(jobs.MemoryHeld(now_s, hold.job, hold.reason, hold.estimate_s, hold.in_line))

    def _memory_refused(self, verdict: memory.RefuseSegment) -> None:
        """Of a segment that was held."""
        record = self.books.records[verdict.job]
        assert record.flight is not None
        record.error = answers.never_fits(verdict)
        self._jobs(jobs.MemoryRefused(self.ledger.clock.now_s(), verdict.job, record.error.message))

    def _start(self, command: jobs.StartSegment) -> None:
        record = self.books.records[command.job]
        flight = record.flight
        assert flight is not None
        flight.started_s = self.ledger.clock.now_s()
        blobs = {digest: str(self.blobs.path(digest)) for digest in flight.blobs}
        run = RunSegment(command.job, command.segment, record.session, flight.program, blobs, flight.key)
        self.launcher.send(command.device, run)

    def _end(self, command: jobs.EndSegment) -> None:
        """The pool answers for the worker."""
        self.residence.handle(memory.SegmentWithdrawn(self.ledger.clock.now_s(), command.job))
        match command.outcome:
            case "lost":
                error: ErrorInfo | None = answers.lost(command)
            case "refused":
                error = self.books.records[command.job].error
            case _:
                error = answers.cancelled(command.message)
        outcome = "cancelled" if command.outcome == "cancelled" else "failed"
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

    def _device_ready(self, device: str) -> None:
        now_s = self.ledger.clock.now_s()
        ready = self.fleet.status(device).ready
        assert ready is not None
        self.residence.handle(
            memory.DeviceAdded(
                at_s=now_s,
                device=device,
                memory_bytes=ready.memory_bytes,
                host_bytes=ready.host_bytes,
                disk_bytes=ready.disk_bytes,
                link_bytes_per_s=ready.link_bytes_per_s,
            )
        )
        self._jobs(jobs.DeviceAdded(now_s, device))

"""Drives the engine live: stamps the time, journals, handles, performs. Holds no policy.

Everything here runs on the event loop's thread and none of it blocks. What comes in: messages of
sessions (through :mod:`djinn_lab.pool.sessions.endpoint`) and of workers (through the launcher). What goes
out: orders to workers, messages to clients, writes queued at the store.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from functools import partial

from msgspec.structs import replace

from djinn_lab import engine, jobs, memory
from djinn_lab.pool.blobs.store import BlobStore
from djinn_lab.pool.bookkeeping.job_accounting import JobAccounting
from djinn_lab.pool.database.sessions import CopyOrigin
from djinn_lab.pool.devices.fleet import Fleet
from djinn_lab.pool.devices.launcher import GroupLost, Launcher
from djinn_lab.pool.execution.clock import Timer
from djinn_lab.pool.execution.journaled_engine import JournaledEngine
from djinn_lab.pool.execution.recovery import Recovery
from djinn_lab.pool.execution.segments import SegmentRuns
from djinn_lab.pool.execution.state_transfers import StateTransfers, Transfer, reads_of
from djinn_lab.pool.gangs.running import SEPARATOR
from djinn_lab.pool.gangs.runs import GangRuns
from djinn_lab.pool.sessions import answers
from djinn_lab.pool.sessions.isolation import ISOLATION_RULES, IsolationRules, too_weak
from djinn_lab.pool.sessions.registry import ClientSession
from djinn_lab.pool.sessions.signals import SignalThrottle
from djinn_lab.pool.sessions.submissions import SubmissionHandler
from djinn_lab.protocol.messages import (
    AWAY_S,
    CLOSE_POOL,
    CLOSE_SESSION,
    ErrorInfo,
    FinishJob,
    SignalPhase,
    SubmitSegment,
)
from djinn_lab.protocol.worker import (
    Calibrate,
    Closed,
    CopyDone,
    CopyFailed,
    FirstValuesCopied,
    FromWorker,
    Reads,
    Released,
    RunBatch,
    RunPreempted,
    RunSegment,
    SegmentCancelled,
    SegmentDone,
    SegmentFailed,
    SegmentProgress,
    SegmentStarted,
)

OperatorSetting = (
    jobs.DeviceCordoned
    | jobs.DeviceDescribed
    | jobs.SharesChanged
    | jobs.PolicyChanged
    | jobs.ReservationMade
    | jobs.ReservationEnded
)
"""Settings that operators and admins change."""

log = logging.getLogger(__name__)


class Driver:
    """Drive the engine of one pool."""

    def __init__(
        self,
        core: JournaledEngine,
        launcher: Launcher,
        fleet: Fleet,
        blobs: BlobStore,
        accounting: JobAccounting,
        isolation: IsolationRules = ISOLATION_RULES,
    ) -> None:
        self.core = core
        self.isolation = isolation
        self.launcher = launcher
        self.fleet = fleet
        self.blobs = blobs
        self.accounting = accounting
        self.registry = accounting.registry
        self.runs = SegmentRuns(core, accounting, self.handle)
        self.transfers = StateTransfers(
            *(core, launcher, self.registry, self.handle, self._reads),
            *(self._copied, self._released, self._unread),
        )
        self.recovery = Recovery(
            core, launcher, blobs, accounting, self.transfers, self.handle, self._ended_in_replay
        )
        self.gangs = GangRuns(
            core,
            launcher,
            fleet,
            blobs,
            accounting,
            self.transfers,
            self.handle,
            self.runs.progress,
            self._gang_over,
            self._run_whole,
        )
        self.submissions = SubmissionHandler(
            core, blobs, accounting, fleet, self._perform, isolation.group_of
        )
        self._riding: dict[str, list[RunSegment]] = {}
        self.signals = SignalThrottle(core.clock.now_s, self._signal)
        self._commands: engine.CommandQueue[engine.Command] = engine.CommandQueue(self._perform_one)
        self._timer = Timer(self.core.clock.now_s, self.tick)
        self._stopping = False
        self.node_requests = ""
        """A sentence on nodes that are asked for or given back, empty for none."""

    # -- from sessions -------------------------------------------------------------------------------------

    async def submit(self, session: ClientSession, submit: SubmitSegment) -> None:
        """Admit a segment, or answer with the reason why not."""
        await self.submissions.submit(session, submit)

    def finish(self, session: ClientSession, finish: FinishJob) -> None:
        """End a cell's job. One that never came here, or is finished, needs nothing."""
        job = self.core.queue.job(finish.job)
        if job is None or job.finished or job.session != session.session:
            return
        outcome = finish.outcome if finish.outcome in ("done", "failed", "cancelled") else "failed"
        self.handle(jobs.JobFinished(self.core.clock.now_s(), finish.job, outcome, finish.message))

    def cancel(self, job: str, message: str) -> None:
        """Cancel a job. Raises jobs.IllegalEvent when it is unknown or finished. ``message``: the
        requester."""
        self.handle(jobs.CancelRequested(self.core.clock.now_s(), job, message))

    def announce(self, job: str, name: str) -> None:
        """Record a job's checkpoint. Raises jobs.IllegalEvent for one that is finished."""
        self.handle(jobs.CheckpointAnnounced(self.core.clock.now_s(), job, name))
        known = self.core.queue.job(job)
        assert known is not None
        self.accounting.announced(job, known.checkpoints)

    def publish(self, account: str, name: str) -> None:
        """Notify the queue of published data, once it is committed."""
        self.handle(jobs.DataPublished(self.core.clock.now_s(), account, name))

    def notebook_changed(self, notebook: jobs.ExternalDependency) -> None:
        """Notify the queue of a notebook's committed state, if cells depend on the notebook."""
        if self.core.queue.has_dependents(notebook.job):
            self.handle(jobs.ExternalDependencyChanged(self.core.clock.now_s(), notebook))

    def preempt(self, job: str, message: str) -> None:
        """Preempt a job. Raises jobs.IllegalEvent when it does not run. ``message``: the requester."""
        self.handle(jobs.PreemptRequested(self.core.clock.now_s(), job, message))

    def apply_setting(self, event: OperatorSetting) -> None:
        """Apply an operator's or admin's setting to the queue. Raises jobs.IllegalEvent for an invalid
        one."""
        self.handle(event)

    def _signal(self, session: ClientSession, signal: SignalPhase) -> memory.AnswerPhase:
        now_s = self.core.clock.now_s()
        event = memory.PhaseSignalled(now_s, session.session, signal.phase[:40], signal.expected_s)
        answer, *others = self.core.handle(event)
        assert isinstance(answer, memory.AnswerPhase)
        if answer.answer == "rejected":
            about = f"session {session.session}: {answer.message}"
            self.accounting.audit.refused(session.user, "signal", 422, about, "signal")
        self._perform(others)
        return answer

    def release(self, session: ClientSession, values: list[int]) -> None:
        """Drop values of a session that its client released."""
        self.transfers.release(session.session, values)

    def stop(self, for_good: bool) -> None:
        """The pool is about to close its connections. Unfinished jobs stay so, since no client went away; the
        next pool on the database ends them. ``for_good``: it ends all sessions, too, and says so."""
        self._stopping = True
        if not for_good:
            return
        self.accounting.sessions.closed_all()
        for session in self.registry:
            if session.link is not None:
                session.link.close(CLOSE_POOL)

    def await_client(self, session: ClientSession) -> None:
        """Keep a session's cells: its connection broke, and its client may open another one."""
        session.link = None
        session.last_seen = self.core.clock.now_s()
        session.awaited = True
        self.submissions.unpin_query(session)

    def give_up_clients(self) -> None:
        """Detach the sessions whose clients have ended, or did not come back in time."""
        before_s = self.core.clock.now_s() - AWAY_S
        for session in self.registry:
            if session.awaited and (session.last_seen < before_s or session.client_ended):
                self.detach(session)

    def detach(self, session: ClientSession) -> None:
        """Detach a session whose client vanished; its values stay."""
        with self.accounting.together():
            self._detach(session)

    def _detach(self, session: ClientSession) -> None:
        session.awaited = False
        session.answers.clear()
        self.signals.settle(session)
        now_s = self.core.clock.now_s()
        session.link = None
        session.last_seen = now_s
        self.submissions.unpin_query(session)
        self.submissions.drop_followers(session)
        if not self._stopping:
            self.accounting.sessions.changed(session)
            self.handle(engine.SessionDetached(now_s, session.session))

    def close(self, session: ClientSession, why: str = "") -> None:
        """Free everything that the session holds. ``why``: for the audit and its client, where that did
        not ask."""
        about = f"{session.session} {session.name}"
        self.accounting.audit.note(session.user, "session closed", f"{about}: {why}" if why else about)
        self.signals.close(session)
        now_s = self.core.clock.now_s()
        self.submissions.unpin_query(session)
        self.submissions.drop_followers(session)
        self.handle(engine.SessionClosed(now_s, session.session))
        self.recovery.closed(session.session)
        self.accounting.sessions.closed(session)
        self.registry.remove(session.session)
        self.blobs.close_session(session.session)
        if session.link is not None:
            session.link.close(CLOSE_SESSION, why)
            session.link = None

    # -- from workers --------------------------------------------------------------------------------------

    def worker_said(self, device: str, message: FromWorker) -> None:
        with self.accounting.together():
            self._worker_said(device, message)

    def _worker_said(self, device: str, message: FromWorker) -> None:
        match message:
            case (
                SegmentStarted()
                | SegmentProgress()
                | SegmentDone()
                | SegmentFailed()
                | SegmentCancelled()
                | RunPreempted()
            ) if self.gangs.takes(device, message) or self.recovery.takes(device, message):
                pass
            case SegmentStarted():
                pass
            case SegmentProgress():
                self.runs.progress(message)
            case SegmentDone() | SegmentFailed() | SegmentCancelled() | RunPreempted():
                self.transfers.report(device, message.memory, message.job)
                self.recovery.ran(message)
                self.runs.over(device, message)
            case Released():
                self.transfers.released(device, message)
            case Closed():
                self.transfers.report(device, message.memory)
            case FirstValuesCopied():
                self.transfers.first_restored(device, message)
            case CopyDone():
                self.transfers.transferred(device, message)
            case CopyFailed():
                self.transfers.not_transferred(device, message)
            case _:
                if self.fleet.worker_said(device, message):
                    self._device_ready(device)

    def worker_died(self, device: str, how: str, group: GroupLost | None = None) -> None:
        self.accounting.audit.note("", "worker died", f"the process of {device} {how}", status=500)
        self._lose(device, how, group)

    def device_left(self, device: str, how: str) -> None:
        """Handle that a device was given back, whose sessions other hosts have parked."""
        self._lose(device, how, None)
        self.fleet.remove(device)
        self.handle(jobs.DeviceExpected(self.core.clock.now_s(), device))

    def _lose(self, device: str, how: str, group: GroupLost | None) -> None:
        now_s, message = self.core.clock.now_s(), f"the process of {device} {how}"
        sessions = None
        if group is None:
            self.fleet.worker_died(device)
        else:
            sessions = group.sessions | self.gangs.concerned(device, group.sessions)
            group = group._replace(sessions=sessions)
        running = [job.job for job in self.core.queue.running_jobs() if job.assigned_device == device]
        self.transfers.died(device, self.recovery.died(device, running, sessions), group)
        self.gangs.died(device, sessions)
        named = None if sessions is None else tuple(sorted(sessions))
        self.handle(jobs.DeviceLost(now_s, device, message, sessions=named))

    def worker_heard(self, device: str, heard: bool) -> None:
        self.handle(engine.HeartbeatChanged(self.core.clock.now_s(), device, heard))

    def worker_failed(self, device: str, how: str) -> None:
        self.accounting.audit.note("", "worker did not start", f"that of {device} {how}", status=500)
        self.fleet.worker_failed(device, how)

    def may_restart(self, device: str, sessions: frozenset[str]) -> bool:
        running = {job.session for job in self.core.queue.running_jobs() if job.assigned_device == device}
        return not running & sessions and self.recovery.rebuildable(sessions)

    def too_weak(self, user: str) -> str | None:
        """Say why a user may not open a session beside other users' sessions; None: may."""
        ready = [status.seen for status in self.fleet.statuses if status.seen is not None]
        users = {session.user for session in self.registry}
        return too_weak(self.isolation, [one.sandbox for one in ready], users, user)

    def trust_group(self, session: str) -> str | None:
        """Name the group with which a session, or a gang's part, may share a process."""
        job, separator, _ = session.partition(SEPARATOR)
        record = self.accounting.records.get(job) if separator else None
        found = self.registry.get(session if record is None else record.session)
        return None if found is None else self.isolation.group_of(found)

    def manifests(self) -> Iterator[bytes]:
        """List the manifests from which sessions may still be restored."""
        return self.transfers.manifests()

    def needed_manifests(self) -> list[bytes]:
        """List the manifests of sessions whose state is on no device."""
        return self.transfers.needed_manifests()

    # -- by the clock --------------------------------------------------------------------------------------

    def tick(self) -> None:
        self.handle(engine.ClockTicked(self.core.clock.now_s()))

    def calibrate_idle(self) -> None:
        """Measure an idle device that was never measured."""
        busy = self.core.queue.busy_devices()
        device = self.fleet.due_for_measuring(busy, self.core.clock.now_s())
        if device is not None:
            self.launcher.run(device, Calibrate())

    # -- parts ---------------------------------------------------------------------------------------------

    def handle(self, event: engine.Event) -> None:
        """Handle an event with the engine and carry out its commands. Raises the IllegalEvent of
        :mod:`djinn_lab.jobs` or :mod:`djinn_lab.memory`, with nothing changed."""
        with self.accounting.together():
            commands = self.core.handle(event)
            if isinstance(event, engine.PartMemoryWithdrawn | engine.PartMemoryReleased):
                part = event.part
                self._commands.drop(lambda one: isinstance(one, engine.PartMemoryAnswer) and one.part == part)
            self._perform(commands)

    def _perform(self, commands: Sequence[engine.Command]) -> None:
        self._commands.put(commands)
        if self._commands.run():
            self._timer.set(self.core.engine.due_s())

    def _perform_one(self, command: engine.Command) -> None:
        match command:
            case jobs.StartSegment():
                self._start(command)
            case jobs.Notify():
                self.accounting.note(command)
            case jobs.ChargeAccount():
                self.accounting.charge(command)
            case jobs.EndSegment():
                self._end(command)
            case jobs.CancelSegment() if self.recovery.cancel(command.job):
                pass
            case jobs.PreemptSegment() if self.recovery.preempt(command.job):
                pass
            case jobs.CancelSegment() if self.gangs.runs(command.job):
                self.gangs.cancel(command.job)
            case jobs.CancelSegment():
                self.launcher.cancel(command.device, command.job)
            case jobs.PreemptSegment() if self.gangs.runs(command.job):
                self.gangs.preempt(command.job)
            case jobs.PreemptSegment():
                self.launcher.preempt(command.device, command.job, command.segment)
            case memory.GrantSegment():
                self._granted(command)
            case engine.PartMemoryGranted() | engine.PartMemoryDeferred() | engine.PartMemoryRejected():
                self.gangs.memory_requests.answered(command)
            case _:
                self._perform_rare(command)

    def _perform_rare(self, command: engine.Command) -> None:
        match command:
            case memory.RejectSegment():
                self.accounting.records[command.job].error = answers.never_fits(command)
            case engine.WorkLost():
                self.accounting.records[command.job].error = answers.lost_while_preempted(command)
            case memory.ValuesLost() if SEPARATOR in command.session:
                self.gangs.memory_requests.lost(command)
            case memory.ValuesLost():
                self._lost(command)
            case memory.FreeSession():
                self.transfers.free(command)
            case memory.DropParked():
                self.transfers.drop_parked(command)
            case engine.WorkStalled():
                log.warning(
                    "%s idles though job %s could run there: %s", command.device, command.job, command.reason
                )
            case engine.Anomaly():
                log.error("%s", command.message)
            case _ if isinstance(command, Transfer):
                self.transfers.transfer(command)
            case _:
                raise AssertionError(command)

    def _reads(self, job: str) -> Reads | None:
        record = self.accounting.records.get(job)
        waits = record is not None and self.recovery.pending(record.session)
        return None if waits else reads_of(job, record)

    def _copied(self, device: str, done: CopyDone, released: Sequence[int]) -> Future[None] | None:
        origin = CopyOrigin(device, self.trust_group(done.session) or "", tuple(released))
        return self.recovery.copied(done, origin)

    def _released(self, session: str, values: Sequence[int]) -> int:
        return self.recovery.released(session, values)

    def _unread(self, session: str, values: Sequence[int]) -> list[int]:
        return self.recovery.unread(session, values)

    def _granted(self, grant: memory.GrantSegment) -> None:
        flight = self.accounting.records[grant.job].flight
        if flight is not None and flight.stops is None:
            flight.restoring_s = grant.waited_s

    def _lost(self, lost: memory.ValuesLost) -> None:
        """Record that a session's values are lost, with those that its preempted segment had made."""
        self.transfers.lost(lost, self.recovery.lost(lost.session))
        for record in self.accounting.records.values():
            stops = record.flight.stops if record.flight is not None else None
            if record.session == lost.session and stops is not None and stops.since_s is not None:
                stops.lost = lost.reason

    def _start(self, command: jobs.StartSegment) -> None:
        record = self.accounting.records[command.job]
        flight = record.flight
        assert flight is not None
        if flight.started_s is None:  # charged from here: not from when a busy server comes to it
            job = self.core.queue.job(command.job)
            assert job is not None
            flight.started_s = job.running_since_s
        # what is replayed first starts alone
        late = replace(command, riders=(), leader=None, interleaved=False)
        if not self.recovery.begin(command.job, command.device, partial(self._start_ready, late)):
            self._start_ready(command)
        elif command.riders:
            self._run_together(command, [])

    def _start_ready(self, command: jobs.StartSegment) -> None:
        """Start a segment whose session has all its values."""
        record = self.accounting.records[command.job]
        flight = record.flight
        assert flight is not None
        if self.gangs.runs(command.job):
            self.gangs.resume(command)
            return
        if command.members:
            assert flight.gang is not None
            assert flight.stops is None
            self.recovery.sends(record.session, flight)
            self.recovery.began_gang(record.session)
            self.gangs.begin(command, flight.gang)
            return
        if flight.gang is not None and flight.stops is None:
            known = self.core.queue.job(command.job)
            assert known is not None
            why = "its worker was lost before" if known.losses else "no other was free when it started"
            record.gang = f"It ran on one device: {why}."
        if command.leader:
            self._riding.setdefault(command.leader, []).append(self._run_of(command.job))
        elif command.riders:
            self._run_together(command, [self._run_of(command.job)])
        elif command.interleaved:
            self.launcher.run(command.device, replace(self._run_of(command.job), interleaved=True))
        else:
            self._run(command.job, command.device)

    def _run_together(self, command: jobs.StartSegment, first: Sequence[RunSegment]) -> None:
        """Run a leader, if it is ready, in one batch with its riders that are."""
        runs = (*first, *self._riding.pop(command.job, ()))
        if len(runs) == 1:
            self.launcher.run(command.device, runs[0])
        elif runs:
            flight = self.accounting.records[runs[0].job].flight
            assert flight is not None
            self.launcher.run(command.device, RunBatch(flight.structure, runs))

    def _run(self, job: str, device: str, anew: bool = False) -> None:
        """Run the whole segment on one device. ``anew``: from its beginning, not from where
        a gang stopped."""
        self.launcher.run(device, self._run_of(job, anew))

    def _run_of(self, job: str, anew: bool = False) -> RunSegment:
        """Return the order to run a segment, as :meth:`_run` gives it."""
        record, known = self.accounting.records[job], self.core.queue.job(job)
        flight, now_s = record.flight, self.core.clock.now_s()
        assert flight is not None
        blobs = {name: self.blobs.stored_name(name) for name in flight.blobs}
        resume = flight.stops.resume(now_s) if flight.stops is not None and not anew else None
        run = RunSegment(
            *(job, flight.segment, record.session, flight.program, blobs, flight.key, resume),
            announces_start=False,
            serial=self.recovery.sends(record.session, flight),
            watched=known is not None and known.losses > 0,
            tolerance=flight.tolerance,
            structure=flight.structure if flight.tolerance else b"",
        )
        flight.reached = run.resume.executed if run.watched and run.resume is not None else None
        return run

    def _run_whole(self, job: str, why: str) -> None:
        """Run a cell on one device after its gang failed."""
        known = self.core.queue.job(job)
        assert known is not None
        assert known.assigned_device is not None
        self.accounting.records[job].gang = why
        self.recovery.ended_gang(known.assigned_device, None, job)
        self._run(job, known.assigned_device, anew=True)
        if known.preempting:
            self.launcher.preempt(known.assigned_device, job, known.segment)

    def _gang_over(self, device: str, answer: SegmentDone | SegmentCancelled) -> None:
        self.transfers.report(device, answer.memory, answer.job)
        self.recovery.ended_gang(device, answer, answer.job)
        self.runs.over(device, answer)

    def _ended_in_replay(self, device: str, answer: SegmentCancelled) -> None:
        self.transfers.report(device, answer.memory, answer.job)
        self.runs.over(device, answer)

    def _end(self, command: jobs.EndSegment) -> None:
        """Answer a segment in place of its worker."""
        self.gangs.abandon(command.job)
        match command.outcome:
            case "lost":
                error: ErrorInfo | None = answers.lost(command, self.accounting.records[command.job].flight)
            case "refused":
                error = self.accounting.records[command.job].error or answers.refused_later(command)
            case _:
                error = answers.cancelled(command.message)
        outcome = "cancelled" if command.outcome == "cancelled" else "failed"
        self._give_up(command.job)
        executed = 0 if command.outcome == "lost" else command.ops_done
        self.accounting.answer(command.job, outcome, executed, {}, error=error)

    def _give_up(self, job: str) -> None:
        """Drop what a preempted segment made that will not resume."""
        record = self.accounting.records[job]
        stops = record.flight.stops if record.flight is not None else None
        if stops is not None and stops.since_s is not None and not stops.lost:
            self.transfers.release(record.session, stops.if_given_up)

    def _device_ready(self, device: str) -> None:
        now_s = self.core.clock.now_s()
        ready = self.fleet.status(device).ready
        assert ready is not None
        self.handle(
            engine.DeviceAdded(
                at_s=now_s,
                device=device,
                memory_bytes=ready.memory_bytes,
                host_bytes=ready.host_bytes,
                disk_bytes=ready.disk_bytes,
                link_bytes_per_s=ready.link_bytes_per_s,
                numa_node=ready.numa_node,
                host=self.fleet.status(device).plan.host,
            )
        )

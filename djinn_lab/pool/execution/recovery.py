"""Makes again what sessions lost with a worker, and says so: the shell around :mod:`djinn_lab.pool.lineage`.

A session whose worker died is restored from its last whole copy, as session memory orders. Before its next
segment runs, its pending runs are replayed on the same device, in the segment's name: so they can be
preempted and cancelled like the segment itself. If a run cannot be repeated, the session is emptied, and the
segment finds out which of its values are lost.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from djinn_lab import engine, memory
from djinn_lab.events import Rebuild
from djinn_lab.pool.blobs.store import BlobStore
from djinn_lab.pool.bookkeeping.job_accounting import JobAccounting
from djinn_lab.pool.bookkeeping.kept_sessions import nothing_to_commit
from djinn_lab.pool.bookkeeping.records import JobRecord, RunningSegment
from djinn_lab.pool.database.sessions import CopyOrigin, LeftSession
from djinn_lab.pool.devices.launcher import Launcher
from djinn_lab.pool.execution.journaled_engine import JournaledEngine
from djinn_lab.pool.execution.state_transfers import StateTransfers
from djinn_lab.pool.lineage.bounds import copy_wanted
from djinn_lab.pool.lineage.log import Copy, Run, SessionLog
from djinn_lab.pool.lineage.pruning import needed, unread
from djinn_lab.pool.lineage.sentences import LostWorker, recovered
from djinn_lab.pool.lineage.steps import step_of
from djinn_lab.pool.sessions import answers
from djinn_lab.protocol import worker
from djinn_lab.protocol.worker import (
    RunAnswer,
    RunPreempted,
    RunSegment,
    SegmentCancelled,
    SegmentDone,
    SegmentFailed,
)
from djinn_lab.srg.program import decode_program
from djinn_lab.units import format_bytes

Message = RunAnswer | worker.SegmentStarted | worker.SegmentProgress

LOGS_BYTES_MAX = 2**29
"""Of all sessions together; the largest log is given up."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Replay:
    """A replay under way for a segment that the queue has started on ``device``. ``needed``: whether each
    pending run is repeated. ``releases``: by runs that are not. ``then``: starts the segment. ``run``: was
    sent last. What the client released is dropped at the end, since runs may read it."""

    job: str
    segment: int
    session: str
    device: str
    began_s: float
    needed: list[bool]
    then: Callable[[], None]
    run: Run | None = None
    releases: list[int] = field(default_factory=list)
    cancelled: bool = False
    preempted: bool = False


class Recovery:
    """Keep the log of each session, and replay it. ``over``: handles the answer to a segment."""

    def __init__(
        self,
        core: JournaledEngine,
        launcher: Launcher,
        blobs: BlobStore,
        accounting: JobAccounting,
        transfers: StateTransfers,
        handle: Callable[[engine.Event], None],
        over: Callable[[str, SegmentCancelled], None],
    ) -> None:
        self._core = core
        self._launcher = launcher
        self._blobs = blobs
        self._accounting = accounting
        self._transfers = transfers
        self._handle = handle
        self._over = over
        self._kept = accounting.sessions
        self._logs: defaultdict[str, SessionLog] = defaultdict(SessionLog)
        self._replays: dict[str, Replay] = {}
        self._losses: dict[str, LostWorker] = {}
        """By session: of which its user has not heard."""
        self._nbytes = 0
        """Of all logs since they were last counted, at least."""

    # -- what runs ------------------------------------------------------------------------------------------

    def sends(self, session: str, flight: RunningSegment) -> int:
        """Return the serial of a run that is about to be sent."""
        flight.serial, flight.sent_s = self._logs[session].next_serial(), self._now_s()
        self._recovered(flight)
        return flight.serial

    def released(self, session: str, values: Sequence[int]) -> int:
        """Return the serial of a release."""
        serial = self._logs[session].release(values)
        self._kept.released(session, serial, values)
        return serial

    def ran(self, message: RunAnswer) -> None:
        """Note what a segment did to its session. Call before the answer is handled."""
        record = self._accounting.records.get(message.job)
        flight = record.flight if record is not None else None
        if record is None or flight is None or flight.segment != message.segment:
            return
        flight.sent_s = None
        run = _run_of(flight, message, record.session)
        kept = self._logs[record.session]
        if run is not None:
            before_bytes = kept.nbytes
            kept.ran(run)
            self._kept.ran(record.session, run, flight)
            if kept.void:
                self._kept.rewrite(record.session, kept)
            self._blobs.want(run.blobs)
            self._nbytes += kept.nbytes - before_bytes
            self._drop(kept)
            self._bound(record.session, kept)
        self._say(record, flight, kept)

    def _bound(self, session: str, kept: SessionLog) -> None:
        """Ask for a copy where a replay would take long. Call while no segment of the session runs."""
        copy_s = self._core.accounts.copy_s(self._core.accounts.session_bytes(session))
        wanted = copy_wanted(kept, copy_s)
        if wanted is not None:
            self._handle(memory.CopyWanted(self._now_s(), session, wanted == "held"))

        if self._nbytes > LOGS_BYTES_MAX:
            self._nbytes = sum(one.nbytes for one in self._logs.values())
            name, largest = max(self._logs.items(), key=lambda one: one[1].nbytes)
            if self._nbytes > LOGS_BYTES_MAX:
                limit = format_bytes(LOGS_BYTES_MAX)
                largest.make_void(f"all sessions ran more than {limit} of programs", largest.serials)
                self._kept.rewrite(name, largest)
                self._drop(largest)

    def began_gang(self, session: str) -> None:
        self._logs[session].began_gang()
        self._kept.rewrite(session, self._logs[session])

    def ended_gang(self, device: str, message: SegmentDone | SegmentCancelled | None, job: str) -> None:
        """Note the end of a gang; None for one that continues as a whole."""
        record = self._accounting.records[job]
        flight, kept = record.flight, self._logs[record.session]
        assert flight is not None
        serial = kept.next_serial()
        self._transfers.drop_values(device, record.session, (), serial)
        plain = isinstance(message, SegmentDone) and flight.stops is None
        run = _run_of(flight, message, record.session) if plain and message is not None else None
        kept.ended_gang(run, serial)
        if kept.void or run is None:
            self._kept.cannot_repeat(record.session, serial, job)
        else:
            self._kept.ran(record.session, run._replace(serial=serial), flight)
        self._kept.rewrite(record.session, kept)
        if run is not None:
            self._blobs.want(run.blobs)
        self._drop(kept)

    def copied(self, done: worker.CopyDone, origin: CopyOrigin) -> Future[None] | None:
        """Note a whole copy of a session; done once the database has it. None: the database keeps a former
        one."""
        kept = self._logs.get(done.session)
        if kept is None:
            return nothing_to_commit()
        memory = done.memory
        nbytes = memory.session_bytes.get(done.session, 0) + memory.weight_bytes.get(done.session, 0)
        account = self._core.accounts.session(done.session)
        if not nbytes and account is not None:
            nbytes = account.total_bytes - account.offloaded_bytes
        kept.copied(Copy(done.serial, nbytes, done.values))
        committed = None
        if not kept.spread and done.manifest is not None:
            committed = self._kept.copied(done.session, kept, origin, done.manifest)
        self._drop(kept)
        return committed

    def returned(self, left: LeftSession, gone: str, cell: str) -> str:
        """Continue the log of a session of an earlier run of the pool. ``gone``: why its copy cannot be used,
        empty for no reason. ``cell``: that was under way. Return why its values are lost, empty where they
        are not."""
        session, kept = left.stored.session, left.log
        self._logs[session] = kept
        kept.spread = False  # what ran on several devices was not answered: its session is as it was before
        if gone and kept.copy is not None:
            kept.make_void(gone, kept.serials)
        if not kept.lost():
            why = kept.void
            kept.reset()
            kept.take_dropped()
            return why
        for run in kept.runs:
            self._blobs.want(run.blobs)
        kept.recount()
        self._nbytes += kept.nbytes
        self._kept.returned(session, left.origin)
        self._losses[session] = LostWorker("", cell, bool(cell))
        return ""

    def was_lost(self, session: str) -> bool:
        """Return whether nothing is left of a returned session."""
        kept = self._logs.get(session)
        return kept is None or (kept.copy is None and not kept.runs)

    def rebuild_of(self, session: str) -> Rebuild:
        """Say how the values of a returned session are made again."""
        kept = self._logs[session]
        return Rebuild(kept.copy.nbytes if kept.copy else 0, kept.peak_bytes)

    def replay_bytes(self, session: str) -> int:
        """Return about how many bytes the pending runs of a returned session make."""
        kept = self._logs[session]
        copied = kept.copy.nbytes if kept.copy else 0
        return max(1, kept.runs[-1].held_bytes - copied) if kept.pending else 0

    def rebuildable(self, sessions: frozenset[str]) -> bool:
        """Return whether all values of these sessions can be made again."""
        return all(self._logs[session].rebuildable for session in sessions if session in self._logs)

    # -- what is lost ---------------------------------------------------------------------------------------

    def died(
        self, device: str, running: Sequence[str], sessions: frozenset[str] | None = None
    ) -> dict[str, Rebuild]:
        """Say how the sessions of a worker that died are made again. ``running``: jobs of its device.
        ``sessions``: those of the worker; None: all on the device."""

        def was_there(session: str) -> bool:
            return sessions is None or session in sessions

        records = self._accounting.records
        for job in [job for job, replay in self._replays.items() if replay.device == device]:
            if not was_there(records[job].session):
                continue
            flight = records[job].flight
            assert flight is not None
            flight.sent_s = self._replays.pop(job).began_s
        rebuilds: dict[str, Rebuild] = {}
        for session, kept in self._logs.items():
            account = self._core.accounts.session(session)
            if account is None or account.device != device or not was_there(session):
                continue
            if kept.lost():
                rebuilds[session] = Rebuild(kept.copy.nbytes if kept.copy else 0, kept.peak_bytes)
                self._losses[session] = LostWorker(device)
            self._kept.rewrite(session, kept)
            self._drop(kept)
        for record in [records[job] for job in running if was_there(records[job].session)]:
            if self._core.accounts.session(record.session) is not None:  # else it was closed meanwhile
                self._losses[record.session] = LostWorker(device, record.cell, True)
            flight = record.flight
            if flight is not None:
                flight.lost_s = flight.sent_s or self._now_s()
                flight.sent_s = None
        return rebuilds

    def lost(self, session: str) -> str:
        """The session holds nothing any more. Return why it could not be made again, empty for no reason."""
        kept = self._logs.get(session)
        if kept is None:
            return ""
        why = kept.void
        kept.reset()
        self._kept.rewrite(session, kept)
        self._drop(kept)
        return why

    def closed(self, session: str) -> None:
        self.lost(session)
        self._logs.pop(session, None)
        self._losses.pop(session, None)

    def pending(self, session: str) -> bool:
        """Return whether something is to be replayed before the session's next segment."""
        kept = self._logs.get(session)
        return kept is not None and bool(kept.pending)

    def unread(self, session: str, released: Sequence[int]) -> list[int]:
        """Return the released values that no pending replay reads."""
        kept = self._logs.get(session)
        return unread(kept.pending, released) if kept is not None else [*released]

    # -- replays --------------------------------------------------------------------------------------------

    def begin(self, job: str, device: str, then: Callable[[], None]) -> bool:
        """Replay what the session of a started segment lacks, then call ``then``; False for nothing to
        replay."""
        record = self._accounting.records[job]
        kept = self._logs.get(record.session)
        if kept is None or not kept.pending or record.flight is None:
            return False
        dead = [value for _, values in kept.released for value in values]
        replay = Replay(
            job,
            record.flight.segment,
            record.session,
            device,
            self._now_s(),
            needed(kept.pending, dead),
            then,
        )
        self._replays[job] = replay
        self._recovered(record.flight)
        self._next(replay, kept)
        return True

    def preempt(self, job: str) -> bool:
        """Stop a replay, to continue it later; False where there is none."""
        replay = self._replays.get(job)
        if replay is None:
            return False
        replay.preempted = True
        self._launcher.preempt(replay.device, job, replay.segment)
        return True

    def cancel(self, job: str) -> bool:
        """Stop a replay whose cell is cancelled; False where there is none. What it made stays."""
        replay = self._replays.get(job)
        if replay is None:
            return False
        replay.cancelled = True
        self._launcher.preempt(replay.device, job, replay.segment)
        return True

    def takes(self, device: str, message: Message) -> bool:
        """Handle an answer to a replayed run; False for any other message."""
        replay = self._replays.get(message.job)
        if replay is None or replay.device != device or replay.segment != message.segment:
            return False
        if isinstance(message, worker.SegmentStarted | worker.SegmentProgress):
            return True
        self._transfers.report(device, message.memory)
        kept = self._logs[replay.session]
        match message:
            case SegmentDone():
                answers.discard(message, self._blobs)
                self._done(replay, kept)
            case RunPreempted():
                assert replay.run is not None
                kept.split(replay.run, message.executed, message.rng_state)
                self._kept.rewrite(replay.session, kept)
                self._stopped(replay, message.undone)
            case SegmentFailed():
                self._give_up(replay, message.error.message)
            case SegmentCancelled():
                self._give_up(replay, "its replay was cancelled")
        return True

    def _next(self, replay: Replay, kept: SessionLog) -> None:
        """Send the next run that is needed, or start the segment."""
        while kept.pending:
            run = kept.pending[0]
            if replay.needed.pop(0):
                self._send(replay, run)
                return
            replay.releases += decode_program(run.program).release
            kept.replayed(run)
        del self._replays[replay.job]
        self._account(replay)
        serial, released = kept.release_all(replay.releases)
        if released:
            self._kept.rewrite(replay.session, kept)
            self._transfers.drop_values(replay.device, replay.session, released, serial)
        replay.then()

    def _send(self, replay: Replay, run: Run) -> None:
        blobs = self._blobs.stored_names(run.blobs)
        if blobs is None:
            self._give_up(replay, "an input of a cell that made them is no longer among the uploads")
            return
        step = step_of(run)
        replay.run = run
        known = self._losses.get(replay.session)
        if known is not None:
            known.ops += step.ops
            known.values += step.values
        order = RunSegment(
            *(replay.job, replay.segment, replay.session, step.program, blobs, step.key, step.resume),
            announces_start=False,
            serial=run.serial,
        )
        self._launcher.run(replay.device, order)

    def _done(self, replay: Replay, kept: SessionLog) -> None:
        assert replay.run is not None
        kept.replayed(replay.run)
        if (replay.preempted or replay.cancelled) and kept.pending:
            self._stopped(replay, undone=False)
        else:
            self._next(replay, kept)
            if replay.preempted:
                self._launcher.preempt(replay.device, replay.job, replay.segment)
            if replay.cancelled:
                self._launcher.cancel(replay.device, replay.job)

    def _stopped(self, replay: Replay, undone: bool) -> None:
        """The replay was stopped between two runs, or ops; its job waits again, or is over."""
        del self._replays[replay.job]
        self._account(replay)
        record = self._accounting.records[replay.job]
        flight, now_s = record.flight, self._now_s()
        assert flight is not None
        executed = flight.stops.executed if flight.stops is not None else 0
        if replay.cancelled:
            report = self._transfers.reported(replay.device)
            self._over(replay.device, SegmentCancelled(replay.job, replay.segment, executed, report))
            return
        if flight.stops is not None:
            flight.stops.since_s = now_s
        replayed_s, flight.replayed_s = flight.replayed_s, 0.0
        self._handle(
            engine.SegmentStopped(
                now_s, replay.job, replay.segment, executed, undone=undone, replayed_s=replayed_s
            )
        )

    def _give_up(self, replay: Replay, why: str) -> None:
        """A run cannot be repeated: nothing of its session is right any more."""
        log.warning("session %s cannot be made again: %s", replay.session, why)
        del self._replays[replay.job]
        self._account(replay)
        self._launcher.copy(replay.device, worker.Close(replay.session))
        self._transfers.forget(replay.session)
        self.lost(replay.session)
        session = self._accounting.registry.get(replay.session)
        known = self._losses.pop(replay.session, None)
        if session is not None:
            how = "a worker was lost" if known is None else known.how
            session.lost = f"{how[0].upper()}{how[1:]}, and its values could not be made again: {why}."
        replay.then()

    def _account(self, replay: Replay) -> None:
        flight = self._accounting.records[replay.job].flight
        assert flight is not None
        seconds = max(0.0, self._now_s() - replay.began_s)
        flight.replayed_s += seconds
        flight.recovery_s += seconds

    # -- parts ----------------------------------------------------------------------------------------------

    def _say(self, record: JobRecord, flight: RunningSegment, kept: SessionLog) -> None:
        """Say once, with the first answer after a loss, what was made again."""
        known = self._losses.pop(record.session, None)
        if known is not None:
            copied = kept.copy.values if kept.copy is not None else 0
            known.recovery_s = flight.recovery_s + flight.restoring_s
            flight.recovery = recovered(known, copied)

    def _recovered(self, flight: RunningSegment) -> None:
        """A segment whose worker was lost is sent again."""
        if flight.lost_s is not None:
            flight.recovery_s += max(0.0, self._now_s() - flight.lost_s)
            flight.lost_s = None

    def _drop(self, kept: SessionLog) -> None:
        for run in kept.take_dropped():
            self._blobs.want(run.blobs, -1)

    def _now_s(self) -> float:
        return self._core.clock.now_s()


def _run_of(flight: RunningSegment, message: RunAnswer, session: str) -> Run | None:
    """Return what an answered run did to its session; None for nothing."""
    stops = flight.stops
    begin = stops.executed if stops is not None else 0
    rng_state = stops.rng_state if stops is not None and begin else None
    end, closes, loaded, run_s = None, True, True, 0.0
    match message:
        case SegmentDone():
            run_s = message.load_s + message.run_s
        case RunPreempted():
            if message.undone or message.executed <= begin:
                return None
            end, closes, run_s = message.executed, False, message.load_s + message.run_s
        case SegmentFailed():
            if message.error.missing and not message.executed:
                return None
            end = message.executed
        case SegmentCancelled():
            end, loaded = message.executed, message.executed > 0
    blobs = () if begin else tuple(flight.blobs)
    return Run(
        serial=flight.serial,
        job=message.job,
        segment=flight.segment,
        program=flight.program,
        blobs=blobs,
        key=flight.key,
        begin=begin,
        rng_state=rng_state,
        end=end,
        closes=closes,
        loaded=loaded,
        run_s=run_s,
        peak_bytes=flight.footprint.peak_bytes,
        held_bytes=message.memory.session_bytes.get(session, 0),
    )

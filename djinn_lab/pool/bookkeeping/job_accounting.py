"""The pool's records of jobs: code, states, results and resource use; and what is sent to their clients."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from hashlib import sha256

import msgspec

from djinn_lab import jobs
from djinn_lab.errors import DeviceMemoryError, Refused
from djinn_lab.jobs.resources import ResourceHistory, ResourceUse
from djinn_lab.jobs.start_forecasts import StartForecasts
from djinn_lab.pool.blobs.store import BlobStore
from djinn_lab.pool.bookkeeping.audit_log import AuditLog
from djinn_lab.pool.bookkeeping.kept_sessions import KeptSessions
from djinn_lab.pool.bookkeeping.overruns import OverrunDetector
from djinn_lab.pool.bookkeeping.records import JobRecord, RunningSegment
from djinn_lab.pool.database.batch import PROMPT_PROGRAM_BYTES_MAX, Row, WriteKind
from djinn_lab.pool.database.durability import Committed, Durability
from djinn_lab.pool.database.forecasts import (
    RUN_RATIOS,
    START_WAITS,
    forecast_rows,
    run_times_name,
    samples_row,
)
from djinn_lab.pool.database.history import read_ended_from
from djinn_lab.pool.database.published import PublishedData
from djinn_lab.pool.database.shares import usage_row
from djinn_lab.pool.database.store import PROGRAM_BYTES_MAX, Store, StoredTimes, program_row, timings_row
from djinn_lab.pool.devices.cost_model import CostModel
from djinn_lab.pool.execution.journaled_engine import JournaledEngine
from djinn_lab.pool.sessions import answers
from djinn_lab.pool.sessions.registry import ClientSession, SessionRegistry
from djinn_lab.protocol.messages import FETCH_CELL, ErrorInfo, JobUpdate, SegmentResult, SubmitSegment
from djinn_lab.protocol.rest.jobs import JobView
from djinn_lab.protocol.worker import SegmentDone, WorkerMemory

RECORDS_MAX = 1000
PAST_MAX = 100_000
"""So many ended jobs are known by name, in case a client submits one again."""

log = logging.getLogger(__name__)


class JobAccounting:
    """Keep the record of every job, learn forecasts, and send clients states and results.
    ``observe_segment``: called with the seconds from receipt to result of every segment."""

    def __init__(
        self,
        core: JournaledEngine,
        blobs: BlobStore,
        store: Store,
        registry: SessionRegistry,
        observe_segment: Callable[[float], None],
        costs: CostModel,
    ) -> None:
        self.registry = registry
        self.costs = costs
        self.records: OrderedDict[str, JobRecord] = OrderedDict()
        self.core = core
        self._blobs = blobs
        self.starts = StartForecasts()
        self.overruns = OverrunDetector()
        self.published = PublishedData()
        self.resources = ResourceHistory()
        self.notebook_uses: dict[str, ResourceUse] = {}
        """Of batch notebooks that run, so far."""
        self._store = store
        self._observe_segment = observe_segment
        self.on_answer: Callable[[JobRecord, RunningSegment, str], None] = _ignore_answer
        """Called with each segment that was answered, and its outcome."""
        self._changed: set[str] = set()
        self.audit = AuditLog(store, core.pool, core.clock.now_s)
        self.durability = Durability(store, self.save_changed)
        self.sessions = KeptSessions(store, registry)
        self._ended: dict[str, None] = {}
        """Of the records, those of jobs that have ended, in that order."""
        self._past: dict[str, None] = {}

    def record_of(self, session: ClientSession, submit: SubmitSegment) -> JobRecord:
        """Find or make the record of a segment's job, and add the segment's cut to it."""
        record = self.records.get(submit.job)
        if record is None:
            now_s = self.core.clock.now_s()
            record = self.records[submit.job] = JobRecord.of(submit, session.session, session.user, now_s)
            session.jobs += submit.cell != FETCH_CELL
            while self._ended and len(self.records) > RECORDS_MAX:
                old = next(iter(self._ended))
                self._save(old)
                del self.records[old], self._ended[old]
                self.remember([old])
        record.add_segment(submit)
        self._changed.add(submit.job)
        return record

    def together(self) -> AbstractContextManager[None]:
        """Write what is queued meanwhile, if anything, in one transaction, with the rows of all jobs that
        changed."""
        return self._store.together(self.save_changed)

    def return_job(self, record: JobRecord) -> None:
        """Continue the record of a job of an earlier run of the pool."""
        self.records[record.job] = record
        self._changed.add(record.job)

    def remember(self, ended: Iterable[str]) -> None:
        """Jobs that are no more than rows of the database."""
        self._past.update(dict.fromkeys(ended))
        while len(self._past) > PAST_MAX:
            del self._past[next(iter(self._past))]

    def is_past(self, job: str) -> bool:
        """Return whether a job ended, in this pool or in one before, and must not run again."""
        return job in self._past

    async def read_ended(self, starts: Sequence[str]) -> list[JobView]:
        """Read the jobs that ended and whose ids begin so, each where it is the only one. Raises
        SQLAlchemyError."""
        return await self._store.read(lambda connection: read_ended_from(connection, starts))

    def note_run(self, done: SegmentDone) -> None:
        """Learn from what a segment took, and keep the times of its nodes."""
        record = self.records[done.job]
        flight = record.flight
        record.measured_s = (record.measured_s or 0.0) + done.run_s
        self.overruns.ended(record.predicted_s, done.run_s)
        # else equal programs that run op by op, and alone, would be predicted too short
        learns = not (done.compiled_ops or done.batched_with)
        if flight is not None and record.device is not None and learns:
            gang = 1 if flight.gang is None else flight.gang.devices
            self.costs.ended(record.device, done.job, flight.key, flight.predicted, done.run_s, gang)
            if flight.gang is None:
                self.costs.sample(record.device, flight.program, done)
        times = StoredTimes(done.node_times, () if flight is None else flight.node_devices)
        self._store.put(timings_row(done.job, done.segment, times.encoded()))

    def forecast(self, record: JobRecord, flight: RunningSegment) -> None:
        """Predict what a new cell takes. One without code that begins with a read is like every other
        one of which no more is known: it has no earlier runs, and is none."""
        if record.code or record.ops_total:
            code = sha256(_below_magic(record.code).encode(errors="replace"))
            record.program = (code.digest() + (flight.key or b"")).hex()
        record.predicted = self.resources.forecast(record.program, record.predicted_s, flight.need_bytes)

    def took(self, record: JobRecord, use: ResourceUse) -> None:
        """Add what an answered segment used."""
        record.use = record.use.and_then(use)
        session = self.registry.get(record.session)
        if session is not None and session.notebook:
            before = self.notebook_uses.get(session.notebook, ResourceUse())
            self.notebook_uses[session.notebook] = before.and_then(use)

    def _compare(self, record: JobRecord) -> None:
        """Compare a cell that computed and succeeded with its forecast, once its last segment was
        answered."""
        job = self.core.queue.job(record.job)
        ended_well = job is not None and job.state is jobs.JobState.DONE and record.ops_done > 0
        if ended_well and record.flight is None and record.program is not None and record.predicted:
            self.resources.ended(record.program, record.predicted, record.use)
            record.program = None  # once

    def save_learnt(self) -> None:
        """Queue what forecasts learnt since the last call, and how far they were off: once for all runs of a
        program, and once for all that was compared."""
        now_s = self.core.clock.now_s()
        for row in forecast_rows(self.resources.take_changes(), now_s):
            self._store.put(row)
        for name, samples in (
            (START_WAITS, self.starts.take_changes()),
            (RUN_RATIOS, self.overruns.take_changes()),
        ):
            if samples is not None:
                self._store.put(samples_row(name, samples, now_s))
        for source, ratios in self.costs.history.take_changes().items():
            self._store.put(samples_row(run_times_name(source, self.costs.estimator_name), ratios, now_s))

    def unusual(self, running: Iterable[jobs.Job]) -> dict[str, str]:
        """Say what is unusual about running jobs, by job."""
        now_s = self.core.clock.now_s()
        sentences = ((job.job, self.overruns.sentence(job, now_s)) for job in running)
        return {job: sentence for job, sentence in sentences if sentence}

    def announced(self, job: str, checkpoints: tuple[str, ...]) -> None:
        """Record all checkpoints that a job has announced."""
        self.records[job].checkpoints = checkpoints
        self._changed.add(job)

    def charge(self, charge: jobs.ChargeAccount) -> None:
        """Write a line of the usage ledger."""
        self._store.put(usage_row(charge))
        watts = self.core.queue.watts(charge.device)
        self.records[charge.job].add_energy(watts, charge.ended_at_s - charge.started_at_s)
        self._changed.add(charge.job)

    def keep_program(self, submit: SubmitSegment, flight: RunningSegment) -> None:
        """Keep a program for the graph and schedule pages, up to PROGRAM_BYTES_MAX, and for replays."""
        nbytes = len(submit.program)
        if nbytes > PROGRAM_BYTES_MAX:
            return
        deferred = nbytes > PROMPT_PROGRAM_BYTES_MAX
        self._store.put(program_row(submit.job, submit.segment, submit.program, deferred))
        flight.deferred = self._store.deferred if deferred else 0

    def note(self, notice: jobs.Notify) -> None:
        """Record what the queue decided and notify the client."""
        record = self.records[notice.job]
        job = self.core.queue.job(notice.job)
        if notice.state is jobs.JobState.RUNNING:
            self.starts.started(notice.job, self.core.clock.now_s())
        elif notice.state in jobs.FINISHED:
            self.starts.left(notice.job)
        record.note(notice, job)
        record.state = self._shown_state(notice.state, record.session).value
        if record.finished_at is not None:
            self._ended[notice.job] = None
        record.watts = None if record.device is None else self.core.queue.watts(record.device)
        self._compare(record)
        if notice.state in jobs.PENDING_STATES:
            record.estimate_s = self.starts.wait_s(notice.job, self.core.clock.now_s())
        self._changed.add(notice.job)
        self.notify(record, job, self.durability.commit(urgent=False))

    def shown(self, job: jobs.Job) -> jobs.Job:
        """Return the job in the state in which people see it."""
        return msgspec.structs.replace(job, state=self._shown_state(job.state, job.session))

    def _shown_state(self, state: jobs.JobState, session: str) -> jobs.JobState:
        restores = state is not jobs.JobState.RESTORING or self._has_state_to_restore(session)
        return state if restores else jobs.JobState.QUEUED

    def _has_state_to_restore(self, session: str) -> bool:
        """Return whether a session that waits for memory has state on the host, on disk or on another device,
        so that its job is shown as RESTORING: a new session's job is only pending."""
        account = self.core.accounts.session(session)
        if account is None:
            return False
        return account.tier in ("host", "disk") or account.moving is not None or account.target is not None

    def notify(self, record: JobRecord, job: jobs.Job | None, after: Committed | None = None) -> None:
        """Send the job's present state to its client. ``after``: what must be committed before."""
        session = self.registry.get(record.session)
        if session is None:
            return
        error = None if record.estimate_s is None else self.starts.error
        update = JobUpdate(
            job=record.job,
            state=record.state,
            reason=record.reason,
            position=record.position,
            estimate_s=record.estimate_s,
            estimate_error_s=None if error is None else error.median_s,
            device=record.device,
            ops_done=record.ops_done,
            ops_total=record.ops_total,
            left_s=self._left_s(record, job),
        )
        session.send(update, after)

    def _left_s(self, record: JobRecord, job: jobs.Job | None) -> float | None:
        if job is None or job.finished:
            return None
        if record.flight is None or job.state is not jobs.JobState.RUNNING:
            return job.remaining_s
        return record.flight.left_s(job, self.core.clock.now_s())

    def save_changed(self) -> None:
        """Queue the rows of jobs that changed since the last call."""
        for job in list(self._changed):
            self._save(job)

    def _save(self, job: str) -> None:
        if job in self._changed:
            self._changed.discard(job)
            row = self.records[job].row(self.core.pool, self.core.queue.job(job))
            row["code"] = str(row["code"]).replace("\0", "\ufffd")  # PostgreSQL's text has no such character
            self._store.put(Row(WriteKind.JOB, row))

    def refresh_waiting(self) -> None:
        """Notify the clients of pending jobs whose reason has changed; in a long queue, of the first jobs
        only."""
        for job, _, reason in self.core.queue.waiting_first():
            record = self.records[job.job]
            estimate_s = self.starts.wait_s(job.job, self.core.clock.now_s())
            if (record.reason, record.estimate_s) != (reason, estimate_s):
                record.reason, record.estimate_s = reason, estimate_s
                self.notify(record, job)

    def answer(
        self,
        job: str,
        outcome: str,
        executed: int,
        seconds: dict[str, float],
        done: SegmentDone | None = None,
        error: ErrorInfo | None = None,
        report: WorkerMemory | None = None,
        rng_state: bytes | None = None,
    ) -> None:
        """Send the one result of the job's segment in flight, and forget the flight."""
        record = self.records[job]
        flight = record.flight
        assert flight is not None
        record.flight = None
        with self.together():
            outcome = self._answer(record, flight, outcome, executed, seconds, done, error, report, rng_state)
            self.on_answer(record, flight, outcome)

    def _answer(
        self,
        record: JobRecord,
        flight: RunningSegment,
        outcome: str,
        executed: int,
        seconds: dict[str, float],
        done: SegmentDone | None,
        error: ErrorInfo | None,
        report: WorkerMemory | None,
        rng_state: bytes | None,
    ) -> str:
        """Return the outcome for the client."""
        job = record.job
        self._blobs.unpin(flight.blobs)
        now_s = self.core.clock.now_s()
        stages = flight.stages(seconds, now_s)
        record.add_stages(stages)
        record.error = error or record.error
        queued = self.core.queue.job(job)
        record.progressed(executed)
        record.ops_before += queued.ops_total if queued else executed
        report = done.memory if done is not None else report
        record.peak_bytes = max(record.peak_bytes, report.peak_bytes if report else 0)
        self.took(record, _use(record, flight, done, report, error))
        self._compare(record)
        self._observe_segment(now_s - flight.received_s)
        self._changed.add(job)
        session = self.registry.get(record.session)
        if session is None or (session.link is None and not session.awaited):
            answers.discard(done, self._blobs)
            return outcome
        try:
            fetched = answers.fetched(done, outcome, session.session, self._blobs)
        except (OSError, Refused) as problem:
            log.error("results of job %s cannot be delivered: %s", job, problem)
            outcome, fetched, error = "failed", [], answers.undelivered(problem)
        session.send(
            SegmentResult(
                job=job,
                segment=flight.segment,
                outcome=outcome,
                executed=executed,
                device=record.device,
                stages=stages,
                pool_s=now_s - flight.received_s,
                fetched=fetched,
                dynamic_metas=done.dynamic_metas if done else [],
                rng_state=done.rng_state if done else rng_state,
                error=error,
                peak_bytes=report.peak_bytes if report else 0,
                plan_cached=flight.plan_cached,
                gang=record.gang,
                recovery=flight.recovery,
                out_bytes=done.out_bytes if done else 0,
                compiled=done.compiled if done else "",
                batched_with=done.batched_with if done else 0,
                in_bytes=done.in_bytes if done else 0,
                ahead_bytes=done.ahead_bytes if done else 0,
            ),
            self.durability.commit(),
        )
        return outcome


def _ignore_answer(record: JobRecord, flight: RunningSegment, outcome: str) -> None:
    """Nothing follows."""


def _below_magic(code: str) -> str:
    """Return the code without the cell magic's line: its options say where and when a cell runs, not what it
    computes."""
    first, _, rest = code.partition("\n")
    return rest if first.startswith("%%") else code


def _use(
    record: JobRecord,
    flight: RunningSegment,
    done: SegmentDone | None,
    report: WorkerMemory | None,
    error: ErrorInfo | None,
) -> ResourceUse:
    """Measure what one segment used on its device, without what other sessions held there. Where memory was
    short, its peak is what it would have needed at least."""
    own_bytes = 0
    if report is not None:
        others = sum(report.session_bytes.values()) - report.session_bytes.get(record.session, 0)
        own_bytes = max(0, report.peak_bytes - others)
    if error is not None and error.type_name == DeviceMemoryError.__name__:
        own_bytes = max(own_bytes, flight.need_bytes)
    return ResourceUse(0.0 if done is None else done.run_s, own_bytes, record.cell)

"""Submitted segments: inspected, then submitted to the engine, or refused with the reason."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from djinn_lab import engine, jobs, memory
from djinn_lab.errors import Refused
from djinn_lab.jobs.conditions import parse
from djinn_lab.jobs.resources import ResourceUse
from djinn_lab.jobs.run_times import RunTime
from djinn_lab.pool.blobs.store import BlobStore
from djinn_lab.pool.bookkeeping.job_accounting import JobAccounting
from djinn_lab.pool.bookkeeping.records import JobRecord, RunningSegment, ended_job
from djinn_lab.pool.devices.cost_model import UNMEASURED
from djinn_lab.pool.devices.fleet import Fleet
from djinn_lab.pool.execution.journaled_engine import JournaledEngine
from djinn_lab.pool.gangs.layouts import LayoutCache
from djinn_lab.pool.gangs.plans import GangDecision, decide_gang
from djinn_lab.pool.sessions import answers
from djinn_lab.pool.sessions.admission import InspectedProgram, PlanCache, TorchVersions, inspect_program
from djinn_lab.pool.sessions.registry import Arrival, ClientSession
from djinn_lab.protocol.messages import FOLLOWERS_MAX, TOLERANCE_MAX, ErrorInfo, SubmitSegment
from djinn_lab.protocol.notebooks import ID_PREFIX
from djinn_lab.protocol.rest.jobs import JobView
from djinn_lab.srg.program import decode_program

_JOB = re.compile(r"[0-9A-Za-z_-]{1,64}")
_BAD_NAME = "{!r} is not a name for a job: 1 to 64 letters, digits, _ or -, and no word that the pool uses."


class BatchNotebooks(Protocol):
    """Find batch notebooks that cells depend on."""

    def named(self, start: str) -> jobs.ExternalDependency:
        """Find the notebook whose id begins so. Raises jobs.IllegalEvent where none or several do."""


class SubmissionHandler:
    """Admit submitted segments, or reject them. ``perform`` carries out the engine's commands. ``notebooks``:
    None where there are none."""

    def __init__(
        self,
        core: JournaledEngine,
        blobs: BlobStore,
        accounting: JobAccounting,
        fleet: Fleet,
        perform: Callable[[Sequence[engine.Command]], None],
        trust_group: Callable[[ClientSession], str],
    ) -> None:
        self._fleet = fleet
        self._core = core
        self._blobs = blobs
        self._accounting = accounting
        self._perform = perform
        self.trust_group = trust_group
        self.plans = PlanCache()
        self.notebooks: BatchNotebooks | None = None
        self._layouts = LayoutCache()
        accounting.on_answer = self._answered

    async def submit(self, session: ClientSession, submit: SubmitSegment) -> None:
        """Admit a segment, or answer with the reason why not. One that follows a segment under way is
        inspected now, and admitted when that one is done."""
        received_s = self._core.clock.now_s()
        inspected: InspectedProgram | Refused
        gang = GangDecision(None)
        try:
            torches = TorchVersions(session.torch_version, self._fleet.lacking_ops)
            inspected = await inspect_program(submit.program, self.plans, torches)
        except Refused as error:
            inspected = error
        else:
            gang = await self._judge(submit, inspected, self._core.queue.job(submit.job))
        ended = await self._ended_before(submit.terms)
        if submit.again and not isinstance(inspected, Refused):
            await self._blobs.take_written(session.user, session.session, inspected.blobs)
        if self._came_before(session, submit):
            self.unpin_query(session)
            return
        arrival = Arrival(submit, received_s, received_s, inspected, gang, ended=ended)
        if submit.follows and (session.followers or self._runs(submit.job)):
            self._hold(session, arrival)
        else:
            self._admit(session, arrival)

    async def _ended_before(self, terms: jobs.Terms | None) -> list[JobView]:
        """Read the jobs that a cell depends on, and that the queue has forgotten, or that ended before the
        pool was started: the database has them as long as their history."""
        if terms is None or terms.problem() is not None:
            return []
        names = [one.job for one in map(parse, terms.after) if one.job and not one.job.startswith(ID_PREFIX)]
        unknown = [name for name in names if not self._core.queue.knows(name)]
        return await self._accounting.read_ended(unknown) if unknown else []

    def _recall(self, ended: Sequence[JobView]) -> None:
        """Let the queue know these jobs again."""
        for view in ended:
            if self._core.queue.job(view.job) is None:
                self._perform(self._core.handle(ended_job(view, self._core.clock.now_s())))

    def _came_before(self, session: ClientSession, submit: SubmitSegment) -> bool:
        """Return whether a segment that is sent again is here, or was answered; then it is answered again."""
        if not submit.again:
            return False
        record, number = self._accounting.records.get(submit.job), submit.segment
        flight = None if record is None or record.session != session.session else record.flight
        if flight is not None and flight.segment == number:
            return True
        if any((one.submit.job, one.submit.segment) == (submit.job, number) for one in session.followers):
            return True
        return session.send_again(submit.job, number)

    def _runs(self, job: str) -> bool:
        record = self._accounting.records.get(job)
        return record is not None and record.flight is not None

    def _hold(self, session: ClientSession, arrival: Arrival) -> None:
        if len(session.followers) >= FOLLOWERS_MAX:
            self.unpin_query(session)
            raise Refused(f"More than {FOLLOWERS_MAX} segments were sent ahead of the one that runs.")
        blobs = [] if isinstance(arrival.inspected, Refused) else arrival.inspected.blobs
        present = [name for name in blobs if self._blobs.has(session.user, name)]
        for name in present:
            self._blobs.pin(name)
        session.followers.append(arrival._replace(pins=[*session.pins, *present]))
        session.pins = []

    def _answered(self, record: JobRecord, flight: RunningSegment, outcome: str) -> None:
        """Admit the segment that follows an answered one; if that did not end well, skip it."""
        session = self._accounting.registry.get(record.session)
        if session is None:
            return
        session.done = (record.job, flight.segment) if outcome == "done" else None
        while session.followers and not self._runs(session.followers[0].submit.job):
            arrival = session.followers.popleft()
            of_next, session.pins = session.pins, arrival.pins
            try:
                self._admit(session, arrival._replace(due_s=self._core.clock.now_s()))
            finally:
                session.pins = of_next

    def drop_followers(self, session: ClientSession) -> None:
        """Forget the segments that a session sent ahead; its client is gone."""
        while session.followers:
            self._blobs.unpin(session.followers.popleft().pins)

    def _admit(self, session: ClientSession, arrival: Arrival) -> None:
        """Decide about a segment. What was pinned for it is so no longer: an admitted one has pinned its
        blobs itself, and a rejected one needs none."""
        try:
            with self._accounting.together():
                self._decide(session, arrival)
        finally:
            self.unpin_query(session)

    def _decide(self, session: ClientSession, arrival: Arrival) -> None:
        """Hand a segment to the engine, or answer with the reason why not."""
        submit, inspected, gang = arrival.submit, arrival.inspected, arrival.gang
        if submit.follows and session.done != (submit.job, submit.segment - 1):
            session.send(answers.skipped(submit))
            return
        if not _JOB.fullmatch(submit.job):
            self._decline(session, submit, Refused(_BAD_NAME.format(submit.job[:80])))
            return
        known = self._core.queue.job(submit.job)
        if known is not None and known.finished and known.session == session.session:
            session.send(answers.already_finished(submit, known))
            return
        if known is None and (self._accounting.is_past(submit.job) or "\0" in submit.job):
            session.send(answers.past(submit))
            return
        if isinstance(inspected, Refused):
            self._refuse(session, submit, 0, answers.refused(inspected))
            return
        missing = [digest for digest in inspected.blobs if not self._blobs.has(session.user, digest)]
        if missing:
            session.send(answers.blobs_missing(submit, missing, session.rejected))
            return
        try:
            predicted = self._predicted(session, inspected, gang)
            self._recall(arrival.ended)
            event = self._event(session, submit, inspected, gang, known, predicted)
            commands = self._core.handle(event)
        except jobs.IllegalEvent as error:
            self._decline(session, submit, Refused(f"The pool refuses this cell: {error}."))
            return
        need_bytes = self._core.accounts.session_bytes(session.session) + inspected.footprint.peak_bytes
        verdict = _refusal_in(commands, submit.job)
        if verdict is not None:
            reason = answers.never_fits(verdict)
            record = self._answer_refused(session, submit, inspected.ops, reason, commands)
            self._accounting.took(record, ResourceUse(0.0, need_bytes, record.cell))
            return
        flight = RunningSegment(
            submit.segment,
            submit.program,
            inspected.blobs,
            arrival.received_s,
            arrival.due_s,
            inspected.footprint,
            key=inspected.key,
            plan_cached=inspected.cached,
            gang=gang.plan,
            resends=submit.resends,
            tolerance=submit.tolerance,
            structure=inspected.structure,
            reads=inspected.reads,
            need_bytes=need_bytes,
            predicted=predicted,
        )
        self._enqueue(session, submit, event.segment, flight, commands)

    async def _judge(
        self, submit: SubmitSegment, inspected: InspectedProgram, known: jobs.Job | None
    ) -> GangDecision:
        """Decide on the gang of a cell that asked for several devices."""
        terms = submit.terms if known is None else known.terms
        asked, pool = terms.gang if terms is not None else 1, self._core.queue.devices_at_most
        if asked < 2:
            return GangDecision(None)
        if pool < 2:
            return GangDecision(None, "It runs on one device: this pool has no other.")
        curves = self._accounting.costs.curves() or UNMEASURED

        def judged() -> GangDecision:
            return decide_gang(
                decode_program(submit.program), asked, pool, curves, self._layouts, inspected.key
            )

        return await asyncio.to_thread(judged)

    def _event(
        self,
        session: ClientSession,
        submit: SubmitSegment,
        inspected: InspectedProgram,
        judgement: GangDecision,
        known: jobs.Job | None,
        predicted: RunTime | None,
    ) -> engine.SegmentArrived:
        terms, notebooks = self._terms(submit)
        now_s, footprint = self._core.clock.now_s(), inspected.footprint
        segment = jobs.SegmentSubmitted(
            at_s=now_s,
            job=submit.job,
            segment=submit.segment,
            session=session.session,
            user=session.user,
            priority=submit.priority,
            ops_total=inspected.ops,
            final=submit.final,
            target=terms.target if known is None else known.terms.target,
            predicted_s=None if predicted is None else predicted.seconds,
            predicted_spread=1.0 if predicted is None else predicted.spread,
            account=session.account,
            terms=terms,
            devices=judgement.devices,
            devices_why=judgement.why,
            met=self._accounting.published.met(session.account, terms.after),
            external=notebooks,
            notebook=session.notebook,
            fits=self._fits(session, inspected),
            phase=inspected.phase,
            batch=self._batch(session, submit, inspected, judgement),
            process=self._process(session, submit, judgement),
        )
        return engine.SegmentArrived(
            at_s=now_s,
            segment=segment,
            peak_bytes=footprint.peak_bytes,
            node=footprint.node,
            op=inspected.peak_op,
            kept_bytes=footprint.kept_bytes,
            parts_bytes=judgement.parts_bytes,
            floor_bytes=footprint.floor_bytes,
            floor_node=footprint.floor_node,
            floor_op=inspected.floor_op,
        )

    def _batch(
        self,
        session: ClientSession,
        submit: SubmitSegment,
        inspected: InspectedProgram,
        judgement: GangDecision,
    ) -> str:
        """Name the decode steps that may run as one batch with this one: of equal structure, within some
        tolerance, of sessions that may share a process. Empty for none."""
        alone = judgement.plan is not None or not inspected.ops or not inspected.structure
        if submit.tolerance <= 0 or inspected.phase != "decode" or alone:
            return ""
        return f"{inspected.structure.hex()} {self.trust_group(session)}"

    def _process(self, session: ClientSession, submit: SubmitSegment, judgement: GangDecision) -> str:
        """Name the worker process of the session, where the segment runs op by op, on one device; else return
        an empty name."""
        if submit.tolerance > 0 or judgement.plan is not None:
            return ""
        return f"of {self.trust_group(session)}"

    def _fits(self, session: ClientSession, inspected: InspectedProgram) -> tuple[jobs.DeviceFit, ...]:
        """Say how a session's first cell fits each device; nothing where the session has one already."""
        if self._core.queue.device_of(session.session) is not None:
            return ()
        fits = []
        for status in self._fleet.statuses:
            device = status.plan.device
            account = self._core.accounts.device(device)
            if account is not None and account.memory_bytes:
                run = self._accounting.costs.predict(inspected.key, inspected.work, device)
                filled = (account.used_bytes + inspected.footprint.peak_bytes) / account.memory_bytes
                fits.append(jobs.DeviceFit(device, filled, None if run is None else run.seconds))
        return tuple(fits)

    def _predicted(
        self, session: ClientSession, inspected: InspectedProgram, judgement: GangDecision
    ) -> RunTime | None:
        device = self._core.queue.device_of(session.session)
        costs, devices, gang_s = self._accounting.costs, judgement.devices, judgement.predicted_s
        if judgement.plan is None:
            return costs.predict(inspected.key, inspected.work, device)
        return costs.predict(inspected.key, inspected.work, device, devices, gang_s)

    def _terms(self, submit: SubmitSegment) -> tuple[jobs.Terms, tuple[jobs.ExternalDependency, ...]]:
        """Return the terms with whole ids, and the batch notebooks among them. Raises jobs.IllegalEvent for a
        dependency that is the start of no id or of several, or on which no job can depend."""
        if not 0 <= submit.tolerance <= TOLERANCE_MAX:
            raise jobs.IllegalEvent(f"its tolerance is {submit.tolerance} (0 to {TOLERANCE_MAX})", "client")
        terms = submit.terms
        if terms is None or terms == jobs.NO_TERMS:
            return jobs.NO_TERMS, ()
        problem = terms.problem()
        if problem is not None:
            raise jobs.IllegalEvent(f"it asks for {problem}", "client")
        after, found = [], {}
        for condition in map(parse, terms.after):
            job = condition.job
            if job.startswith(ID_PREFIX) and self.notebooks is not None:
                notebook = self.notebooks.named(job)
                job = notebook.job
                found[job] = notebook
            elif job:
                job = self._core.queue.named(job)
            after.append(str(msgspec.structs.replace(condition, job=job)))
        return msgspec.structs.replace(terms, after=tuple(after)), tuple(found.values())

    def _enqueue(
        self,
        session: ClientSession,
        submit: SubmitSegment,
        event: jobs.SegmentSubmitted,
        flight: RunningSegment,
        commands: Sequence[engine.Command],
    ) -> None:
        record = self._accounting.record_of(session, submit)
        record.ops_total = record.ops_before + event.ops_total
        record.predicted_s = event.predicted_s
        record.predicted_spread = None if flight.predicted is None else flight.predicted.spread
        record.gang = event.devices_why
        for digest in flight.blobs:
            self._blobs.pin(digest)
        flight.stops = record.take_stopped(submit.segment)
        record.flight = flight
        self._accounting.keep_program(submit, flight)
        self._perform(commands)
        if submit.segment == 0:
            self._accounting.forecast(record, flight)

    def _decline(self, session: ClientSession, submit: SubmitSegment, refusal: Refused) -> None:
        """Answer a segment that makes no event of the queue."""
        self._note_refusal(session, submit, refusal.message)
        session.send(answers.failed(submit, answers.refused(refusal)))

    def _note_refusal(self, session: ClientSession, submit: SubmitSegment, reason: str) -> None:
        detail = f"job {submit.job[:80]} of session {session.session}: {reason}"
        self._accounting.audit.refused(session.user, "submit", 422, detail, "submit")

    def _refuse(self, session: ClientSession, submit: SubmitSegment, ops: int, error: ErrorInfo) -> None:
        self._note_refusal(session, submit, error.message)
        event = jobs.SegmentRefused(
            at_s=self._core.clock.now_s(),
            job=submit.job,
            segment=submit.segment,
            session=session.session,
            user=session.user,
            priority=submit.priority,
            ops_total=ops,
            final=submit.final,
            message=error.message,
        )
        try:
            commands = self._core.handle(event)
        except jobs.IllegalEvent:  # it can't be in the queue either, which changes nothing about the answer
            session.send(answers.failed(submit, error), self._accounting.durability.commit())
        else:
            self._answer_refused(session, submit, ops, error, commands)

    def _answer_refused(
        self,
        session: ClientSession,
        submit: SubmitSegment,
        ops: int,
        error: ErrorInfo,
        commands: Sequence[engine.Command],
    ) -> JobRecord:
        """Record a rejected segment. ``commands``: the engine's answer to it."""
        record = self._accounting.record_of(session, submit)
        record.ops_total += ops
        record.ops_before += ops
        record.error = error
        self._perform(commands)
        session.send(answers.failed(submit, error), self._accounting.durability.commit())
        return record

    def unpin_query(self, session: ClientSession) -> None:
        self._blobs.unpin(session.pins)
        session.pins.clear()


def _refusal_in(commands: Sequence[engine.Command], job: str) -> memory.RejectSegment | None:
    """Return the rejection of a segment. A segment that was admitted, and refused on the device that it was
    bound to, is answered by its EndSegment."""
    if any(isinstance(one, jobs.EndSegment) and one.job == job for one in commands):
        return None
    return next((one for one in commands if isinstance(one, memory.RejectSegment) and one.job == job), None)

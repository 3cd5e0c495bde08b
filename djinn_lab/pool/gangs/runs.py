"""Run gangs over workers, as :class:`~djinn_lab.pool.gangs.state_machine.GangStateMachine` orders.

Every part is a segment of its own for the worker that runs it. Groups have sessions of their own there
(:mod:`~djinn_lab.pool.gangs.memory_requests`). Results in the pool's store go from part to part; they are
deleted when the gang is over. A preempted gang stays here until the queue starts it again."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable

from djinn_lab import engine, jobs
from djinn_lab.pool.blobs.store import BlobStore
from djinn_lab.pool.bookkeeping.job_accounting import JobAccounting
from djinn_lab.pool.bookkeeping.records import SegmentPreemptions
from djinn_lab.pool.devices.fleet import Fleet
from djinn_lab.pool.devices.launcher import Launcher
from djinn_lab.pool.execution.journaled_engine import JournaledEngine
from djinn_lab.pool.execution.state_transfers import StateTransfers
from djinn_lab.pool.gangs.memory_requests import GroupMemoryRequests
from djinn_lab.pool.gangs.plans import GangPlan
from djinn_lab.pool.gangs.running import SEPARATOR, RunningGang, name_of, part_of, whole_answer
from djinn_lab.pool.gangs.state_machine import (
    CancelPart,
    CloseGroup,
    EndGang,
    GangPreempted,
    GangStateMachine,
    Group,
    Order,
    PartName,
    PreemptPart,
    ReleaseDevice,
    RequestMemory,
    RunPart,
    WithdrawGroup,
)
from djinn_lab.protocol import worker
from djinn_lab.srg.program import Program, encode_program

log = logging.getLogger(__name__)


class GangRuns:
    """Run segments in parts on several devices. ``handle``: handles an event with the engine. ``progress``:
    called with a segment's progress, ``over`` with the one answer to the segment. ``whole``: runs a segment
    on one device after its gang failed. ``memory_requests``: gets the engine's answers about memory for
    parts."""

    def __init__(
        self,
        core: JournaledEngine,
        launcher: Launcher,
        fleet: Fleet,
        blobs: BlobStore,
        accounting: JobAccounting,
        transfers: StateTransfers,
        handle: Callable[[engine.Event], None],
        progress: Callable[[worker.SegmentProgress], None],
        over: Callable[[str, worker.SegmentDone | worker.SegmentCancelled], None],
        whole: Callable[[str, str], None],
    ) -> None:
        self._core = core
        self._launcher = launcher
        self._fleet = fleet
        self._blobs = blobs
        self._accounting = accounting
        self._transfers = transfers
        self._handle = handle
        self._progress = progress
        self._over = over
        self._whole = whole
        self._gangs: dict[str, RunningGang] = {}
        self.memory_requests = GroupMemoryRequests(core, handle, self._gangs, self._obey)

    # -- from the queue ------------------------------------------------------------------------------------

    def begin(self, start: jobs.StartSegment, plan: GangPlan) -> None:
        """Start a gang on the devices that the queue assigned."""
        record = self._accounting.records[start.job]
        members = self._alike(start)
        groups = [Group(group.lane, group.after) for group in plan.groups]
        machine = GangStateMachine(start.device, members, groups, plan.prelude is not None)
        job = self._core.queue.job(start.job)
        assert job is not None
        gang = self._gangs[start.job] = RunningGang(
            start.job, start.segment, record, jobs.RANKS[job.priority], plan, machine
        )
        self._release_others(gang, start, members)
        self._obey(gang, machine.begin())

    def resume(self, start: jobs.StartSegment) -> None:
        """Resume a preempted gang on these devices."""
        gang, members = self._gangs[start.job], self._alike(start)
        flight = gang.record.flight
        assert flight is not None
        assert flight.stops is not None
        flight.stops.resume(self._now_s())
        self._release_others(gang, start, members)
        self._obey(gang, gang.machine.resume(start.device, members))

    def _alike(self, start: jobs.StartSegment) -> list[str]:
        """List the devices that compute the same bits as the first."""
        return [start.device, *(one for one in start.members if self._fleet.alike(start.device, one))]

    def _release_others(self, gang: RunningGang, start: jobs.StartSegment, members: list[str]) -> None:
        for device in start.members:
            if device not in members:
                self._release_device(gang, device)

    def runs(self, job: str) -> bool:
        """Return whether the job is a gang that runs or is preempted."""
        return job in self._gangs

    def preempt(self, job: str) -> None:
        """Preempt a gang."""
        gang = self._gangs[job]
        self._obey(gang, gang.machine.preempt())

    def cancel(self, job: str) -> None:
        gang = self._gangs[job]
        self._obey(gang, gang.machine.cancel())

    def abandon(self, job: str) -> None:
        """Forget a gang whose job was answered otherwise."""
        gang = self._gangs.pop(job, None)
        if gang is None:
            return
        for part, device in gang.machine.running.items():
            self._launcher.cancel(device, name_of(job, part))
        for group in list(gang.opened):
            self.memory_requests.close(gang, group)
        self._delete(gang)

    # -- from workers --------------------------------------------------------------------------------------

    def takes(
        self, device: str, message: worker.RunAnswer | worker.SegmentProgress | worker.SegmentStarted
    ) -> bool:
        """Handle a message about a part; False for any other."""
        job, separator, text = message.job.partition(SEPARATOR)
        if not separator:
            return False
        gang, part = self._gangs.get(job), part_of(text)
        if isinstance(message, worker.SegmentStarted):
            return True
        if isinstance(message, worker.SegmentProgress):
            if gang is not None:
                self._progressed(gang, part, message.ops_done)
            return True
        self._transfers.report(device, message.memory, message.job if isinstance(part, int) else None)
        if gang is None:
            if isinstance(message, worker.SegmentDone):
                self._discard(message.exported)
            return True
        self._answered(gang, part, device, message)
        return True

    def _answered(self, gang: RunningGang, part: PartName, device: str, message: worker.RunAnswer) -> None:
        match message:
            case worker.SegmentDone():
                stops = gang.stops.get(part)
                gang.replaced += gang.handed.get(part, ())  # a part that began again has made them again
                gang.handed[part] = message.exported
                gang.done[part] = done = message if stops is None else stops.whole(message)
                gang.executed[part] = len(done.node_end_s)
                self._obey(gang, gang.machine.done(part))
            case worker.RunPreempted():
                gang.stops.setdefault(part, SegmentPreemptions()).add(message, self._now_s())
                gang.executed[part] = message.executed
                self._obey(gang, gang.machine.stopped(part))
            case _:
                why = message.error.message if isinstance(message, worker.SegmentFailed) else "it was stopped"
                self._obey(gang, gang.machine.failed(part, f"{device} could not run its part: {why}"))

    def _progressed(self, gang: RunningGang, part: PartName, executed: int) -> None:
        gang.executed[part] = executed
        total, job = gang.executed_ops, self._core.queue.job(gang.job)
        if job is not None and job.state is jobs.JobState.RUNNING and total > job.ops_done:
            self._progress(worker.SegmentProgress(gang.job, gang.segment, total, gang.plan.ops))

    def concerned(self, device: str, sessions: frozenset[str]) -> frozenset[str]:
        """Return sessions of gangs that a worker's loss ends or shrinks, besides those that the worker had:
        the groups', and the cell's own where the device is its home."""
        found: set[str] = set()
        for gang in self._gangs.values():
            machine = gang.machine
            there = device == machine.home or device in machine.members
            if there and machine.phase != "preempted" and gang.sessions & sessions:
                found |= gang.sessions if device == machine.home else gang.sessions - {gang.record.session}
        return frozenset(found)

    def died(self, device: str, sessions: frozenset[str] | None = None) -> None:
        """Handle the loss of a worker, after session memory and before the queue. ``sessions``: those that it
        had; None: all on the device."""
        for gang in list(self._gangs.values()):
            if gang.machine.phase == "preempted" or not (sessions is None or gang.sessions & sessions):
                continue
            if gang.machine.home == device:
                self.abandon(gang.job)
            elif device in gang.machine.members:
                self._obey(gang, gang.machine.died(device))

    # -- orders --------------------------------------------------------------------------------------------

    def _obey(self, gang: RunningGang, orders: Iterable[Order]) -> None:
        """Carry out orders. One may lead to others at once, so each is checked to be still valid."""
        for order in orders:
            match order:
                case RequestMemory() if gang.machine.asked.get(order.group) == order.device:
                    self.memory_requests.ask(gang, order.group, order.device)
                case RunPart() if gang.machine.running.get(order.part) == order.device:
                    self._run(gang, order.part, order.device)
                case CancelPart():
                    self._launcher.cancel(order.device, name_of(gang.job, order.part))
                case PreemptPart():
                    name = name_of(gang.job, order.part)
                    self._launcher.preempt(order.device, name, gang.segment)
                case GangPreempted():
                    self._mark_preempted(gang)
                case WithdrawGroup():
                    self.memory_requests.withdraw(gang, order.group)
                case CloseGroup():
                    self.memory_requests.close(gang, order.group)
                case ReleaseDevice():
                    self._release_device(gang, order.device)
                case EndGang():
                    self._end(gang, order)
                case _:
                    pass

    def _run(self, gang: RunningGang, part: PartName, device: str) -> None:
        if part == "undo":
            self._undo(gang, device)
            return
        planned, stops = gang.part(part), gang.stops.get(part)
        if stops is None:
            gang.sent_s[part] = self._clock_s(gang)
            gang.executed[part] = 0
        gang.used[part] = device
        gang.visited.add(device)
        flight = gang.record.flight
        self._launcher.run(
            device,
            worker.RunSegment(
                serial=0 if flight is None else flight.serial,
                job=name_of(gang.job, part),
                segment=gang.segment,
                session=name_of(gang.job, part) if isinstance(part, int) else gang.record.session,
                program=planned.program,
                blobs={name: self._blobs.stored_name(name) for name in planned.blobs},
                resume=None if stops is None else stops.resume(self._now_s()),
                imports=gang.imports(part),
                exports=planned.exports,
            ),
        )

    def _mark_preempted(self, gang: RunningGang) -> None:
        """Give all its devices back to the queue; what the gang made stays in its sessions."""
        now_s, home = self._now_s(), gang.machine.home
        flight, job = gang.record.flight, self._core.queue.job(gang.job)
        assert flight is not None
        assert job is not None
        flight.stops = flight.stops or SegmentPreemptions()
        flight.stops.since_s, flight.stops.if_given_up = now_s, gang.at_home()
        self._transfers.report(home, self._transfers.reported(home), gang.job)
        event = engine.SegmentStopped(
            at_s=now_s,
            job=gang.job,
            segment=gang.segment,
            ops_done=max(job.ops_done, gang.executed_ops),
            devices=gang.machine.useful_devices,
            parts=tuple(name_of(gang.job, group) for group in sorted(gang.opened)),
        )
        self._handle(event)

    def _undo(self, gang: RunningGang, device: str) -> None:
        """Put back what the groups or the epilogue may have written. A session that was closed meanwhile has
        nothing to be undone."""
        if self._accounting.registry.get(gang.record.session) is None:
            self._obey(gang, gang.machine.done("undo"))
            return
        undo = set(gang.plan.undo)
        nothing = Program((), (), (), (), (), release=gang.at_home())
        self._launcher.run(
            device,
            worker.RunSegment(
                job=name_of(gang.job, "undo"),
                segment=gang.segment,
                session=gang.record.session,
                program=encode_program(nothing),
                imports=tuple(one for one in gang.handed.get("prelude", ()) if undo & set(one.values)),
            ),
        )

    def _release_device(self, gang: RunningGang, device: str) -> None:
        job = self._core.queue.job(gang.job)
        if job is not None and device in job.members:
            self._handle(jobs.MemberLeft(self._now_s(), gang.job, gang.segment, device))

    def _end(self, gang: RunningGang, ending: EndGang) -> None:
        del self._gangs[gang.job]
        session = gang.record.session
        home = gang.machine.home
        match ending.how:
            case "done":
                self._transfers.release(session, list(gang.plan.release))
                gang.record.gang = gang.summary()
                if gang.record.flight is not None:
                    gang.record.flight.node_devices = gang.node_devices()
                now_s = self._clock_s(gang)
                self._over(
                    home, whole_answer(gang.job, gang.segment, gang.plan, gang.done, gang.sent_s, now_s)
                )
            case "whole":
                log.warning("job %s runs on one device: %s", gang.job, ending.why)
                self._transfers.release(session, gang.at_home())
                self._whole(gang.job, f"It ran on one device: {ending.why}.")
            case "cancelled":
                self._transfers.release(session, gang.at_home())
                report = self._transfers.reported(home)
                self._over(home, worker.SegmentCancelled(gang.job, gang.segment, 0, report))
        self._delete(gang)

    def _delete(self, gang: RunningGang) -> None:
        self._discard(gang.replaced)
        for handed in gang.handed.values():
            self._discard(handed)

    def _discard(self, handed: Iterable[worker.Handed]) -> None:
        for one in handed:
            if one.blob is not None:
                self._blobs.discard(one.blob)

    def _clock_s(self, gang: RunningGang) -> float:
        """Read the clock, without the time for which the gang was preempted."""
        flight, now_s = gang.record.flight, self._now_s()
        return (
            now_s if flight is None or flight.stops is None else now_s - flight.stops.preempted_until(now_s)
        )

    def _now_s(self) -> float:
        return self._core.clock.now_s()

"""Runs gangs over workers: carries out what a :class:`~djinn_lab.pool.gangs.course.GangCourse` orders.

Every part is a segment of its own for the worker that runs it. Groups have sessions of their own there, which
session memory knows and nobody else. What goes from part to part lies in files in the pool's directory; they
are deleted when the gang is over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from djinn_lab import jobs, memory
from djinn_lab.pool.blobs import BlobStore
from djinn_lab.pool.bookkeeping import Bookkeeper
from djinn_lab.pool.fleet import Fleet
from djinn_lab.pool.gangs.answers import whole_answer
from djinn_lab.pool.gangs.course import (
    AskRoom,
    EndCourse,
    ForgetGroup,
    GangCourse,
    GiveBack,
    Order,
    PartName,
    RunPart,
    StopPart,
)
from djinn_lab.pool.gangs.plans import GangPlan, PlannedPart
from djinn_lab.pool.launcher import LocalLauncher
from djinn_lab.pool.ledger import Ledger
from djinn_lab.pool.placement import Placement
from djinn_lab.pool.records import JobRecord
from djinn_lab.pool.residence import Hears, Residence
from djinn_lab.srg.program import Program, encode_program
from djinn_lab.worker import messages as worker

ROOM_WAIT_S = 3.0
"""So long a group waits for room on a device; then the gang does without that one."""
SEPARATOR = "/"
"""Between a job and the name of a part, in what workers and session memory are told."""

Answer = worker.SegmentDone | worker.SegmentFailed | worker.SegmentCancelled | worker.SegmentPreempted

log = logging.getLogger(__name__)


@dataclass(slots=True)
class LiveGang:
    """``handed``: what each part exported. ``sent_s``, ``done``, ``executed``: by part. ``used``: devices
    that ran something."""

    job: str
    segment: int
    record: JobRecord
    rank: int
    plan: GangPlan
    course: GangCourse
    began_s: float
    handed: dict[PartName, tuple[worker.Handed, ...]] = field(default_factory=dict)
    sent_s: dict[PartName, float] = field(default_factory=dict)
    done: dict[PartName, worker.SegmentDone] = field(default_factory=dict)
    executed: dict[PartName, int] = field(default_factory=dict)
    used: dict[str, None] = field(default_factory=dict)
    rooms: dict[int, asyncio.TimerHandle] = field(default_factory=dict)

    def part(self, name: PartName) -> PlannedPart:
        if isinstance(name, int):
            return self.plan.groups[name]
        found = self.plan.prelude if name == "prelude" else self.plan.epilogue
        assert found is not None
        return found


class GangRuns:
    """``tell`` feeds the queue; ``over`` takes the one answer to a segment, ``whole`` runs it as if it were
    no gang. Also what session memory says about parts comes here; the rest goes to ``others``."""

    def __init__(
        self,
        ledger: Ledger,
        launcher: LocalLauncher,
        fleet: Fleet,
        blobs: BlobStore,
        books: Bookkeeper,
        others: Hears,
        tell: Callable[[jobs.Event], None],
        over: Callable[[str, worker.SegmentDone | worker.SegmentCancelled], None],
        whole: Callable[[str, str], None],
    ) -> None:
        self._ledger = ledger
        self._launcher = launcher
        self._fleet = fleet
        self._blobs = blobs
        self._books = books
        self._others = others
        self._tell = tell
        self._over = over
        self._whole = whole
        self._gangs: dict[str, LiveGang] = {}
        self.residence: Residence | None = None

    # -- from the queue ------------------------------------------------------------------------------------

    def begin(self, start: jobs.StartSegment, plan: GangPlan) -> None:
        """The queue gave it all these devices."""
        record = self._books.records[start.job]
        members = [start.device, *(one for one in start.members if self._fleet.alike(start.device, one))]
        course = GangCourse(start.device, members, len(plan.groups), plan.prelude is not None)
        job = self._ledger.queue.job(start.job)
        assert job is not None
        gang = self._gangs[start.job] = LiveGang(
            start.job, start.segment, record, jobs.RANKS[job.priority], plan, course, self._now_s()
        )
        for device in start.members:
            if device not in members:
                self._give_back(gang, device)
        self._obey(gang, course.begin())

    def runs(self, job: str) -> bool:
        return job in self._gangs

    def cancel(self, job: str) -> None:
        gang = self._gangs[job]
        self._obey(gang, gang.course.cancel())

    def abandon(self, job: str) -> None:
        """It was answered without us."""
        gang = self._gangs.pop(job, None)
        if gang is None:
            return
        for part, device in gang.course.running.items():
            self._launcher.send(device, worker.CancelSegment(_name(job, part)))
        for group in {*gang.course.asked, *(one for one in gang.course.running if isinstance(one, int))}:
            self._forget(gang, group)
        self._delete(gang)

    # -- from workers --------------------------------------------------------------------------------------

    def takes(self, device: str, message: Answer | worker.SegmentProgress | worker.SegmentStarted) -> bool:
        """Is it about a part? Then it is dealt with."""
        job, separator, text = message.job.partition(SEPARATOR)
        if not separator:
            return False
        gang, part = self._gangs.get(job), _part(text)
        if isinstance(message, worker.SegmentStarted):
            return True
        if isinstance(message, worker.SegmentProgress):
            if gang is not None:
                self._progressed(gang, part, message.ops_done)
            return True
        assert self.residence is not None
        self.residence.report(device, message.memory, message.job if isinstance(part, int) else None)
        if gang is None:
            if isinstance(message, worker.SegmentDone):
                _unlink(message.exported)
            return True
        self._answered(gang, part, device, message)
        return True

    def _answered(self, gang: LiveGang, part: PartName, device: str, message: Answer) -> None:
        if isinstance(message, worker.SegmentDone):
            gang.handed[part] = message.exported
            gang.done[part] = message
            gang.executed[part] = len(message.node_end_s)
            self._obey(gang, gang.course.done(part))
            return
        why = message.error.message if isinstance(message, worker.SegmentFailed) else "it was stopped"
        self._obey(gang, gang.course.failed(part, f"{device} could not run its part: {why}"))

    def _progressed(self, gang: LiveGang, part: PartName, executed: int) -> None:
        gang.executed[part] = executed
        total = min(gang.plan.ops, sum(gang.executed.values()))
        self._over_progress(gang, total)

    def _over_progress(self, gang: LiveGang, executed: int) -> None:
        job = self._ledger.queue.job(gang.job)
        if job is None or job.state is not jobs.JobState.RUNNING or executed <= job.ops_done:
            return
        self._tell(jobs.SegmentProgressed(self._now_s(), gang.job, gang.segment, executed))
        gang.record.ops_done = gang.record.ops_before + executed
        gang.record.reason = self._ledger.queue.explain(gang.job)
        self._books.tell(gang.record, self._ledger.queue.job(gang.job))

    def died(self, device: str) -> None:
        """Session memory has heard of it, the queue not yet."""
        for gang in list(self._gangs.values()):
            if gang.course.home == device:
                self.abandon(gang.job)
            elif device in gang.course.members:
                self._obey(gang, gang.course.died(device))

    # -- from session memory -------------------------------------------------------------------------------

    def granted(self, command: memory.GrantSegment) -> None:
        found = self._asked(command.job)
        if found is None:
            self._others.granted(command)
            return
        gang, group = found
        self._stop_waiting(gang, group)
        self._obey(gang, gang.course.granted(group))

    def held(self, command: memory.HoldSegment) -> None:
        found = self._asked(command.job)
        if found is None:
            self._others.held(command)
            return
        gang, group = found
        if group not in gang.rooms:
            loop = asyncio.get_running_loop()
            gang.rooms[group] = loop.call_later(
                ROOM_WAIT_S, self._withheld, gang, group, f"there is no room for its part: {command.reason}"
            )

    def refused(self, command: memory.RefuseSegment) -> None:
        found = self._asked(command.job)
        if found is None:
            self._others.refused(command)
        else:
            self._withheld(*found, command.message)

    def stays(self, command: memory.MoveRefused) -> None:
        self._others.stays(command)

    def lost(self, command: memory.ValuesLost) -> None:
        if SEPARATOR not in command.session:
            self._others.lost(command)

    def _asked(self, name: str) -> tuple[LiveGang, int] | None:
        job, separator, text = name.partition(SEPARATOR)
        return (self._gangs[job], int(text)) if separator else None

    def _withheld(self, gang: LiveGang, group: int, why: str) -> None:
        self._stop_waiting(gang, group)
        self._obey(gang, gang.course.withheld(group, why))

    def _stop_waiting(self, gang: LiveGang, group: int) -> None:
        timer = gang.rooms.pop(group, None)
        if timer is not None:
            timer.cancel()

    # -- orders --------------------------------------------------------------------------------------------

    def _obey(self, gang: LiveGang, orders: Iterable[Order]) -> None:
        """One may lead to others at once, so each looks whether it still holds."""
        for order in orders:
            match order:
                case AskRoom() if gang.course.asked.get(order.group) == order.device:
                    self._ask(gang, order.group, order.device)
                case RunPart() if gang.course.running.get(order.part) == order.device:
                    self._run(gang, order.part, order.device)
                case StopPart():
                    self._launcher.send(order.device, worker.CancelSegment(_name(gang.job, order.part)))
                case ForgetGroup():
                    self._forget(gang, order.group)
                case GiveBack():
                    self._give_back(gang, order.device)
                case EndCourse():
                    self._end(gang, order)
                case _:
                    pass

    def _ask(self, gang: LiveGang, group: int, device: str) -> None:
        assert self.residence is not None
        name, now_s = _name(gang.job, group), self._now_s()
        self.residence.handle(memory.SessionOpened(now_s, name, gang.record.user, passing=True))
        self.residence.handle(memory.SessionBound(now_s, name, device))
        peak_bytes = gang.plan.groups[group].peak_bytes
        placement = Placement(name, gang.segment, name, peak_bytes, gang.rank, None, None, 0)
        self.residence.perform(self.residence.place(placement))

    def _run(self, gang: LiveGang, part: PartName, device: str) -> None:
        if part == "undo":
            self._undo(gang, device)
            return
        planned = gang.part(part)
        gang.sent_s[part] = self._now_s()
        gang.executed[part] = 0
        gang.used[device] = None
        self._launcher.send(
            device,
            worker.RunSegment(
                job=_name(gang.job, part),
                segment=gang.segment,
                session=_name(gang.job, part) if isinstance(part, int) else gang.record.session,
                program=planned.program,
                blobs={digest: str(self._blobs.path(digest)) for digest in planned.blobs},
                imports=tuple(self._imports(gang, part, planned)),
                exports=planned.exports,
            ),
        )

    def _imports(self, gang: LiveGang, part: PartName, planned: PlannedPart) -> Iterable[worker.Handed]:
        """Of other parts: a group takes what the prelude made, the epilogue what the groups made."""
        wanted = set(planned.imports)
        for name, handed in gang.handed.items():
            if (name == "prelude") == isinstance(part, int):
                yield from (one for one in handed if wanted & set(one.values))

    def _undo(self, gang: LiveGang, device: str) -> None:
        """Put back what the groups or the epilogue may have written. A session that was closed meanwhile has
        nothing to be undone."""
        if self._books.registry.get(gang.record.session) is None:
            self._obey(gang, gang.course.done("undo"))
            return
        undo = set(gang.plan.undo)
        nothing = Program((), (), (), (), (), release=list(gang.plan.made))
        self._launcher.send(
            device,
            worker.RunSegment(
                job=_name(gang.job, "undo"),
                segment=gang.segment,
                session=gang.record.session,
                program=encode_program(nothing),
                imports=tuple(one for one in gang.handed.get("prelude", ()) if undo & set(one.values)),
            ),
        )

    def _forget(self, gang: LiveGang, group: int) -> None:
        assert self.residence is not None
        self._stop_waiting(gang, group)
        self.residence.handle(memory.SessionClosed(self._now_s(), _name(gang.job, group)))

    def _give_back(self, gang: LiveGang, device: str) -> None:
        job = self._ledger.queue.job(gang.job)
        if job is not None and device in job.members:
            self._tell(jobs.MemberLeft(self._now_s(), gang.job, gang.segment, device))

    def _end(self, gang: LiveGang, ending: EndCourse) -> None:
        assert self.residence is not None
        del self._gangs[gang.job]
        session = gang.record.session
        home = gang.course.home
        match ending.how:
            case "done":
                self.residence.release(session, list(gang.plan.release))
                gang.record.gang = _told(gang)
                done = whole_answer(gang.job, gang.segment, gang.plan, gang.done, gang.sent_s, self._now_s())
                self._over(home, done)
            case "whole":
                log.warning("job %s runs on one device: %s", gang.job, ending.why)
                self.residence.release(session, list(gang.plan.made))
                self._whole(gang.job, f"It ran on one device: {ending.why}.")
            case "cancelled":
                self.residence.release(session, list(gang.plan.made))
                report = self.residence.reported(home)
                self._over(home, worker.SegmentCancelled(gang.job, gang.segment, 0, report))
        self._delete(gang)

    def _delete(self, gang: LiveGang) -> None:
        for handed in gang.handed.values():
            _unlink(handed)

    def _now_s(self) -> float:
        return self._ledger.clock.now_s()


def _told(gang: LiveGang) -> str:
    """Where it ran, and why not on more."""
    where = f"It ran on {len(gang.used)} devices: {', '.join(sorted(gang.used))}."
    return f"{where} {gang.record.gang}" if gang.record.gang else where


def _name(job: str, part: PartName) -> str:
    return f"{job}{SEPARATOR}{part}"


def _part(text: str) -> PartName:
    match text:
        case "prelude" | "epilogue" | "undo":
            return text
        case _:
            return int(text)


def _unlink(handed: Iterable[worker.Handed]) -> None:
    for one in handed:
        if one.path is not None:
            Path(one.path).unlink(missing_ok=True)

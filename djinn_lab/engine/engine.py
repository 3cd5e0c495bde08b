"""The one door to the cores: one event in, all commands that follow out.

The queue (:mod:`djinn_lab.jobs`) decides which job runs on which device. Session memory
(:mod:`djinn_lab.memory`) decides which state stays on which device. The engine joins the two: it asks
session memory about each segment that arrives or is assigned to a device, and passes the answer (granted,
deferred, rejected) to the queue. It binds sessions to the devices that the queue assigns, and passes on
the queue's order. Neither core acts on what the other has withdrawn. The engine does no I/O and reads no
clock: the pool, the replay of a journal and simulated pools drive the same object.

Progress
--------

Take two successive events of users and cells: a cell arrives, ends or is preempted, or a session closes.
Between them, a session is copied in advance at most once and prefetched at most once. It is stored to
free capacity at most twice; then the copy is kept. State that was restored for a cell stays until that
cell ran. So the number of copies between two such events is bounded by a multiple of the number of
sessions. A session moves to another device for capacity at most every ``SENT_EVERY_S``. It moves to a
device on which others wait only if that device, with the session, is less crowded than its own is without
it. Where nothing runs and nothing is copied, a cell starts, or is rejected, or every cell waits for a
session to close; :mod:`djinn_lab.engine.stall` reports where that fails."""

from __future__ import annotations

import math

from msgspec.structs import replace

from djinn_lab import jobs, memory
from djinn_lab.engine import translation
from djinn_lab.engine.command_queue import CommandQueue, about, of_queue
from djinn_lab.engine.commands import Anomaly, Command, WorkLost
from djinn_lab.engine.events import (
    Event,
    OfMemory,
    PartMemoryReleased,
    PartMemoryRequested,
    PartMemoryWithdrawn,
    PoolOpened,
    SegmentArrived,
    SegmentStopped,
)
from djinn_lab.engine.stall import Stall, Watch
from djinn_lab.events import (
    ClockTicked,
    DeviceAdded,
    HeartbeatChanged,
    IllegalEvent,
    SessionClosed,
    SessionDetached,
    WorkerDied,
)
from djinn_lab.jobs.machine.queue import JobQueue
from djinn_lab.memory.machine.accounts import MemoryAccounts

LOOKED_AT = 16
"""Segments for which no capacity is coming that are looked at in one tick."""
SENT_EVERY_S = 5.0
"""Least seconds between two moves of a session for capacity."""


class Engine:
    """The cores of one pool, driven by one thread. ``queue`` and ``accounts`` are for reading only."""

    def __init__(self) -> None:
        self.queue = JobQueue()
        self.accounts = MemoryAccounts()
        self.idle = True
        """The last event was a tick at which nothing was due."""
        self._asked: dict[str, memory.SegmentPlaced] = {}
        """By job, what its segment in flight needs."""
        self._placed: set[str] = set()
        """Jobs whose segment session memory knows: it is deferred or granted."""
        self._preempted: dict[str, str] = {}
        """Preempted jobs, and how their values were lost; empty while the values are there."""
        self._undone: dict[str, tuple[str, ...]] = {}
        """By the device that died, jobs that ran while their sessions were still being restored."""
        self._parts: set[str] = set()
        self._sent_s: dict[str, float] = {}
        """When a session last moved for capacity."""
        self._watch = Watch()
        self._now_s = 0.0
        self._of_queue = CommandQueue(self._obey_queue)
        self._of_memory = CommandQueue(self._obey_memory)
        self._out: list[Command] = []

    def handle(self, event: Event) -> list[Command]:
        """Apply one event and return the commands, to be carried out in their order. Raises the
        IllegalEvent of :mod:`djinn_lab.jobs` or :mod:`djinn_lab.memory`, with nothing changed, when the
        event cannot happen now."""
        before = self._now_s, self._out, self.idle
        self._now_s, self._out, self.idle = event.at_s, [], False
        try:
            self._check(event)
            self._apply(event)
        except IllegalEvent:
            self._now_s, self._out, self.idle = before
            raise
        if not isinstance(event, ClockTicked) or self._out:
            self._watch.happened(event.at_s, self._out)
        elif stalled := self._watch.look(event.at_s, self.queue):
            self._out.append(stalled)
            self.idle = False
        return self._out

    @property
    def stall(self) -> Stall | None:
        """The present stall, if pending work waits for nothing."""
        return self._watch.stall

    def _check(self, event: Event) -> None:
        """Raise IllegalEvent for an event of both cores, or of one and the tables here, that one would refuse
        after another has changed. Each core checks its own events."""
        match event:
            case DeviceAdded():
                self.accounts.check(event)
                self.queue.check_device(event)
            case HeartbeatChanged():
                self.accounts.check(event)
                self.queue.check_device(jobs.DeviceHeard(event.at_s, event.device, event.heard))
            case jobs.DeviceLost():
                self.queue.check_device(event)
            case WorkerDied() | SessionDetached() | SessionClosed():
                self.accounts.check(event)
            case PartMemoryRequested():
                is_open = event.part in self._parts
                self.accounts.check_part(event.part, event.device, event.peak_bytes, is_open)
            case PartMemoryReleased() if event.part in self._parts:
                self.accounts.check(SessionClosed(event.at_s, event.part))
            case SegmentStopped() if event.job not in self._asked:
                raise IllegalEvent(f"job {event.job} has no segment that could stop", "pool")
            case _:
                pass

    def _apply(self, event: Event) -> None:
        """Apply an event; frequent kinds first."""
        match event:
            case SegmentArrived():
                self._arrive(event)
            case jobs.SegmentFinished():
                self._finish(event)
            case memory.MemoryReported():
                self._to_memory(event)
            case SegmentStopped():
                self._stop(event)
            case ClockTicked():
                self._tick(event)
            case (
                PoolOpened()
                | DeviceAdded()
                | WorkerDied()
                | HeartbeatChanged()
                | PartMemoryRequested()
                | PartMemoryWithdrawn()
                | PartMemoryReleased()
                | SessionDetached()
                | SessionClosed()
            ):
                self._apply_rare(event)
            case memory.TransferDone() | memory.TransferFailed():
                self._to_memory(event)
                self._watch.copied(event.transfer)
            case _ if isinstance(event, OfMemory):
                self._to_memory(event)
            case jobs.DeviceLost():
                undone = tuple(job for job in self._undone.pop(event.device, ()) if job in self._asked)
                self._preempted.update(dict.fromkeys(undone, ""))
                self._to_queue(event)
            case _:
                self._to_queue(event)

    def _apply_rare(
        self,
        event: PoolOpened
        | DeviceAdded
        | WorkerDied
        | HeartbeatChanged
        | PartMemoryRequested
        | PartMemoryWithdrawn
        | PartMemoryReleased
        | SessionDetached
        | SessionClosed,
    ) -> None:
        at_s = event.at_s
        match event:
            case PoolOpened():
                self._to_queue(jobs.QueueOpened(at_s, event.queue_policy, event.shares))
                self.accounts = MemoryAccounts(event.memory_policy)
            case DeviceAdded():
                self._to_memory(event)
                self._to_queue(event)
            case WorkerDied():
                self._watch.died(event.device, event.sessions)
                self._undone[event.device] = self.accounts.open_jobs(event.device, event.sessions)
                self._to_memory(event)
            case HeartbeatChanged():
                self._hear(event)
            case PartMemoryRequested():
                self._request_part_memory(event)
            case PartMemoryWithdrawn():
                self._to_memory(memory.SegmentWithdrawn(at_s, event.part))
            case PartMemoryReleased() if event.part in self._parts:
                self._parts.discard(event.part)
                self._to_memory(SessionClosed(at_s, event.part))
            case SessionDetached():
                self._to_queue(event)
                self._to_memory(event)
            case SessionClosed():
                self._sent_s.pop(event.session, None)
                self._to_queue(event)
                self._to_memory(event)
            case _:
                pass

    def due_s(self) -> float | None:
        """Return when a :class:`ClockTicked` would change something for pending work, on the pool's clock;
        None for never."""
        dues = (self.queue.due_s(), self.accounts.next_timeout_s())
        return min((due for due in dues if due is not None), default=None)

    def validate(self) -> None:
        """Assert every invariant."""
        self.queue.validate()
        self.accounts.validate()
        assert self._asked.keys() >= self._preempted.keys()
        assert all(self.queue.job(job) for job in self._asked)

    # -- events --------------------------------------------------------------------------------------------

    def _arrive(self, event: SegmentArrived) -> None:
        """Ask session memory first, and submit the segment to the queue with the answer."""
        accounts = self.accounts
        segment = replace(
            event.segment,
            memory="ask",
            move_s=accounts.move_s(event.segment.session),
            other_host_s=accounts.other_host_s(event.segment.session),
            parts_s=accounts.copy_s(2 * event.parts_bytes) if event.parts_bytes else 0.0,
        )
        self.queue.check(segment)
        asked = translation.placed(event)
        bound = accounts.home_of(segment.session) is not None and not segment.terms.after
        first = self.queue.first_of(segment.session) in (None, segment.job)
        if bound and first:
            commands = accounts.handle(asked)
        else:  # whether it can ever run; it is placed when its turn comes
            commands = accounts.handle(translation.proposed(asked))
        answer = next(command for command in commands if translation.answers(command, segment.job))
        self._of_memory.put(command for command in commands if command is not answer)
        if isinstance(answer, memory.RejectSegment):
            self._out.append(answer)
            self._to_queue(translation.refused(segment, answer))
        else:
            self._asked[segment.job] = asked
            if bound and first:
                self._placed.add(segment.job)
            if bound and not first:
                segment = replace(segment, memory="queued")
            self._to_queue(translation.with_verdict(segment, answer), checked=True)
        self._of_memory.run()

    def _finish(self, event: jobs.SegmentFinished) -> None:
        self._to_queue(event)
        self._forget(event.job)
        job = self.queue.job(event.job)
        assert job is not None
        if not job.finished:  # else the end of its cell has asked
            self._ask_for_first(job.session)

    def _stop(self, event: SegmentStopped) -> None:
        accounts = self.accounts
        asked = self._asked[event.job]
        stopped = jobs.SegmentPreempted(
            at_s=event.at_s,
            job=event.job,
            segment=event.segment,
            ops_done=event.ops_done,
            move_s=accounts.move_s(asked.session),
            other_host_s=accounts.other_host_s(asked.session),
            devices=event.devices,
            parts_s=sum(accounts.move_s(part) or 0.0 for part in event.parts),
            undone=event.undone,
            replayed_s=event.replayed_s,
        )
        self.queue.check_stop(stopped)
        if event.remaining_bytes is not None:
            self._asked[event.job] = replace(asked, peak_bytes=event.remaining_bytes)
        self._preempted[event.job] = ""
        self._to_queue(stopped)

    def _hear(self, event: HeartbeatChanged) -> None:
        """Apply a changed heartbeat: keep sessions where a silent worker has their state, and let the others
        leave."""
        leaving = () if event.heard else self.accounts.can_leave(event.device)
        for session in leaving:
            for job in self.queue.jobs_of(session):
                self._placed.discard(job)
        self._to_memory(event)
        self._to_queue(jobs.DeviceHeard(event.at_s, event.device, event.heard, leaving))

    def _tick(self, event: ClockTicked) -> None:
        commands = self.accounts.handle(event)
        self._of_memory.put(commands)
        self._of_memory.run()
        due_s = self.queue.due_s()
        self.idle = not commands
        if due_s is not None and due_s <= event.at_s:
            self.idle = False
            self._to_queue(event)
        self._relocate_waiting()

    def _relocate_waiting(self) -> None:
        """Move sessions that wait for capacity to a device that has it, and sessions that waited long on
        a crowded device to a less crowded one. At most one session moves to each device at a time, the
        longest wait first; none moves to and fro."""
        taken, others = set[str](), self.accounts.other_devices()
        for job, devices in self.queue.waiting_for_memory(LOOKED_AT):
            asked = self._asked.get(job.job)
            if asked is None or self._now_s - self._sent_s.get(job.session, -math.inf) < SENT_EVERY_S:
                continue
            better = others.has_capacity if job.memory_release.stuck else others.is_less_crowded
            open_to_it = (
                device
                for device in devices
                if device not in taken and better(job.session, device, asked.peak_bytes, asked.kept_bytes)
            )
            device = next(open_to_it, None)
            if device is not None:
                taken.add(device)
                self.idle, self._sent_s[job.session] = False, self._now_s
                self._to_queue(jobs.MoveProposed(self._now_s, job.job, device))
                others = self.accounts.other_devices()

    def _request_part_memory(self, event: PartMemoryRequested) -> None:
        """Ask session memory for a gang part, which it accounts for as for a session."""
        if event.part not in self._parts:
            self._parts.add(event.part)
            self._to_memory(memory.SessionOpened(event.at_s, event.part, event.user, temporary=True))
        self._to_memory(memory.SessionBound(event.at_s, event.part, event.device))
        self._to_memory(
            memory.SegmentPlaced(
                at_s=event.at_s,
                job=event.part,
                segment=event.segment,
                session=event.part,
                peak_bytes=event.peak_bytes,
                rank=event.rank,
                kept_bytes=0,
            )
        )

    # -- the queue's commands ------------------------------------------------------------------------------

    def _to_queue(self, event: jobs.Event, checked: bool = False) -> None:
        self._of_queue.put(of_queue(self.queue.handle(event, checked), self._rank))
        self._of_queue.run()

    def _rank(self, command: jobs.PlaceSegment) -> int:
        job = self.queue.job(command.job)
        return len(jobs.RANKS) if job is None else jobs.RANKS[job.priority]

    def _obey_queue(self, command: jobs.Command) -> None:
        match command:
            case jobs.PlaceSegment():
                self._place(command)
                return
            case jobs.DeviceQueueOrdered():
                if self.accounts.has_device(command.device):
                    self._to_memory(memory.QueueOrdered(self._now_s, command.device, command.jobs))
                return
            case jobs.StartSegment():
                self._preempted.pop(command.job, None)
            case jobs.EndSegment():
                self._to_memory(memory.SegmentWithdrawn(self._now_s, command.job))
                self._forget(command.job)
            case jobs.Notify() if command.state in jobs.FINISHED:
                self._end_cell(command.job)
            case _:
                pass
        self._out.append(command)

    def _place(self, command: jobs.PlaceSegment) -> None:
        """Place the segment with session memory, since the queue assigned its session to a device."""
        job = self.queue.job(command.job)
        if job is None or not translation.asks(job):
            return
        if self.queue.first_of(job.session) == job.job:
            self._ask_for(job)
        else:
            self._to_queue(
                jobs.MemoryDeferred(self._now_s, job.job, "", queued=True, device=job.assigned_device)
            )

    def _ask_for_first(self, session: str) -> None:
        """Ask session memory for the session's first pending cell. A session's cells run one after the
        other, so a grant for a later cell would only block other sessions."""
        first = self.queue.first_of(session)
        job = None if first is None else self.queue.job(first)
        if job is not None and job.job not in self._placed and translation.asks(job):
            self._ask_for(job)

    def _ask_for(self, job: jobs.Job) -> None:
        """Ask session memory when the segment may start."""
        asked = self._asked.get(job.job)
        if asked is None or self._refuses_lost(job.job):
            return
        assert job.assigned_device is not None
        if not self.accounts.has_device(job.assigned_device):
            return  # it has just died; the queue is notified next, and asks again for another one
        self._to_memory(memory.SegmentWithdrawn(self._now_s, job.job))
        self._bind(job.session, job.assigned_device)  # no other one: a mate's move may have been refused
        self._placed.add(job.job)
        self._to_memory(replace(asked, at_s=self._now_s))

    def _bind(self, session: str, device: str) -> None:
        if self.accounts.knows(session) and self.accounts.bound_for(session) != device:
            for job in self.queue.jobs_of(session):
                self._placed.discard(job)
                self._to_memory(memory.SegmentWithdrawn(self._now_s, job))
            self._to_memory(memory.SessionBound(self._now_s, session, device))

    def _end_cell(self, job: str) -> None:
        """Ask for the session's next cell; without one, the session is idle."""
        ended = self.queue.job(job)
        assert ended is not None
        if self.queue.has_unfinished(ended.session):
            self._ask_for_first(ended.session)
        elif self.accounts.knows(ended.session):
            self._to_memory(memory.CellEnded(self._now_s, ended.session))

    def _forget(self, job: str) -> None:
        """Forget the job, whose segment is over."""
        self._asked.pop(job, None)
        self._placed.discard(job)
        self._preempted.pop(job, None)

    # -- session memory's commands -------------------------------------------------------------------------

    def _to_memory(self, event: memory.Event) -> None:
        if isinstance(event, memory.SegmentWithdrawn):
            withdrawn = event.job
            self._of_memory.drop(lambda command: about(command, withdrawn))
        self._of_memory.put(self.accounts.handle(event))
        self._of_memory.run()

    def _obey_memory(self, command: memory.Command) -> None:
        match command:
            case memory.GrantSegment() | memory.DeferSegment() | memory.RejectSegment() | memory.RejectMove():
                if command.job in self._parts:
                    self._out.append(translation.of_part(command))
                else:
                    self._pass_on(command)
            case memory.ValuesLost():
                for job in self.queue.jobs_of(command.session):
                    if job in self._preempted:
                        self._preempted[job] = command.reason
                self._out.append(command)
            case memory.AdmitSegment():
                raise AssertionError(command)
            case _:
                self._out.append(command)

    def _pass_on(
        self,
        command: memory.GrantSegment | memory.DeferSegment | memory.RejectSegment | memory.RejectMove,
    ) -> None:
        """Pass session memory's answer to the queue."""
        now_s, job = self._now_s, command.job
        match command:
            case memory.GrantSegment() if not self._refuses_lost(job):
                self._out.append(command)
                self._to_queue(jobs.MemoryGranted(now_s, job, self._device(job)))
            case memory.DeferSegment():
                self._to_queue(
                    jobs.MemoryDeferred(
                        at_s=now_s,
                        job=job,
                        reason=command.sentence,
                        wait_s=command.estimate_s,
                        queued=command.queued,
                        release=command.release,
                        device=self._device(job),
                    )
                )
            case memory.RejectSegment():
                self._out.append(command)
                self._to_queue(jobs.MemoryRefused(now_s, job, command.sentence))
            case memory.RejectMove():
                try:
                    self._to_queue(jobs.MoveRefused(now_s, job, command.device, command.reason))
                except jobs.IllegalEvent as error:
                    self._out.append(Anomaly(f"session memory refuses a move that is over: {error}"))
            case _:
                pass

    def _device(self, job: str) -> str | None:
        """Return the device for which session memory was asked."""
        known = self.queue.job(job)
        return None if known is None else self.accounts.bound_for(known.session)

    def _refuses_lost(self, job: str) -> bool:
        """Return whether the job is a preempted segment whose work is lost. If so, the queue ends the
        segment."""
        reason = self._preempted.get(job)
        if not reason:
            return False
        lost = WorkLost(job, reason)
        self._out.append(lost)
        self._to_queue(jobs.MemoryRefused(self._now_s, job, lost.sentence))
        return True

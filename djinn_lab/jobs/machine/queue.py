"""The queue: events in, commands out. Theory of operation: :mod:`djinn_lab.jobs.states`."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from msgspec.structs import replace

from djinn_lab.events import ClockTicked, DeviceAdded, IllegalEvent, SessionClosed, SessionDetached
from djinn_lab.jobs import targets
from djinn_lab.jobs.commands import Command
from djinn_lab.jobs.decision import POLICIES, CalendarReservation, DecisionSnapshot, policy_named
from djinn_lab.jobs.fairness import AccountState, AccountView, ShareTree
from djinn_lab.jobs.job import DeviceQueueView, Job, QueueSnapshot
from djinn_lab.jobs.machine import admission, dependencies, lifecycle
from djinn_lab.jobs.machine.device_queues import DeviceQueues
from djinn_lab.jobs.machine.dispatcher import Dispatcher
from djinn_lab.jobs.machine.explain import POSITIONS_MAX, QueuePosition
from djinn_lab.jobs.machine.invariants import check_queue
from djinn_lab.jobs.machine.notifications import Notifications
from djinn_lab.jobs.machine.tables import QueueDevice, QueueTables
from djinn_lab.jobs.messages import (
    CancelRequested,
    CheckpointAnnounced,
    DataPublished,
    DeviceCordoned,
    DeviceDescribed,
    DeviceExpected,
    DeviceHeard,
    DeviceLost,
    Event,
    ExternalDependencyChanged,
    JobFinished,
    JobReturned,
    MemberLeft,
    MemoryDeferred,
    MemoryGranted,
    MemoryRefused,
    MoveProposed,
    MoveRefused,
    PolicyChanged,
    PreemptRequested,
    QueueOpened,
    ReservationEnded,
    ReservationMade,
    SegmentFinished,
    SegmentPreempted,
    SegmentProgressed,
    SegmentRefused,
    SegmentSubmitted,
    SharesChanged,
)
from djinn_lab.jobs.request import devices_away
from djinn_lab.jobs.states import PENDING_STATES, JobState


class JobQueue:
    """All jobs of a pool. One instance is driven by one thread."""

    def __init__(self) -> None:
        self._tables = QueueTables()
        self._dispatcher = Dispatcher(self._tables)
        self._device_queues = DeviceQueues(self._tables, self._dispatcher)
        self._notifications = Notifications(self._tables, self._device_queues)

    def handle(self, event: Event, checked: bool = False) -> list[Command]:
        """Apply one event. Raises IllegalEvent, with nothing changed, when it cannot happen now.
        ``checked``: :meth:`check` has accepted this submit since the last event."""
        tables = self._tables
        take_back = tables.begin_event(event.at_s)
        try:
            if isinstance(event, SegmentSubmitted) and not checked:
                self.check(event)
            self._apply(event)
        except IllegalEvent:
            take_back()
            raise
        self._end_dependents(event.at_s)
        self._dispatcher.settle(event.at_s)
        self._notifications.remember(event)
        self._device_queues.changed()
        commands = [*tables.out, *self._notifications.queue_orders(), *self._notifications.notices()]
        self._notifications.forget(tables.forget())
        return commands

    def check(self, event: SegmentSubmitted) -> None:
        """Raise IllegalEvent for a submit that :meth:`handle` would reject; change nothing."""
        admission.check(self._tables, event)
        if self._tables.find(event.job) is None:
            self._dispatcher.check_limits(event)

    def check_device(self, event: DeviceAdded | DeviceHeard | DeviceLost) -> None:
        """Raise IllegalEvent for a device's event that :meth:`handle` would refuse; change nothing."""
        known = self._tables.devices.get(event.device)
        up = known is not None and known.alive
        match event:
            case DeviceAdded() if up:
                raise IllegalEvent(f"{event.device} is already up", "pool")
            case DeviceLost() if not up:
                raise IllegalEvent(f"{event.device} is not up", "pool")
            case DeviceHeard() if known is None or not up or known.heard == event.heard:
                raise IllegalEvent(f"{event.device} is not up, or known to be so", "pool")
            case _:
                pass

    def check_stop(self, event: SegmentPreempted) -> None:
        """Raise IllegalEvent for a stop that :meth:`handle` would refuse; change nothing."""
        lifecycle.check_preempted(self._tables, event)

    def check_target(self, target: str | None, tolerates: tuple[str, ...]) -> None:
        """Raise IllegalEvent, as for a cell, where no device may run this target."""
        admission.devices_for(self._tables, target, tolerates)

    def due_s(self) -> float | None:
        """Return when a :class:`ClockTicked` would do something, None for never."""
        dues = [lifecycle.timeout_due_s(self._tables.jobs[name]) for name in self._tables.limited]
        dues += (self._dispatcher.wake_at_s, dependencies.due_s(self._tables))
        return min((due for due in dues if due is not None), default=None)

    # -- looking -------------------------------------------------------------------------------------------

    def job(self, job: str) -> Job | None:
        """Return an unfinished or recently finished job."""
        return self._tables.find(job)

    def named(self, start: str) -> str:
        """Return the id of the remembered job that begins with ``start``. Raises IllegalEvent where none
        or several do."""
        found = [start] if self._tables.find(start) else []
        found = found or [name for name in self._tables.jobs if name.startswith(start)]
        found = found or [name for name in self._tables.finished if name.startswith(start)]
        if len(found) != 1:
            many = f"{len(found)} jobs begin with {start!r}; give a longer one"
            none = f"there is no job {start!r}"
            raise IllegalEvent(many if found else none, "client")
        return found[0]

    def knows(self, start: str) -> bool:
        """Return whether a remembered job begins with ``start``."""
        known = self._tables
        return any(name.startswith(start) for name in (*known.jobs, *known.finished))

    def explain(self, job: str) -> str:
        """Say why the job is where it is, in one sentence. Raises KeyError for a job that is not
        remembered."""
        known = self._tables.jobs.get(job) or self._tables.finished[job]
        return self._notifications.explain(known, self._notifications.queue_position(known))

    def waiting_for_memory(self, jobs_max: int) -> list[tuple[Job, tuple[str, ...]]]:
        """Return the first jobs that wait for memory, with the other devices that would suit them. Jobs
        for which no memory comes until others end or close go first; gangs and jobs that have to stay are
        left out."""
        waiting = [
            job
            for job in self._tables.in_state(JobState.RESTORING)
            if job.memory == "deferred" and job.gang == 1 and job.move_s is not None
        ]
        waiting.sort(key=lambda job: not job.memory_release.stuck)
        first = (job for job in waiting if self.first_of(job.session) == job.job)
        return [(job, self._dispatcher.other_devices(job)) for job in islice(first, jobs_max)]

    def watts(self, device: str) -> float | None:
        """Return what the device draws when busy, as operators say, None when unknown."""
        return self._tables.devices[device].watts

    def busy_devices(self) -> set[str]:
        """Return the devices that run something."""
        return {name for name, device in self._tables.devices.items() if device.running}

    def running_jobs(self) -> tuple[Job, ...]:
        """Return the running jobs, in the order of arrival."""
        return tuple(sorted(self._tables.in_state(JobState.RUNNING), key=lambda job: job.number))

    def queue_position(self, job: str) -> QueuePosition | None:
        """Return the job's position in its device's queue, None for one that is not pending."""
        known = self._tables.jobs.get(job)
        return None if known is None else self._notifications.queue_position(known)

    def waiting(self) -> Iterator[tuple[Job, QueuePosition | None, str]]:
        """Yield every job that waits for anything but its client, with its position and reason."""
        waiting = self._tables.in_state(JobState.SUBMITTED, JobState.RESTORING, *PENDING_STATES)
        yield from self._notifications.explain_all(waiting)

    def waiting_first(self) -> Iterator[tuple[Job, QueuePosition | None, str]]:
        """Yield as :meth:`waiting`, and of a long queue only the first, so that it may be called often."""
        others = islice(self._tables.in_state(JobState.SUBMITTED, JobState.RESTORING), POSITIONS_MAX)
        yield from self._notifications.explain_first(others)

    def waits_without_contending(self, limit: int) -> tuple[int, list[tuple[Job, str]]]:
        """Return how many jobs wait for anything but their client and do not contend for a device, and the
        first of them, with what they wait for."""
        tables, contending = self._tables, self._dispatcher.cluster.waiting
        states = (JobState.SUBMITTED, JobState.RESTORING, *PENDING_STATES)
        count = sum(len(tables.of_state[state]) for state in states) - len(contending)
        others = (job for job in tables.in_state(*states) if job.job not in contending)
        explained = self._notifications.explain_some(list(islice(others, limit)))
        return count, [(job, reason) for job, _, reason in explained]

    def decision(self, at_s: float) -> DecisionSnapshot:
        """Return all that a decision reads, frozen: to explain, forecast and replay from."""
        dispatcher = self._dispatcher
        return DecisionSnapshot.taken(dispatcher.cluster, dispatcher.shares, dispatcher.policy, at_s)

    def would_start(self, at_s: float) -> list[tuple[str, str]]:
        """Return jobs with their devices: those that would start now if session memory kept none of them
        waiting. Jobs that wait for other sessions are left out: only their users can close them."""
        snapshot, jobs = self.decision(at_s), self._tables.jobs
        ready = tuple(
            replace(request, startable=True)
            for request in snapshot.cluster.waiting
            if not jobs[request.job].memory_release.of_other_sessions
        )
        found = replace(snapshot, cluster=replace(snapshot.cluster, waiting=ready)).decide()
        return [(start.job, start.where[0][0]) for start in found.starts]

    @property
    def devices_at_most(self) -> int:
        """Count the devices, with those that may come with further nodes."""
        return len(self._tables.devices)

    @property
    def contending(self) -> int:
        """Count the jobs that wait for a device."""
        return len(self._dispatcher.cluster.waiting)

    @property
    def running(self) -> bool:
        """Return whether anything runs."""
        return bool(self._tables.of_state[JobState.RUNNING])

    def contending_accounts(self) -> Iterator[str]:
        """Yield the account of every job that waits for a device."""
        return (request.account for request in self._dispatcher.cluster.waiting.values())

    @property
    def preemptions(self) -> int:
        """Count the segments preempted so far."""
        return self._tables.preemptions

    @property
    def decided_s(self) -> float | None:
        """Return when a job was last started or preempted."""
        return self._dispatcher.cluster.decided_s

    def accounts(self, at_s: float) -> tuple[AccountView, ...]:
        """Return the usage and limits of every account."""
        return self._dispatcher.shares.view(at_s, devices_away(self._dispatcher.cluster.nodes.values()))

    def short_of_devices(self) -> str:
        """Return a sentence where, without the devices that are cordoned or down, fewer are left than
        accounts are guaranteed; empty where not."""
        return self._dispatcher.shares.short_of_devices(devices_away(self._dispatcher.cluster.nodes.values()))

    def account(self, account: str) -> AccountState:
        """Return the account's state; one with nothing but a name is as it began."""
        known = {known.account: known for known in self._dispatcher.shares.state().accounts}
        return known.get(account) or AccountState(account)

    def has_dependents(self, job: str) -> bool:
        """Return whether a job depends on this batch notebook."""
        return job in self._tables.external

    def device_of(self, session: str) -> str | None:
        """Return the device that the session is bound to."""
        return self._tables.bound.get(session)

    def jobs_of(self, session: str) -> tuple[str, ...]:
        """Return the session's unfinished jobs, in the order in which their segments came."""
        return tuple(self._tables.of_session.get(session, ()))

    def first_of(self, session: str) -> str | None:
        """Return the session's first job: its jobs run one after the other. A job that waits for its
        client blocks no other."""
        first = self._tables.first_of_session(session)
        return None if first is None else first.job

    def has_unfinished(self, session: str) -> bool:
        """Return whether a job of the session runs or waits."""
        return session in self._tables.of_session

    def story(self, job: str) -> tuple[Event, ...]:
        """Return every event that touched a remembered job, oldest first."""
        return self._notifications.story(job)

    def devices(self) -> tuple[DeviceQueueView, ...]:
        """Return views of the devices, without their queues, which take long to put in order."""
        return self._device_views({})

    def queue_lengths(self) -> Counter[str]:
        """Return how many jobs are pending, by device."""
        return Counter(
            job.assigned_device
            for job in self._tables.in_state(*PENDING_STATES)
            if job.assigned_device is not None
        )

    def snapshot(self) -> QueueSnapshot:
        jobs = tuple(sorted(self._tables.jobs.values(), key=lambda job: job.number))
        return QueueSnapshot(self._device_views(self._device_queues.all()), jobs)

    def _device_views(self, device_queues: Mapping[str, Sequence[Job]]) -> tuple[DeviceQueueView, ...]:
        tables = self._tables
        sessions: defaultdict[str, list[str]] = defaultdict(list)
        for session, bound in tables.bound.items():
            sessions[bound].append(session)
        return tuple(
            DeviceQueueView(
                device=name,
                alive=device.alive,
                cordoned=device.cordoned,
                running=device.running[0] if device.running else None,
                queue=tuple(job.job for job in device_queues.get(name, ())),
                sessions=tuple(sorted(sessions[name])),
                labels=tuple(sorted(device.labels)),
                own_labels=tuple(sorted(device.own_labels)),
                taints=tuple(sorted(device.taints)),
                price=device.price,
                watts=device.watts,
            )
            for name, device in sorted(tables.devices.items())
        )

    def validate(self) -> None:
        """Assert every invariant."""
        check_queue(self._tables)

    # -- events; each validates first, then changes --------------------------------------------------------

    def _apply(self, event: Event) -> None:
        tables = self._tables
        match event:
            case DeviceAdded():
                self._add_device(event)
            case DeviceLost():
                self._lose_device(event)
            case DeviceExpected():
                self._expect_device(event)
            case DeviceHeard():
                self._hear(event)
            case DeviceCordoned():
                self._cordon(event)
            case DeviceDescribed():
                self._describe(event)
            case QueueOpened() | PolicyChanged():
                self._open(event)
            case SharesChanged():
                self._change_shares(event)
            case ReservationMade():
                self._reserve(event)
            case ReservationEnded():
                self._end_reservation(event)
            case SegmentSubmitted():
                admission.submit(tables, event)
            case SegmentRefused():
                admission.refuse(tables, event)
            case MemoryDeferred():
                lifecycle.defer(tables, event)
            case MemoryGranted():
                lifecycle.grant(tables, event)
            case MemoryRefused():
                lifecycle.refuse_memory(tables, event)
            case MoveRefused():
                lifecycle.refuse_move(tables, event)
            case MoveProposed():
                self._dispatcher.move_to(tables.active(event.job, "pool"), event.device, event.at_s)
            case SegmentProgressed():
                lifecycle.progress(tables, event)
            case SegmentFinished():
                lifecycle.finish_segment(tables, event)
            case MemberLeft():
                lifecycle.leave_gang(tables, event)
            case SegmentPreempted():
                lifecycle.preempt(tables, event)
            case PreemptRequested():
                lifecycle.request_preemption(tables, event)
            case JobFinished():
                lifecycle.finish_job(tables, event)
            case JobReturned():
                admission.return_job(tables, event)
            case CancelRequested():
                lifecycle.cancel(tables, tables.active(event.job, "client"), event.at_s, event.message)
            case SessionDetached():
                lifecycle.cancel_session(tables, event.session, event.at_s, "the client went away")
            case SessionClosed():
                lifecycle.cancel_session(tables, event.session, event.at_s, "its session was closed")
                tables.unbind(event.session)
            case CheckpointAnnounced():
                dependencies.announce(tables, event)
            case DataPublished():
                dependencies.publish(tables, event)
            case ExternalDependencyChanged():
                dependencies.follow(tables, event)
            case ClockTicked():
                lifecycle.stop_overdue(tables, event.at_s)
                dependencies.give_up_overdue(tables, event.at_s)

    def _open(self, event: QueueOpened | PolicyChanged) -> None:
        policy = policy_named(event.policy) if isinstance(event.policy, str) else event.policy
        if policy is None:
            known = ", ".join(POLICIES)
            raise IllegalEvent(f"there is no policy {event.policy!r}; there are {known}", "client")
        if isinstance(event, QueueOpened):
            if self._tables.jobs or self._tables.devices:
                raise IllegalEvent("the queue has begun already", "pool")
            self._dispatcher.shares = ShareTree(event.shares)
        self._dispatcher.policy = policy

    def _change_shares(self, event: SharesChanged) -> None:
        try:
            self._dispatcher.shares.set_targets(
                event.account, event.weight, event.limits, event.min_runtime_s
            )
        except ValueError as error:
            raise IllegalEvent(str(error), "client") from None

    def _reserve(self, event: ReservationMade) -> None:
        for device in sorted(event.devices):
            self._named(device)
        if not event.devices:
            raise IllegalEvent("a reservation needs a device", "client")
        if not max(event.begins_s, event.at_s) < event.ends_s:
            raise IllegalEvent(f"reservation {event.name!r} would end before it begins", "client")
        entry = CalendarReservation(event.name, event.devices, event.begins_s, event.ends_s, event.accounts)
        self._dispatcher.cluster.set_calendar(entry)

    def _end_reservation(self, event: ReservationEnded) -> None:
        if event.name not in self._dispatcher.cluster.calendar:
            raise IllegalEvent(f"there is no reservation {event.name!r}", "client")
        self._dispatcher.cluster.remove_calendar(event.name)

    @property
    def reservations(self) -> tuple[CalendarReservation, ...]:
        """Devices reserved for accounts, and when."""
        return tuple(self._dispatcher.cluster.calendar.values())

    def _end_dependents(self, at_s: float) -> None:
        """Let jobs that depend on ended ones continue, or end them, and so on."""
        looked_at: set[str] = set()
        while ended := [n for n in self._tables.touched if n in self._tables.finished and n not in looked_at]:
            for name in ended:
                looked_at.add(name)
                dependencies.job_ended(self._tables, self._tables.finished[name], at_s)

    def _add_device(self, event: DeviceAdded) -> None:
        self.check_device(event)
        known = self._tables.devices.setdefault(event.device, QueueDevice(event.device, alive=False))
        known.alive, known.heard, known.expected, known.slots = True, True, False, event.slots
        known.memory_bytes, known.link_bytes_per_s = event.memory_bytes, event.link_bytes_per_s or 0.0
        known.numa_node, known.host = event.numa_node, event.host
        self._tables.touched_devices[event.device] = None

    def _expect_device(self, event: DeviceExpected) -> None:
        known = self._tables.devices.setdefault(event.device, QueueDevice(event.device, alive=False))
        if known.alive:
            raise IllegalEvent(f"{event.device} is up", "pool")
        known.expected, known.cordoned = True, False
        known.memory_bytes, known.link_bytes_per_s = 0, 0.0
        known.numa_node, known.host = None, ""
        self._tables.touched_devices[event.device] = None

    def _lose_device(self, event: DeviceLost) -> None:
        self.check_device(event)
        lifecycle.lose_device(self._tables, event)

    def _hear(self, event: DeviceHeard) -> None:
        self.check_device(event)
        self._tables.devices[event.device].heard = event.heard
        self._tables.touched_devices[event.device] = None
        if not event.heard:
            lifecycle.hold_silent(self._tables, event)

    def _named(self, device: str) -> QueueDevice:
        """Return a device that an operator named. Raises IllegalEvent with those that there are."""
        known = self._tables.devices.get(device)
        if known is None:
            there = ", ".join(sorted(self._tables.devices)) or "none is up yet"
            raise IllegalEvent(f"there is no device {device!r} (devices: {there})", "client")
        return known

    def _describe(self, event: DeviceDescribed) -> None:
        known = self._named(event.device)
        marks = (*event.labels, *event.taints)
        try:
            if len(marks) > targets.MARKS_MAX:
                raise ValueError(f"{len(marks)} labels and taints, at most {targets.MARKS_MAX}")
            if not 0 <= event.price < math.inf:
                raise ValueError(f"a price of {event.price} (0 or more)")
            if event.watts is not None and not 0 <= event.watts < math.inf:
                raise ValueError(f"a draw of {event.watts} watts (0 or more)")
            for label in event.labels:
                targets.check_label(label)
                known.check_own(label)
            for taint in event.taints:
                targets.check_taint(taint)
        except ValueError as error:
            raise IllegalEvent(f"device {event.device} would have {error}", "client") from None
        known.given_labels, known.taints = frozenset(event.labels), frozenset(event.taints)
        known.price, known.watts = event.price, event.watts
        self._tables.touched_devices[event.device] = None
        lifecycle.unsettle_ineligible(self._tables, event.device)

    def _cordon(self, event: DeviceCordoned) -> None:
        known = self._named(event.device)
        known.cordoned = event.cordoned
        self._tables.touched_devices[event.device] = None
        if event.cordoned:
            lifecycle.cordon(self._tables, event.device)
        if event.cordoned and event.drain:
            for name in known.running:
                running = self._tables.jobs[name]
                lifecycle.begin_preemption(self._tables, running, f"{event.device} is drained")

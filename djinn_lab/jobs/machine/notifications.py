"""What the queue reports about its jobs: notices to clients, queue orders to session memory, explanations,
stories."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Iterator, Mapping

from djinn_lab.jobs.commands import DeviceQueueOrdered, Notify
from djinn_lab.jobs.job import Job, UnavailableDevices
from djinn_lab.jobs.machine import dependencies
from djinn_lab.jobs.machine.device_queues import DeviceQueues
from djinn_lab.jobs.machine.eligibility import Eligibility
from djinn_lab.jobs.machine.explain import QueuePosition, explain, queue_positions
from djinn_lab.jobs.machine.tables import QueueTables
from djinn_lab.jobs.messages import Event, SegmentProgressed
from djinn_lab.jobs.states import PENDING_STATES, JobState

STORY_EVENTS_MAX = 1000
_NONE_UNAVAILABLE = UnavailableDevices((), ())
POSITIONS_SENT_MAX = 100
"""With more pending jobs, a change of position is not worth a message to each of them."""


class Notifications:
    """Remembers what was sent, so that only changes are sent."""

    def __init__(self, tables: QueueTables, queues: DeviceQueues) -> None:
        self._tables = tables
        self._queues = queues
        self._notified: dict[str, tuple[object, ...]] = {}
        self._orders_sent: dict[str, tuple[str, ...]] = {}
        self._stories: dict[str, deque[Event]] = {}

    def queue_position(self, job: Job) -> QueuePosition | None:
        """Return the job's position in its device's queue, None for a job that is not pending."""
        if job.assigned_device is None or job.state not in PENDING_STATES:
            return None
        queue_positions = self._positions_on(job.assigned_device, self._queues.of_device(job.assigned_device))
        return next(queue_position for other, queue_position in queue_positions if other.job == job.job)

    def queue_positions(self) -> dict[str, QueuePosition]:
        """Return the positions of all pending jobs."""
        queues = self._queues.all().items()
        return {
            job.job: queue_position
            for device, queue in queues
            for job, queue_position in self._positions_on(device, queue)
        }

    def first_positions(self) -> dict[str, QueuePosition]:
        """Return the positions of all pending jobs; of the first of them where they are too many."""
        return dict(self._first_positions())

    def _first_positions(self, of: Container[str] | None = None) -> Iterator[tuple[str, QueuePosition]]:
        """``of``: only those of these jobs."""
        queues = (self._queues.first_jobs() if self._queues.long else self._queues.all()).items()
        for device, queue in queues:
            for job, queue_position in self._positions_on(device, queue, of):
                yield job.job, queue_position

    def explain(
        self, job: Job, queue_position: QueuePosition | None, eligibility: Eligibility | None = None
    ) -> str:
        """Say why the job is where it is. ``eligibility``: of this moment, for a caller that explains many
        jobs."""
        if job.waits_for and not job.finished:
            return dependencies.describe(self._tables, job)
        why = (eligibility or self._queues.eligibility()).reason(job) if job.state in PENDING_STATES else ""
        looks = job.state is JobState.SUBMITTED or job.state in PENDING_STATES
        return explain(
            job, queue_position, self._tables.unavailable_devices() if looks else _NONE_UNAVAILABLE, why
        )

    def explain_all(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, QueuePosition | None, str]]:
        """Explain the jobs, with their queue positions."""
        return self._explain_many(jobs, self.queue_positions())

    def explain_first(self, others: Iterable[Job]) -> Iterator[tuple[Job, QueuePosition | None, str]]:
        """Explain the jobs that have positions where not all can be given one, and ``others`` that are not
        pending."""
        queue_positions = self.first_positions()
        return self._explain_many(
            (*others, *(self._tables.jobs[name] for name in queue_positions)), queue_positions
        )

    def explain_some(self, jobs: Iterable[Job]) -> Iterator[tuple[Job, QueuePosition | None, str]]:
        """Explain the jobs, with their queue positions as far as a notice would give them."""
        return self._explain_many(jobs, self.first_positions())

    def _explain_many(
        self, jobs: Iterable[Job], queue_positions: Mapping[str, QueuePosition]
    ) -> Iterator[tuple[Job, QueuePosition | None, str]]:
        eligibility = self._queues.eligibility()
        for job in jobs:
            queue_position = queue_positions.get(job.job)
            yield job, queue_position, self.explain(job, queue_position, eligibility)

    def story(self, job: str) -> tuple[Event, ...]:
        """Return every event that touched a remembered job, oldest first."""
        return tuple(self._stories.get(job, ()))

    def queue_orders(self) -> Iterator[DeviceQueueOrdered]:
        """Yield the next jobs of each device, for session memory, where they changed."""
        queues = self._queues.heads()
        for device, queue in sorted(queues.items()):
            if self._orders_sent.get(device) != queue:
                yield DeviceQueueOrdered(device, queue)
        self._orders_sent = queues

    def notices(self) -> Iterator[Notify]:
        """Yield a notice for every job whose state, device or queue position changed. In a long queue only
        the jobs that the event touched are notified at once, without a position unless they are among the
        first; the others are explained on request."""
        tables = self._tables
        short = len(tables.of_state[JobState.QUEUED]) <= POSITIONS_SENT_MAX
        touched = [job for name in tables.touched if (job := tables.jobs.get(name))]
        asked = short or any(job.state in PENDING_STATES for job in touched)
        asked = asked and any(map(tables.of_state.__getitem__, PENDING_STATES))
        queue_positions = dict(self._first_positions(None if short else tables.touched)) if asked else {}
        eligibility = self._queues.eligibility() if queue_positions else None
        for name in dict.fromkeys([*tables.touched, *(queue_positions if short else ())]):
            job = tables.find(name)
            if job is None or (job.state is JobState.RESTORING and job.memory == "ask"):
                continue  # memory answers at once, most of the time
            queue_position = queue_positions.get(name)
            position = queue_position.position if queue_position else None
            stopping = (job.cancelling, job.preempting)
            notice = (
                *(job.state, job.assigned_device, job.members, job.segment, position, stopping),
                *(
                    job.memory_reason,
                    job.waits_for,
                    eligibility.reason(job) if queue_position and eligibility else "",
                ),
            )
            if self._notified.get(name) == notice:
                continue
            self._notified[name] = notice
            if job.finished:
                del self._notified[name]
            wait_s = job.memory_wait_s if job.state is JobState.RESTORING else None
            yield Notify(
                name,
                job.state,
                self.explain(job, queue_position, eligibility),
                position,
                job.assigned_device,
                wait_s,
            )

    def remember(self, event: Event) -> None:
        """Add the event to the stories of the jobs that it touched."""
        named = getattr(event, "job", None)
        names: Iterable[str] = dict.fromkeys([*([named] if named else []), *self._tables.touched])
        for name in names:
            if self._tables.find(name) is None:
                continue
            story = self._stories.get(name)
            if story is None:
                story = self._stories[name] = deque(maxlen=STORY_EVENTS_MAX)
            if isinstance(event, SegmentProgressed) and story and isinstance(story[-1], SegmentProgressed):
                story.pop()
            story.append(event)

    def forget(self, jobs: Iterable[str]) -> None:
        """Drop the stories of forgotten jobs."""
        for name in jobs:
            self._stories.pop(name, None)

    def _positions_on(
        self, device: str, queue: list[Job], of: Container[str] | None = None
    ) -> Iterator[tuple[Job, QueuePosition]]:
        running = self._tables.devices[device].running
        return queue_positions(queue, self._tables.jobs[running[0]] if running else None, of)

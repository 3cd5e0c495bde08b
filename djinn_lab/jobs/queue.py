"""The queue: events in, commands out. Theory of operation: :mod:`djinn_lab.jobs.states`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from msgspec.structs import replace

from djinn_lab.jobs.explain import Place, explain, places_in
from djinn_lab.jobs.invariants import check_queue
from djinn_lab.jobs.job import DeviceView, Job, QueueSnapshot, line_order
from djinn_lab.jobs.messages import (
    LINE_TOLD_MAX,
    CancelRequested,
    CancelSegment,
    Command,
    DeviceAdded,
    DeviceLost,
    EndSegment,
    Event,
    JobFinished,
    LineOrdered,
    MemoryGranted,
    MemoryHeld,
    MemoryNeed,
    MemoryRefused,
    Notify,
    PlaceSegment,
    PreemptRequested,
    PreemptSegment,
    SegmentFinished,
    SegmentPreempted,
    SegmentProgressed,
    SegmentRefused,
    SegmentSubmitted,
    SessionClosed,
    SessionDetached,
    StartSegment,
)
from djinn_lab.jobs.states import IN_LINE, RANKS, TRANSITIONS, IllegalEvent, JobState, Move

FINISHED_JOBS_MAX = 200
"""How many finished jobs are remembered, with their stories."""
STORY_EVENTS_MAX = 1000

_OUTCOME_MOVES = {"done": Move.FINISH, "failed": Move.FAIL, "cancelled": Move.CANCEL}


class JobQueue:
    """All jobs of a pool. One instance is driven by one thread."""

    def __init__(self) -> None:
        self._alive: dict[str, bool] = {}
        self._running: dict[str, str] = {}
        self._bound: dict[str, str] = {}
        self._jobs: dict[str, Job] = {}
        self._finished: dict[str, Job] = {}
        self._stories: dict[str, deque[Event]] = {}
        self._told: dict[str, tuple[object, ...]] = {}
        self._lines_told: dict[str, tuple[str, ...]] = {}
        self._jobs_seen = 0
        self._segments_seen = 0
        self._out: list[Command] = []
        self._touched: dict[str, Job | None] = {}

    def handle(self, event: Event) -> list[Command]:
        """Apply one event. Raises IllegalEvent, with nothing changed, when it cannot happen now."""
        self._out = []
        self._touched = {}
        match event:
            case DeviceAdded():
                self._add_device(event)
            case DeviceLost():
                self._lose_device(event)
            case SegmentSubmitted():
                self._submit(event)
            case SegmentRefused():
                self._refuse(event)
            case MemoryHeld():
                self._hold(event)
            case MemoryGranted():
                self._grant(event)
            case MemoryRefused():
                self._refuse_memory(event)
            case SegmentProgressed():
                self._progress(event)
            case SegmentFinished():
                self._finish_segment(event)
            case JobFinished():
                self._finish_job(event)
            case CancelRequested():
                self._cancel(self._active(event.job, "client"), event.at_s, event.message, Move.CANCEL)
            case PreemptRequested():
                self._ask_to_move_aside(self._running_job(event.job), event.message)
            case SegmentPreempted():
                self._preempt(event)
            case SessionDetached():
                self._cancel_session(event.session, event.at_s, "the client went away")
            case SessionClosed():
                self._cancel_session(event.session, event.at_s, "its session was closed")
                self._bound.pop(event.session, None)
        self._dispatch(event.at_s)
        self._remember(event)
        return [*self._out, *self._line_news(), *self._notifications()]

    def check(self, event: SegmentSubmitted) -> None:
        """Raises IllegalEvent for a submit that :meth:`handle` would not take; changes nothing."""
        self._expect_next(event)
        if event.wish is not None and event.wish not in self._alive:
            known = ", ".join(sorted(self._alive)) or "none is up yet"
            raise IllegalEvent(f"there is no device {event.wish!r} (devices: {known})", "client")
        bound = self._bound.get(event.session)
        if event.wish is not None and bound not in (None, event.wish):
            raise IllegalEvent(
                f"the session's values live on {bound}, so it cannot run on {event.wish}", "client"
            )

    def job(self, job: str) -> Job | None:
        """An unfinished or recently finished job."""
        return self._jobs.get(job) or self._finished.get(job)

    def explain(self, job: str) -> str:
        """Why the job is where it is, in one sentence. Raises KeyError for a job that is not remembered."""
        known = self._jobs.get(job) or self._finished[job]
        return explain(known, self.place(job), self._lost_devices())

    def place(self, job: str) -> Place | None:
        """Where in its device's line a QUEUED or PREEMPTED job stands, None for any other."""
        known = self._jobs.get(job)
        if known is None or known.held_on is None or known.state not in IN_LINE:
            return None
        return next(place for other, place in self._places(known.held_on) if other.job == job)

    def waiting(self) -> Iterator[tuple[Job, Place | None, str]]:
        """Every SUBMITTED, RESTORING, QUEUED and PREEMPTED job with its place and reason."""
        lost, places = self._lost_devices(), self._all_places()
        for job in self._jobs.values():
            if job.state in IN_LINE or job.state in (JobState.SUBMITTED, JobState.RESTORING):
                place = places.get(job.job)
                yield job, place, explain(job, place, lost)

    def device_of(self, session: str) -> str | None:
        """The device that the session is bound to."""
        return self._bound.get(session)

    def has_unfinished(self, session: str) -> bool:
        """Does a job of the session run or wait?"""
        return any(job.session == session for job in self._jobs.values())

    def story(self, job: str) -> tuple[Event, ...]:
        """Every event that touched a remembered job, oldest first."""
        return tuple(self._stories.get(job, ()))

    def snapshot(self) -> QueueSnapshot:
        devices = tuple(
            DeviceView(
                device=device,
                alive=alive,
                running=self._running.get(device),
                line=tuple(job.job for job in self._line(device)),
                sessions=tuple(sorted(s for s, bound in self._bound.items() if bound == device)),
            )
            for device, alive in sorted(self._alive.items())
        )
        return QueueSnapshot(devices, tuple(sorted(self._jobs.values(), key=lambda job: job.number)))

    def validate(self) -> None:
        """Assert every invariant."""
        check_queue(self._alive, self._running, self._bound, self._jobs, self._finished)

    # -- events; each validates first, then mutates --------------------------------------------------------

    def _add_device(self, event: DeviceAdded) -> None:
        if self._alive.get(event.device):
            raise IllegalEvent(f"{event.device} is already up", "pool")
        self._alive[event.device] = True

    def _lose_device(self, event: DeviceLost) -> None:
        if not self._alive.get(event.device):
            raise IllegalEvent(f"{event.device} is not up", "pool")
        queued = [*self._line(event.device), *self._restoring(event.device)]
        running = self._running.pop(event.device, None)
        self._alive[event.device] = False
        self._bound = {s: device for s, device in self._bound.items() if device != event.device}
        for job in queued:
            memory: MemoryNeed = "free" if job.memory == "free" else "ask"
            self._put(replace(self._moved(job, Move.UNBIND), held_on=None, memory=memory, memory_reason=""))
        if running is not None:
            job = self._jobs[running]
            outcome = "cancelled" if job.cancelling else "lost"
            message = job.message if job.cancelling else event.message
            self._out.append(EndSegment(running, job.segment, outcome, job.ops_done, event.device, message))
            self._settle(job, "cancelled" if job.cancelling else "failed", event.at_s, message)

    def _submit(self, event: SegmentSubmitted) -> None:
        self.check(event)
        old = self._jobs.get(event.job)
        bound = self._bound.get(event.session)
        if bound is None and event.memory in ("held", "line", "granted"):
            raise IllegalEvent(f"memory is {event.memory} for a session without a device", "pool")
        job = self._arrived(event, old, self._next_state(old, Move.SUBMIT), event.wish, event.predicted_s)
        wait_s = event.memory_wait_s
        self._put(replace(job, memory=event.memory, memory_reason=event.memory_reason, memory_wait_s=wait_s))

    def _refuse(self, event: SegmentRefused) -> None:
        old = self._expect_next(event)
        state = self._next_state(old, Move.FAIL if event.final else Move.MORE)
        job = replace(self._arrived(event, old, state, None, None), message=event.message)
        self._put(replace(job, ended_at_s=event.at_s) if job.finished else job)

    def _hold(self, event: MemoryHeld) -> None:
        job = self._waiting_for_memory(event.job)
        if event.in_line:
            self._put(self._in_line(job, "line"))
            return
        job = self._out_of_line(job)
        self._put(replace(job, memory="held", memory_reason=event.reason, memory_wait_s=event.wait_s))

    def _grant(self, event: MemoryGranted) -> None:
        self._put(self._in_line(self._waiting_for_memory(event.job), "granted"))

    def _in_line(self, job: Job, memory: MemoryNeed) -> Job:
        moved = self._moved(job, Move.GRANT) if job.state is JobState.RESTORING else job
        return replace(moved, memory=memory, memory_reason="", memory_wait_s=None)

    def _out_of_line(self, job: Job) -> Job:
        return self._moved(job, Move.HOLD) if job.state in IN_LINE else job

    def _refuse_memory(self, event: MemoryRefused) -> None:
        job = self._out_of_line(self._waiting_for_memory(event.job))
        self._out.append(EndSegment(job.job, job.segment, "refused", 0, job.held_on, event.message))
        self._settle(job, "failed", event.at_s, event.message)

    def _progress(self, event: SegmentProgressed) -> None:
        job = self._running_segment(event.job, event.segment)
        if not job.ops_done <= event.ops_done <= job.ops_total:
            raise IllegalEvent(
                f"progress {event.ops_done} is not between {job.ops_done} and {job.ops_total}", "pool"
            )
        self._jobs[job.job] = replace(job, ops_done=event.ops_done)

    def _finish_segment(self, event: SegmentFinished) -> None:
        job = self._running_segment(event.job, event.segment)
        if event.outcome not in _OUTCOME_MOVES:
            raise IllegalEvent(f"unknown outcome {event.outcome!r}", "pool")
        assert job.held_on is not None
        del self._running[job.held_on]
        done = replace(job, ops_done=max(job.ops_done, event.ops_done), preempting=False)
        cancelled = event.outcome == "cancelled" or (
            job.cancelling and not (job.final and event.outcome == "done")
        )
        outcome = "cancelled" if cancelled else event.outcome
        message = job.message if job.cancelling else event.message
        self._settle(done, outcome, event.at_s, message)

    def _finish_job(self, event: JobFinished) -> None:
        job = self._active(event.job, "client")
        if event.outcome not in _OUTCOME_MOVES:
            raise IllegalEvent(
                f"unknown outcome {event.outcome!r}; it is done, failed or cancelled", "client"
            )
        if job.state is JobState.WAITING:
            self._end(job, _OUTCOME_MOVES[event.outcome], event.at_s, event.message or job.message)
        elif event.outcome == "done":
            self._jobs[job.job] = replace(job, final=True)
        else:
            self._cancel(job, event.at_s, event.message or "the cell is over", _OUTCOME_MOVES[event.outcome])

    def _preempt(self, event: SegmentPreempted) -> None:
        job = self._running_segment(event.job, event.segment)
        if not job.ops_done <= event.ops_done <= job.ops_total:
            raise IllegalEvent(f"stopped after {event.ops_done} of {job.ops_total} ops", "pool")
        assert job.held_on is not None
        del self._running[job.held_on]
        stopped = replace(job, ops_done=event.ops_done, preempting=False, preemptions=job.preemptions + 1)
        if job.cancelling:
            done, device = stopped.ops_done, job.held_on
            self._out.append(EndSegment(job.job, job.segment, "cancelled", done, device, job.message))
            self._end(stopped, Move.CANCEL, event.at_s, job.message)
            return
        self._jobs_seen += 1
        memory: MemoryNeed = "free" if job.memory == "free" else "ask"
        waiting = replace(self._moved(stopped, Move.PREEMPT), turn=self._jobs_seen - 1, memory=memory)
        self._put(waiting)
        if memory == "ask":
            self._out.append(PlaceSegment(job.job, job.segment, job.session, job.held_on))

    # -- parts ---------------------------------------------------------------------------------------------

    def _active(self, job: str, fault: str) -> Job:
        if job not in self._jobs:
            finished = self._finished.get(job)
            what = f"is already {finished.state}" if finished else "is unknown"
            raise IllegalEvent(f"job {job} {what}", fault)
        return self._jobs[job]

    def _waiting_for_memory(self, job: str) -> Job:
        known = self._active(job, "pool")
        asked = known.state is JobState.PREEMPTED and known.memory == "ask"
        if known.state is not JobState.RESTORING and known.memory != "line" and not asked:
            raise IllegalEvent(f"job {job} does not wait for memory ({known.state})", "pool")
        return known

    def _running_job(self, job: str) -> Job:
        known = self._active(job, "client")
        if known.state is not JobState.RUNNING:
            raise IllegalEvent(f"job {job} is not running ({known.state})", "client")
        return known

    def _ask_to_move_aside(self, job: Job, message: str) -> None:
        if job.cancelling or job.preempting:
            return
        assert job.held_on is not None
        self._put(replace(self._moved(job, Move.ASK_STOP), preempting=True, message=message))
        self._out.append(PreemptSegment(job.job, job.segment, job.held_on))

    def _running_segment(self, job: str, segment: int) -> Job:
        known = self._active(job, "pool")
        if known.state is not JobState.RUNNING or known.segment != segment:
            raise IllegalEvent(f"segment {segment} of job {job} is not running ({known.state})", "pool")
        return known

    def _expect_next(self, event: SegmentSubmitted | SegmentRefused) -> Job | None:
        """The job that this is the next segment of, None when it is new."""
        if event.job in self._finished:
            raise IllegalEvent(f"job {event.job} is already {self._finished[event.job].state}", "client")
        old = self._jobs.get(event.job)
        expected = 0 if old is None else old.segment + 1
        if event.segment != expected:
            raise IllegalEvent(f"segment {event.segment} came where {expected} was due", "client")
        if event.priority not in RANKS:
            raise IllegalEvent(f"priority {event.priority!r} is none of {', '.join(RANKS)}", "client")
        if event.ops_total < 0:
            raise IllegalEvent(f"{event.ops_total} ops", "client")
        if old is not None and old.session != event.session:
            raise IllegalEvent(f"job {event.job} belongs to another session", "client")
        if old is not None and old.state is not JobState.WAITING:
            raise IllegalEvent(f"segment {old.segment} of job {event.job} is not answered yet", "client")
        return old

    def _arrived(
        self,
        event: SegmentSubmitted | SegmentRefused,
        old: Job | None,
        state: JobState,
        wish: str | None,
        predicted_s: float | None,
    ) -> Job:
        number = self._jobs_seen if old is None else old.number
        turn = number if old is None else old.turn
        self._jobs_seen += old is None
        self._segments_seen += 1
        return Job(
            job=event.job,
            session=event.session,
            user=event.user,
            priority=event.priority,
            number=number,
            arrival=self._segments_seen - 1,
            state=state,
            segment=event.segment,
            final=event.final,
            ops_total=event.ops_total,
            submitted_at_s=event.at_s if old is None else old.submitted_at_s,
            segment_at_s=event.at_s,
            started_at_s=None if old is None else old.started_at_s,
            wish=wish,
            predicted_s=predicted_s,
            turn=turn,
            preemptions=0 if old is None else old.preemptions,
        )

    def _cancel(self, job: Job, at_s: float, message: str, move: Move) -> None:
        if job.state is JobState.RUNNING:
            if not job.cancelling:
                assert job.held_on is not None
                self._put(replace(self._moved(job, Move.ASK_STOP), cancelling=True, message=message))
                self._out.append(CancelSegment(job.job, job.held_on))
            return
        if job.state is not JobState.WAITING:
            self._out.append(
                EndSegment(job.job, job.segment, "cancelled", job.ops_done, job.held_on, message)
            )
        self._end(job, move, at_s, message)

    def _cancel_session(self, session: str, at_s: float, message: str) -> None:
        for job in [job for job in self._jobs.values() if job.session == session]:
            self._cancel(job, at_s, message, Move.CANCEL)

    def _settle(self, job: Job, outcome: str, at_s: float, message: str) -> None:
        """The running segment of ``job`` was answered: wait for more, or end."""
        if outcome == "cancelled" or job.final:
            self._end(job, _OUTCOME_MOVES[outcome], at_s, message)
        else:
            self._put(replace(self._moved(job, Move.MORE), held_on=None, message=message))

    def _end(self, job: Job, move: Move, at_s: float, message: str) -> None:
        self._put(replace(self._moved(job, move), held_on=None, ended_at_s=at_s, message=message))

    def _next_state(self, job: Job | None, move: Move) -> JobState:
        state = None if job is None else job.state
        if (state, move) not in TRANSITIONS:
            raise IllegalEvent(f"a job that is {state or 'new'} cannot {move}", "pool")
        return TRANSITIONS[state, move]

    def _moved(self, job: Job, move: Move) -> Job:
        return replace(job, state=self._next_state(job, move))

    def _put(self, job: Job) -> None:
        self._touched[job.job] = job
        if not job.finished:
            self._jobs[job.job] = job
            return
        self._jobs.pop(job.job, None)
        self._finished[job.job] = job
        while len(self._finished) > FINISHED_JOBS_MAX:
            forgotten = next(iter(self._finished))
            del self._finished[forgotten]
            self._stories.pop(forgotten, None)

    def _dispatch(self, at_s: float) -> None:
        """Bind what has no device, then start the head of every idle device's line."""
        for job in sorted(self._in_state(JobState.SUBMITTED), key=lambda job: job.arrival):
            device = self._bound.get(job.session) or self._choose_device(job)
            if device is not None:
                self._bound[job.session] = device
                self._bind(job, device)
        for device, alive in sorted(self._alive.items()):
            line = self._line(device) if alive and device not in self._running else []
            for job in [job for job in line if job.memory in ("free", "granted")][:1]:
                started = job.started_at_s if job.started_at_s is not None else at_s
                self._running[device] = job.job
                self._put(replace(self._moved(job, Move.START), started_at_s=started))
                self._out.append(StartSegment(job.job, job.segment, device))

    def _bind(self, job: Job, device: str) -> None:
        bound = replace(self._moved(job, Move.BIND), held_on=device)
        if bound.memory in ("ask", "held"):
            bound = self._moved(bound, Move.HOLD)
        if bound.memory == "ask":
            self._out.append(PlaceSegment(job.job, job.segment, job.session, device))
        self._put(bound)

    def _choose_device(self, job: Job) -> str | None:
        """The wished device if it is up, else the least loaded one, ties by name."""
        alive = [device for device, up in self._alive.items() if up and job.wish in (None, device)]
        load = dict.fromkeys(alive, 0)
        waiting = [job for job in self._jobs.values() if job.state in (*IN_LINE, JobState.RESTORING)]
        for device in (*self._bound.values(), *(other.held_on for other in waiting)):
            if device in load:
                load[device] += 1
        return min(alive, key=lambda device: (load[device], device), default=None)

    def _in_state(self, state: JobState) -> list[Job]:
        return [job for job in self._jobs.values() if job.state is state]

    def _line(self, device: str) -> list[Job]:
        return line_order(
            job for job in self._jobs.values() if job.state in IN_LINE and job.held_on == device
        )

    def _of_device(self, device: str) -> list[Job]:
        """In its line, or waiting for memory there."""
        return [
            job
            for job in self._jobs.values()
            if job.held_on == device and (job.state in IN_LINE or job.state is JobState.RESTORING)
        ]

    def _restoring(self, device: str) -> list[Job]:
        return line_order(job for job in self._in_state(JobState.RESTORING) if job.held_on == device)

    def _places(self, device: str) -> Iterator[tuple[Job, Place]]:
        running = self._running.get(device)
        return places_in(self._line(device), self._jobs[running] if running else None)

    def _all_places(self) -> dict[str, Place]:
        devices = {job.held_on for job in self._jobs.values() if job.state in IN_LINE and job.held_on}
        return {job.job: place for device in sorted(devices) for job, place in self._places(device)}

    def _lost_devices(self) -> list[str]:
        return sorted(device for device, alive in self._alive.items() if not alive)

    # -- telling -------------------------------------------------------------------------------------------

    def _line_news(self) -> Iterator[LineOrdered]:
        """Whose turn is near, for session memory, where that changed."""
        for device in sorted(self._alive):
            line = tuple(job.job for job in line_order(self._of_device(device)))[:LINE_TOLD_MAX]
            if len(line) > 1 and self._lines_told.get(device) != line:
                yield LineOrdered(device, line)
            self._lines_told[device] = line

    def _notifications(self) -> Iterator[Notify]:
        """One notice for every job whose state, device or place in line changed."""
        lost, places = self._lost_devices(), self._all_places()
        for name in dict.fromkeys([*self._touched, *places]):
            job = self._jobs.get(name) or self._finished.get(name)
            if job is None or (job.state is JobState.RESTORING and job.memory == "ask"):
                continue  # memory answers at once, most of the time
            place = places.get(name)
            position = place.position if place else None
            stopping = job.cancelling or job.preempting
            told = (job.state, job.held_on, job.segment, position, stopping, job.memory_reason)
            if self._told.get(name) == told:
                continue
            self._told[name] = told
            if job.finished:
                del self._told[name]
            reason, wait_s = explain(job, place, lost), place.wait_s if place else job.memory_wait_s
            yield Notify(name, job.state, reason, position, job.held_on, wait_s)

    def _remember(self, event: Event) -> None:
        named = getattr(event, "job", None)
        for name in dict.fromkeys([*([named] if named else []), *self._touched]):
            if name not in self._jobs and name not in self._finished:
                continue
            story = self._stories.setdefault(name, deque(maxlen=STORY_EVENTS_MAX))
            if isinstance(event, SegmentProgressed) and story and isinstance(story[-1], SegmentProgressed):
                story.pop()
            story.append(event)

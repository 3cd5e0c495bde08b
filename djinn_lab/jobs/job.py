"""A job as a frozen value, a device's line, and a snapshot of both."""

from __future__ import annotations

import msgspec

from djinn_lab.jobs.conditions import Waited, Waiting
from djinn_lab.jobs.messages import MemoryNeed
from djinn_lab.jobs.states import FINISHED, JobState
from djinn_lab.jobs.terms import NO_TERMS, Terms


class Job(msgspec.Struct, frozen=True):
    """``number``: arrival of the job; ``arrival``: arrival of its current segment. Both count from 0.
    ``account``: the leaf of the share tree that pays.

    ``segment`` is the current segment, or the last one while WAITING. ``held_on``: the device it runs on,
    queues for or waits for memory of. Times are those of the events, in seconds."""

    job: str
    session: str
    user: str
    account: str
    priority: str
    number: int
    arrival: int
    state: JobState
    segment: int
    final: bool
    ops_total: int
    submitted_at_s: float
    segment_at_s: float
    ops_done: int = 0
    wish: str | None = None
    held_on: str | None = None
    predicted_s: float | None = None
    started_at_s: float | None = None
    ended_at_s: float | None = None
    cancelling: bool = False
    message: str = ""
    memory: MemoryNeed = "free"
    memory_reason: str = ""
    memory_wait_s: float | None = None
    memory_room: bool = False
    """Held until others leave, not for a copy."""
    memory_stuck: bool = False
    """Held, and nothing is under way that brings it room."""
    memory_closing: bool = False
    """Held until sessions close."""
    terms: Terms = NO_TERMS
    deadline_at_s: float | None = None
    waits_for: tuple[str, ...] = ()
    """What it comes after, and that is not there yet: see :mod:`djinn_lab.jobs.conditions`."""
    waited: Waited = Waited()
    """What became of the rest of that."""
    checkpoints: tuple[str, ...] = ()
    """That it has announced, in this order."""
    turn: int = 0
    """Where arrival puts it in line; moving aside on request puts it behind all that wait."""
    preempting: bool = False
    """Asked to move aside, and still running."""
    yields: bool = False
    """Somebody asked for that, so it lets all others go first."""
    preemptions: int = 0
    preempted_at_s: float | None = None
    move_s: float | None = None
    """What bringing its session's state to another device would take, None when it cannot be brought."""
    parts_s: float = 0.0
    """Likewise for what the parts of a gang hold beside it."""
    settled: bool = False
    """It was moved, or could not be: it stays where it is until it has run there."""
    running_since_s: float | None = None
    devices: int = 1
    """That its segment can use at once."""
    devices_why: str = ""
    """Why these are fewer than its terms ask for."""
    members: tuple[str, ...] = ()
    """Of a running gang, the devices that it holds beside ``held_on``."""
    ran_s: float = 0.0
    """Run time before ``running_since_s``, over all segments."""

    @property
    def finished(self) -> bool:
        return self.state in FINISHED

    @property
    def waiting(self) -> Waiting:
        """For what it comes after."""
        return Waiting(self.waits_for, self.waited)

    @property
    def holds(self) -> tuple[str, ...]:
        """The devices that it runs on, the one that its session is bound to first."""
        running = self.state is JobState.RUNNING and self.held_on is not None
        return (self.held_on, *self.members) if running and self.held_on is not None else ()

    @property
    def gang(self) -> int:
        """Devices that its segment wants at once."""
        return min(self.terms.gang, self.devices)

    @property
    def gang_min(self) -> int:
        """It starts with as few."""
        return min(self.terms.gang_min, self.devices)

    @property
    def remaining_s(self) -> float | None:
        """Predicted seconds of run time left in this segment, None when unknown."""
        if self.predicted_s is None:
            return None
        return self.predicted_s * (1 - self.ops_done / max(1, self.ops_total))


class DeviceView(msgspec.Struct, frozen=True):
    """``running``: the first of the jobs that it runs. ``line``: jobs queued for it, first to run first.
    ``sessions``: those bound to it. ``own_labels``: of all ``labels``, those that nobody gave it."""

    device: str
    alive: bool
    cordoned: bool
    running: str | None
    line: tuple[str, ...]
    sessions: tuple[str, ...]
    labels: tuple[str, ...] = ()
    taints: tuple[str, ...] = ()
    price: float = 0.0
    own_labels: tuple[str, ...] = ()
    watts: float | None = None


class Closed(msgspec.Struct, frozen=True):
    """Devices that start nothing: those whose worker is down, and those that are cordoned."""

    lost: tuple[str, ...]
    cordoned: tuple[str, ...]


class QueueSnapshot(msgspec.Struct, frozen=True):
    """Everything at one moment. ``jobs`` are the unfinished ones, by arrival."""

    devices: tuple[DeviceView, ...]
    jobs: tuple[Job, ...]

"""Commands of the queue."""

from __future__ import annotations

import msgspec

from djinn_lab.jobs.states import JobState

ORDERED_JOBS_MAX = 16


class PlaceSegment(msgspec.Struct, frozen=True, tag=True):
    """Ask session memory to grant the segment memory on ``device``, which its session is bound to now."""

    job: str
    segment: int
    session: str
    device: str


class StartSegment(msgspec.Struct, frozen=True, tag=True):
    """Hand the segment to the device's worker. ``members``: the other devices that a gang holds. ``riders``:
    jobs of other sessions that run in one batch with it; their own starts, with it as their ``leader``, come
    right before. ``interleaved``: it runs between two ops of what the worker runs."""

    job: str
    segment: int
    device: str
    members: tuple[str, ...] = ()
    riders: tuple[str, ...] = ()
    leader: str | None = None
    interleaved: bool = False


class CancelSegment(msgspec.Struct, frozen=True, tag=True):
    """Ask the worker to stop between two ops; its answer is an event again."""

    job: str
    device: str


class PreemptSegment(msgspec.Struct, frozen=True, tag=True):
    """Ask the worker to stop the segment between two ops and to keep its results; its answer is an event
    again."""

    job: str
    segment: int
    device: str


class DeviceQueueOrdered(msgspec.Struct, frozen=True, tag=True):
    """Notify session memory which jobs will run next on the device, the first one first, at most
    ORDERED_JOBS_MAX."""

    device: str
    jobs: tuple[str, ...]


class ChargeAccount(msgspec.Struct, frozen=True, tag=True):
    """Store one row of the usage ledger: a stretch of run time of a segment is over, and its account has
    used exactly this much."""

    job: str
    segment: int
    account: str
    user: str
    device: str
    started_at_s: float
    ended_at_s: float
    memory_byte_s: float
    transfer_bytes: float


class EndSegment(msgspec.Struct, frozen=True, tag=True):
    """Answer the submit without a worker's result. ``outcome``: ``cancelled``, ``lost`` with the device,
    or ``refused`` by session memory."""

    job: str
    segment: int
    outcome: str
    ops_done: int
    device: str | None
    message: str


class Notify(msgspec.Struct, frozen=True, tag=True):
    """Notify the job's client. ``position`` counts from 1 in the device's queue. ``estimate_s``: while the
    job is RESTORING, seconds until session memory grants it, if that is known."""

    job: str
    state: JobState
    reason: str
    position: int | None
    device: str | None
    estimate_s: float | None


Command = (
    PlaceSegment
    | StartSegment
    | CancelSegment
    | PreemptSegment
    | DeviceQueueOrdered
    | ChargeAccount
    | EndSegment
    | Notify
)

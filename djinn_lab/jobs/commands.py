"""What comes out of the queue: commands."""

from __future__ import annotations

import msgspec

from djinn_lab.jobs.states import JobState

LINE_TOLD_MAX = 16


class PlaceSegment(msgspec.Struct, frozen=True, tag=True):
    """The session is bound to ``device``: ask session memory to let the segment run there."""

    job: str
    segment: int
    session: str
    device: str


class StartSegment(msgspec.Struct, frozen=True, tag=True):
    """Hand the segment to the device's worker. ``members``: of a gang, the other devices that it holds."""

    job: str
    segment: int
    device: str
    members: tuple[str, ...] = ()


class CancelSegment(msgspec.Struct, frozen=True, tag=True):
    """Ask the worker to stop between two ops; its answer is an event again."""

    job: str
    device: str


class PreemptSegment(msgspec.Struct, frozen=True, tag=True):
    """Ask the worker to stop the segment between two ops and to keep what it made; its answer is an event
    again."""

    job: str
    segment: int
    device: str


class LineOrdered(msgspec.Struct, frozen=True, tag=True):
    """``jobs``: those that will run next on the device, the first first, at most LINE_TOLD_MAX of them."""

    device: str
    jobs: tuple[str, ...]


class ChargeAccount(msgspec.Struct, frozen=True, tag=True):
    """A stretch of run time of a segment is over, and its account has used so much, exactly. To be stored:
    all of them together are the usage ledger."""

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
    """Answer the submit without a worker's result. ``outcome``: ``cancelled``, ``lost`` with the
    device, or ``refused`` by session memory."""

    job: str
    segment: int
    outcome: str
    ops_done: int
    device: str | None
    message: str


class Notify(msgspec.Struct, frozen=True, tag=True):
    """Tell the job's client. ``position`` counts from 1 in the device's line; ``estimate_s``: while
    it is RESTORING, until session memory has room and its state, if that is known."""

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
    | LineOrdered
    | ChargeAccount
    | EndSegment
    | Notify
)

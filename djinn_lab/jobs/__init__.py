"""CORE: which job runs next, and where. State in, event in, commands out; see
:mod:`djinn_lab.jobs.states`."""

from djinn_lab.jobs.explain import Place
from djinn_lab.jobs.job import DeviceView, Job, QueueSnapshot
from djinn_lab.jobs.messages import (
    CancelRequested,
    CancelSegment,
    Command,
    DeviceAdded,
    DeviceLost,
    EndSegment,
    Event,
    JobFinished,
    MemoryGranted,
    MemoryHeld,
    MemoryRefused,
    Notify,
    PlaceSegment,
    SegmentFinished,
    SegmentProgressed,
    SegmentRefused,
    SegmentSubmitted,
    SessionClosed,
    SessionDetached,
    StartSegment,
)
from djinn_lab.jobs.queue import JobQueue
from djinn_lab.jobs.states import FINISHED, RANKS, TRANSITIONS, IllegalEvent, JobState, Move, Priority

__all__ = [
    "FINISHED",
    "RANKS",
    "TRANSITIONS",
    "CancelRequested",
    "CancelSegment",
    "Command",
    "DeviceAdded",
    "DeviceLost",
    "DeviceView",
    "EndSegment",
    "Event",
    "IllegalEvent",
    "Job",
    "JobFinished",
    "JobQueue",
    "JobState",
    "MemoryGranted",
    "MemoryHeld",
    "MemoryRefused",
    "Move",
    "Notify",
    "Place",
    "PlaceSegment",
    "Priority",
    "QueueSnapshot",
    "SegmentFinished",
    "SegmentProgressed",
    "SegmentRefused",
    "SegmentSubmitted",
    "SessionClosed",
    "SessionDetached",
    "StartSegment",
]

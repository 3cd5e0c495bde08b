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
    Notify,
    SegmentFinished,
    SegmentProgressed,
    SegmentRefused,
    SegmentSubmitted,
    SessionClosed,
    SessionDetached,
    StartSegment,
)
from djinn_lab.jobs.queue import JobQueue
from djinn_lab.jobs.states import FINISHED, TRANSITIONS, IllegalEvent, JobState, Move, Priority

__all__ = [
    "FINISHED",
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
    "Move",
    "Notify",
    "Place",
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

"""CORE: job queue and session memory behind one door. :meth:`Engine.handle` takes the events of users,
workers and the clock, and returns the commands that follow; see :mod:`djinn_lab.engine.engine`."""

from djinn_lab.engine.command_queue import CommandQueue
from djinn_lab.engine.commands import (
    Anomaly,
    Command,
    PartMemoryAnswer,
    PartMemoryDeferred,
    PartMemoryGranted,
    PartMemoryRejected,
    WorkLost,
    WorkStalled,
)
from djinn_lab.engine.engine import Engine
from djinn_lab.engine.events import (
    Event,
    PartMemoryReleased,
    PartMemoryRequested,
    PartMemoryWithdrawn,
    PoolOpened,
    SegmentArrived,
    SegmentStopped,
)
from djinn_lab.events import (
    ClockTicked,
    DeviceAdded,
    HeartbeatChanged,
    SessionClosed,
    SessionDetached,
    WorkerDied,
)

__all__ = [
    "Anomaly",
    "ClockTicked",
    "Command",
    "CommandQueue",
    "DeviceAdded",
    "Engine",
    "Event",
    "HeartbeatChanged",
    "PartMemoryAnswer",
    "PartMemoryDeferred",
    "PartMemoryGranted",
    "PartMemoryRejected",
    "PartMemoryReleased",
    "PartMemoryRequested",
    "PartMemoryWithdrawn",
    "PoolOpened",
    "SegmentArrived",
    "SegmentStopped",
    "SessionClosed",
    "SessionDetached",
    "WorkLost",
    "WorkStalled",
    "WorkerDied",
]

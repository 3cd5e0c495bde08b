"""CORE: the queue and session memory as one. Events of people, workers and the clock go in at
:meth:`Engine.handle`, and what is to be done comes out; see :mod:`djinn_lab.engine.engine`."""

from djinn_lab.engine.commands import (
    Anomaly,
    Command,
    RoomAnswer,
    RoomGranted,
    RoomHeld,
    RoomRefused,
    WorkLost,
    WorkStalled,
)
from djinn_lab.engine.engine import Engine
from djinn_lab.engine.events import (
    ClockTicked,
    DeviceAdded,
    Event,
    PoolOpened,
    RoomAsked,
    RoomClosed,
    RoomWithdrawn,
    SegmentArrived,
    SegmentStopped,
    SessionClosed,
    SessionDetached,
    WorkerDied,
)
from djinn_lab.engine.in_turn import InTurn

__all__ = [
    "Anomaly",
    "ClockTicked",
    "Command",
    "DeviceAdded",
    "Engine",
    "Event",
    "InTurn",
    "PoolOpened",
    "RoomAnswer",
    "RoomAsked",
    "RoomClosed",
    "RoomGranted",
    "RoomHeld",
    "RoomRefused",
    "RoomWithdrawn",
    "SegmentArrived",
    "SegmentStopped",
    "SessionClosed",
    "SessionDetached",
    "WorkLost",
    "WorkStalled",
    "WorkerDied",
]

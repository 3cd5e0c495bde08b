"""CORE: what sessions hold on the devices, and what may still come in. See
:mod:`djinn_lab.memory.accounts`."""

from djinn_lab.memory.accounts import DeviceAccount, MemoryAccounts, MemorySnapshot, SessionAccount
from djinn_lab.memory.footprint import predict_peak_bytes
from djinn_lab.memory.messages import (
    AdmitSegment,
    AnswerPhase,
    Command,
    DeviceAdded,
    DeviceLost,
    Event,
    FreeSession,
    MemoryReported,
    PhaseSignalled,
    RefuseSegment,
    SegmentProposed,
    SessionBound,
    SessionClosed,
    SessionOpened,
    SessionParked,
    SessionResumed,
    ValuesLost,
)
from djinn_lab.memory.states import TRANSITIONS, Connection, IllegalEvent, Phase

__all__ = [
    "TRANSITIONS",
    "AdmitSegment",
    "AnswerPhase",
    "Command",
    "Connection",
    "DeviceAccount",
    "DeviceAdded",
    "DeviceLost",
    "Event",
    "FreeSession",
    "IllegalEvent",
    "MemoryAccounts",
    "MemoryReported",
    "MemorySnapshot",
    "Phase",
    "PhaseSignalled",
    "RefuseSegment",
    "SegmentProposed",
    "SessionAccount",
    "SessionBound",
    "SessionClosed",
    "SessionOpened",
    "SessionParked",
    "SessionResumed",
    "ValuesLost",
    "predict_peak_bytes",
]

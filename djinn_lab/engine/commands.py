"""What comes out of the engine: what workers, clients and the database are to be told. What one core says is
that core's own command."""

from __future__ import annotations

import msgspec

from djinn_lab import jobs, memory


class WorkLost(msgspec.Struct, frozen=True, tag=True):
    """What a preempted segment had made is gone, and ``reason`` says how: it will be ended."""

    job: str
    reason: str

    @property
    def sentence(self) -> str:
        how = f"{self.reason[:1].upper()}{self.reason[1:]}"
        return f"{how} while this cell was set aside, and the values that this session had there are lost."


class RoomGranted(msgspec.Struct, frozen=True, tag=True):
    """The part may run on its device now, and what it made before is there."""

    room: str


class RoomHeld(msgspec.Struct, frozen=True, tag=True):
    """It waits; ``others``: for others to leave, not for a copy."""

    room: str
    reason: str
    others: bool


class RoomRefused(msgspec.Struct, frozen=True, tag=True):
    """``stays``: it cannot be brought to its device, and has its room where it was; else it has none."""

    room: str
    message: str
    stays: bool = False


class WorkStalled(msgspec.Struct, frozen=True, tag=True):
    """``job`` waits though ``device`` could run it, and nothing is under way that would change that; to be
    told to those in charge. ``reason``: for which it waits."""

    job: str
    device: str
    reason: str


class Anomaly(msgspec.Struct, frozen=True, tag=True):
    """The cores disagree about something; to be logged."""

    message: str


RoomAnswer = RoomGranted | RoomHeld | RoomRefused
Command = (
    WorkLost
    | RoomGranted
    | RoomHeld
    | RoomRefused
    | WorkStalled
    | Anomaly
    | jobs.StartSegment
    | jobs.CancelSegment
    | jobs.PreemptSegment
    | jobs.ChargeAccount
    | jobs.EndSegment
    | jobs.Notify
    | memory.GrantSegment
    | memory.RefuseSegment
    | memory.TransferCommand
    | memory.ExpediteTransfer
    | memory.FreeSession
    | memory.DropParked
    | memory.ValuesLost
    | memory.AnswerPhase
)

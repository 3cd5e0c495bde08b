"""What the engine commands: messages to workers, clients and the database. A command of one core is
passed on as it is."""

from __future__ import annotations

import msgspec

from djinn_lab import jobs, memory
from djinn_lab.units import capitalised


class WorkLost(msgspec.Struct, frozen=True, tag=True):
    """The values that a preempted segment had computed are gone, for ``reason``. The segment will be
    ended."""

    job: str
    reason: str

    @property
    def sentence(self) -> str:
        how = capitalised(self.reason)
        return f"{how} while this cell was preempted, and the values that this session had there are lost."


class PartMemoryGranted(msgspec.Struct, frozen=True, tag=True):
    """The gang part may run on its device now; its earlier values are there."""

    part: str


class PartMemoryDeferred(msgspec.Struct, frozen=True, tag=True):
    """The gang part waits. ``others``: for other sessions to leave the device, not for a copy."""

    part: str
    reason: str
    others: bool


class PartMemoryRejected(msgspec.Struct, frozen=True, tag=True):
    """The gang part gets no memory grant. ``immovable``: its state cannot be moved, and keeps its memory on
    the device where it is."""

    part: str
    message: str
    immovable: bool = False


class WorkStalled(msgspec.Struct, frozen=True, tag=True):
    """``job`` is pending for ``reason`` though ``device`` could run it, and nothing is under way that
    would change that. For the pool's administrators."""

    job: str
    device: str
    reason: str


class Anomaly(msgspec.Struct, frozen=True, tag=True):
    """Log that the two cores disagree about something."""

    message: str


PartMemoryAnswer = PartMemoryGranted | PartMemoryDeferred | PartMemoryRejected
Command = (
    WorkLost
    | PartMemoryGranted
    | PartMemoryDeferred
    | PartMemoryRejected
    | WorkStalled
    | Anomaly
    | jobs.StartSegment
    | jobs.CancelSegment
    | jobs.PreemptSegment
    | jobs.ChargeAccount
    | jobs.EndSegment
    | jobs.Notify
    | memory.GrantSegment
    | memory.RejectSegment
    | memory.TransferCommand
    | memory.ExpediteTransfer
    | memory.FreeSession
    | memory.DropParked
    | memory.ValuesLost
    | memory.AnswerPhase
)

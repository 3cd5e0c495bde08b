"""Append-only events of the cores, and their replay.

Each record carries a digest of the commands that its event led to. Replaying the records of one pool into
fresh cores must lead to the same commands; where it does not, :func:`replay` says at which record.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
from blake3 import blake3

from djinn_lab import jobs, memory

JOBS = "jobs"
MEMORY = "memory"

_encode = msgspec.msgpack.Encoder().encode
_decode_jobs = msgspec.json.Decoder(jobs.Event).decode
_decode_memory = msgspec.json.Decoder(memory.Event).decode


class Record(msgspec.Struct, frozen=True):
    """``seq`` counts up over the life of a database. ``core``: ``"jobs"`` or ``"memory"``. ``detail``:
    the event as JSON. ``commands``: digest of what the core answered."""

    seq: int
    pool: str
    at_s: float
    core: str
    event: str
    detail: str
    commands: str


class Handled(NamedTuple):
    """An event that a core handled, and what it answered, for the journal's line ``seq``. Nobody may change
    either any more, since the line is written later."""

    seq: int
    pool: str
    event: jobs.Event | memory.Event
    commands: Sequence[jobs.Command] | Sequence[memory.Command]

    @property
    def record(self) -> Record:
        return record(self.seq, self.pool, self.event, self.commands)


class ReplayDiffers(Exception):
    """A core decided otherwise than it did live."""


def record(
    seq: int,
    pool: str,
    event: jobs.Event | memory.Event,
    commands: Sequence[jobs.Command] | Sequence[memory.Command],
) -> Record:
    """The journal's line for one handled event."""
    core = JOBS if isinstance(event, jobs.Event) else MEMORY
    detail = msgspec.json.encode(event).decode()
    return Record(seq, pool, event.at_s, core, type(event).__name__, detail, digest(commands))


def digest(commands: Sequence[jobs.Command] | Sequence[memory.Command]) -> str:
    """64 bits over the commands, equal for equal commands."""
    return str(blake3(_encode(commands)).hexdigest(length=8))


def replay(
    records: Iterable[Record], queue: jobs.JobQueue, accounts: memory.MemoryAccounts
) -> list[list[jobs.Command] | list[memory.Command]]:
    """Feed one pool's records, oldest first, into fresh cores; the commands, record by record.

    Raises ReplayDiffers at the first record whose commands differ from the live ones.
    """
    answers: list[list[jobs.Command] | list[memory.Command]] = []
    for line in records:
        commands: list[jobs.Command] | list[memory.Command]
        if line.core == JOBS:
            commands = queue.handle(_decode_jobs(line.detail))
        else:
            commands = accounts.handle(_decode_memory(line.detail))
        if digest(commands) != line.commands:
            raise ReplayDiffers(f"record {line.seq} ({line.event}) now leads to {commands}")
        answers.append(commands)
    return answers

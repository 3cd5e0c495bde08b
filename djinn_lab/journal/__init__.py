"""Append-only events of the engine, and their replay.

Each record carries a digest of the commands that its event led to. Replaying the records of one pool into a
fresh engine must lead to the same commands; where it does not, :func:`replay` says at which record.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec
from blake3 import blake3

import djinn_lab
from djinn_lab import jobs, memory
from djinn_lab.engine import Command, Engine, Event, PoolOpened
from djinn_lab.protocol.version import VERSION

CORE = "engine"
DECIDING = ("engine", "jobs", "memory")
"""Packages with the code that decides."""
UNKNOWN = "an earlier version"
"""That wrote no version into its journals."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.json.Decoder(Event).decode


class Record(msgspec.Struct, frozen=True):
    """``seq`` counts up over the life of a database. ``core``: CORE, or another name in what older versions
    wrote. ``detail``: the event as JSON. ``commands``: digest of what the engine answered."""

    seq: int
    pool: str
    at_s: float
    core: str
    event: str
    detail: str
    commands: str


class Handled(NamedTuple):
    """An event that the engine handled, and what it answered, for the journal's line ``seq``. Neither may
    change any more, since the line is written later."""

    seq: int
    pool: str
    event: Event
    commands: Sequence[Command]

    @property
    def record(self) -> Record:
        return record(self.seq, self.pool, self.event, self.commands)


class ReplayDiffers(Exception):
    """The engine decided otherwise than it did live."""


def record(seq: int, pool: str, event: Event, commands: Sequence[Command]) -> Record:
    """The journal's line for one handled event."""
    detail = msgspec.json.encode(event).decode()
    return Record(seq, pool, event.at_s, CORE, type(event).__name__, detail, digest(commands))


def version_of(record: Record) -> str:
    """Return the version that wrote the journal with this first record; empty where it does not say."""
    try:
        event = _decode(record.detail)
    except msgspec.ValidationError:
        return ""
    return event.version if isinstance(event, PoolOpened) else ""


def digest(commands: Sequence[Command]) -> str:
    """64 bits over the commands, equal for equal commands."""
    return str(blake3(_encode(commands)).hexdigest(length=8))


def replay(records: Iterable[Record], engine: Engine) -> Iterator[list[Command]]:
    """Feed one pool's records, oldest first, into a fresh engine; the commands, record by record.

    Raises ReplayDiffers at the first record that this engine cannot read or take, or whose commands differ
    from the live ones.
    """
    for line in records:
        what = f"Event {line.seq} ({line.event})"
        try:
            commands = engine.handle(_decode(line.detail))
        except (jobs.IllegalEvent, memory.IllegalEvent) as error:
            raise ReplayDiffers(f"{what} cannot happen here: {error}") from None
        except msgspec.ValidationError as error:
            raise ReplayDiffers(f"{what} is none that this version knows: {error}") from None
        if digest(commands) != line.commands:
            now = "\n".join(f"  {command}" for command in commands) or "  nothing"
            raise ReplayDiffers(f"{what} led to other commands than now:\n{now}")
        yield commands


@cache
def this_version() -> str:
    """Name the version that writes a journal, such as ``0.2.0 (decisions 1f0c9a27)``: that of the package,
    and a digest of the code that decides, since commits of one release share a number."""
    found = blake3()
    root = Path(djinn_lab.__file__).parent
    for package in DECIDING:
        for path in sorted((root / package).rglob("*.py")):
            found.update(path.relative_to(root).as_posix().encode())
            found.update(path.read_bytes())
    return f"{VERSION} (decisions {found.hexdigest(length=4)})"

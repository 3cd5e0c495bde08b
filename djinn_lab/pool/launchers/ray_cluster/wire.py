"""What the pool and the agent of a host say to each other, as arguments and results of Ray's calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from djinn_lab.pool.blobs.directory import Belonging
from djinn_lab.pool.devices.launcher import GroupLost, WorkerHealth
from djinn_lab.pool.devices.plans import DevicePlan
from djinn_lab.pool.launchers.ray_cluster.files import Content
from djinn_lab.pool.launchers.ray_cluster.link import LinkUse
from djinn_lab.protocol.worker import RunBatch, ToWorker


class HostOptions(msgspec.Struct, frozen=True):
    """``belonging``: of the pool. ``plans``: of the devices on the host, by the names that the pool gives
    them. ``blob_directory``: the pool's own, where the agent runs on the pool's host; None elsewhere.
    ``left``: directories of dead agents there, and ``left_files``: what this one needs of them. ``command``:
    starts each worker, in place of a template."""

    pool: str
    belonging: Belonging
    version: str
    torch_version: str
    plans: tuple[DevicePlan, ...]
    blob_directory: str | None
    left: tuple[str, ...] = ()
    left_files: tuple[str, ...] = ()
    command: tuple[str, ...] | None = None


class HostFacts(msgspec.Struct, frozen=True):
    """``node``: of Ray, on which the agent is. ``roots``: directories in which workers there park sessions.
    ``left``: those of dead agents, from which it can read.
    ``blob_bytes_max``: of uploads that are kept there; None: it uses the pool's own.
    ``second_copies_bytes_max``: of sessions that other hosts parked."""

    node: str
    pid: int
    roots: tuple[str, ...]
    left: tuple[str, ...]
    blob_bytes_max: int | None
    second_copies_bytes_max: int


class Piece(msgspec.Struct, frozen=True, array_like=True):
    """Bytes of a parked session in a file of the host that has them."""

    path: str
    offset: int
    nbytes: int


class HostOrder(msgspec.Struct, frozen=True):
    """An order for a device, with what it needs. ``message``: encoded, of :mod:`djinn_lab.protocol.worker`.
    ``groups``: the trust groups of its sessions. ``uploads``, ``results``: files by name that the host does
    not have yet. ``unneeded``: uploads and results that it may remove before. ``pieces``: of a session that
    was parked on other hosts, with their bytes one after the other."""

    device: str
    message: bytes
    groups: Mapping[str, str]
    uploads: Mapping[str, Content] = {}
    results: Mapping[str, Content] = {}
    unneeded: tuple[str, ...] = ()
    pieces: tuple[Piece, ...] = ()
    pieces_content: Content | None = None


class Said(msgspec.Struct, frozen=True, tag=True):
    """``message``: encoded. ``results``: the files that it names."""

    device: str
    message: bytes
    results: Mapping[str, Content]


class Died(msgspec.Struct, frozen=True, tag=True):
    device: str
    how: str
    group: GroupLost | None


class Answers(msgspec.Struct, frozen=True, tag=True):
    device: str
    heard: bool


class Failed(msgspec.Struct, frozen=True, tag=True):
    device: str
    how: str


HostEvent = Said | Died | Answers | Failed


class HostReport(msgspec.Struct, frozen=True):
    """Events since the last report, in order. ``health``: of each device; ``lives``: how many workers a trust
    group has had there before its present one. ``orphans``: files that dead workers or moved sessions left,
    which stay until the pool says that no manifest names them. ``received``: over the host's link."""

    events: tuple[HostEvent, ...]
    health: Mapping[str, WorkerHealth]
    lives: Mapping[str, Mapping[str, int]]
    orphans: tuple[str, ...]
    received: LinkUse


ActorHandle = Any
"""Of Ray, which gives its handles no types."""


def moved_name(device: str, session: str) -> str:
    """Return how the file's name begins that holds a session which moved to a device from another host."""
    return f"{session}-{device}"


def sessions_of(message: ToWorker) -> tuple[str, ...]:
    """Return the sessions that an order concerns."""
    if isinstance(message, RunBatch):
        return tuple(segment.session for segment in message.segments)
    session = getattr(message, "session", None)
    return () if session is None else (session,)

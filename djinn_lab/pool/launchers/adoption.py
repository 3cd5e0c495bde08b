"""Takes over what the workers of a dead pool had parked, for sessions that the next pool continues.

A manifest names files by their paths. Each file is linked into the directory of the trust group that may
read it, and stays there until no manifest names it. The manifest is written anew with the new paths."""

from __future__ import annotations

import logging
import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from djinn_lab.pool.devices.launcher import TakenCopy

DEVICE = re.compile(r"host-.+?-(?=\d+\.|adopted-)")

log = logging.getLogger(__name__)

Pieces = list[tuple[bytes, bytes, int, int, int]]
"""Digest, fingerprint, bytes, number of the file, offset."""


class ManifestStorage(msgspec.Struct, array_like=True):
    """The first fields of a storage in a manifest; the others are passed on unread."""

    nbytes: int
    piece_bytes: int
    kv: object
    shared: str | None
    pieces: Pieces


class LeftCopy(NamedTuple):
    """A whole copy of a session that a dead pool left. ``group``: its trust group."""

    group: str
    manifest: bytes


class Adoption:
    """``host``, ``disk``: directories in which dead workers parked sessions. ``place``: the group's own
    directory for a file of the host (False) or the disk (True), None for none."""

    def __init__(
        self, host: Sequence[Path], disk: Sequence[Path], place: Callable[[str, bool], Path | None]
    ) -> None:
        self._host = host
        self._disk = disk
        self._place = place
        self._linked: dict[tuple[str, str], Path] = {}
        """By group and former path."""

    @property
    def files(self) -> list[Path]:
        """List all files that were taken over."""
        return list(self._linked.values())

    def take(self, copy: LeftCopy) -> TakenCopy | None:
        """Take over a copy; None where some of it is not here."""
        try:
            content = msgspec.msgpack.decode(copy.manifest, type=dict[str, msgspec.Raw])
            files = msgspec.msgpack.decode(content["files"], type=list[str])
            storages = msgspec.msgpack.decode(content["storages"], type=list[ManifestStorage])
        except (msgspec.DecodeError, KeyError) as error:
            log.error("the manifest of a parked session cannot be read: %s", error)
            return None
        taken = [self._take_file(copy.group, path) for path in files]
        here = [path for path in taken if path is not None]
        if len(here) < len(files):
            return None
        on_disk = [self._is_below(path, self._disk) for path in files]
        pieces = {(piece[3], piece[4]): piece[2] for storage in storages for piece in storage.pieces}
        disk_bytes = sum(nbytes for (number, _), nbytes in pieces.items() if on_disk[number])
        new = content | {"files": msgspec.Raw(msgspec.msgpack.encode([str(path) for path in here]))}
        return TakenCopy(msgspec.msgpack.encode(new), disk_bytes)

    def _take_file(self, group: str, name: str) -> Path | None:
        known = self._linked.get((group, name))
        if known is not None:
            return known
        on_disk = self._is_below(name, self._disk)
        if not on_disk and not self._is_below(name, self._host):
            return None
        directory, source = self._place(group, on_disk), Path(name)
        if directory is None:
            return None
        target = directory / f"{_device_of(source)}adopted-{uuid.uuid4().hex}{source.suffix}"
        try:
            target.hardlink_to(source)
        except OSError:
            return None  # it is gone, as after the machine was started anew
        self._linked[group, name] = target
        return target

    def _is_below(self, name: str, directories: Sequence[Path]) -> bool:
        return any(Path(name).is_relative_to(directory) for directory in directories)


def _device_of(path: Path) -> str:
    """Return how the names of its device's files in shared memory begin, as
    :func:`~djinn_lab.protocol.host_rows.arena_prefix` does."""
    found = DEVICE.match(path.name)
    return found[0] if found else ""


def take_copies(copies: Mapping[str, LeftCopy], adoption: Adoption) -> dict[str, TakenCopy]:
    """Take over the copies of sessions, by session; those of which some is gone are left out."""
    taken = ((session, adoption.take(copy)) for session, copy in copies.items())
    return {session: copy for session, copy in taken if copy is not None}

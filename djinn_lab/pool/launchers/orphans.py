"""Files in which dead workers parked sessions. They stay as long as a session may be restored from them, and
of those in shared memory only the parts that a session needs."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import msgspec

from djinn_lab.pool.launchers.adoption import ManifestStorage
from djinn_lab.protocol.host_rows import arena_prefix
from djinn_lab.system.files import PAGE_BYTES, punch

MOVED = ".moved-"
"""In the names of files that hold a session which was parked on another host."""
ARENA = ".arena"
"""How the names of files in shared memory end. They begin with
:func:`~djinn_lab.protocol.host_rows.arena_prefix`."""
BLOCK_BYTES = 512
"""What ``st_blocks`` counts, on every file system."""

Range = tuple[int, int]
"""The first byte, and the one behind the last."""

log = logging.getLogger(__name__)


class OrphanedFiles:
    """``directories``: where workers park sessions, each group below a directory of its own. Their files'
    names hold the process's number."""

    def __init__(self, directories: Sequence[Path]) -> None:
        self._directories = directories
        self._files: set[Path] = set()
        self._shortened: dict[Path, list[Range]] = {}
        """By file, the ranges that were left of it."""

    def died(self, pid: int) -> None:
        """Note the files of a dead worker."""
        for directory in self._directories:
            self._files.update(directory.glob(f"*/*-{pid}.*"), directory.glob(f"*/*-{pid}-*"))

    def adopted(self, paths: Iterable[Path]) -> None:
        """Note files that a dead pool left."""
        self._files.update(paths)

    def __bool__(self) -> bool:
        return bool(self._files)

    @property
    def files(self) -> list[Path]:
        """List them."""
        return sorted(self._files)

    def remove(self, paths: Iterable[Path]) -> None:
        """Remove those of these files that are among them."""
        for path in self._files.intersection(paths):
            path.unlink(missing_ok=True)
            self._files.discard(path)
            self._shortened.pop(path, None)

    def sweep(self, manifests: Iterable[bytes]) -> None:
        """Remove those that no manifest names, and of the others in shared memory what none names."""
        if not self._files:
            return
        needed = list(manifests)
        self.remove([path for path in self._files if not is_named(str(path), needed)])
        for path in self._files:
            if path.suffix == ARENA:
                self._shorten(path, named_ranges(str(path), needed))

    def in_host_memory(self, device: str, needed: Sequence[bytes]) -> tuple[int, int]:
        """Return the bytes that files of a device's dead workers take of shared memory, and how many of them
        these manifests do not name."""
        taken_bytes = spare_bytes = 0
        for path in self._files:
            if path.suffix == ARENA and path.name.startswith(arena_prefix(device)):
                nbytes, named = _allocated_bytes(path), named_ranges(str(path), needed)
                taken_bytes += nbytes
                if named is not None:
                    spare_bytes += max(0, nbytes - sum(_whole_pages(named)))
        return taken_bytes, spare_bytes

    def _shorten(self, path: Path, named: list[Range] | None) -> None:
        """Return what lies outside of these ranges to the file system; None: nothing is known of them."""
        if named is None or self._shortened.get(path) == named:
            return
        self._shortened[path] = named
        try:
            _punch(path, named)
        except OSError as error:
            log.error("%s cannot be shortened: %s", path, error)


def _allocated_bytes(path: Path) -> int:
    try:
        return path.stat().st_blocks * BLOCK_BYTES
    except FileNotFoundError:
        return 0


def is_named(path: str, manifests: Iterable[bytes]) -> bool:
    """Return whether one of the manifests names a file."""
    name = path.encode()
    return any(name in manifest for manifest in manifests)


def named_ranges(path: str, manifests: Iterable[bytes]) -> list[Range] | None:
    """Return the ranges of a file that manifests name, joined and in order; None where one that names the
    file does not say which."""
    found: list[Range] = []
    for manifest in manifests:
        if path.encode() not in manifest:
            continue
        try:
            found += _ranges(path, manifest)
        except (msgspec.DecodeError, KeyError):
            return None
    joined: list[Range] = []
    for begin, end in sorted(found):
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((begin, end))
    return joined


def _whole_pages(ranges: Iterable[Range]) -> Iterator[int]:
    """Yield the bytes of the pages in which each of the ranges lies."""
    for begin, end in ranges:
        yield -(-end // PAGE_BYTES) * PAGE_BYTES - begin // PAGE_BYTES * PAGE_BYTES


def _ranges(path: str, manifest: bytes) -> Iterator[Range]:
    content = msgspec.msgpack.decode(manifest, type=dict[str, msgspec.Raw])
    files = msgspec.msgpack.decode(content["files"], type=list[str])
    for storage in msgspec.msgpack.decode(content["storages"], type=list[ManifestStorage]):
        for _, _, nbytes, number, offset in storage.pieces:
            if files[number] == path:
                yield offset, offset + nbytes


def _punch(path: Path, named: Sequence[Range]) -> None:
    """Return the whole pages between the ranges. Raises OSError."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        bounds = [(0, 0), *named, (os.fstat(descriptor).st_size,) * 2]
        for (_, begin), (end, _) in pairwise(bounds):
            punch(descriptor, begin, end)
    finally:
        os.close(descriptor)
